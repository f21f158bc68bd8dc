"""Flatness: every measure against its own definition, and what no rescaling of the same function can change."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import quadform as qf
from quadform.answers.flat import Flat, FlatDraft
from quadform.applications.flat.measure import FlatMeasurement, vertex
from quadform.applications.flat.orbit import pairs
from quadform.applications.flat.question import MEASURES, FlatQuestion
from quadform.applications.subject import Subject
from quadform.core.errors import UnknownName
from quadform.core.record import Estimate, Provenance
from quadform.corpora import dataset
from quadform.curvature import Risk
from quadform.nn import Transformer


@pytest.fixture(scope="module")
def data():
    return dataset("add", digits=1)


@pytest.fixture(scope="module")
def batch(data):
    return next(data.batches("train", 4, 0))


def make(data, **options) -> Transformer:
    sizes = {"depth": 1, "d_model": 6, "heads": 2, "activation": "relu", "dtype": torch.float64} | options
    return Transformer("pre-ln", seed=0, **sizes, **data.settings)


def rescaled(model: Transformer, seed: int = 0) -> Transformer:
    """The same function: queries against keys by a matrix S, values against outputs, ReLU units by a factor."""
    drawn = torch.Generator().manual_seed(seed)
    attn, mlp = model.layers[0].attn, model.layers[0].mlp
    r = attn.W_Q.shape[1] // attn.heads
    with torch.no_grad():
        for h in range(attn.heads):
            cut = slice(h * r, (h + 1) * r)
            S = torch.linalg.qr(torch.randn(r, r, generator=drawn, dtype=torch.float64))[0] @ torch.diag(
                torch.linspace(4.0, 8.0, r, dtype=torch.float64)
            )
            attn.W_Q[:, cut] = attn.W_Q[:, cut] @ S
            attn.W_K[:, cut] = attn.W_K[:, cut] @ torch.linalg.inv(S).T
            attn.W_V[:, cut] = attn.W_V[:, cut] @ S
            attn.W_O[cut] = torch.linalg.inv(S) @ attn.W_O[cut]
        a = torch.linspace(0.2, 5.0, mlp.W_1.shape[1], dtype=torch.float64)
        mlp.W_1 *= a
        mlp.W_2 /= a[:, None]
        if hasattr(mlp, "b_1") and mlp.b_1 is not None:
            mlp.b_1 *= a
    return model


def test_the_least_measures_do_not_change_under_rescaling_and_lambda_max_does(data, batch):
    """All six at the balanced model to 1e-8, while lambda_max as it stands moves 7 times or more."""
    here = qf.flat(make(data), batch, rounds=0, progress=False)
    there = qf.flat(rescaled(make(data)), batch, rounds=0, progress=False)
    assert here.loss.value == pytest.approx(there.loss.value, rel=1e-12)
    moved = there.measure("lambda_max").here.value / here.measure("lambda_max").here.value
    assert max(moved, 1 / moved) > 7
    assert [m.name for m in here.measures] == list(MEASURES)
    for a, b in zip(here.measures, there.measures, strict=True):
        assert b.least.value == pytest.approx(a.least.value, rel=1e-8), a.name
    assert there.verdicts()[0].status in ("yellow", "red")
    assert "scale of the weights" in there.verdicts()[0].sentence()
    assert here.pairs == 2 * 2 + 1


def test_line_searches_lower_a_measure_and_end_at_the_same_place(data, batch):
    """From both models: the least of the search is that of the other to 1e-8, and below the balanced one."""
    models = (make(data), rescaled(make(data)))
    found = [qf.flat(m, batch, measures=("sam",), rounds=2, progress=False).measure("sam").least for m in models]
    balanced = qf.flat(models[0], batch, measures=("sam",), rounds=0, progress=False).measure("sam").least
    assert found[0].value == pytest.approx(found[1].value, rel=1e-8)
    assert found[0].value < balanced.value


def test_balancing_leaves_the_function(data, batch):
    """The balanced model has the same loss; queries and keys have equal Gram matrices, units equal lengths."""
    subject = Subject.of(rescaled(make(data)), [batch])
    found = FlatMeasurement(FlatQuestion(), subject)
    assert len(found.groups) == 3
    w = found.balanced
    with torch.no_grad():
        assert float(found.risk.value(w)) == pytest.approx(float(found.risk.value()), rel=1e-12)
    Q, K = (w[f"layers.0.attn.{n}"][:, :3] for n in ("W_Q", "W_K"))
    assert torch.allclose(Q.T @ Q, K.T @ K, rtol=1e-10)
    before = w["layers.0.mlp.W_1"].square().sum(0)
    bias = w.get("layers.0.mlp.b_1")
    before = before + (bias.square() if bias is not None else 0.0)
    assert torch.allclose(before, w["layers.0.mlp.W_2"].square().sum(1), rtol=1e-10)


def test_pairs_that_the_model_does_not_have_are_left(data, batch):
    """Rotary positions turn queries and keys: W_Q S, W_K S^-T is another model, and that is told."""
    found = qf.flat(make(data, positions="rotary", d_model=8), batch, measures=("sam",), progress=False)
    assert found.pairs == 3
    assert "2 pairs of weights have no such symmetry" in str(found)


class Bowl(nn.Module):
    """sum h x^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return (h * self.x.square()).sum() / 2


