"""What `flatness` and `optimizers` compute: ranks and their intervals, planted rankings, steps of the optimizers."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr

import quadform as qf
from quadform.core.errors import MissingExtra
from quadform.corpora.datasets import Addition
from quadform.experiments import flatness, optimizers
from quadform.experiments.measure import bootstrapped, spearman
from quadform.experiments.stacked import Stack
from quadform.preconditioners import kfac, mean_eigenvalue


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_spearman_with_ties() -> None:
    x, y = ((5 * drawn(6, 20, seed=seed)).round() for seed in (1, 2))
    want = [spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
    assert spearman(x, y).tolist() == pytest.approx(want)
    assert spearman(torch.ones(5), torch.arange(5.0)).isnan()


def test_a_bootstrap_of_a_mean_has_its_standard_error() -> None:
    values = drawn(200)
    found = bootstrapped(lambda which: values[which].mean(-1), 200, "a mean")
    assert found.value == pytest.approx(float(values.mean()))
    assert found.error == pytest.approx(float(values.std()) / 200**0.5, rel=0.1)
    assert "95 % interval" in found.note


def test_nets_side_by_side_have_their_own_gradients_and_losses() -> None:
    config, data = flatness.PRESETS["smoke"], Addition(digits=1)
    models = [flatness.net(config, data, seed) for seed in range(2)]
    stack = Stack(models, 2)
    train, rest = flatness.examples(config, data, "cpu")
    batch = {k: torch.stack([t[4 * i : 4 * i + 4] for i in range(4)]) for k, t in train.items()}
    gradients, losses = stack.gradients(batch)
    for i in range(4):
        model = models[i % 2]
        model.zero_grad()
        own = model.loss({k: t[i] for k, t in batch.items()})
        own.backward()
        assert float(losses[i]) == pytest.approx(float(own))
        for n, p in model.named_parameters():
            torch.testing.assert_close(gradients[n][i], torch.zeros_like(p) if p.grad is None else p.grad)
    assert stack.losses(rest).tolist() == pytest.approx([float(models[i % 2].loss(rest)) for i in range(4)])


# ------------------------------------------------------------------------------------------------------------ flatness
def test_runs_end_at_the_training_loss_and_the_line_joins_them() -> None:
    """A run that got there has at most the target; the ends of the line have the losses of the runs."""
    config = dataclasses.replace(flatness.PRESETS["smoke"], seeds=2)
    ends = {size: flatness._trained(size, config) for size in flatness.SIZES}
    line = flatness._line(config, ends)
    at = {size: int((flatness.LINE - x).abs().argmin()) for size, x in (("small", 0.0), ("large", 1.0))}
    for size, found in ends.items():
        assert (found["reached"] > 0).all()
        assert (found["train"] <= config.target).all()
        for key in ("train", "held_out"):
            torch.testing.assert_close(line[key][:, at[size]], found[key])


def test_a_measure_that_knows_the_batch_size_alone_says_nothing_within_one() -> None:
    """Planted: the first measure is the gap itself, the second the batch size and noise."""
    gap = torch.stack([drawn(30), 4 + drawn(30, seed=1)])
    size = torch.tensor([[0.0], [6.0]], dtype=torch.float64) + drawn(2, 30, seed=2)
    table = torch.stack([gap.exp(), size.exp()], -1)[:, :, None].expand(-1, -1, 3, -1)
    config = dataclasses.replace(flatness.PRESETS["smoke"], measures=("gap", "size"))
    found = flatness.judged(config, table, gap)
    assert found["rank/gap/here"].value == pytest.approx(1)
    assert found["within/gap/here"].value == pytest.approx(1)
    assert found["rank/size/least"].value > 0.6
    assert abs(found["within/size/least"].value) < 3 * (found["within/size/least"].error or 0)
    assert found["gain/size/least"].value == 0
    assert found["more"].value == pytest.approx(float((gap[1] - gap[0]).mean()))


# ---------------------------------------------------------------------------------------------------------- optimizers
def test_steps_to_a_loss() -> None:
    """The first step at the target; a run that never is there comes after, the higher its last loss the later."""
    losses = torch.tensor([[3.0, 1.0, 2.0], [3.0, 3.0, 2.5], [3.0, 3.0, 2.9], [3.0, torch.inf, torch.inf]])
    found = optimizers.steps_to(losses, 2.0).tolist()
    assert found[0] == 2
    assert 4 <= found[1] < found[2] < found[3] <= 5


def test_a_planted_ranking_is_found() -> None:
    """Falls that order the optimizers as their speed does: 1; the other way round: -1."""
    config = optimizers.PRESETS["cpu"]
    taken = drawn(len(config.designs), config.seeds, len(config.optimizers)).exp()
    found = optimizers.judged(config, torch.stack([1 / taken, taken], 2), taken)
    assert found["spearman/x-ray"].value == pytest.approx(1)
    assert found["spearman/update"].value == pytest.approx(-1)
    assert found["winner/x-ray"].value == 1
    assert found["winner/update"].value == 0
    a, b = (taken[..., config.optimizers.index(o)] for o in ("SGD", "SOAP"))
    assert found["faster"].value == pytest.approx(float((a / b).log2().mean()))


def held() -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor], Any]:
    config, data = optimizers.PRESETS["smoke"], Addition(digits=1)
    model = optimizers.net("Pre-LN", config, data, 0)
    batch = next(data.batches("train", 4, 0))
    risk = qf.Risk(model, None, batch, quiet=True)
    params = {n: p.detach().clone() for n, p in model.named_parameters()}
    return model, params, risk.gradient(), (risk, batch)


def test_the_step_of_kfac() -> None:
    """w - lr (P + damping)^-1 g with the factors of the batch; the second step has momentum."""
    model, params, g, (risk, batch) = held()
    start = {n: p.clone() for n, p in params.items()}
    parts = optimizers.made("K-FAC", params, model, 0.1)
    P = kfac(risk, seed=0, products=optimizers.PRODUCTS)
    d = P.inverse(damping=optimizers.DAMPING * mean_eigenvalue(P)) @ g
    for scale in (1.0, 1.0 + (1.0 + optimizers.MOMENTUM)):
        optimizers.step(parts, params, g, batch)
        for n, p in params.items():
            torch.testing.assert_close(p, start[n] - 0.1 * scale * d[n])


@pytest.mark.parametrize("name", optimizers.MIDDLE)
def test_every_optimizer_goes_down(name: str) -> None:
    """Its update after four gradients lowers the linear model; of SGD it is the rate times the gradient."""
    if name in ("Shampoo", "SOAP", "PSGD"):
        pytest.importorskip("pytorch_optimizer")
    model, params, g, (risk, batch) = held()
    d = optimizers._update(name, model, params, 4 * [g], g, 4 * [batch])
    assert float(risk.space.inner(g, d)) > 0
    if name == "SGD":
        assert all(torch.allclose(d[n], optimizers.MIDDLE["SGD"] * g[n]) for n in g)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(MissingExtra, match="Shampoo, SOAP and PSGD needs pytorch_optimizer"):
        optimizers.package()
