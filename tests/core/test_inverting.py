"""Closed forms of inverses and of functions of operators; what has none is solved; singular ones are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quadform.core.errors import InputError
from quadform.core.inverting import power
from quadform.core.operator import Dense, Operator
from quadform.core.space import Space, heads
from quadform.core.structured import Diagonal, KroneckerDiagonal, KroneckerSum
from quadform.testing import check_inverse, check_operator

SMALL = st.integers(1, 4)


def eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(n: int, seed: int = 0) -> Tensor:
    J = randn(n, n, seed=seed)
    M = J @ J.T + 0.5 * eye(n)
    return (M + M.T) / 2


def space(n: int) -> Space:
    return Space((("W", (n, 2)), ("b", (n,))), heads("W", (n, 2), 2))


def diagonal(n: int, seed: int = 0) -> Diagonal:
    d = space(n).unflatten(randn(3 * n, seed=seed))
    return Diagonal({name: t + t.sign() for name, t in d.items()}, space(n))


def examples(n: int, r: int) -> dict[str, Operator]:
    X = Space((("x", (n, r)),))
    U, V = (torch.linalg.qr(randn(m, m, seed=m))[0] for m in (n, r))
    return {
        "dense": Dense(positive(3 * n), space(n), psd=True),
        "dense, not symmetric": Dense(randn(3 * n, 3 * n) + 4 * eye(3 * n), space(n)),
        "diagonal": diagonal(n),
        "scaled": -2.5 * Dense(positive(3 * n), space(n), psd=True),
        "scaled diagonal": 3.0 * diagonal(n),
        "kronecker": KroneckerSum(positive(n)[None], positive(r, 1)[None], X, psd=True),
        "kronecker, not symmetric": KroneckerSum((randn(n, n) + 4 * eye(n))[None], (randn(r, r) + 4 * eye(r))[None], X),
        "kronecker diagonal": KroneckerDiagonal((U, V), 1 + randn(n, r).abs(), X),
    }


@given(SMALL, SMALL, st.sampled_from([0.0, 0.3]))
def test_closed_inverses(n: int, r: int, damping: float) -> None:
    """(A + damping I) A.inverse(damping) = I in both orders, and the inverse keeps the contract of operators."""
    for name, A in examples(n, r).items():
        if name == "kronecker, not symmetric" and damping:
            continue
        M = A.inverse(damping=damping)
        assert type(M).__name__ != "Inverse", name
        assert M.symmetric == A.symmetric
        check_inverse(A, M, damping=damping, rtol=1e-9)


@given(SMALL, SMALL)
def test_closed_roots(n: int, r: int) -> None:
    """R = A.sqrt_inverse(damping) is symmetric, positive, and R R (A + damping I) = I."""
    for name in ("dense", "kronecker", "kronecker diagonal"):
        A = examples(n, r)[name]
        R = A.sqrt_inverse(damping=0.1)
        assert R.psd
        check_operator(R)
        matrix = R.dense()
        torch.testing.assert_close(matrix @ matrix @ (A.dense() + 0.1 * eye(len(matrix))), eye(len(matrix)))


@given(SMALL)
def test_diagonal(n: int) -> None:
    """diag(d): its matrix, named blocks that stay diagonal, off-diagonal ones, positive exactly where d >= 0."""
    A = diagonal(n)
    check_operator(A)
    torch.testing.assert_close(A.dense(), torch.diag(A.domain.flatten(A.d)))
    assert isinstance(A.block("W[1]"), Diagonal)
    assert Diagonal({"x": torch.tensor([0.0, 2.0])}).psd
    assert not Diagonal({"x": torch.tensor([-1.0, 2.0])}).psd


def test_tiny_numbers_on_a_diagonal_are_no_zeros() -> None:
    """A diagonal is known exactly: 1e-30 beside 1 inverts, in a space of any size; zero does not."""
    d = torch.ones(1000)
    d[3] = 1e-30
    assert float(Diagonal({"x": d}).inverse().d["x"][3]) == pytest.approx(1e30)
    d[3] = 0
    with pytest.raises(InputError, match="the operator is singular: its eigenvalues reach 0"):
        Diagonal({"x": d}).inverse()
    assert float(Diagonal({"x": d}).inverse(damping=0.5).d["x"][3]) == 2


@given(SMALL, SMALL)
def test_ekfac_form(n: int, r: int) -> None:
    """(U kron V) diag(s) (U kron V)^T with row-major vec."""
    A = examples(n, r)["kronecker diagonal"]
    check_operator(A)
    UV = torch.kron(*A.bases)
    torch.testing.assert_close(A.dense(), UV @ torch.diag(A.s.reshape(-1)) @ UV.T)


def test_singular_matrices_are_refused() -> None:
    """A matrix that is singular to round-off has no inverse, whether symmetric or not; with a damping it has."""
    J = randn(5, 3)
    G = J @ J.T
    for M in ((G + G.T) / 2, J @ randn(3, 5, seed=1)):
        A = Dense(M, Space((("x", (5,)),)))
        with pytest.raises(InputError, match="the operator is singular"):
            A.inverse()
        check_inverse(A, A.inverse(damping=0.5), damping=0.5, rtol=1e-9)
    with pytest.raises(InputError, match="not positive: its eigenvalues reach -1"):
        Diagonal({"x": torch.tensor([-1.0, 2.0])}).sqrt_inverse()
    with pytest.raises(InputError, match="one vector; got a stack"):
        Diagonal({"x": torch.ones(2, 3)}, Space((("x", (3,)),)))
    with pytest.raises(InputError, match="only an operator of a space into itself"):
        Dense(J, Space((("x", (3,)),)), Space((("y", (5,)),))).inverse(method="exact")


def test_exact_makes_the_matrix_where_there_is_no_closed_form() -> None:
    """`exact` of a sum goes through its dense matrix."""
    A = Dense(positive(4), Space((("x", (4,)),)), psd=True) + Dense(positive(4, 1), Space((("x", (4,)),)), psd=True)
    assert A.exact_inverse() is None
    M = A.inverse(method="exact", damping=0.2)
    assert isinstance(M, Dense)
    check_inverse(A, M, damping=0.2, rtol=1e-10)


@pytest.mark.parametrize("p", [-1.0, -0.5])
def test_powers(p: float) -> None:
    """x^p of positive numbers."""
    x = torch.tensor([0.5, 1.0, 4.0])
    torch.testing.assert_close(power(x, p), x**p)
