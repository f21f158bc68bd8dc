"""`verify` compares three ways that do not share code; `doctor` tells the truth about this machine."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import pytest
import torch

import quadform as qf
from quadform.applications.doctor.measure import OPTIONAL, REQUIRED, layernorm_trap
from quadform.applications.machine import MATRICES, largest_hessian
from quadform.applications.problem import toy_problem
from quadform.applications.verify import VerifyQuestion
from quadform.applications.verify.measure import draw
from quadform.core.memory import free_bytes
from quadform.theory.attention import AttentionLayer


def test_three_ways_agree() -> None:
    """Closed form, double backward and central differences give one Hessian-vector product."""
    problem = toy_problem(tokens=4, d_model=3, d_k=2, d_v=5)
    v = torch.randn(problem.space.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    v /= v.norm()
    closed = problem.layer().hessian() @ v
    assert (closed - problem.autodiff() @ v).abs().max() <= 1e-14
    assert (closed - problem.difference(v)).abs().max() <= 1e-8


def test_columns_are_columns() -> None:
    """Chosen columns of the autodiff Hessian are those columns of the whole."""
    problem = toy_problem(tokens=3, d_model=2)
    chosen = torch.tensor([3, 0, 7])
    assert torch.allclose(problem.autodiff(chosen), problem.autodiff()[:, chosen], atol=1e-15)


def test_functional_part() -> None:
    """H - H_f is J^T (d2l) J with J from jacfwd: the two parts of the split, each by autodiff."""
    problem = toy_problem(tokens=3, d_model=2, d_k=3, d_v=2, mask="causal")
    space = problem.space
    J = torch.func.jacfwd(lambda w: problem.output(space.unflatten(w)).reshape(-1))(space.flatten(problem.weights))
    want = J.T @ J * 2 / problem.Y.numel()
    assert (problem.autodiff() - problem.autodiff_functional() - want).abs().max() <= 1e-14


def test_draws_cover_every_kind_and_size() -> None:
    """Twelve draws hold softmax, causal, linear and single-matrix layers, and a size of 1."""
    asked = VerifyQuestion()
    problems = [draw(asked, i, torch.device("cpu"))[0] for i in range(asked.shapes)]
    kinds = {(p.attention, p.mask, p.factor) for p in problems}
    assert kinds == {
        ("softmax", "none", "qk"),
        ("softmax", "causal", "qk"),
        ("linear", "none", "qk"),
        ("softmax", "none", "single"),
    }
    assert any(1 in (*p.X.shape, *p.W_Q.shape, *p.W_V.shape) for p in problems)


def test_record_of_a_verification() -> None:
    """The record carries every check as a bound, converged where it holds."""
    found = qf.verify(shapes=3, largest=3, progress=False)
    assert found.ok
    assert {e.kind for e in found.record.scalars.values()} == {"bound"}
    assert all(e.converged for e in found.record.scalars.values())
    assert all(e.value > 0 for name, e in found.record.scalars.items() if "closed form" in name)


def test_a_nan_fails_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN compares false with everything; a check that saw one does not hold, whichever layer it came from."""
    right = AttentionLayer.functional
    monkeypatch.setattr(
        AttentionLayer, "functional", lambda self, a, b: right(self, a, b) * (math.nan if self.head.bias is None else 1)
    )
    found = qf.verify(shapes=3, largest=3, progress=False)
    assert not found.ok
    assert found.failed == ("H_f, every block: closed form = autodiff",)
    assert "FAILED at softmax, " in str(found)


def test_time_up_ends_the_checks_and_they_are_resumed(tmp_path: Path) -> None:
    """A partial answer is not ok; resumed, it is that of an undisturbed run."""
    first = qf.verify(shapes=3, largest=2, out=tmp_path, max_time=1e-9, progress=False)
    assert (first.partial, first.ok, first.record.inputs["tried"]) == (True, False, 1)
    again = qf.verify(shapes=3, largest=2, out=tmp_path, resume=True, progress=False)
    whole = qf.verify(shapes=3, largest=2, progress=False).record
    assert (again.record.inputs, again.record.scalars) == (whole.inputs, whole.scalars)


def test_doctor_lines() -> None:
    """Nothing required is missing here; every line says what was found."""
    lines = qf.doctor().findings
    assert all(line.found for line in lines)
    assert not [line.name for line in lines if line.ok is False]
    assert {line.group for line in lines} >= {"packages", "optional", "machine", "size", "tools", "traps"}


def test_doctor_knows_the_packages_of_the_project() -> None:
    """Those of pyproject.toml and no others; what opens a door is imported by the code behind it."""
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = lambda packages: {re.split(r"[>\[]", package)[0] for package in packages}  # noqa: E731
    needs = project["optional-dependencies"]
    extras = {extra: names(packages) for extra, packages in needs.items() if extra not in ("dev", "docs")}
    assert set(REQUIRED) == names(project["dependencies"])
    assert {extra for _, _, extra in OPTIONAL} == extras.keys()
    source = "".join(path.read_text() for path in (root / "src").rglob("*.py"))
    for name, _, extra in OPTIONAL:
        assert name in extras[extra]
        assert re.search(rf"(import|from) {name.replace('-', '_')}\b", source), f"nothing imports {name}"


def test_doctor_sees_the_layernorm_trap() -> None:
    """The size of the error of `torch.func.hessian` through LayerNorm is measured, not assumed."""
    assert 0 <= layernorm_trap(0) < 10
    (line,) = [line for line in qf.doctor().findings if line.name == "LayerNorm weight"]
    assert ("off" in line.found) == (layernorm_trap(0) > 1e-6)


def test_largest_hessian_fits() -> None:
    """The size the doctor names is what fits: its matrices take at most the free memory, one more would not."""
    cpu = torch.device("cpu")
    P = largest_hessian(cpu, torch.float64)
    assert 0.8 < MATRICES * 8 * P**2 / free_bytes(cpu) < 1.2  # memory moves while we look
    assert largest_hessian(cpu, torch.float32) > 1.3 * P
