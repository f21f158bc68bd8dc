"""Operators with closed-form inverse and roots: each is the matrix it stands for, and so are its powers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quadform import Space
from quadform import preconditioners as pre
from quadform.core.errors import InputError
from quadform.core.matrix import kron
from quadform.core.operator import Dense
from quadform.core.structured import Diagonal, KroneckerDiagonal
from quadform.estimate import eigenpairs
from quadform.preconditioners.operators import Blocks, Kronecker, Packed, Piece
from quadform.testing import check_operator

sizes = st.integers(1, 4)


def spd(n: int, seed: int) -> Tensor:
    A = torch.randn((n, n + 1), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return A @ A.T / n + 0.1 * torch.eye(n, dtype=torch.float64)


def power_of(M: Tensor, p: float) -> Tensor:
    s, U = torch.linalg.eigh(M)
    return (U * s**p) @ U.T


def close(a: Tensor, b: Tensor, rtol: float = 1e-9) -> bool:
    return float((a - b).abs().max()) <= rtol * float(b.abs().max())


@given(m=sizes, n=sizes, seed=st.integers(0, 99))
def test_kronecker_is_the_kronecker_product(m: int, n: int, seed: int) -> None:
    """V -> F_1 V F_2 is (F_1 kron F_2) vec_r(V); its damped powers are those of that matrix."""
    F1, F2 = spd(m, seed), spd(n, seed + 1)
    K, M = Kronecker([F1, F2]), kron(F1, F2)
    assert close(K.dense(), M)
    for damping in (0.0, 0.3):
        damped = M + damping * torch.eye(m * n, dtype=M.dtype)
        assert close(K.inverse(damping=damping).dense(), torch.linalg.inv(damped), 1e-6)
        assert close(K.sqrt_inverse(damping=damping).dense(), power_of(damped, -0.5), 1e-6)


def test_three_factors_and_a_diagonal_one() -> None:
    """A tensor of three axes, the middle factor given by its diagonal."""
    F1, d, F3 = spd(2, 0), torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64), spd(4, 1)
    K, M = Kronecker([F1, d, F3]), kron(F1, torch.diag(d), F3)
    assert close(K.dense(), M)
    assert close(K.spectral(lambda s: s**0.25).dense(), power_of(M, 0.25))
    assert close(K.inverse(damping=0.1).dense(), torch.linalg.inv(M + 0.1 * torch.eye(24, dtype=M.dtype)))
    check_operator(K)
    check_operator(K.inverse(damping=0.1))


@given(m=sizes, n=sizes)
def test_bases_with_the_given_spectrum(m: int, n: int) -> None:
    """(U_1 kron I kron U_3) diag(s) (.)^T on a tensor of three axes, with any s."""
    (_, U1), (_, U3) = torch.linalg.eigh(spd(m, 3)), torch.linalg.eigh(spd(n, 4))
    s = torch.rand((m, 2, n), generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.1
    U = kron(U1, torch.eye(2, dtype=torch.float64), U3)
    R = KroneckerDiagonal([U1, None, U3], s, Space((("T", (m, 2, n)),)))
    assert close(R.dense(), (U * s.reshape(-1)) @ U.T)
    assert close(R.inverse(damping=0.2).dense(), (U / (s.reshape(-1) + 0.2)) @ U.T)
    check_operator(R)
    with pytest.raises(InputError, match="do not act on"):
        KroneckerDiagonal([U1, U3], s, R.domain)


def test_packed_weight_and_bias() -> None:
    """A weight stored (in, out) and a bias as last column of (out, in + 1)."""
    space = Space((("b", (2,)), ("W", (3, 2))))
    B, A = spd(2, 0), spd(4, 1)
    pieces = [Piece("W", (slice(None), slice(0, 3)), (2, 3), True), Piece("b", (slice(None), slice(3, None)), (2, 1))]
    P = Packed(Kronecker([B, A]), pieces, space)
    v = space.random(dtype=torch.float64)
    image = B @ torch.cat([v["W"].T, v["b"][:, None]], 1) @ A
    found = P @ v
    assert close(found["W"], image[:, :3].T)
    assert close(found["b"], image[:, 3])
    check_operator(P)
    check_operator(P.sqrt_inverse(damping=0.1))


def test_blocks_are_a_direct_sum() -> None:
    space = Space((("W", (2, 3)), ("b", (2,)), ("s", ())))
    M = spd(2, 0)
    parts = [
        Dense(M, space.select("b"), symmetric=True, psd=True),
        Diagonal({"s": torch.tensor(2.0, dtype=torch.float64), "W": torch.ones((2, 3), dtype=torch.float64)}),
    ]
    P = Blocks(parts, space)
    want = torch.block_diag(torch.eye(6), M, torch.tensor([[2.0]])).double()
    assert close(P.dense(), want)
    assert close(P.inverse(damping=0.5).dense(), torch.linalg.inv(want + 0.5 * torch.eye(9)))
    check_operator(P)
    assert close(P.block(("W", "b")).dense(), want[:8, :8])
    with pytest.raises(InputError, match="do not fill"):
        Blocks(parts[:1], space)


def test_what_has_no_inverse_is_refused() -> None:
    """A singular operator without damping, and a root of an indefinite one; with enough damping both are given."""
    K = Kronecker([torch.diag(torch.tensor([1.0, 0.0])), torch.eye(2)])
    with pytest.raises(InputError, match=r"singular: its eigenvalues reach 0, the largest is 1.*larger `damping`"):
        K.inverse()
    assert close(K.inverse(damping=0.5).dense().diagonal(), torch.tensor([1 / 1.5, 1 / 1.5, 2, 2]), 1e-6)
    R = Blocks([Diagonal({"b": torch.tensor([2.0, -1.0])})], Space((("b", (2,)),)))
    assert close(R.inverse().dense(), torch.diag(torch.tensor([0.5, -1.0])))
    with pytest.raises(InputError, match="not positive: its eigenvalues reach -1"):
        R.sqrt_inverse()
    assert close(R.sqrt_inverse(damping=2.0).dense(), torch.diag(torch.tensor([0.5, 1.0])))


@pytest.mark.parametrize("k", [2, 7])
def test_a_few_eigenpairs_have_functions_in_closed_form(k: int) -> None:
    """P = V |L| V^T + rest (I - V V^T); its inverse and root are those of the matrix, and all pairs give |A|."""
    A = Dense(spd(7, 3) - 2 * torch.eye(7, dtype=torch.float64), Space((("w", (7,)),)), symmetric=True)
    P = pre.of_eigenpairs(A, eigenpairs(A, top=k - 1, bottom=1, tol=1e-12))
    check_operator(P)
    matrix, eye = P.dense(), torch.eye(7, dtype=torch.float64)
    assert close(P.inverse(damping=0.3).dense(), torch.linalg.inv(matrix + 0.3 * eye))
    assert close(P.sqrt_inverse(damping=0.3).dense(), power_of(matrix + 0.3 * eye, -0.5))
    values, U = torch.linalg.eigh(A.matrix)
    kept = [0, *range(7 - (k - 1), 7)]
    s = torch.full((7,), float(values[kept].abs().min()), dtype=torch.float64)
    s[kept] = values[kept].abs()
    assert close(matrix, (U * s) @ U.mT, 1e-6)
    assert pre.mean_eigenvalue(P) == pytest.approx(float(s.mean()))
