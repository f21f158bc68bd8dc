"""What `adam-diagonal` and `sgd-adam` compute, against scipy, dense matrices and torch's own loops."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import quadform as qf
from quadform.corpora.datasets import Addition
from quadform.experiments import adam_diagonal, sgd_adam


def test_entries_of_a_diagonal_are_those_of_the_matrix() -> None:
    A = torch.randn(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    which = torch.tensor([7, 0, 3])
    found = adam_diagonal.entries_of(qf.Dense(A + A.mT, qf.Space((("w", (9,)),))), which)
    assert torch.allclose(found, 2 * A.diagonal()[which])


def test_rank_correlation_and_power() -> None:
    """Spearman's of what both see; the power of a power law, whatever its factor."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(2, 40, dtype=torch.float64, generator=generator)
    x[3], y[5] = 0, 0
    seen = (x > 0) & (y > 0)
    assert adam_diagonal.rank_correlation(x, y) == pytest.approx(spearmanr(x[seen], y[seen]).statistic)
    assert adam_diagonal.power(x, 3 * x**0.7) == pytest.approx(0.7)


@pytest.mark.parametrize("name", ["softmax, norm", "MLP", "CNN"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_runs_side_by_side_are_those_of_single_loops(name: str, optimizer: str) -> None:
    """The losses of one rate and seed of the stack, from torch's optimizer with its scheduler."""
    config = dataclasses.replace(sgd_adam.PRESETS["smoke"], steps=12, rates=1, seeds=2)
    data, seed = Addition(digits=config.digits), 1
    rate = sgd_adam.grid(optimizer, config)[1]
    model = sgd_adam.net(name, config, data, seed)
    made = {
        "SGD": lambda: torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        "Adam": lambda: torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.99)),
    }
    steps = made[optimizer]()
    losses = []
    for k, batch in zip(range(config.steps), data.batches("train", config.batch, seed), strict=False):
        steps.param_groups[0]["lr"] = rate * min(1.0, (k + 1) / (config.warmup * config.steps))
        steps.zero_grad()
        loss = nn.functional.cross_entropy(model(batch["tokens"]).flatten(0, -2), batch["labels"].flatten())
        losses.append(loss.detach())
        loss.backward()
        steps.step()
    want = torch.stack(losses).clamp(max=math.log(12))
    assert int((want < math.log(12)).sum()) > 3
    found = sgd_adam._train(name, optimizer, config)["curve"][1, seed]
    assert torch.allclose(found, want, rtol=1e-9, atol=0)


def test_no_place_of_the_nets_sees_what_comes_after_it() -> None:
    config, data = sgd_adam.PRESETS["smoke"], Addition(digits=1)
    tokens = torch.randint(12, (2, 6), generator=torch.Generator().manual_seed(0))
    for name in sgd_adam.NETS:
        model = sgd_adam.net(name, config, data, 0)
        after = tokens.clone()
        after[:, 4:] = (after[:, 4:] + 1) % 12
        assert torch.allclose(model(tokens)[:, :4], model(after)[:, :4]), name
