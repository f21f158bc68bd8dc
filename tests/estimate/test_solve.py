"""Linear systems against dense solves and scipy: prescribed spectra, indefinite, singular, k at once, float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg as sl
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import Spectrum, outliers
from torch import Tensor

import quadform as qf
from quadform.core.errors import CheckFailed, InputError, TooLarge
from quadform.core.operator import Dense, Operator
from quadform.core.space import Space
from quadform.core.structured import Diagonal
from quadform.estimate import Solution, eigenpairs, solve
from quadform.estimate.solvers.driver import METHODS
from quadform.estimate.solvers.system import LeastSquares, Symmetric
from quadform.testing import check_inverse, check_operator

DEFINITE, SYMMETRIC = ("cg", "block-cg", "minres", "lsmr"), ("minres", "lsmr")


def eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def log_spectrum(n: int, condition: float) -> Tensor:
    return torch.logspace(0, -float(np.log10(condition)), n, dtype=torch.float64)


class Rectangle(Operator):
    """A matrix between two spaces known through its products."""

    def __init__(self, M: Tensor) -> None:
        spaces = (Space((("x", (M.shape[1],)),)), Space((("y", (M.shape[0],)),)))
        super().__init__(*spaces, dtype=M.dtype, device=M.device, symmetric=False)
        self.M = M

    def apply(self, V: Any) -> dict[str, Tensor]:
        return {"y": V["x"] @ self.M.T}

    def adjoint(self) -> Operator:
        return Dense(self.M.T, self.codomain, self.domain)


def check(A: Operator, b: Tensor, damping: float = 0.0, **options: Any) -> Solution:
    """The residual is that of the x returned; the bound holds; a solve that has converged is at its tolerance."""
    s = solve(A, b, damping=damping, **options)
    M, X, B = A.dense().double(), s.x.reshape(len(s.x), -1).double(), b.reshape(len(b), -1).double()
    damped = M if s.method == "lsmr" else M + damping * eye(len(M))
    true = (B - damped @ X).norm(dim=0)
    scale = float(torch.linalg.matrix_norm(M, 2)) * X.norm(dim=0) + B.norm(dim=0)
    assert ((s.absolute - true).abs() <= 100 * torch.finfo(A.dtype).eps * scale).all()
    torch.testing.assert_close(s.residual * B.norm(dim=0), s.absolute)
    if s.bound is not None:
        left = M.T @ M if s.method == "lsmr" else M
        right = M.T @ B if s.method == "lsmr" else B
        exact = torch.linalg.solve(left + damping * eye(left.shape[1]), right)
        assert ((X - exact).norm(dim=0) <= s.bound).all()
    if s.converged and s.method != "lsmr":
        assert (s.residual <= options.get("tol", 1e-6)).all()
    assert s.converged == (not s.note or "least-squares" in s.note)
    return s


# --- against dense solves ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", DEFINITE)
@given(n=st.integers(1, 24), k=st.integers(1, 4), exponent=st.floats(0, 3), seed=st.integers(0, 9))
def test_definite(method: str, n: int, k: int, exponent: float, seed: int) -> None:
    """x = A^-1 b of a positive definite operator, for k right-hand sides at once."""
    d = log_spectrum(n, 10**exponent)
    A, b = Spectrum(d, psd=True, seed=seed), randn(n, k, seed=seed)
    s = check(A, b, method=method, tol=1e-11, max_products=100_000)
    assert s.converged, s
    torch.testing.assert_close(s.x, torch.linalg.solve(A.dense(), b), rtol=0, atol=1e-7 * float(b.norm()))


@pytest.mark.parametrize("method", SYMMETRIC)
@given(n=st.integers(1, 24), k=st.integers(1, 3), exponent=st.floats(0, 2), seed=st.integers(0, 9))
def test_indefinite(method: str, n: int, k: int, exponent: float, seed: int) -> None:
    """x = A^-1 b where eigenvalues have both signs."""
    d = log_spectrum(n, 10**exponent)
    d[::2] *= -1
    A, b = Spectrum(d, seed=seed), randn(n, k, seed=seed)
    s = check(A, b, method=method, tol=1e-11, max_products=100_000)
    assert s.converged, s
    torch.testing.assert_close(s.x, torch.linalg.solve(A.dense(), b), rtol=0, atol=1e-6 * float(b.norm()))


@pytest.mark.parametrize("method", DEFINITE)
@given(n=st.integers(1, 12), k=st.integers(1, 5), data=st.data())
def test_singular_and_consistent(method: str, n: int, k: int, data: st.DataObject) -> None:
    """b in the range of a singular operator with repeated eigenvalues, k above the rank: the shortest solution."""
    d = torch.tensor(data.draw(st.lists(st.sampled_from([0.0, 1.0, 1.0, 3.0]), min_size=n, max_size=n))).double()
    A = Spectrum(d, psd=True)
    b = A @ randn(n, k)
    s = check(A, b, method=method, tol=1e-10)
    assert s.converged, s
    torch.testing.assert_close(s.x, torch.linalg.pinv(A.dense(), hermitian=True) @ b, rtol=0, atol=1e-8)


@given(m=st.integers(1, 9), n=st.integers(1, 9), k=st.integers(1, 3), damping=st.sampled_from([0.0, 0.1]))
def test_least_squares(m: int, n: int, k: int, damping: float) -> None:
    """min |A x - b|^2 + damping |x|^2 of a rectangular operator, the shortest of them."""
    M, b = randn(m, n, seed=m), randn(m, k, seed=n)
    s = check(Rectangle(M), b, damping=damping, tol=1e-12)
    assert s.method == "lsmr"
    assert s.converged, s
    whole = torch.cat([M, damping**0.5 * eye(n)])
    want = torch.linalg.pinv(whole) @ torch.cat([b, torch.zeros(n, k)])
    torch.testing.assert_close(s.x, want, rtol=0, atol=1e-7 * (1 + float(want.norm())))


@pytest.mark.parametrize("method", DEFINITE)
@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10])
def test_conditions(method: str, condition: float) -> None:
    """Conditions up to 1e10: damped, the bound |r| / damping holds; what does not converge says so."""
    A, b = Spectrum(log_spectrum(60, condition), psd=True), randn(60, 2)
    s = check(A, b, damping=10 / condition, method=method, tol=1e-8, max_products=4000 if condition < 1e10 else 600)
    assert s.bound is not None
    assert s.converged or "raise `max_products`" in s.note or "no longer falls" in s.note
    if method in ("cg", "block-cg", "minres") and condition < 1e10:
        assert s.converged, s


def test_condition_1e10_with_the_right_preconditioner() -> None:
    """Condition 1e10 in few products: a preconditioner within a factor two of the inverse."""
    d = log_spectrum(400, 1e10)
    factor = 1 + torch.rand(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A, M = Spectrum(d, psd=True), Spectrum(factor / d, psd=True)
    for method in ("cg", "block-cg", "minres"):
        s = check(A, A @ randn(400, 2), method=method, preconditioner=M, tol=1e-9)
        assert s.converged, s
        assert s.products <= 90


@pytest.mark.parametrize("method", DEFINITE)
def test_float32(method: str) -> None:
    """Single precision: residual and bound are true in double; a tolerance below round-off is not claimed."""
    A, b = Spectrum(log_spectrum(40, 1e3).float(), psd=True), randn(40, 3, dtype=torch.float32)
    s = check(A, b, damping=0.01, method=method, tol=1e-4)
    assert s.converged, s
    assert s.x.dtype == torch.float32
    s = check(A, b, method=method, tol=1e-9, max_products=3000)
    assert not s.converged or method == "lsmr"


# --- the recurrences --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["cg", "block-cg", "minres"])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_a_recurrence_knows_its_residual(method: str, preconditioned: bool) -> None:
    """r = b - (A + damping I) x after every step, x is best in its Krylov space: A-norm of the error, or |r|."""
    d = log_spectrum(30, 20) * (torch.where(torch.arange(30) % 3 == 0, -1.0, 1.0) if method == "minres" else 1)
    M = Spectrum(torch.linspace(1, 2, 30, dtype=torch.float64), psd=True, seed=1) if preconditioned else None
    A, B = Spectrum(d), torch.nn.functional.normalize(randn(2, 30))
    system = Symmetric(A, 0.01, M)
    run = METHODS[method].start(system, B, torch.full((2,), 1e-14).double())
    H, P = A.dense() + 0.01 * eye(30), eye(30) if M is None else M.dense()
    space = [P @ B.T]  # of each right-hand side, or of both
    for _ in range(7):
        run.step()
        X = run.vectors["X"].T
        torch.testing.assert_close(run.vectors["R"].T, B.T - H @ X, rtol=0, atol=1e-12)
        torch.testing.assert_close(run.scalars["size"], (B.T - H @ X).norm(dim=0), rtol=0, atol=1e-12)
        for i in range(2):
            K = torch.cat(space, 1) if method == "block-cg" else torch.stack([v[:, i] for v in space], 1)
            Q = torch.linalg.qr(K)[0]
            if method == "minres":
                L = torch.linalg.cholesky(P).T  # |r| in the norm of the preconditioner
                best = Q @ torch.linalg.lstsq(L @ H @ Q, (L @ B[i])[:, None]).solution[:, 0]
            else:
                best = Q @ torch.linalg.solve(Q.T @ H @ Q, Q.T @ B[i])
            torch.testing.assert_close(X[:, i], best, rtol=0, atol=1e-7 * float(best.norm()))
        space.append(P @ H @ space[-1])


@given(m=st.integers(9, 14), n=st.integers(7, 9), seed=st.integers(0, 9))
def test_lsmr_knows_its_residuals(m: int, n: int, seed: int) -> None:
    """|r| and |A^T r| by the recurrence are those of x, and |A^T r| is the least in the Krylov space."""
    M, B = randn(m, n, seed=seed), torch.nn.functional.normalize(randn(2, m, seed=seed + 1))
    system = LeastSquares(Rectangle(M), 0.0)
    run = METHODS["lsmr"].start(system, B, torch.full((2,), 1e-14).double())
    space = [M.T @ B.T]
    for _ in range(4):
        run.step()
        X = run.vectors["X"].T
        R = B.T - M @ X
        torch.testing.assert_close(run.scalars["normr"], R.norm(dim=0), rtol=0, atol=1e-10)
        torch.testing.assert_close(run.scalars["zetabar"].abs(), (M.T @ R).norm(dim=0), rtol=0, atol=1e-10)
        for i in range(2):
            Q = torch.linalg.qr(torch.stack([v[:, i] for v in space], 1))[0]
            best = Q @ torch.linalg.lstsq(M.T @ M @ Q, (M.T @ B[i])[:, None]).solution[:, 0]
            torch.testing.assert_close(X[:, i], best, rtol=0, atol=1e-8 * (1 + float(best.norm())))
        space.append(M.T @ (M @ space[-1]))


# --- against scipy ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("method", "theirs"), [("cg", sl.cg), ("minres", sl.minres)])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_products_of_scipy(method: str, theirs: Any, preconditioned: bool) -> None:
    """As many products as scipy's solver for the same tolerance, and its x: one check more, 5 % either way."""
    d = log_spectrum(150, 1e2)
    d = d if method == "cg" else d * torch.where(torch.arange(150) % 3 == 0, -1.0, 1.0)
    M = Spectrum(1 / (d.abs() + 0.05), psd=True) if preconditioned else None
    A, b = Spectrum(d, psd=method == "cg"), randn(150)
    s = check(A, b, method=method, preconditioner=M, tol=1e-9)
    A.count = 0
    x, failed = theirs(A.to_scipy(), b.numpy(), rtol=1e-9, maxiter=3000, M=None if M is None else M.to_scipy())
    assert not failed
    torch.testing.assert_close(s.x, torch.tensor(x), rtol=0, atol=1e-4 * float(s.x.norm()))
    # scipy's minres stops by |r| / (|A| |x| + |b|) and in the norm of the preconditioner: other steps, same rate
    room = 0.05 if method == "cg" else 0.6
    assert abs(s.products - A.count) <= room * A.count + 3


