"""`qf.point`: planted minima, saddles and descending points; the zeros of attention are its gauge, to the last one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform.answers.kind import PointKind
from quadform.answers.point import Point
from quadform.applications.point.inertia import span
from quadform.applications.point.symmetries import families
from quadform.cli import main
from quadform.core.errors import FileError, InputError
from quadform.core.record import Estimate
from quadform.curvature.operators import hessian
from quadform.curvature.risk import Risk

BATCH = (torch.ones(1, dtype=torch.float64), torch.zeros(1))


def planted(eigenvalues: list[float], at: float, **options: Any) -> PointKind:
    """The point x = (at, ..., at) of 1 + sum lam x^2 / 2."""
    lam = torch.tensor(eigenvalues, dtype=torch.float64)
    params = {"x": torch.full_like(lam, at)}
    loss = lambda out, batch: 1 + (lam * out**2).sum() / 2  # noqa: E731
    return qf.point(lambda p, batch: p["x"], BATCH, loss, params=params, progress=False, **options)


@pytest.mark.parametrize("inertia", [3000, 0])
@pytest.mark.parametrize(
    ("eigenvalues", "at", "kind", "word"),
    [
        ([4.0, 1.0, -2.0, 3.0], 0.1, "descends", "Not stationary: descending"),
        ([4.0, 1.0, 2.0, 3.0], 0.1, "descends", "Not stationary: descending"),
        ([4.0, 1.0, -2.0, 3.0], 0.0, "saddle", "saddle"),
        ([4.0, 1.0, 2.0, 3.0], 0.0, "minimum", "minimum"),
    ],
)
def test_planted_points(eigenvalues: list[float], at: float, kind: str, word: str, inertia: int) -> None:
    """By all eigenvalues or by Lanczos: the same word, and the decrement in closed form."""
    found = planted(eigenvalues, at, inertia=inertia)
    assert found.point is not None
    assert found.point.kind == kind
    assert word in str(found)
    assert word in found.said("en")
    lam = torch.tensor(eigenvalues, dtype=torch.float64)
    square = float(((lam * at) ** 2 / (lam.abs() + 4e-4)).sum())
    assert found.record.scalars["decrement"].value == pytest.approx(square**0.5, rel=1e-6)
    assert found.record.scalars["lambda_min"].value == pytest.approx(float(lam.min()), rel=1e-9)
    assert (found.inertia is None) == (inertia == 0)


@pytest.mark.parametrize("worse", [{"converged": False}, {"error": 0.6}])
def test_a_decrement_that_is_not_known_is_not_told(worse: dict[str, Any]) -> None:
    """The sentence then goes by a step of gradient descent, which is certain."""
    found = planted([4.0, 1.0, 2.0, 3.0], 0.1, inertia=0)
    assert "to second order one Newton step takes" in str(found)
    s = found.record.scalars
    s["descent"] = Estimate(1.0, **({"error": 0.1, "error_kind": "residual", "kind": "estimate"} | worse))
    assert found.point is not None
    assert (found.point.newton, found.point.descent.kind) == (False, "bound")
    assert found.point.descent.value == pytest.approx(0.3 / 8, rel=1e-6)
    assert "one step at 1/λ_max lowers the loss of 1.05 by at least 0.0375" in str(found)


def test_the_direction_of_a_saddle_is_certified(tmp_path: Path) -> None:
    """The vector that is kept has length 1 and the curvature that is told, read back as well; another's is refused."""
    found = planted([4.0, 1.0, -2.0, 3.0], 0.0, inertia=0)
    found.save(tmp_path)
    v = PointKind.load(tmp_path).direction
    assert v is not None
    lam = torch.tensor([4.0, 1.0, -2.0, 3.0], dtype=torch.float64)
    assert float(v["x"].norm()) == pytest.approx(1, rel=1e-12)
    assert float((lam * v["x"] ** 2).sum()) == pytest.approx(found.curvature.value, rel=1e-12)
    assert found.curvature.value < 0
    planted([4.0, 1.0, -1.0, 3.0], 0.0).record.save(tmp_path)
    with pytest.raises(FileError, match="another point"):
        _ = PointKind.load(tmp_path).direction


