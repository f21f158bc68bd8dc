"""One loop trains everywhere: the losses of `train`, of short runs and of experiments are as first recorded."""

from __future__ import annotations

import pytest
import torch

from quadform.applications.short_run import ShortRun
from quadform.corpora import Addition, Letters
from quadform.experiments.protocol import Recipe, train_run
from quadform.nn.transformer import Transformer
from quadform.train import TrainConfig, train
from quadform.train.folder import RunFolder

WORDS = Letters(letters=5, longest=4)
SUMS = Addition(digits=1)


def losses_of_train(folder) -> list[float]:
    """Two batches a step, dropout, label smoothing, clipping: all that a step has."""
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, dropout=0.1, dtype=torch.float64, **WORDS.settings)
    config = TrainConfig(steps=6, batch_size=4, accumulate=2, lr=3e-2, clip=0.5, smoothing=0.1, log_every=1)
    train(model, WORDS, config, out=folder, progress=False)
    return [line["loss"] for line in RunFolder(folder).lines() if "loss" in line]


def losses_of_a_short_run(folder) -> list[float]:
    model = Transformer("sas-p", depth=2, d_model=8, heads=2, dtype=torch.float64, **SUMS.settings)
    run = ShortRun(model, SUMS, TrainConfig(steps=6, batch_size=4, lr=3e-2, clip=0.5), None)
    run.to(6)
    return run.losses


def losses_of_the_protocol(folder) -> list[float]:
    recipe = Recipe(design="pre-ln", depth=1, dim=8, heads=2, d_ff=16, steps=6, batch=4, lr=3e-2, warmup=0.3, seed=0)
    model = Transformer(recipe.model_config(SUMS), seed=0, dtype=torch.float64)
    out = train_run(recipe, SUMS, valid_batches=1, model=model)
    held = next(SUMS.batches("valid", 4, 0))
    return [
        float(out["loss"].sum()),
        float(model.loss(held).detach()),
        *(float(p.detach().sum()) for p in model.parameters()),
    ]


#: Found before the three loops were one, on one thread.
RECORDED = {
    "losses_of_train": [
        2.6440560376757283,
        2.2304519423075004,
        2.1271379073477616,
        2.0396297378785833,
        1.8879424261969695,
        1.9436753245829879,
    ],
    "losses_of_a_short_run": [
        3.1037272461682957,
        2.900885183895191,
        2.196547268818596,
        2.469227640611481,
        2.0838731684011575,
        2.49736339573527,
    ],
    "losses_of_the_protocol": [
        16.39727210998535,
        2.366854264794368,
        -1.8398301533916608,
        7.955691424914494,
        8.034212816585388,
        7.93061590359052,
        1.6278883939047395,
        -2.8007120716697727,
        -0.7552933757126092,
        6.092561149104373,
        -5.666075291476372,
        0.594373871279326,
        7.549374657879466,
    ],
}


@pytest.mark.parametrize("losses", [losses_of_train, losses_of_a_short_run, losses_of_the_protocol])
def test_losses_are_the_recorded_ones(losses, tmp_path):
    """The same losses and weights to rounding, in float64."""
    assert losses(tmp_path) == pytest.approx(RECORDED[losses.__name__], rel=1e-10)
