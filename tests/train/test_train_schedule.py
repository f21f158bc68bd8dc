"""Schedules and optimizers: closed forms, and what takes no weight decay."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.errors import InputError, UnknownName
from quadform.nn import Transformer
from quadform.train import Schedule, TrainConfig
from quadform.train.optimizer import Optimizer

DECAYS = ("linear", "cosine", "inverse-sqrt", "constant")


@given(st.sampled_from(DECAYS), st.integers(1, 300), st.floats(0, 0.9), st.floats(0, 1))
def test_peak_and_bounds(decay, steps, warmup, final):
    """The factor rises to 1 at its peak, never rises after it, and stays in (0, 1] for final > 0.

    The peak is step w counted from 0, and of the inverse square root step w counted from 1, as published.
    """
    schedule = Schedule(decay=decay, warmup=warmup, final=final)
    w = schedule.warmup_steps(steps)
    if decay == "inverse-sqrt":
        w = max(w - 1, 0)
    factors = [schedule.factor(t, steps) for t in range(steps)]
    assert all(a < b for a, b in itertools.pairwise(factors[: w + 1]))
    assert all(a >= b for a, b in itertools.pairwise(factors[w:]))
    assert w == steps or factors[w] == pytest.approx(1, abs=1e-15)
    assert all(0 < f <= 1 for f in factors)


def test_closed_forms():
    """Half-way values: linear (1 + final)/2, cosine likewise, inverse square root 1/2 at four times the peak step."""
    assert Schedule(decay="linear", warmup=20, final=0.2).factor(60, 100) == pytest.approx(0.6)
    assert Schedule(decay="linear", warmup=20, final=0.2).factor(40, 100) == pytest.approx(0.8)
    assert Schedule(decay="cosine", warmup=20, final=0.2).factor(60, 100) == pytest.approx(0.6)
    assert Schedule(decay="cosine", warmup=0).factor(25, 100) == pytest.approx((1 + 0.5**0.5) / 2)
    assert Schedule(decay="inverse-sqrt", warmup=10).factor(39, 100) == pytest.approx(0.5)
    assert Schedule(decay="constant", warmup=9).factor(4, 100) == pytest.approx(0.5)
    assert Schedule(warmup=0.05).warmup_steps(1000) == 50


@given(st.integers(1, 50), st.integers(1, 200))
def test_inverse_square_root_is_the_published_rate(w, number):
    """d^-0.5 min(s^-0.5, s w^-1.5) over its largest value, at step number s = 1, 2, ... [VSP17, Eq. 3]."""

    def rate(s: int) -> float:
        return 512**-0.5 * min(s**-0.5, s * w**-1.5)

    schedule = Schedule(decay="inverse-sqrt", warmup=w)
    assert schedule.factor(number - 1, 200) == pytest.approx(rate(number) / max(map(rate, range(1, 201))), rel=1e-12)


def test_config_round_trip_and_refusals():
    """A config survives plain data; wrong names and values are refused with advice."""
    config = TrainConfig(steps=7, schedule=Schedule(decay="cosine"), betas=(0.9, 0.98))
    assert TrainConfig.from_dict(config.to_dict()) == config
    earlier = config.to_dict()
    earlier["optimiser"] = earlier.pop("optimizer")  # run folders of version 0.1
    assert TrainConfig.from_dict(earlier) == config
    assert config.differs(TrainConfig(steps=7, betas=(0.9, 0.98))) == ["schedule"]
    for wrong in ({"optimizer": "adam-w"}, {"schedule": {"decay": "cosin"}}, {"stepps": 3}):
        with pytest.raises(UnknownName, match="Did you mean"):
            TrainConfig.from_dict(wrong)
    wrongs = [{"steps": 0}, {"smoothing": 1.0}, {"goal": 0.9}, {"diverged_at": 1.0}, {"lr": -1.0}, {"goal": 2.0}]
    wrongs += [{"steps": 2.5}, {"valid_every": 2.5}]  # such a run would never come to its end
    wrongs += [{name: math.nan} for name in ("lr", "clip", "weight_decay", "eps", "diverged_at")] + [{"lr": math.inf}]
    for wrong in wrongs:
        with pytest.raises(InputError, match=next(iter(wrong))):
            TrainConfig(**wrong)
    with pytest.raises(InputError, match="warmup"):
        Schedule(warmup=math.nan)


def test_config_is_torch_free():
    """Reading TrainConfig loads no torch."""
    code = "import sys; from quadform.train import TrainConfig; TrainConfig(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("design", ["pre-ln", "sas-p", "v-skipinit"])
def test_no_decay_on_scalars_norms_biases(name, design):
    """With zero gradients one step multiplies matrices by 1 - lr wd and leaves scalars, norms and biases alone."""
    config = TrainConfig(optimizer=name, weight_decay=0.5, lr=0.1)
    model = Transformer(design, depth=2, d_model=8, heads=2, vocab=7, biases=("q", "mlp", "out"), dtype=torch.float64)
    for p in model.parameters():
        p.data.add_(1.0)
        p.grad = torch.zeros_like(p)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    Optimizer(model, config).step(0.1)
    for n, p in model.named_parameters():
        last = n.rsplit(".", 1)[-1]
        matrix = last.startswith("W_")
        torch.testing.assert_close(p.detach(), before[n] * (0.95 if matrix else 1.0), rtol=1e-14, atol=0)
    assert len({n.rsplit(".", 1)[-1] for n in before if not n.rsplit(".", 1)[-1].startswith("W_")}) > 3


@pytest.mark.parametrize(
    ("name", "torchs"),
    [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)],
)
@pytest.mark.parametrize("decay", [None, 0.3])
def test_optimizers_are_torchs(name, torchs, decay):
    """adam and sgd decay nothing unless asked, and asked for they do what torch's do; adamw decays by 0.1 by itself."""
    model = Transformer("rezero", depth=1, d_model=4, heads=1, vocab=5, dtype=torch.float64, positions="none")
    twin = Transformer("rezero", depth=1, d_model=4, heads=1, vocab=5, dtype=torch.float64, positions="none")
    matrices = [[p for p in m.parameters() if p.ndim > 1] for m in (model, twin)]
    for p, q in zip(*matrices, strict=True):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    config = TrainConfig(optimizer=name, weight_decay=decay, momentum=0.0, lr=0.1)
    assert config.weight_decay == (decay or {"adamw": 0.1}.get(name, 0.0))
    Optimizer(model, config).step(0.1)
    torchs(matrices[1], lr=0.1, weight_decay={"adamw": 0.1}.get(name, 0.0) if decay is None else decay).step()
    for p, q in zip(*matrices, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-14, atol=0)


def test_weight_decay_is_told():
    """The words of an update say whether weights decay, and that adam's decay is a penalty in its gradient."""
    assert TrainConfig(optimizer="adam").update == "adam at 0.001, no weight decay"
    assert TrainConfig().update == "adamw at 0.001, weight decay 0.1"
    coupled = TrainConfig(optimizer="adam", weight_decay=0.2, lr=0.5).update
    assert coupled == "adam at 0.5, weight decay 0.2 as an L2 penalty in the gradient"


def test_every_parameter_is_trained_once():
    """The groups of an optimizer hold each parameter that requires a gradient exactly once; frozen ones not at all."""
    model = Transformer("sas", depth=2, d_model=8, heads=2, vocab=7)
    model.embed.W_E.requires_grad_(False)
    for name in ("adamw", "adam", "sgd", "muon"):
        held = [
            p for o in Optimizer(model, TrainConfig(optimizer=name)).parts for g in o.param_groups for p in g["params"]
        ]
        assert sorted(map(id, held)) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    with pytest.raises(InputError, match="requires_grad"):
        Optimizer(model.requires_grad_(False), TrainConfig())