def test_signs_are_counted() -> None:
    """Zeros without a symmetry are not explained; a weight that the loss does not see is."""
    found = planted([4.0, 1.0, -2.0, 0.0, 0.0, -1.0], 0.0)
    assert found.inertia == (2, 2, 2)
    assert found.explained == 2
    assert found.symmetries == {"weights without effect": 2}


def test_where_no_symmetry_is_known_it_says_of_what_one_would_be() -> None:
    """(x_1 + x_2)^2 at (1, -1) has one zero, along (1, -1), that no known symmetry is the cause of."""
    params = {"x": torch.tensor([1.0, -1.0], dtype=torch.float64)}
    loss = lambda out, batch: out.sum() ** 2  # noqa: E731
    found = qf.point(lambda p, batch: p["x"], BATCH, loss, params=params, progress=False)
    assert (found.inertia, found.explained) == ((1, 1, 0), 0)
    assert "count as zero\n" in str(found)
    assert "No symmetry explains the 1 zeros. Symmetries are known of quadform's own blocks" in str(found)


def test_noise_of_the_gradient() -> None:
    """The standard error of the mean gradient: that of the single ones over sqrt(B)."""
    shifts = torch.tensor([0.1, -0.4, 0.7, 0.2, 0.3], dtype=torch.float64)
    batches = [(s.reshape(1), torch.zeros(1)) for s in shifts]
    loss = lambda out, batch: ((out - batch[0]) ** 2).sum() / 2  # noqa: E731
    params = {"x": torch.zeros(1, dtype=torch.float64)}
    found = qf.point(lambda p, batch: p["x"], batches, loss, params=params, progress=False)
    s = found.record.scalars
    assert s["gradient_norm"].value == pytest.approx(float(shifts.mean()), rel=1e-12)
    assert s["gradient_noise"].value == pytest.approx(float(shifts.std() / 5**0.5), rel=1e-12)
    assert "Take more batches" in found.said("en")


class Head(nn.Module):
    """softmax(X W_Q W_K^T X^T) X W_V W_O."""

    def __init__(self, d: int, d_k: int, d_v: int, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        shapes = {"W_Q": (d, d_k), "W_K": (d, d_k), "W_V": (d, d_v), "W_O": (d_v, 1 + d_v)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=g, dtype=torch.float64)))

    def forward(self, X: Tensor) -> Tensor:
        scores = X @ self.W_Q @ self.W_K.T @ X.mT
        return scores.softmax(-1) @ X @ self.W_V @ self.W_O


def taught(d_k: int = 2, d_v: int = 2) -> tuple[Head, tuple[Tensor, Tensor]]:
    """A head near the teacher of its data."""
    teacher, student = Head(4, d_k, d_v, 0), Head(4, d_k, d_v, 0)
    X = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        Y = teacher(X)
        for p in student.parameters():
            p += 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype)
    return student, (X, Y)


