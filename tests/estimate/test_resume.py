"""Interrupted and resumed runs give the bits of uninterrupted ones; foreign states are refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spectra import Spectrum, outliers

from quadform.core.errors import FileError, InputError
from quadform.core.operator import Operator
from quadform.estimate import (
    block_norms,
    density,
    diagonal,
    eigenpairs,
    frobenius,
    matrix_function,
    resume,
    singular_ends,
    solve,
    spectral_norm,
    trace,
)


class Killed(Exception):
    """The process ends here."""


def numbers(result: Any) -> list[torch.Tensor]:
    """All numbers of a result, as tensors to be compared bit for bit."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, float | int):
        return [torch.tensor(result, dtype=torch.float64)]
    if isinstance(result, dict):
        return [t for v in result.values() for t in numbers(v)]
    if isinstance(result, tuple):
        return [t for v in result for t in numbers(v)]
    return [t for v in vars(result).values() for t in numbers(v)] if hasattr(result, "__dict__") else []


RUNS: dict[str, Callable[..., Any]] = {
    "eigenpairs": lambda A, **o: eigenpairs(A, 3, 1, **o),
    "eigenpairs restarted": lambda A, **o: eigenpairs(A, 3, 1, rows=13, max_products=90, tol=1e-5, **o),
    "eigenpairs block": lambda A, **o: eigenpairs(A, 3, block=2, reorthogonalise="selective", **o),
    "density": lambda A, **o: density(A, 3, 10, memory=30 * 8 * 300, **o),
    "density none": lambda A, **o: density(A, 3, 10, reorthogonalise="none", **o),
    "hutchinson": lambda A, **o: trace(A, 40, method="hutchinson", **o),
    "xtrace": lambda A, **o: trace(A, 40, method="xtrace", **o),
    "hutch++": lambda A, **o: trace(A, 40, method="hutch++", **o),
    "frobenius": lambda A, **o: frobenius(A, 40, **o),
    "frobenius sampled": lambda A, **o: frobenius(A, 40, method="sampled", **o),
    "singular ends": lambda A, **o: singular_ends(A, smallest=True, max_products=90, **o),
    "spectral norm": lambda A, **o: spectral_norm(A, **o),
    "diagonal": lambda A, **o: diagonal(A, 40, **o),
    "cg": lambda A, **o: solve(A, B, damping=7.0, method="cg", tol=1e-9, **o),
    "block-cg": lambda A, **o: solve(A, B, damping=7.0, method="block-cg", tol=1e-9, **o),
    "minres": lambda A, **o: solve(A, B, damping=1.0, tol=1e-4, **o),
    "lsmr": lambda A, **o: solve(A, B, damping=1.0, method="lsmr", tol=1e-4, **o),
    "abs-inverse": lambda A, **o: matrix_function(A, B, "abs-inverse", damping=1.0, tol=1e-4, **o),
    "block_norms": lambda A, **o: block_norms(A, ("a", "b"), 20, **o),
}
D = outliers(300)
B = torch.randn(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WHOLE = {name: run(Spectrum(D)) for name, run in RUNS.items()}


@pytest.mark.parametrize("name", RUNS)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_killed_and_resumed(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run that dies at any products, again and again, ends with the bits of one that was never disturbed."""
    folder = tmp_path_factory.mktemp("run")
    deaths = sorted(data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=3)))
    made = 0

    def before(count: int) -> None:
        nonlocal made
        if deaths and made >= deaths[0]:
            deaths.pop(0)
            raise Killed
        made += 1

    for _ in range(5):
        try:
            result = RUNS[name](Spectrum(D, before=before), resume=folder)
            break
        except Killed:
            continue
    for got, want in zip(numbers(result), numbers(WHOLE[name]), strict=True):
        assert torch.equal(got, want)


def test_hard_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved by the clock is enough: no exit code of ours runs when the process is killed."""
    monkeypatch.setattr(resume, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(resume.Checkpoint, "__exit__", lambda self, *error: self._stack.close())

    def die(count: int) -> None:
        if count >= 8:
            raise Killed

    with pytest.raises(Killed):
        RUNS["eigenpairs"](Spectrum(D, before=die), resume=tmp_path)
    again = Spectrum(D)
    result = RUNS["eigenpairs"](again, resume=tmp_path)
    assert again.count - 1 < result.products  # something was saved; one product identifies the operator
    for got, want in zip(numbers(result), numbers(WHOLE["eigenpairs"]), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["eigenpairs", "hutchinson", "density"])
def test_interrupt_finishes_the_product(name: str, tmp_path: Path) -> None:
    """Ctrl-C once: the product in hand is finished and kept, then KeyboardInterrupt; the old handler is back."""
    before_us = signal.getsignal(signal.SIGINT)
    calls = []

    def interrupt(count: int) -> None:
        calls.append(count)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    A = Spectrum(D, before=interrupt)
    with pytest.raises(KeyboardInterrupt):
        RUNS[name](A, resume=tmp_path)
    assert signal.getsignal(signal.SIGINT) is before_us
    assert len(calls) == 3
    again = Spectrum(D)
    result = RUNS[name](again, resume=tmp_path)
    whole = WHOLE[name]
    total = whole.products if hasattr(whole, "products") else whole.matvecs
    assert again.count == total - (A.count - 1) + 1  # one product each time identifies the operator
    for got, want in zip(numbers(result), numbers(whole), strict=True):
        assert torch.equal(got, want)


def test_interrupt_twice_stops_now(tmp_path: Path) -> None:
    """Ctrl-C twice: the run stops in the middle of the product."""

    def interrupt(count: int) -> None:
        if count >= 5:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    A = Spectrum(D, before=interrupt)
    with pytest.raises(KeyboardInterrupt):
        RUNS["eigenpairs"](A, resume=tmp_path)
    assert A.count == 5


def test_finished_run_costs_nothing(tmp_path: Path) -> None:
    """A finished run is read back; with more products allowed it goes on from there."""
    A = Spectrum(torch.linspace(-1, 1, 300, dtype=torch.float64))
    first = eigenpairs(A, 2, max_products=20, resume=tmp_path)
    assert not first.converged
    A.count = 0
    again = eigenpairs(A, 2, max_products=20, resume=tmp_path)
    assert A.count == 1
    assert torch.equal(first.residuals, again.residuals)
    more = eigenpairs(A, 2, max_products=60, resume=tmp_path)
    assert A.count == 1 + 1 + 40
    straight = eigenpairs(A, 2, max_products=60)
    assert torch.equal(more.residuals, straight.residuals)


def test_more_probes_extend_a_run(tmp_path: Path) -> None:
    """Hutchinson with 20 probes, then 40: only the new ones are multiplied."""
    A = Spectrum(D)
    trace(A, 20, method="hutchinson", resume=tmp_path)
    A.count = 0
    trace(A, 40, method="hutchinson", resume=tmp_path)
    assert A.count == 1 + 20


def test_one_folder_serves_all(tmp_path: Path) -> None:
    """All estimators of one operator keep their states in one folder, and read back what they wrote."""
    for _ in range(2):
        for name, run in RUNS.items():
            if "restarted" not in name and name not in ("eigenpairs block", "density none", "xtrace", "hutch++"):
                result = run(Spectrum(D), resume=tmp_path)
                assert all(torch.equal(a, b) for a, b in zip(numbers(result), numbers(WHOLE[name]), strict=True))


def test_other_weights_are_refused(tmp_path: Path) -> None:
    """A state of another operator is refused with the text people know, even where the weights differ by 1e-6."""
    trace(Spectrum(D), 20, method="hutchinson", resume=tmp_path)
    with pytest.raises(
        InputError,
        match=r"^This run was started with other weights \(hash [0-9a-f]{8} / [0-9a-f]{8}\)\."
        r" Use the old weights or another folder\.$",
    ):
        trace(Spectrum(D * (1 + 1e-6)), 20, method="hutchinson", resume=tmp_path)
    with pytest.raises(InputError, match="other weights"):
        trace(Spectrum(outliers(301)), 20, method="hutchinson", resume=tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"seed": 1}, r"\(seed 0 / 1\)"), ({"tol": 1e-2}, r"\(tol 0.001 / 0.01\)"), ({"block": 2}, r"\(block 1 / 2\)")],
)
def test_other_settings_are_refused(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    """A state with another seed or other settings is refused, and the difference is named."""
    eigenpairs(Spectrum(D), 2, resume=tmp_path)
    with pytest.raises(InputError, match=r"^This run was started with other settings " + text):
        eigenpairs(Spectrum(D), 2, resume=tmp_path, **options)


def test_damaged_state(tmp_path: Path) -> None:
    """A truncated or foreign file is an error that names it; nothing is guessed."""
    A: Operator = Spectrum(D)
    trace(A, 20, method="hutchinson", resume=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileError, match="damaged or truncated"):
        trace(A, 20, method="hutchinson", resume=tmp_path)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(FileError, match="does not hold the state of an interrupted run"):
        trace(A, 20, method="hutchinson", resume=tmp_path)