def test_lsmr_of_scipy() -> None:
    """The x of scipy's lsmr, plain and damped, at no more than its products and a check."""
    M, b = randn(80, 30), randn(80)
    for damping in (0.0, 0.5):
        s = check(Rectangle(M), b, damping=damping, tol=1e-10)
        x, _, steps, *_ = sl.lsmr(M.numpy(), b.numpy(), damp=damping**0.5, atol=1e-10, btol=1e-10, maxiter=1000)
        torch.testing.assert_close(s.x, torch.tensor(x), rtol=0, atol=1e-8)
        assert s.products <= 2 * steps + 10


def test_block_needs_fewer_products() -> None:
    """A few eigenvalues decide: eight right-hand sides in one Krylov space take less than half the products."""
    d = 1 + 0.1 * torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    d[:30] = torch.logspace(0.5, 3, 30, dtype=torch.float64)
    A, b = Spectrum(d, psd=True), randn(400, 8)
    one, block = (check(A, b, method=m, tol=1e-8) for m in ("cg", "block-cg"))
    assert one.converged
    assert block.converged
    assert block.products < one.products / 2


def test_deflation() -> None:
    """Known eigenpairs are taken out: outliers no longer cost products; inexact pairs change the cost alone."""
    d = 1 + 0.5 * torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    d[:12] = torch.logspace(1.5, 4, 12, dtype=torch.float64)
    d[12:15] = torch.tensor([1e-3, 2e-3, 3e-3], dtype=torch.float64)
    b = randn(400, 2)
    for signs, method in ((1.0, "cg"), (1.0, "block-cg"), (-1.0, "minres")):
        d[:6] = d[:6].abs() * signs
        A = Spectrum(d, psd=method != "minres")
        for tol in (1e-9, 1e-2):
            pairs = eigenpairs(A, 12 if signs > 0 else 6, 3 if signs > 0 else 6, tol=tol, max_products=2000)
            plain, deflated = check(A, b, method=method, tol=1e-8), check(A, b, method=method, tol=1e-8, deflate=pairs)
            assert deflated.converged
            assert deflated.products < plain.products * (0.5 if tol == 1e-9 else 1)
    M = Spectrum(1 / (d.abs() + 1), psd=True)
    assert check(A, b, tol=1e-8, deflate=pairs, preconditioner=M).converged