def test_the_measures_of_a_quadratic_are_those_of_the_book():
    """sum h x^2 / 2 at x = (1, -2), h = (3, 1): all in closed form."""
    h, x = torch.tensor([3.0, 1.0], dtype=torch.float64), torch.tensor([1.0, -2.0], dtype=torch.float64)
    asked = {"rho": 0.1, "asam": 0.2, "box": 0.01}
    found = qf.flat(Bowl(), h, lambda out, batch: out, progress=False, measures=MEASURES[:-1], **asked)
    value = {m.name: m.here.value for m in found.measures}
    assert value["lambda_max"] == pytest.approx(3, rel=1e-9)
    assert value["trace"] == pytest.approx(4, rel=1e-9)

    def loss(y):
        return float((h * y.square()).sum() / 2)

    g = h * x
    assert value["sam"] == pytest.approx(loss(x + 0.1 * g / g.norm()) - loss(x), rel=1e-9)
    step = 0.2 * x.abs().square() * g / (x.abs() * g).norm()
    assert value["asam"] == pytest.approx(loss(x + step) - loss(x), rel=1e-9)
    corner = x + 0.01 * (x.abs() + 1) * g.sign()
    assert value["keskar"] == pytest.approx(100 * (loss(corner) - loss(x)) / (1 + loss(x)), rel=1e-9)
    assert found.pairs == 0
    assert "No pair of weights" in str(found)


def test_the_effective_dimension_counts_directions_above_the_ridge():
    """sum lambda / (lambda + ridge) of the Gauss-Newton matrix, 2 / n X^T X for a linear map."""
    X = torch.tensor(np.random.default_rng(0).normal(size=(20, 4)))
    layer = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    squared = lambda out, batch: (out - batch[1]).square().mean()  # noqa: E731
    found = qf.flat(layer, (X, torch.zeros(20, 1)), squared, measures=("dimension",), ridge=0.5, progress=False)
    lam = torch.linalg.eigvalsh(2 / 20 * X.T @ X)
    assert found.measure("dimension").here.value == pytest.approx(float((lam / (lam + 0.5)).sum()), rel=1e-8)


def test_a_sequential_has_its_relu_units(batch):
    """Linear, ReLU, Linear: one group; Linear, GELU, Linear: none."""
    risk = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    names = {n for n, _ in risk.named_parameters()}
    (group,) = pairs(risk, names)
    w = {n: p.detach().double() for n, p in risk.named_parameters()}
    there = group[0].balanced(group[0].scaled(w, 0.7))
    again = group[0].balanced(w)
    assert all(torch.allclose(there[n], again[n], rtol=1e-12) for n in w)
    assert not list(pairs(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), names))


def test_the_vertex_is_that_of_the_parabola():
    """a + (t - 0.1)^2 has it at 0.1; one that opens downwards goes to the lower side."""

    def f(t: float) -> float:
        return 2 + (t - 0.1) ** 2

    assert vertex(f(0.0), f(-0.2), f(0.2)) == pytest.approx(0.1)
    assert vertex(0.0, -1.0, -2.0) == 1.0
    assert math.isfinite(vertex(1.0, 1.0, 1.0))


def test_an_unknown_measure_is_refused():
    with pytest.raises(UnknownName, match="Did you mean `trace`"):
        FlatQuestion(measures=("trcae",))


def test_saved_and_loaded_it_says_the_same(data, batch, tmp_path):
    found = qf.flat(make(data), batch, measures=("sam", "lambda_max"), rounds=0, out=tmp_path, progress=False)
    again = type(found).load(tmp_path)
    assert str(again) == str(found)
    assert "flat" in again.figures()
    assert isinstance(found.record.inputs["orbit"], int)
    assert Risk(make(data), None, batch, quiet=True).space.size == found.record.inputs["parameters"]


def test_a_search_that_ends_above_the_model_itself_is_told() -> None:
    """The model is one of its equals: the search has found a bound, no least."""
    made = Provenance.collect()
    for found, told in ((2.0, True), (0.5, False)):
        draft = FlatDraft()
        draft.take_loss(1.0)
        draft.take_here("asam", Estimate(1.0))
        draft.take_orbit("asam", Estimate(found))
        inputs = {"orbit": 1, "coverage": "", "notes": [], "source": {}, "shape": [1], "dtype": "float64"}
        lines = Flat(draft.record(Flat.kind, inputs, made)).lines()
        assert any("asam: the search ended above the model itself" in line for line in lines) == told


def test_a_plan_counts_the_measures_that_are_taken(monkeypatch):
    """A model without pairs of weights to rescale is measured where it stands, and nowhere else."""
    taken = []
    monkeypatch.setattr(
        "quadform.applications.flat.measure.measured", lambda name, *_: taken.append(name) or Estimate(1.0)
    )
    given = nn.Linear(2, 1), [(torch.randn(3, 2), torch.randn(3, 1))], nn.functional.mse_loss
    planned = qf.flat.plan(*given).products
    qf.flat(*given, progress=False)
    assert planned == len(taken) == len(MEASURES)
