"""Attention moments are cumulants of the row distributions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import randn, seeds, sizes

from quadform.core.errors import InputError
from quadform.theory import attention_moments
from quadform.theory import moments as room
from quadform.theory.moments import moment_norms, second_and_contracted_third


def rows(seed: int, batch: int, L: int, S: int, d: int) -> tuple[torch.Tensor, torch.Tensor, torch.Generator]:
    g = torch.Generator().manual_seed(seed)
    return randn(g, batch, L, S).softmax(-1), randn(g, batch, S, d), g


@given(seeds, sizes, sizes, st.integers(1, 4))
def test_moments_are_derivatives_of_the_log_partition(seed: int, L: int, S: int, d: int) -> None:
    """M1, M2, M3 are the first three derivatives at 0 of h -> log sum_j A_ij exp(h . z_j). [ODS25, Sec. 3]"""
    A, Z, _ = rows(seed, 1, L, S, d)
    M = attention_moments(A, Z)
    for i in range(L):
        log_partition = lambda h, i=i: torch.logsumexp(A[0, i].log() + Z[0] @ h, 0)  # noqa: E731
        first = torch.func.grad(log_partition)
        second = torch.func.jacfwd(first)
        zero = torch.zeros(d, dtype=torch.float64)
        assert torch.allclose(M.M1[0, i], first(zero), atol=1e-13)
        assert torch.allclose(M.M2[0, i], second(zero), atol=1e-13)
        assert torch.allclose(M.M3[0, i], torch.func.jacfwd(second)(zero).reshape(d * d, d), atol=1e-12)


@given(seeds, st.integers(1, 3), sizes, sizes, st.integers(1, 4), st.sampled_from([1, 1 << 8, 1 << 22]))
def test_contracted_third_moment_is_m3_times_gamma(
    seed: int, batch: int, L: int, S: int, d: int, chunk_bytes: int
) -> None:
    """N = (gamma^T kron I) M3 for phi = z . gamma, however few rows are held at a time."""
    A, Z, g = rows(seed, batch, L, S, d)
    gamma = randn(g, batch, L, d)
    M = attention_moments(A, Z)
    before, room._CHUNK_BYTES = room._CHUNK_BYTES, chunk_bytes
    try:
        M2, N = second_and_contracted_third(A, Z, gamma @ Z.mT)
    finally:
        room._CHUNK_BYTES = before
    want = torch.einsum("bia,biacd->bicd", gamma, M.M3.unflatten(2, (d, d)))
    assert torch.allclose(M2, M.M2.flatten(0, 1), atol=1e-13)
    assert torch.allclose(N, want.flatten(0, 1), atol=1e-12)


@given(seeds, sizes, sizes, sizes)
def test_norms_of_moments_without_the_moments(seed: int, L: int, S: int, d: int) -> None:
    """sum_jl A_ij A_il (c_ij . c_il)^k is the squared norm of M_k, k = 2, 3; each norm is the mean over the rows."""
    A, Z, _ = rows(seed, 1, L, S, d)
    A, Z = A[0], Z[0]
    M = attention_moments(A, Z)
    dense = torch.stack([M.M1.norm(dim=-1), M.M2.flatten(1).norm(dim=-1), M.M3.flatten(1).norm(dim=-1)]).mean(1)
    torch.testing.assert_close(moment_norms(A, Z), dense, rtol=1e-9, atol=1e-7)


def test_moments_of_other_numbers_are_refused() -> None:
    """Half precision, whole numbers, two dtypes, NaN and shapes that do not fit: as a layer refuses them."""
    A, Z, _ = rows(0, 1, 2, 3, 2)
    for dtype in (torch.float16, torch.bfloat16, torch.int64):
        with pytest.raises(InputError, match=f"A is {dtype}"):
            attention_moments(A.to(dtype), Z.to(dtype))
    with pytest.raises(InputError, match=r"Z is torch\.float32"):
        attention_moments(A, Z.float())
    with pytest.raises(InputError, match="Z is not finite"):
        attention_moments(A, Z * float("nan"))
    with pytest.raises(InputError, match=r"A \(\.\.\., i, j\) and Z \(\.\.\., j, d\); got \(1, 2, 3\) and \(1, 2, 2\)"):
        attention_moments(A, Z[:, :2])