# --- what it says -----------------------------------------------------------------------------------------------------
def test_auto_says_which() -> None:
    """cg for psd, minres for symmetric or a negative damping, lsmr otherwise, the closed form where there is one."""
    d, b = log_spectrum(9, 10), randn(9)
    assert solve(Spectrum(d, psd=True), b).method == "cg"
    assert solve(Spectrum(d), b).method == solve(Spectrum(d, psd=True), b, damping=-3.0).method == "minres"
    assert solve(Rectangle(randn(9, 9)), b, max_products=4000).method == "lsmr"
    s = solve(Diagonal({"x": d}), b)
    assert (s.method, s.products, s.converged) == ("exact", 1, True)
    torch.testing.assert_close(s.x, b / d)
    M = randn(9, 9)
    assert check(Dense(M, Space((("x", (9,)),))), b, damping=0.2, method="exact", tol=1e-9).converged


def test_forms_of_b() -> None:
    """x has the form of b: a dict, a stack, flat, flat and stacked."""
    A = Spectrum(log_spectrum(10, 10), psd=True)
    B = randn(10, 3)
    want = solve(A, B, tol=1e-12).x
    assert want.shape == (10, 3)
    torch.testing.assert_close(solve(A, B[:, 1], tol=1e-12).x, want[:, 1])
    torch.testing.assert_close(A.domain.flatten(A.solve(A.domain.unflatten(B), tol=1e-12).x), want)
    torch.testing.assert_close(A.domain.flatten(qf.solve(A, A.domain.unflatten(B[:, 1]), tol=1e-12).x), want[:, 1])


