"""`qf.landscape` to another checkpoint: the straight line, and a trained curve, on losses whose minima are known."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform.answers.landscape import Landscape
from quadform.cli import main
from quadform.core.errors import InputError, UnknownName
from quadform.curvature.landscape import Bend, bezier
from quadform.curvature.risk import Risk

BATCH = (torch.ones(1, dtype=torch.float64), torch.zeros(1))
MODEL = "new:pre-ln,depth=1,d_model=4,heads=2"
PROBE = ["--data", "add:digits=1", "--batch-size", "2", "--quiet"]


def spot(degrees: float) -> dict[str, Tensor]:
    """A point of the unit circle: a minimum of `ring`."""
    angle = math.radians(degrees)
    return {"x": torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)}


def ring(out: Tensor, batch: Any) -> Tensor:
    """(|x|^2 - 1)^2: every point of the circle is a minimum, the chord between two has a barrier."""
    return ((out**2).sum() - 1) ** 2


def around(degrees: float = 140.0, **options: Any) -> Landscape:
    here = {"params": spot(0), "through": spot(degrees), "points": 21, "progress": False}
    return qf.landscape(lambda p, batch: p["x"], BATCH, ring, **(here | options))


@pytest.fixture(scope="module")
def curved() -> Landscape:
    return around(curve=300)


def test_the_line_across_a_ring_has_a_barrier_and_the_curve_has_none(curved: Landscape) -> None:
    """On the chord of a circle the loss is sin^4 of half the angle in the middle; along the ring it is next to 0."""
    assert curved.barrier("line") == pytest.approx(math.sin(math.radians(70)) ** 4, rel=1e-9)
    assert curved.barrier("curve") < 0.02 * curved.barrier("line")
    assert curved.barrier("curve") >= 0
    said = curved.said
    assert "Do not average" in said.en
    assert "trained for 300 steps" in said.en
    assert ("path without a barrier" in said.en) == (curved.barrier("curve") <= 0.01 * curved.barrier())
    assert "평균하지 마십시오" in said.ko
    assert float(curved.ways["curve"][0]) == pytest.approx(0, abs=1e-20)  # the ends are the two minima
    assert float(curved.ways["curve"][-1]) == pytest.approx(0, abs=1e-20)


def test_the_plane_passes_through_both_ends_and_the_bend(curved: Landscape) -> None:
    """The ways begin and end at the marks, and the curve touches the lines to its bend there."""
    marks = {n: torch.tensor(p, dtype=torch.float64) for n, p in curved.marks.items()}
    assert set(marks) == {"this model", "bend", "dict"}
    for way in ("line", "curve"):
        at = curved.record.tensors[f"{way}/at"]
        torch.testing.assert_close(at[0], marks["this model"], rtol=0, atol=1e-12)
        torch.testing.assert_close(at[-1], marks["dict"], rtol=0, atol=1e-12)
    middle = (marks["this model"] + 2 * marks["bend"] + marks["dict"]) / 4
    torch.testing.assert_close(curved.record.tensors["curve/at"][10], middle, rtol=0, atol=1e-12)


def test_a_curve_is_exact_at_its_ends() -> None:
    a, m, b = (torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    assert torch.equal(bezier(a, m, b, 0.0), a)
    assert torch.equal(bezier(a, m, b, 1.0), b)
    torch.testing.assert_close(bezier(a, (a + b) / 2, b, 0.3), 0.7 * a + 0.3 * b)  # a bend on the line: the line


@pytest.mark.parametrize("t", [0.1, 0.5, 0.85])
def test_the_gradient_of_a_bend_is_that_of_autodiff(t: float) -> None:
    """d L(B(t)) / dm with the bend as the variable, the chain rule left to torch."""
    torch.manual_seed(0)
    model, other = (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double() for _ in range(2))
    x, y = torch.randn(5, 3).double(), torch.randn(5, 1).double()
    risk = Risk(model, nn.MSELoss(), [(x, y)], quiet=True)
    bend = Bend(risk, {n: p.detach() for n, p in other.named_parameters()}, total=10)
    m = {n: v.clone().requires_grad_() for n, v in bend.at.items()}
    there = {
        n: bezier(p.detach(), m[n], dict(other.named_parameters())[n].detach(), t) for n, p in model.named_parameters()
    }
    loss = ((torch.func.functional_call(model, there, (x,)) - y) ** 2).mean()
    expected = torch.autograd.grad(loss, list(m.values()))
    for got, want in zip(bend.gradient(t).values(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_a_bend_that_is_stopped_goes_on_as_it_would_have() -> None:
    risk = Risk(lambda p, batch: p["x"], ring, BATCH, params=spot(0), quiet=True)
    whole, first, second = (Bend(risk, spot(140), total=20, seed=3) for _ in range(3))
    whole.advance(20)
    second.load(first.advance(8))
    second.advance(12)
    assert torch.equal(second.at["x"], whole.at["x"])


def test_without_a_barrier_averaging_is_safe() -> None:
    """A bowl: the line between any two points of one height stays below it."""
    bowl = lambda out, batch: 1 + (out**2).sum()  # noqa: E731
    found = qf.landscape(lambda p, b: p["x"], BATCH, bowl, params=spot(0), through=spot(90), points=5, progress=False)
    assert found.barrier() == 0
    assert set(found.ways) == {"line"}
    assert "Averaging the two is safe" in found.said.en
    with pytest.raises(UnknownName, match="no way 'curve'"):
        found.barrier("curve")


def test_a_mean_worse_than_the_better_end_is_not_called_safe() -> None:
    """From the bottom of a bowl to a point on its wall there is no barrier, but the mean is higher than the bottom."""
    bowl = lambda out, batch: 1 + 8 * ((out - spot(0)["x"]) ** 2).sum()  # noqa: E731
    found = qf.landscape(lambda p, b: p["x"], BATCH, bowl, params=spot(0), through=spot(90), points=5, progress=False)
    assert found.barrier() == 0
    assert "do not average the two: the better one has loss 1, their mean 5" in found.said.en


def test_a_curve_below_both_ends_is_told() -> None:
    """Two points at one height of a bowl: its bend falls to the bottom, and the answer asks for more batches."""
    bowl = lambda out, batch: 1 + (10 * out**2).sum()  # noqa: E731
    ends: dict[str, Any] = {"params": spot(0), "through": spot(90)}
    found = qf.landscape(lambda p, b: p["x"], BATCH, bowl, **ends, points=9, curve=60, progress=False)
    assert "may have memorised these batches" in found.said.en
    assert "memorised" not in around(curve=5).said.en


def test_other_models_of_python_and_what_is_no_other_model() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    other, wrong = copy.deepcopy(model), nn.Linear(3, 1)
    nn.init.zeros_(other.weight)
    batch = (torch.randn(4, 2), torch.randn(4, 1))
    found = qf.landscape(model, batch, nn.MSELoss(), through=other, points=3, progress=False)
    assert float(found.ways["line"][-1]) == pytest.approx(float(nn.MSELoss()(other(batch[0]), batch[1])), rel=1e-6)
    two = qf.landscape(model, batch, nn.MSELoss(), through=[other, nn.Linear(2, 1)], points=3, progress=False)
    assert set(two.marks) == {"this model", "Linear 1", "Linear 2"}
    with pytest.raises(InputError, match="`Linear` is another model: it has no weight of shape"):
        qf.landscape(model, batch, nn.MSELoss(), through=wrong, progress=False)
    with pytest.raises(InputError, match="a name, a module or its tensors"):
        qf.landscape(model, batch, nn.MSELoss(), through=3, progress=False)
    with pytest.raises(InputError, match="leads to one other checkpoint; got 0"):
        qf.landscape(model, batch, nn.MSELoss(), curve=3, progress=False)


def test_the_curve_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`quadform landscape MODEL OTHER --curve N`: the record of `qf.landscape`, its figures, and no answer cut short by
    a plane that the time did not allow."""
    monkeypatch.chdir(tmp_path)
    trained: dict[str, Any] = {"data": "add:digits=1", "depth": 1, "d_model": 4, "heads": 2, "steps": 3}
    qf.fit(**trained, batch_size=2, test=4, out="run", progress=False)
    assert main(["landscape", MODEL, "run", "--curve", "2", "--points", "3", *PROBE, "--out", "here"]) == 0
    found = Landscape.load("here")
    fields: dict[str, Any] = {"data": "add:digits=1", "batch_size": 2, "points": 3, "curve": 2, "progress": False}
    same = qf.landscape(MODEL, through="run", **fields)
    assert all(torch.equal(t, same.record.tensors[n]) for n, t in found.record.tensors.items())
    assert list(found.figures()) == ["ways", "landscape"]
    assert found.report("page.html").exists()
    assert main(["landscape", MODEL, "--points", "3", *PROBE, "--max-time", "0.001s", "--out", "short"]) == 3
    short = Landscape.load("short")
    assert short.partial
    assert "time was up" in short.said.en
    assert short.figures() == {}
    assert len(short.table()) == 0
    assert short.report("short.html").exists()
