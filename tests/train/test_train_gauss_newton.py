"""`gauss-newton` as the optimizer of a training run."""

from __future__ import annotations

import pytest
import torch

from quadform.core.errors import InputError
from quadform.corpora import dataset
from quadform.nn import Transformer
from quadform.optim import GaussNewtonCG
from quadform.train import Schedule, TrainConfig, train
from quadform.train.recipes import prepare

CONFIG = TrainConfig(
    steps=3, batch_size=8, optimizer="gauss-newton", lr=1.0, schedule=Schedule(decay="constant", warmup=0), clip=0.0
)


def model_of(data) -> Transformer:
    return Transformer("pre-ln", depth=1, d_model=4, heads=2, dtype=torch.float64, **data.settings)


def test_its_steps_are_those_of_the_optimizer_and_a_resumed_run_goes_on(tmp_path):
    """Three steps equal three of GaussNewtonCG on the same batches; cut after two, the damping is taken up."""
    data = dataset("add", digits=1)
    whole, own, cut = (model_of(data) for _ in range(3))
    train(whole, data, CONFIG, progress=False)
    optimizer = GaussNewtonCG(own)
    for _, batch in zip(range(3), data.batches("train", 8, 0), strict=False):
        optimizer.step(batch)
    assert all(torch.allclose(p, q, rtol=1e-9) for p, q in zip(whole.parameters(), own.parameters(), strict=True))
    assert optimizer.param_groups[0]["damping"] != GaussNewtonCG(own).param_groups[0]["damping"]

    def stop(done, *_):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(cut, data, CONFIG.__class__(**vars(CONFIG) | {"save_every": 1}), out=tmp_path, progress=stop)
    again = model_of(data)
    train(again, data, CONFIG.__class__(**vars(CONFIG) | {"save_every": 1}), out=tmp_path, progress=False)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), again.parameters(), strict=True))


def test_its_rate_is_1_unless_given():
    assert prepare("add", depth=1, d_model=4, heads=2, optimizer="gauss-newton").config.lr == 1.0
    assert prepare("add", depth=1, d_model=4, heads=2, optimizer="gauss-newton", lr=0.5).config.lr == 0.5


@pytest.mark.parametrize("more", [{"smoothing": 0.1}, {"weight_decay": 0.1}])
def test_what_it_does_not_do_is_refused(more):
    with pytest.raises(InputError, match="plain loss"):
        TrainConfig(optimizer="gauss-newton", **more)