@pytest.mark.parametrize("method", DEFINITE)
def test_zero_and_repeated_right_hand_sides(method: str) -> None:
    """b = 0 gives x = 0 without a product; beside others it changes nothing; copies and tiny or huge b are solved."""
    A, b = Spectrum(log_spectrum(30, 100), psd=True), randn(30)
    s = check(A, torch.zeros(30, 2).double(), method=method)
    assert (s.products, s.converged, float(s.x.abs().max())) == (0, True, 0.0)
    B = torch.stack([b, torch.zeros_like(b), b, 1e-200 * b, 1e200 * b], 1)
    s = check(A, B[:, :3], method=method, tol=1e-9)
    assert s.converged
    assert float(s.x[:, 1].abs().max()) == 0
    s = solve(A, B, method=method, tol=1e-9)
    assert s.converged
    torch.testing.assert_close(s.x[:, 3] / 1e-200, s.x[:, 4] / 1e200, rtol=1e-5, atol=1e-5)


def test_not_converged_is_said() -> None:
    """Too few products: converged is false, the note says what to do, x is the best so far, the inverse raises."""
    A, b = Spectrum(log_spectrum(200, 1e6), psd=True), randn(200)
    s = check(A, b, max_products=20)
    assert not s.converged
    assert s.products <= 20
    assert s.note == (
        "residual above 1e-06 after 20 products; raise `max_products`, or give a damping or a preconditioner"
    )
    assert str(s).startswith("cg: NOT converged, relative residual")
    with pytest.raises(CheckFailed, match=r"did not converge\. cg: NOT converged"):
        A.inverse(max_products=20) @ b
    with pytest.raises(CheckFailed, match=r"a function of .* did not converge"):
        A.sqrt_inverse(max_products=20) @ b


