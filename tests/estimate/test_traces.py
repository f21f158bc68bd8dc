"""Traces and diagonals: exact where small, else unbiased with honest standard errors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from spectra import Spectrum, outliers

from quadform.core.errors import InputError, TooLarge
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.estimate import diagonal, trace
from quadform.theory.attention import AttentionLayer

METHODS = ["hutchinson", "hutch++", "xtrace"]
D = outliers(400)
TRUE = float(D.sum())


@pytest.mark.parametrize("probe", ["rademacher", "gaussian", "sphere"])
@pytest.mark.parametrize("method", METHODS)
def test_coverage(method: str, probe: str) -> None:
    """Over seeds, about 68 % of the values lie within one standard error of the trace, all within five."""
    A = Spectrum(D)
    off = []
    for seed in range(80):
        e = trace(A, 60, method=method, probe=probe, seed=seed)
        assert e.kind == "estimate"
        off.append((e.value - TRUE) / e.stderr)
    scores = torch.tensor(off)
    assert 0.52 <= float((scores.abs() <= 1).double().mean()) <= 0.84
    assert float(scores.abs().max()) <= 5
    assert abs(float(scores.mean())) <= 5 / math.sqrt(80)


def test_error_falls_as_the_root() -> None:
    """Hutchinson's standard error falls as 1/sqrt(products)."""
    A = Spectrum(torch.linspace(-1, 2, 400, dtype=torch.float64))
    few, many = (sum(trace(A, k, method="hutchinson", seed=s).stderr for s in range(8)) / 8 for k in (25, 25 * 9))
    assert few / many == pytest.approx(3, rel=0.15)


def test_sketches_beat_sampling() -> None:
    """With outliers, Hutch++ and XTrace have a several times smaller error than Hutchinson at the same products."""
    A = Spectrum(D)
    error = {m: sum(trace(A, 60, method=m, seed=s).stderr for s in range(10)) for m in METHODS}
    assert error["xtrace"] < error["hutch++"] < error["hutchinson"] / 3


def test_auto_takes_the_better() -> None:
    """`auto` samples a nearly diagonal operator (signs see no diagonal) and sketches one with outliers."""
    M = torch.diag(torch.randn(200, dtype=torch.float64)) + 1e-3 * torch.randn(200, 200, dtype=torch.float64)
    A = Dense(M + M.T, Space((("x", (200,)),)), symmetric=True)
    e = trace(A, 60)
    assert e.note.startswith("Hutchinson")
    assert abs(e.value - float(A.matrix.trace())) <= 5 * e.stderr
    assert e.stderr < trace(A, 60, method="xtrace").stderr / 10
    assert trace(Spectrum(D), 60).note.startswith("XTrace")


def leave_one_out(A: torch.Tensor, Omega: torch.Tensor, scaled: bool) -> torch.Tensor:
    """XTrace by its definition: for each probe a QR of the images of all others."""
    n, m = Omega.shape
    values = []
    for i in range(m):
        others = [j for j in range(m) if j != i]
        Q = torch.linalg.qr(A @ Omega[:, others])[0]
        u = Omega[:, i] - Q @ (Q.T @ Omega[:, i])
        c = (n - m + 1) / (u @ u) if scaled else 1.0
        values.append(torch.trace(Q.T @ A @ Q) + c * (u @ A @ u))
    return torch.stack(values)


