"""The papers' matrix calculus against its defining identities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.errors import InputError
from quadform.core.matrix import commutation, khatri_rao, kron, unvec, vec

SIZE = st.integers(1, 4)
TOL = {"rtol": 1e-12, "atol": 1e-12}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(SIZE, SIZE)
def test_vec_is_row_major_and_unvec_its_inverse(m: int, n: int) -> None:
    """vec(B)[i n + j] = B[i, j]; unvec(vec(B)) = B; also for a transposed B."""
    for B in (randn(m, n), randn(n, m).T):
        assert all(vec(B)[i * n + j] == B[i, j] for i in range(m) for j in range(n))
        assert torch.equal(unvec(vec(B), m, n), B)
    with pytest.raises(InputError, match="cannot be read as"):
        unvec(torch.zeros(m * n + 1), m, n)


@given(SIZE, SIZE, SIZE, SIZE)
def test_kron_turns_products_into_one(m: int, n: int, p: int, q: int) -> None:
    """vec_r(P B Q) = (P kron Q^T) vec_r(B), transposed operands included. Source: [ODS25, app. A]."""
    P, B, Q = randn(m, n, seed=1), randn(n, p, seed=2), randn(p, q, seed=3)
    torch.testing.assert_close(kron(P, Q.T) @ vec(B), vec(P @ B @ Q), **TOL)
    torch.testing.assert_close(kron(P.T.contiguous().T, Q.T.contiguous()) @ vec(B), vec(P @ B @ Q), **TOL)


@given(SIZE, SIZE, SIZE, SIZE)
def test_kron_by_entries(m: int, n: int, p: int, q: int) -> None:
    """(A kron B)[(i, k), (j, l)] = A[i, j] B[k, l]."""
    A, B = randn(m, n, seed=1), randn(p, q, seed=2)
    K = kron(A, B)
    assert K.shape == (m * p, n * q)
    for i in range(m):
        for j in range(n):
            assert torch.equal(K[i * p : (i + 1) * p, j * q : (j + 1) * q], A[i, j] * B)


@given(SIZE, SIZE, SIZE)
def test_kron_is_associative(m: int, n: int, p: int) -> None:
    """kron(A, B, C) = (A kron B) kron C = A kron (B kron C)."""
    A, B, C = randn(m, n, seed=1), randn(n, p, seed=2), randn(p, m, seed=3)
    torch.testing.assert_close(kron(A, B, C), kron(A, kron(B, C)), **TOL)
    torch.testing.assert_close(kron(A, B, C), kron(kron(A, B), C), **TOL)


@given(SIZE, SIZE, SIZE, SIZE)
def test_kron_of_transposes_is_the_transpose(m: int, n: int, p: int, q: int) -> None:
    """(A kron B)^T = A^T kron B^T."""
    A, B = randn(m, n, seed=1), randn(p, q, seed=2)
    assert torch.equal(kron(A, B).T, kron(A.T, B.T))


def test_kron_takes_matrices_only() -> None:
    """Vectors and stacks are refused, wherever they stand."""
    E = torch.eye(2)
    for operands in ((E, torch.ones(2)), (torch.ones(2, 2, 2), E), (E, E, torch.ones(2))):
        with pytest.raises(InputError, match="kron multiplies matrices"):
            kron(*operands)


@given(SIZE, SIZE)
def test_commutation_transposes(m: int, n: int) -> None:
    """K_{m,n} vec_c(B) = vec_c(B^T) for B (m, n); in row-major words K_{m,n} vec_r(C) = vec_r(C^T) for C (n, m)."""
    B, K = randn(m, n), commutation(m, n, dtype=torch.float64)
    assert torch.equal(K @ vec(B.T), vec(B))  # vec_c(B) = vec_r(B^T)
    C = randn(n, m)
    assert torch.equal(K @ vec(C), vec(C.T))
    assert torch.equal(K @ K.T, torch.eye(m * n, dtype=torch.float64))
    assert torch.equal(K.T, commutation(n, m, dtype=torch.float64))


@given(SIZE, SIZE, SIZE, SIZE)
def test_commutation_swaps_kronecker_factors(m: int, n: int, p: int, q: int) -> None:
    """A kron B = S (B kron A) T with the permutations S = K_{m,p} and T = K_{q,n}, A (m, n), B (p, q)."""
    A, B = randn(m, n, seed=1), randn(p, q, seed=2)
    left = commutation(m, p, dtype=torch.float64) @ kron(B, A) @ commutation(q, n, dtype=torch.float64)
    torch.testing.assert_close(left, kron(A, B), **TOL)


@given(SIZE, SIZE, SIZE, SIZE, SIZE)
def test_khatri_rao_is_kron_block_by_block(N: int, p: int, q: int, r: int, s: int) -> None:
    """Row block i of the product is A_i kron B_i (kron C_i)."""
    A, B, C = randn(N, p, q, seed=1), randn(N, r, s, seed=2), randn(N, 1, 2, seed=3)
    two, three = khatri_rao(A, B), khatri_rao(A, B, C)
    assert two.shape == (N * p * r, q * s)
    for i in range(N):
        torch.testing.assert_close(two[i * p * r : (i + 1) * p * r], kron(A[i], B[i]), **TOL)
        torch.testing.assert_close(three[i * p * r : (i + 1) * p * r], kron(A[i], B[i], C[i]), **TOL)


def test_khatri_rao_needs_stacks_of_one_length() -> None:
    """Different N, matrices instead of stacks, and no operand at all are refused with the shapes that were got."""
    for stacks in (
        (torch.ones(2, 1, 1), torch.ones(3, 1, 1)),
        (torch.ones(2, 2), torch.ones(2, 1, 1)),
        (),
        (torch.ones(()),),
    ):
        with pytest.raises(InputError, match=r"needs \(N, p, q\) stacks with one N"):
            khatri_rao(*stacks)