def squared(out: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return ((out - batch[1]) ** 2).mean()


@pytest.mark.parametrize(("d_k", "d_v"), [(2, 2), (1, 3), (3, 1)])
def test_the_zeros_of_a_polished_head_are_its_gauge(d_k: int, d_v: int) -> None:
    """n0 = d_K^2 + d_V^2, all explained, at a minimum; the model itself is not moved."""
    model, batch = taught(d_k, d_v)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    found = qf.point(model, batch, squared, polish=True, progress=False)
    assert found.record.scalars["gradient_norm"].value <= 1e-9
    assert found.point is not None
    assert found.point.kind == "minimum"
    n = sum(p.numel() for p in model.parameters())
    zeros = d_k**2 + d_v**2
    assert found.inertia == (n - zeros, zeros, 0)
    assert found.explained == zeros
    assert found.symmetries == {"W_Q, W_K": d_k**2, "W_V, W_O": d_v**2}
    assert f"Symmetries of the model explain all {zeros} zeros." in str(found)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_where_the_head_stands_it_descends() -> None:
    """Without polish the same head is not stationary, whatever its eigenvalues; its symmetries are broken by g."""
    model, batch = taught()
    found = qf.point(model, batch, squared, progress=False)
    assert found.point is not None
    assert found.point.kind == "descends"
    assert "saddle" not in str(found)
    assert found.record.inputs["waiting"] == ["W_Q, W_K", "W_V, W_O"]


def tangents(risk: Risk) -> dict[str, Tensor]:
    return {family.name: family.flat(risk) for family in families(risk)}


def changed(risk: Risk, rows: Tensor) -> float:
    """The largest |g.w| over |g|, over the rows: 0 for symmetries, at any point."""
    g = risk.space.flatten(risk.gradient())
    return float((rows @ g).abs().max() / g.norm())


def test_relu_scalings_of_torch_layers() -> None:
    """Linear, ReLU, Linear: as many as there are hidden units; with tanh between them none."""
    made = torch.nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    X, Y = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    risk = Risk(made, lambda out, batch: ((out - batch[1]) ** 2).mean(), (X, Y), quiet=True)
    (rows,) = tangents(risk).values()
    assert len(span(rows)) == 5
    assert changed(risk, rows) < 1e-12
    made[1] = nn.Tanh()
    assert not tangents(Risk(made, squared, (X, Y), quiet=True))
    assert hessian(risk).domain.size == 32


def test_refusals() -> None:
    """A function cannot be polished; numbers out of range are named."""
    with pytest.raises(InputError, match="polish moves a copy of a module"):
        planted([1.0, 2.0], 0.0, polish=True)
    for wrong in ({"steps": 0}, {"inertia": -1}, {"damping": 0.0}, {"products": 1}, {"tol": 1.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            planted([1.0, 2.0], 0.0, **wrong)


def test_the_command_line_tells_how_far_the_polish_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step does not polish a Transformer; the answer says so, and draws itself in both languages."""
    words = [
        "point",
        "new:pre-ln,depth=1,d_model=4,heads=2",
        "--data",
        "add:digits=1",
        "--batch-size",
        "2",
        "--batches",
        "1",
    ]
    assert main([*words, "--polish", "--steps", "1", "--out", str(tmp_path / "kept"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["scalars"]["polish/steps"]["value"] == 1
    found = PointKind.load(tmp_path / "kept")
    assert "but not to zero" in found.said("en")
    assert found.direction is not None
    for lang in ("en", "ko"):
        assert "point" in found.figures(lang)
    assert "안장점" in found.report(tmp_path / "page.html", "ko").read_text(encoding="utf-8")


def test_a_fall_below_zero_is_not_promised() -> None:
    """A Newton step that would take more than the whole loss is told as what the quadratic model cannot say."""
    known = Estimate(1.0)
    for drop, words in ((0.5, "takes 0.5 off the loss of 1"), (2.0, "does not hold that far")):
        point = Point(known, known, Estimate(drop), known, Estimate(-1.0), newton=True)
        assert point.said is not None
        assert words in point.said.en


def test_a_polish_with_exact_steps_is_kept_and_goes_on(tmp_path: Path) -> None:
    """The last steps are exact: more are taken than were asked for. Cut short and resumed, the answer is the same."""
    model, batch = taught()
    asked: dict[str, Any] = {"polish": True, "steps": 6, "progress": False}
    whole = qf.point(model, batch, squared, **asked)
    assert whole.inertia == (22, 8, 0)
    assert 6 < whole.record.scalars["polish/steps"].value <= 9
    qf.point(model, batch, squared, out=tmp_path / "kept", max_time="0.2s", **asked)
    again = qf.point(model, batch, squared, out=tmp_path / "kept", resume=True, **asked)
    assert again.inertia == whole.inertia
    assert again.record.scalars["polish/steps"].value == whole.record.scalars["polish/steps"].value