@given(n=st.integers(9, 30), m=st.integers(2, 4), signs=st.booleans(), seed=st.integers(0, 1000))
def test_xtrace_is_its_definition(n: int, m: int, signs: bool, seed: int) -> None:
    """The fast form of XTrace equals m leave-one-out factorisations, for operators without symmetry too, and its
    error the spread of the values and what pairs of them share, each by factorisations of its own."""
    from quadform.estimate.vectors import probes

    M = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    A = Dense(M, Space((("x", (n,)),)), symmetric=False)
    probe = "rademacher" if signs else "gaussian"
    Omega = probes(A, seed, "xtrace", range(m), probe).T
    if torch.linalg.matrix_rank(M @ Omega) < m:
        return
    values = leave_one_out(M, Omega, not signs)
    e = trace(A, 2 * m, method="xtrace", probe=probe, seed=seed)
    assert e.value == pytest.approx(float(values.mean()), rel=1e-7, abs=1e-7)
    off = torch.zeros((m, m), dtype=torch.float64)  # t_i less t_i without probe j
    for j in range(m):
        rest = [i for i in range(m) if i != j]
        off[rest, j] = values[rest] - leave_one_out(M, Omega[:, rest], not signs)
    shared = float((off * off.T).sum()) / (m * (m - 1))
    factor = stats.t.ppf(stats.norm.cdf(2), m - 1) / 2
    want = factor * (float(values.var()) / m + max(shared, 0.0)) ** 0.5
    assert e.stderr == pytest.approx(want, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("method", ["hutch++", "xtrace"])
def test_low_rank_is_found_whole(method: str) -> None:
    """An operator whose rank is below the sketch has its trace found to round-off."""
    d = torch.zeros(200, dtype=torch.float64)
    d[:4] = torch.tensor([3.0, -1.0, 2.0, 5.0])
    e = trace(Spectrum(d), 24, method=method)
    assert e.value == pytest.approx(9.0, abs=1e-10)
    assert e.stderr < 1e-10


@given(n=st.integers(1, 12))
def test_small_is_exact(n: int) -> None:
    """Where n <= products the trace and the diagonal are exact, from n unit vectors."""
    M = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    A = Dense(M, Space((("x", (n,)),)), symmetric=False)
    e, d = trace(A, 20), diagonal(A, 20)
    assert e.kind == d.kind == "exact"
    assert e.matvecs == n
    assert e.value == pytest.approx(float(M.trace()), rel=1e-12, abs=1e-12)
    torch.testing.assert_close(d.value["x"], M.diagonal())


@pytest.mark.parametrize("probe", ["rademacher", "gaussian"])
def test_diagonal_coverage(probe: str) -> None:
    """About 68 % of the entries of the diagonal lie within one standard error, all within five and a half."""
    M = torch.randn(300, 300, dtype=torch.float64)
    A = Dense(M + M.T, Space((("a", (10, 10)), ("b", (200,)))), symmetric=True)
    d = diagonal(A, 100, probe=probe)
    off = (A.domain.flatten(d.value) - A.matrix.diagonal()) / A.domain.flatten(d.stderr)
    assert 0.6 <= float((off.abs() <= 1).double().mean()) <= 0.76
    assert float(off.abs().max()) <= 5.5
    assert d.matvecs == 100
    assert d.value["a"].shape == (10, 10)


def test_diagonal_error_is_that_of_the_row() -> None:
    """With signs the variance of an entry is the squared norm of its row without the diagonal, over k."""
    M = torch.randn(200, 200, dtype=torch.float64)
    A = Dense(M, Space((("x", (200,)),)), symmetric=False)
    want = ((M.square().sum(1) - M.diagonal().square()) / 150).sqrt()
    torch.testing.assert_close(diagonal(A, 150).stderr["x"], want, rtol=0.3, atol=0)


def test_attention_trace() -> None:
    """The trace of the closed-form attention Hessian, exact and estimated, from its analytic products."""
    g = torch.Generator().manual_seed(1)
    X, Y = (torch.randn(4, 6, generator=g, dtype=torch.float64) for _ in range(2))
    W = [torch.randn(6, 6, generator=g, dtype=torch.float64) / 6**0.5 for _ in range(3)]
    H = AttentionLayer(X, *W, Y).hessian()
    want = float(H.dense().trace())
    assert trace(H, 200).value == pytest.approx(want, rel=1e-12)
    for method in METHODS:
        e = trace(H, 60, method=method)
        assert abs(e.value - want) <= 5 * e.stderr


def test_tolerance() -> None:
    """Hutchinson stops at the wanted relative error; what was not reached is said."""
    A = Spectrum(D.abs())
    e = trace(A, 5000, method="hutchinson", tol=0.2)
    assert e.converged
    assert 10 <= e.matvecs == A.count < 5000
    assert e.stderr <= 0.2 * e.value
    rough = trace(A, 20, method="hutchinson", tol=1e-4)
    assert not rough.converged
    assert "> 1e-04" in rough.note


def test_never_more_memory_than_allowed() -> None:
    """XTrace that does not fit is refused; `auto` then samples with few vectors at once, to the same answer."""
    seen = []

    class Wide(Spectrum):
        def apply(self, V):
            seen.append(V["a"].shape[0])
            return super().apply(V)

    A = Wide(D)
    row = 400 * 8
    with pytest.raises(TooLarge, match="xtrace with 60 products"):
        trace(A, 60, method="xtrace", memory=20 * row)
    tight = trace(A, 60, memory=9 * row)
    assert max(seen) == 2
    assert "Hutchinson" in tight.note
    wide = trace(A, 60, method="hutchinson")
    assert tight.value == pytest.approx(wide.value, rel=1e-12)


def test_refusals() -> None:
    """A rectangular operator has no trace; unknown methods and probes are named."""
    flat = Dense(torch.ones(2, 3), Space((("x", (3,)),)), Space((("y", (2,)),)))
    with pytest.raises(InputError, match="into itself"):
        trace(flat)
    A = Spectrum(D)
    with pytest.raises(InputError, match="got 'hutch'"):
        trace(A, method="hutch")
    with pytest.raises(InputError, match="got 'uniform'"):
        trace(A, method="hutchinson", probe="uniform")
    with pytest.raises(InputError, match="at least 4; got 2"):
        trace(A, 2, method="xtrace")