def test_indefinite_stops_cg() -> None:
    """cg on an operator that is not positive meets negative curvature and says so; the block too."""
    A, b = Spectrum(outliers(60)), randn(60, 2)
    for method in ("cg", "block-cg"):
        s = check(A, b, method=method)
        assert not s.converged
        assert "2 of 2 right-hand sides: negative curvature" in s.note


def test_outside_the_range() -> None:
    """b outside the range of a singular operator: no method claims convergence; minres leaves the least residual."""
    d = torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0, 5.0]).double()
    A, b = Spectrum(d, psd=True), randn(6)
    for method in ("cg", "block-cg", "minres"):
        s = check(A, b, method=method, max_products=500)
        assert not s.converged
        assert "singular" in s.note or "outside the range" in s.note, s
    left = (b - A.dense() @ torch.linalg.pinv(A.dense()) @ b).norm()
    torch.testing.assert_close(float(s.absolute), float(left))
    s = check(A, b, method="lsmr")
    assert s.converged
    assert s.note.startswith("a least-squares solution: |b - A x| is")


def test_true_residual() -> None:
    """Products that drift from linear: the recurrence believes in convergence, the result does not."""

    class Drifting(Spectrum):
        def apply(self, V: Any) -> dict[str, Tensor]:
            out = super().apply(V)
            return {name: t * (1 + 1e-3 * (self.count % 7)) for name, t in out.items()}

    A = Drifting(log_spectrum(50, 100), psd=True)
    s = solve(A, randn(50), tol=1e-9)
    assert not s.converged
    assert "no longer falls" in s.note


@pytest.mark.parametrize("method", DEFINITE)
def test_starts_again_from_the_true_residual(method: str) -> None:
    """Products that are wrong for a while: the first x is off, the next run starts from its residual and mends it."""

    class Late(Spectrum):
        def apply(self, V: Any) -> dict[str, Tensor]:
            wrong = 1 + 0.05 * (self.count % 3) * (self.count < 20)
            return {name: t * wrong for name, t in super().apply(V).items()}

    A, b = Late(log_spectrum(40, 10), psd=True), randn(40, 2)
    s = solve(A, b, method=method, tol=1e-9)
    assert s.converged, s
    torch.testing.assert_close(s.x, torch.linalg.solve(A.dense(), b), rtol=0, atol=1e-6)


def test_progress_and_start() -> None:
    """`progress` sees products and residual; a start near x saves products, a bad one is thrown away."""
    A, b = Spectrum(log_spectrum(100, 1e3), psd=True), randn(100)
    told: list[tuple[int, int, float, str]] = []
    cold = solve(A, b, tol=1e-9, progress=lambda *t: told.append(t))
    assert told[-1][0] == cold.products
    assert told[-1][3].startswith("residual ")
    warm = solve(A, b, tol=1e-9, start=solve(A, b, tol=1e-6).x)
    assert warm.converged
    assert warm.products < 0.7 * cold.products
    assert solve(A, b, tol=1e-9, start=1e6 * cold.x).converged


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "gmres"}, "method is one of auto, exact, cg, block-cg, minres, lsmr; got 'gmres'"),
        ({"tol": 0.0}, "tol is a relative residual between 0 and 1"),
        ({"max_products": 1}, "max_products for 1 right-hand side is a whole number of at least 4"),
        ({"method": "lsmr", "damping": -1.0}, "the damping of least squares is not negative"),
        ({"method": "lsmr", "preconditioner": Spectrum(torch.ones(9).double())}, "lsmr takes no preconditioner"),
        ({"preconditioner": Spectrum(torch.ones(4).double())}, "a preconditioner is a symmetric operator of"),
        ({"preconditioner": Spectrum(torch.ones(9))}, "operator and preconditioner differ in dtype or device"),
        ({"preconditioner": Spectrum(-torch.ones(9).double())}, "is not positive definite: r . M r = -1"),
    ],
)
def test_refusals(options: dict[str, Any], text: str) -> None:
    """Every refusal says what was asked and what to do."""
    A = Spectrum(log_spectrum(9, 10), psd=True)
    with pytest.raises(InputError) as caught:
        solve(A, randn(9), **options)
    assert text in str(caught.value)


