"""Norms of square and rectangular operators, of blocks and of all block pairs; singular values; condition numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import Spectrum, outliers
from torch import Tensor

from quadform.core.errors import InputError
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.estimate import (
    block_norms,
    condition_number,
    frobenius,
    nuclear_norm,
    singular_ends,
    spectral_norm,
    stable_rank,
)
from quadform.testing import check_operator
from quadform.theory.attention import AttentionLayer


def rectangular(m: int, n: int, seed: int = 0) -> tuple[Dense, Tensor]:
    """A matrix with singular values 1/i^2 on top of a bulk, and its singular values."""
    g = torch.Generator().manual_seed(seed)
    M = torch.randn(m, n, generator=g, dtype=torch.float64) / n**0.5
    U, _, V = torch.linalg.svd(M, full_matrices=False)
    s = 1 + 9 / torch.arange(1, min(m, n) + 1, dtype=torch.float64) ** 2
    return Dense((U * s) @ V, Space((("x", (n,)),)), Space((("y", (m,)),)), symmetric=False), s


@pytest.mark.parametrize("method", ["sketched", "sampled"])
@pytest.mark.parametrize(("m", "n"), [(90, 90), (70, 130), (130, 70)])
def test_frobenius_coverage(m: int, n: int, method: str) -> None:
    """About 95 % of the estimates lie within two standard errors of the norm, all within five."""
    A, s = rectangular(m, n)
    found = [frobenius(A, 60, method=method, seed=k) for k in range(80)]
    off = torch.tensor([(e.value - float(s.norm())) / e.stderr for e in found])
    assert 0.9 <= float((off.abs() <= 2).double().mean()) <= 1
    assert float(off.abs().max()) <= 5


def test_frobenius_error_falls_as_the_root() -> None:
    """The standard error falls as 1/sqrt(products)."""
    A = Spectrum(torch.randn(600, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    few, many = (sum(frobenius(A, k, method="sampled", seed=s).stderr for s in range(8)) / 8 for k in (40, 360))
    assert few / many == pytest.approx(3, rel=0.2)


def test_symmetric_frobenius_leaves_one_out() -> None:
    """The symmetric sketch: its definition by m factorisations, honest coverage, a smaller error than sampling."""
    from quadform.estimate.vectors import probes

    A = Spectrum(outliers(200))
    M, Omega = A.dense(), probes(A, 0, "frobenius/sketch", range(5), "gaussian").T
    values = []
    for i in range(5):
        Q = torch.linalg.qr(M @ Omega[:, [j for j in range(5) if j != i]])[0]
        u = Omega[:, i] - Q @ (Q.T @ Omega[:, i])
        values.append((M @ Q).square().sum() + (200 - 4) / (u @ u) * (M @ u).square().sum())
    assert frobenius(A, 10).value == pytest.approx(float(torch.stack(values).mean().sqrt()), rel=1e-9)
    found = [frobenius(A, 40, seed=k) for k in range(80)]
    off = torch.tensor([(e.value - float(A.d.norm())) / e.stderr for e in found])
    assert 0.52 <= float((off.abs() <= 1).double().mean()) <= 0.84
    assert float(off.abs().max()) <= 5
    plain = [frobenius(A, 40, method="sampled", seed=k).stderr for k in range(80)]
    assert sum(e.stderr for e in found) < sum(plain) / 10


@given(m=st.integers(1, 12), n=st.integers(1, 12))
def test_small_is_exact(m: int, n: int) -> None:
    """Where a side is at most `products` long all sizes are exact, from unit vectors of the smaller side."""
    M = torch.randn(m, n, generator=torch.Generator().manual_seed(m + 13 * n), dtype=torch.float64)
    A = Dense(M, Space((("x", (n,)),)), Space((("y", (m,)),)), symmetric=False)
    s = torch.linalg.svdvals(M)
    want = {
        frobenius: float(s.norm()),
        nuclear_norm: float(s.sum()),
        condition_number: float(s[0] / s[-1]),
        spectral_norm: float(s[0]),
        stable_rank: float(s.square().sum() / s[0] ** 2),
    }
    for size, value in want.items():
        e = size(A)
        iterated = size in (spectral_norm, stable_rank)
        assert e.value == pytest.approx(value, rel=1e-3 if iterated else 1e-6)
        assert e.kind == "exact" or iterated
    assert frobenius(A).matvecs == min(m, n)


@pytest.mark.parametrize(("m", "n"), [(90, 90), (70, 130), (130, 70)])
def test_singular_ends(m: int, n: int) -> None:
    """Golub-Kahan: both ends within their residuals; bound or estimate as they have converged."""
    A, s = rectangular(m, n)
    early = singular_ends(A, max_products=40)
    assert early.largest.converged
    assert abs(early.largest.value - float(s[0])) <= early.largest.error + 1e-12
    assert (early.smallest.kind, early.smallest.side, early.smallest.error_kind) == ("bound", "upper", "residual")
    assert early.smallest.value >= float(s[-1]) - 1e-12
    late = singular_ends(A, max_products=2 * min(m, n), smallest=True)
    assert late.smallest.converged
    assert late.smallest.value == pytest.approx(float(s[-1]), rel=1e-3)
    assert spectral_norm(A).value == pytest.approx(float(s[0]), rel=1e-5)


def test_residual_of_the_triplet() -> None:
    """The reported error of sigma_max is |A^T u - sigma v|: an eighth of the steps leaves a visible, true one."""
    A, s = rectangular(90, 90)
    for products in (4, 6, 8, 12):
        e = singular_ends(A, max_products=products).largest
        gap = abs(e.value - float(s[0]))
        assert gap <= e.error
        assert e.error < 5


def test_singular_operators() -> None:
    """Zero and low-rank operators: norms are found, the condition number is infinite."""
    space = Space((("x", (80,)),))
    zero = Dense(torch.zeros(80, 80, dtype=torch.float64), space, symmetric=False)
    assert spectral_norm(zero).value == 0
    assert frobenius(zero).value == 0
    assert stable_rank(zero).value == 0
    u = torch.ones(80, 1, dtype=torch.float64)
    one = Dense(u @ u.T, space, symmetric=False)
    assert spectral_norm(one).value == pytest.approx(80)
    assert stable_rank(one, 200).value == pytest.approx(1)
    assert condition_number(one).value == math.inf
    assert condition_number(one, max_products=30).value == math.inf


@pytest.mark.parametrize("psd", [True, False])
def test_condition_number(psd: bool) -> None:
    """Of a positive definite operator by Lanczos, of an indefinite one by singular values; a lower bound until then."""
    d = torch.linspace(5, 20, 300, dtype=torch.float64)
    d[0] = 1
    d = d if psd else d * (-1) ** torch.arange(300)
    A = Spectrum(d, psd=psd)
    e = condition_number(A, tol=1e-2, max_products=240)
    assert e.converged
    assert abs(e.value - 20) <= e.error + 1e-9
    rough = condition_number(A, max_products=20)
    assert (rough.kind, rough.side, rough.error_kind) == ("bound", "lower", "residual")
    assert rough.value <= 20


@pytest.mark.parametrize("symmetric", [True, False])
def test_nuclear_norm(symmetric: bool) -> None:
    """The sum of singular values by quadrature, of a symmetric operator and through the Gram operator."""
    if symmetric:
        A, want = Spectrum(outliers(500)), float(outliers(500).abs().sum())
    else:
        A, s = rectangular(300, 400)
        want = float(s.sum())
    for seed in range(5):
        e = nuclear_norm(A, 12, 12, seed=seed)
        assert e.kind == "estimate"
        assert abs(e.value - want) <= 5 * e.stderr


def test_gram_is_an_operator() -> None:
    """A^T A keeps the contract of a positive semi-definite operator."""
    from quadform.estimate.norms import Gram

    check_operator(Gram(rectangular(5, 7)[0]))


def test_stable_rank() -> None:
    """|A|_F^2 / |A|_2^2 within five standard errors."""
    d = outliers(400)
    for seed in range(5):
        e = stable_rank(Spectrum(d), seed=seed)
        assert abs(e.value - float(d.square().sum() / 1600)) <= 5 * e.stderr


def test_a_spectral_norm_whose_other_end_is_open_is_a_bound() -> None:
    """Top 5 has converged after 10 products, the bottom, -5.05 in truth, has not come so far yet."""
    d = torch.cat([torch.tensor([5.0]), -torch.linspace(0, 5.05, 3000)]).double()
    e = spectral_norm(Spectrum(d), max_products=10)
    assert (e.kind, e.converged) == ("bound", False)
    assert e.value == pytest.approx(5, abs=1e-3)


def test_error_of_the_stable_rank() -> None:
    """The change of |A|_F^2 / |A|_2^2 under a standard error of each norm, the two joined as independent."""
    A = Spectrum(outliers(400))
    e, F, top = stable_rank(A, seed=1), frobenius(A, seed=1), spectral_norm(A, max_products=60, seed=1)
    by_F = ((F.value + F.stderr) ** 2 - (F.value - F.stderr) ** 2) / 2 / top.value**2
    by_top = F.value**2 * ((top.value - top.error) ** -2 - (top.value + top.error) ** -2) / 2
    assert e.stderr == pytest.approx(math.hypot(by_F, by_top), rel=1e-3)


@pytest.mark.parametrize("symmetric", [True, False])
def test_products_of_a_small_rank_are_counted(symmetric: bool) -> None:
    """An operator of rank 3 is found whole: m products that find its range and 3 that measure it."""
    g = torch.Generator().manual_seed(0)
    U, V = torch.randn(2, 80, 3, generator=g, dtype=torch.float64)
    M = U @ U.T if symmetric else U @ V.T
    space = Space((("x", (80,)),))
    e = frobenius(Dense(M, space, symmetric=True) if symmetric else Dense(M, space, space, symmetric=False), 24)
    assert e.value == pytest.approx(float(M.norm()), rel=1e-10)
    assert e.matvecs == (12 if symmetric else 8) + 3


# --- blocks -----------------------------------------------------------------------------------------------------------
def layer() -> AttentionLayer:
    g = torch.Generator().manual_seed(1)
    X, Y = (torch.randn(5, 6, generator=g, dtype=torch.float64) for _ in range(2))
    W = [torch.randn(6, 6, generator=g, dtype=torch.float64) / 6**0.5 for _ in range(3)]
    return AttentionLayer(X, *W, Y)


@pytest.mark.parametrize("products", [20, 40])
def test_block_norms(products: int) -> None:
    """All 3 x 3 blocks of the attention Hessian from one sweep: within five s.e. of the closed form, or exact."""
    H = layer().hessian()
    found = block_norms(H, ("W_Q", "W_K", "W_V"), products)
    assert found.matvecs == 3 * min(products, 36)
    for a in found.names:
        for b in found.names:
            e, want = found[a, b], float(H.block(a, b).dense().norm())
            assert e.kind == ("estimate" if products == 20 else "exact")
            assert abs(e.value - want) <= 5 * (e.stderr or 0) + 1e-12
    assert torch.equal(found.value, found.value.T)
    with pytest.raises(InputError, match="the blocks are W_Q, W_K, W_V"):
        found["W_Q", "W_O"]


def test_block_norms_cover() -> None:
    """Off-diagonal pairs, joined from both sides, keep the coverage of one standard error."""
    H = layer().hessian()
    want = {p: float(H.block(*p).dense().norm()) for p in (("W_Q", "W_K"), ("W_V", "W_V"))}
    inside = dict.fromkeys(want, 0)
    for seed in range(60):
        found = block_norms(H, ("W_Q", "W_K", "W_V"), 25, seed=seed)
        for p in want:
            inside[p] += abs(found[p].value - want[p]) <= found[p].stderr
    assert all(0.5 <= k / 60 <= 0.86 for k in inside.values())


def test_blocks_outside_of_the_loss_are_not_the_flattest() -> None:
    """Rows of zeros are left out of sharpest over flattest; a zero diagonal block with others beside it is not."""
    A = torch.zeros(8, 8, dtype=torch.float64)
    A[0:2, 0:2], A[2:4, 2:4] = 8 * torch.eye(2), 2 * torch.eye(2)
    space = Space(tuple((n, (2,)) for n in "abcd"))
    found = block_norms(Dense(A, space), "abcd", 4).heterogeneity([2] * 4)
    assert (found.value, found.note) == (4.0, "a over b")
    A[4, 6] = A[6, 4] = 1.0
    found = block_norms(Dense(A, space), "abcd", 4).heterogeneity([2] * 4)
    assert found.value == math.inf
    assert found.note.endswith(", which is zero")
    assert block_norms(Dense(0 * A, space), "abcd", 4).heterogeneity([2] * 4).value == 1.0


def test_groups_of_blocks() -> None:
    """Blocks may be groups of globs; a block of an operator is measured as any operator."""
    H = layer().hessian()
    found = block_norms(H, {"scores": ("W_Q", "W_K"), "value": ("W_V",)}, 80)
    want = float(H.block(("W_Q", "W_K"), "W_V").dense().norm())
    assert found["scores", "value"].value == pytest.approx(want)
    assert frobenius(H.block("W_Q", "W_V")).value == pytest.approx(float(H.block("W_Q", "W_V").dense().norm()))
    with pytest.raises(InputError, match="name at least one block"):
        block_norms(H, [])
