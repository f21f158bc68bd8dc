"""f(A) b by Lanczos against eigh: values, bounds that hold, estimates that cover, poles, k vectors, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import Spectrum, outliers
from torch import Tensor

from quadform.core.errors import InputError
from quadform.estimate import FunctionValue, MatrixFunction, matrix_function
from quadform.estimate.solvers.functions import NAMED
from quadform.testing import check_operator


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def truth(A: Spectrum, b: Tensor, f: Any, damping: float) -> Tensor:
    values, U = torch.linalg.eigh(Spectrum(A.d.double()).dense())
    values = NAMED[f](values, damping) if isinstance(f, str) else f(values + damping)
    return U @ (values[:, None] * (U.T @ b.double().reshape(len(b), -1)))


def check(A: Spectrum, b: Tensor, f: Any, damping: float = 0.0, **options: Any) -> FunctionValue:
    """The error is within the stated one; what has converged is at its tolerance."""
    A.signs = Spectrum(A.d).signs
    got = matrix_function(A, b, f, damping=damping, **options)
    want = truth(A, b, f, damping)
    lengths = b.double().reshape(len(b), -1).norm(dim=0).clamp(min=1e-300)
    off = (got.value.double().reshape(want.shape) - want).norm(dim=0) / lengths
    oracle = 1e-13 * want.norm(dim=0) / lengths
    assert (off <= got.error + oracle).all(), (off, got.error)
    if got.converged:
        assert (off <= oracle + options.get("tol", 1e-6) * want.norm(dim=0) / lengths).all()
    return got


@pytest.mark.parametrize("f", NAMED)
@given(n=st.integers(1, 20), k=st.integers(1, 3), exponent=st.floats(0, 4), seed=st.integers(0, 9))
def test_small(f: str, n: int, k: int, exponent: float, seed: int) -> None:
    """Any small positive operator: the basis spans the space, and the value is that of eigh."""
    d = torch.logspace(0, -exponent, n, dtype=torch.float64)
    got = check(Spectrum(d, psd=True), randn(n, k, seed=seed), f, damping=0.01, tol=1e-8)
    assert got.converged, got
    assert got.products <= n


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("f", ["inverse", "inverse-sqrt", "log"])
@pytest.mark.parametrize("products", [20, 60, 120])
def test_bounds(f: str, products: int, dtype: torch.dtype) -> None:
    """A damped positive operator: the error is a bound before and after convergence, and not far above the error."""
    d = torch.logspace(-4, 1, 300, dtype=torch.float64).to(dtype)
    A, b = Spectrum(d, psd=True), randn(300, 2, dtype=dtype)
    got = check(A, b, f, damping=0.02, tol=1e-9, max_products=products)
    assert got.error_kind == "bound"
    assert got.products <= products
    off = (got.value.double() - truth(A, b, f, 0.02)).norm(dim=0) / b.double().norm(dim=0)
    if dtype == torch.float64:
        assert (got.error <= 50 * off).all()


@pytest.mark.parametrize("f", ["inverse", "abs-inverse", "exp"])
def test_indefinite(f: str) -> None:
    """Eigenvalues of both signs: the estimate of the error covers it."""
    d = outliers(200, top=(3, 2, 1.5), low=-2.0)
    d = d + 0.1 * d.sign()
    for products in (40, 100, 200):
        check(Spectrum(d), randn(200, 2), f, damping=0.0, tol=1e-6, max_products=products)
    got = check(Spectrum(d), randn(200, 2), f, tol=1e-6, max_products=200)
    assert got.converged
    assert got.error_kind == "estimate"


def test_saddle_free_newton() -> None:
    """|A|^-1 b of an indefinite operator: A |A|^-1 has eigenvalues of modulus one, so b . |A|^-1 b > 0."""
    d = outliers(150, top=(5, 3), low=-4.0)
    d = d + 0.2 * d.sign()
    A, b = Spectrum(d), randn(150)
    x = check(A, b, "abs-inverse", tol=1e-8, max_products=150).value
    assert float(b @ x) > 0
    torch.testing.assert_close(float((A @ x).norm()), float(b.norm()), rtol=1e-6, atol=0)


def test_a_function_of_ones_own() -> None:
    """Any callable; a polynomial of degree m is exact after m + 1 products."""
    A, b = Spectrum(torch.linspace(-1, 2, 80, dtype=torch.float64)), randn(80)
    got = matrix_function(A, b, lambda x: x**3 - x, max_products=12)
    torch.testing.assert_close(got.value, A @ (A @ (A @ b)) - A @ b, rtol=0, atol=1e-12)
    got = matrix_function(A, b, lambda x: x**3 - x, damping=1.0, max_products=12)
    B = A.dense() + torch.eye(80, dtype=torch.float64)
    torch.testing.assert_close(got.value, B @ (B @ (B @ b)) - B @ b, rtol=0, atol=1e-11)


def test_zero_dependent_and_repeated() -> None:
    """b = 0, copies, k above the number of distinct eigenvalues: no breakdown; forms as given."""
    A, b = Spectrum(torch.tensor([1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0, 7.0]).double(), psd=True), randn(8)
    B = torch.stack([b, torch.zeros_like(b), 2 * b, *randn(4, 8, seed=1)], 1)
    got = check(A, B, "inverse-sqrt", tol=1e-10)
    assert got.converged
    assert got.products <= 8
    assert float(got.value[:, 1].abs().max()) == 0
    torch.testing.assert_close(got.value[:, 2], 2 * got.value[:, 0])
    zero = check(A, torch.zeros(8).double(), "log")
    assert (zero.products, zero.converged, float(zero.value.abs().max())) == (0, True, 0.0)
    named = matrix_function(A, A.domain.unflatten(b), "exp", tol=1e-10)
    torch.testing.assert_close(A.domain.flatten(named.value)[:, None], truth(A, b, "exp", 0.0))


def test_refusals_and_what_is_not_converged() -> None:
    """A root of an indefinite or singular operator is refused with the damping it needs; few products are told."""
    A, b = Spectrum(outliers(60)), randn(60)
    with pytest.raises(InputError, match=r"inverse-sqrt needs a positive operator; .* at most -"):
        matrix_function(A, b, "inverse-sqrt")
    with pytest.raises(InputError, match="a function is one of inverse, abs-inverse"):
        matrix_function(A, b, "sqrt")
    with pytest.raises(InputError, match="tol is a relative error"):
        matrix_function(A, b, "exp", tol=2.0)
    d = torch.ones(5, dtype=torch.float64)
    d[0] = 0
    with pytest.raises(InputError, match="log needs a positive operator"):
        matrix_function(Spectrum(d, psd=True), randn(5), "log")
    psd = Spectrum(torch.logspace(-6, 0, 400, dtype=torch.float64), psd=True)
    got = check(psd, randn(400), "inverse-sqrt", damping=1e-6, max_products=30)
    assert not got.converged
    assert got.note == "error above 1e-06 |f(A) b| after 30 products; raise `max_products`"
    with pytest.raises(InputError, match="needs as many products at least"):
        matrix_function(psd, randn(400, 3), "exp", max_products=2)


def test_operators() -> None:
    """f(A) as an operator keeps the contract; A.sqrt_inverse() twice and A are the identity."""
    A = Spectrum(torch.logspace(-2, 0, 20, dtype=torch.float64), psd=True)
    for f in NAMED:
        F = MatrixFunction(A, f, damping=0.1, tol=1e-11)
        check_operator(F, rtol=1e-8)
        assert F.psd == (f != "log")
    R = A.sqrt_inverse(tol=1e-11)
    torch.testing.assert_close((R @ R @ A).dense(), torch.eye(20, dtype=torch.float64), rtol=0, atol=1e-7)
    assert R.last.converged


def test_more_products_go_on(tmp_path: Path) -> None:
    """A larger `max_products` goes on where the first run ended, to the bits of one run."""
    d = torch.logspace(-3, 1, 200, dtype=torch.float64)
    A, b = Spectrum(d, psd=True), randn(200, 2)
    options: dict[str, Any] = {"damping": 0.01, "tol": 1e-7}
    whole = matrix_function(A, b, "inverse-sqrt", **options, max_products=200)
    first = matrix_function(A, b, "inverse-sqrt", **options, max_products=40, resume=tmp_path)
    assert not first.converged
    made = A.count
    again = matrix_function(A, b, "inverse-sqrt", **options, max_products=200, resume=tmp_path)
    torch.testing.assert_close(again.value, whole.value, rtol=0, atol=1e-12)
    assert again.products == whole.products
    assert A.count - made == whole.products - 40 + 1  # one product identifies the operator