def test_more_refusals() -> None:
    """NaN, no vector, no room, a method for symmetric operators."""
    A = Spectrum(log_spectrum(9, 10), psd=True)
    with pytest.raises(InputError, match="b is NaN or infinite"):
        solve(A, torch.full((9,), torch.nan).double())
    with pytest.raises(InputError, match="b has no vector in it"):
        solve(A, torch.zeros(9, 0).double())
    with pytest.raises(TooLarge, match="cg keeps at least 8 vectors"):
        solve(A, randn(9), memory=100.0)
    with pytest.raises(InputError, match=r"cg needs a symmetric operator.* Use lsmr"):
        solve(Rectangle(randn(4, 4)), randn(4), method="cg")


# --- operators again --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["cg", "block-cg", "minres", "lsmr", "auto"])
def test_inverse_keeps_the_contract(method: str) -> None:
    """A.inverse() is an operator: contract, blocks, scipy, and A.inverse() A = A A.inverse() = I to tol."""
    A = Spectrum(log_spectrum(24, 30), psd=True)
    M = A.inverse(method=method, tol=1e-13)
    assert M.method == ("cg" if method == "auto" else method)
    check_inverse(A, M, rtol=1e-9)
    assert M.last.converged
    assert M.symmetric == M.psd == (method != "lsmr")
    want = torch.linalg.inv(A.dense())
    torch.testing.assert_close(M.block("a", "b").dense(), want[:12, 12:], rtol=0, atol=1e-8)
    torch.testing.assert_close((M + 2.0 * A).dense(), want + 2 * A.dense(), rtol=0, atol=1e-8)


def test_inverse_with_damping_and_preconditioner() -> None:
    """(A + damping I)^-1 with everything `solve` takes, in float32 too."""
    for dtype, rtol in ((torch.float64, 1e-8), (torch.float32, 2e-3)):
        d = log_spectrum(20, 1e3).to(dtype)
        A, P = Spectrum(d, psd=True), Spectrum(1 / (d + 0.02), psd=True)
        tol = 1e-12 if dtype == torch.float64 else 1e-5
        check_inverse(A, A.inverse(damping=0.01, preconditioner=P, tol=tol), damping=0.01, rtol=rtol)


def test_pseudo_inverse() -> None:
    """The inverse of a rectangular operator by lsmr is (A^T A + damping I)^-1 A^T, and so is its adjoint."""
    M = randn(7, 4)
    A = Rectangle(M).inverse(damping=0.1, tol=1e-13)
    check_operator(A, rtol=1e-9)
    want = torch.linalg.solve(M.T @ M + 0.1 * eye(4), M.T)
    torch.testing.assert_close(A.dense(), want, rtol=0, atol=1e-9)
    torch.testing.assert_close(A.T.dense(), want.T, rtol=0, atol=1e-9)


def test_newton_step_of_a_model() -> None:
    """(H_o + damping I)^-1 g of a small network equals the dense solve."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()
    x, y = randn(16, 3), randn(16, 2)
    H = qf.gauss_newton(qf.Risk(net, lambda out, batch: (out - batch[1]).square().mean(), (x, y)))
    g = {name: randn(*shape) for name, shape in H.domain}
    want = torch.linalg.solve(H.dense() + 1e-2 * eye(H.shape[0]), H.domain.flatten(g))
    for method in ("auto", "cg"):
        s = H.solve(g, damping=1e-2, method=method, tol=1e-10)
        assert s.converged
        torch.testing.assert_close(H.domain.flatten(s.x), want, rtol=0, atol=1e-6)


# --- resuming ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", DEFINITE)
def test_more_products_go_on(method: str, tmp_path: Path) -> None:
    """A run that ended for want of products goes on where it was: the bits, and the products, of one run."""
    A, b = Spectrum(log_spectrum(80, 100), psd=True), randn(80, 2)
    options: dict[str, Any] = {"method": method, "tol": 1e-9}
    whole = solve(A, b, **options, max_products=9000)
    first = solve(A, b, **options, max_products=40, resume=tmp_path)
    assert not first.converged
    made = A.count
    again = solve(A, b, **options, max_products=9000, resume=tmp_path)
    assert torch.equal(again.x, whole.x)
    assert again.products == whole.products
    assert A.count - made <= whole.products - 40 + 10
    with pytest.raises(InputError, match="started with other settings"):
        solve(A, b, **options, damping=1.0, resume=tmp_path)
