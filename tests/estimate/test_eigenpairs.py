"""Extreme eigenpairs against eigh and scipy, their residuals and error bounds, and the cases that break Lanczos."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import Spectrum, outliers

from quadform.core.errors import InputError, TooLarge
from quadform.core.operator import Dense, Operator
from quadform.core.space import Space
from quadform.estimate import eigenpairs, vectors
from quadform.estimate.krylov import Krylov
from quadform.estimate.lanczos import _SPARE
from quadform.theory.attention import AttentionLayer


def truth(d: torch.Tensor, top: int, bottom: int) -> torch.Tensor:
    d = d.double().sort().values
    return torch.cat([d.flip(0)[:top], d[:bottom]])


def check(A: Operator, d: torch.Tensor, **options: object) -> object:
    """Every value lies within its residual of the eigenvalue of that rank; residuals bound those of the vectors."""
    found = eigenpairs(A, **options)
    values = torch.tensor([e.value for e in found.values], dtype=torch.float64)
    want = truth(d, len(found.top), len(found.bottom))
    scale = float(d.abs().max()) + 1e-300
    eps = torch.finfo(A.dtype).eps
    assert ((values - want).abs() <= found.residuals + 200 * eps * scale).all()
    V = A.domain.flatten(found.vectors)
    true_residual = ((A @ V).double() - V.double() * values).norm(dim=0)
    assert (true_residual <= found.residuals).all()
    torch.testing.assert_close(true_residual, found.residuals, rtol=1e-6, atol=150 * eps * scale)
    torch.testing.assert_close(V.norm(dim=0), torch.ones_like(V[0]), rtol=0, atol=100 * eps)
    return found


@pytest.mark.parametrize("reorthogonalise", ["full", "selective"])
@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("rows", [18, 96])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outliers(reorthogonalise: str, block: int, rows: int, dtype: torch.dtype) -> None:
    """Top 5 of a spectrum of outliers and bulk: relative residual <= 1e-3 in at most 48 products, restarted or not."""
    d = outliers(1000).to(dtype)
    A = Spectrum(d)
    found = check(A, d, reorthogonalise=reorthogonalise, block=block, rows=rows)
    assert A.count - 5 <= 48  # five more were made by `check` itself
    assert A.count - 5 == found.products == found.top[0].matvecs
    assert found.converged
    assert all(
        e.kind == "estimate" and e.error_kind == "residual" and e.error <= 1e-3 * abs(e.value) for e in found.top
    )


def test_asymmetry_of_what_is_called_symmetric() -> None:
    """|A - A^T| / (2 |A|) once all dimensions are multiplied; round-off for a symmetric operator."""

    class Skew(Operator):
        def apply(self, V):
            return {"x": V["x"] @ M.T}

    g = torch.Generator().manual_seed(0)
    M = torch.randn(12, 12, generator=g, dtype=torch.float64)
    M = M + M.T
    for noise in (0.0, 1e-3):
        M = M + noise * torch.randn(12, 12, generator=g, dtype=torch.float64)
        A = Skew(Space((("x", (12,)),)), dtype=M.dtype, device=M.device, symmetric=True)
        found = eigenpairs(A, top=12, max_products=12)
        assert found.products == 12
        assert found.asymmetry == pytest.approx(float((M - M.T).norm() / (2 * M.norm())), rel=1e-6, abs=1e-14)


def test_both_ends_after_restarts() -> None:
    """Top and bottom together, through many thick restarts of a small basis, to a tight tolerance."""
    d = outliers(400)
    found = check(Spectrum(d), d, top=3, bottom=2, tol=1e-6, rows=14, max_products=400)
    assert found.converged
    assert found.products > 28


def test_agrees_with_scipy() -> None:
    """The eigenvalues are those of scipy.sparse.linalg.eigsh, with no more products than it needs."""
    from scipy.sparse.linalg import eigsh

    A = Spectrum(outliers(500))
    found = eigenpairs(A, 5, tol=1e-3)
    ours, A.count = A.count, 0
    want = eigsh(A.to_scipy(), k=5, which="LA", tol=1e-3, return_eigenvectors=False)
    torch.testing.assert_close(
        torch.tensor([e.value for e in found.top]).double(),
        torch.tensor(want).sort(descending=True).values,
        rtol=1e-4,
        atol=0,
    )
    assert ours <= A.count


@given(n=st.integers(1, 12), top=st.integers(0, 4), bottom=st.integers(0, 4), block=st.integers(1, 3), data=st.data())
def test_small_and_degenerate(n: int, top: int, bottom: int, block: int, data: st.DataObject) -> None:
    """Any small symmetric matrix with repeated, zero and negative eigenvalues; n = 1 and n < top included."""
    if top + bottom == 0:
        top = 1
    d = torch.tensor(data.draw(st.lists(st.sampled_from([-2.0, 0.0, 1.0, 3.0]), min_size=n, max_size=n)))
    found = check(Spectrum(d.double()), d, top=top, bottom=bottom, block=block)
    assert len(found.top) == min(top, n)
    assert len(found.bottom) == min(bottom, n)
    assert found.converged


@pytest.mark.parametrize("block", [1, 2])
def test_multiple_eigenvalues_are_found(block: int) -> None:
    """Copies of a multiple eigenvalue, invisible to one start vector, are found by following fresh directions."""
    d = 0.3 * torch.randn(600, dtype=torch.float64)
    d[:6] = torch.tensor([5.0, 5.0, 5.0, 4.0, 4.0, 3.0])
    found = check(Spectrum(d), d, top=6, block=block, max_products=150)
    assert found.converged


def test_many_copies_without_a_gap() -> None:
    """Integers from -3 to 3, many times each: no gap helps, and a fresh direction is followed while it still grows."""
    for seed in (75, 240, 290, *range(12)):
        g = torch.Generator().manual_seed(seed)
        torch.randn(60, generator=g, dtype=torch.float64)
        d = torch.randint(-3, 4, (60,), generator=g).double()
        for top, bottom in ((4, 0), (6, 1)):
            check(Spectrum(d, seed=seed), d, top=top, bottom=bottom, seed=seed)


def test_without_fresh_directions_copies_are_missed() -> None:
    """The plain Krylov space of one vector holds one copy of a multiple eigenvalue: what the fresh direction is for."""
    d = torch.ones(50, dtype=torch.float64)
    d[:3] = 3.0
    A = Spectrum(d)
    start = torch.randn(50, dtype=torch.float64)
    basis = Krylov(50, 50, lambda i: start, dtype=torch.float64, device=torch.device("cpu"))
    while basis.pending:
        basis.absorb((A @ basis.first(1).T).T)
    assert basis.multiplied == 2
    assert [round(e.value, 9) for e in eigenpairs(A, 4).top] == [3.0, 3.0, 3.0, 1.0]


def test_zero_operator() -> None:
    """The zero operator has zero eigenvalues and zero residuals."""
    d = torch.zeros(40, dtype=torch.float64)
    found = check(Spectrum(d), d, top=3, bottom=2)
    assert [e.value for e in found.values] == [0.0] * 5
    assert found.converged


def test_whole_space_is_exact() -> None:
    """When every dimension was multiplied the values are exact and say so."""
    found = eigenpairs(Spectrum(torch.arange(6, dtype=torch.float64)), 6)
    assert {e.kind for e in found.top} == {"exact"}
    assert found.products == 6


def test_unconverged_is_a_bound() -> None:
    """Without enough products a value is a lower (bottom: an upper) bound, marked, with what to do."""
    d = torch.linspace(-1, 1, 500, dtype=torch.float64)
    found = eigenpairs(Spectrum(d), 1, 1, max_products=10)
    (high,), (low,) = found.top, found.bottom
    assert high.kind == low.kind == "bound"
    assert (high.side, low.side, high.error_kind, low.error_kind) == ("lower", "upper", "residual", "residual")
    assert not high.converged
    assert not found.converged
    assert high.value <= 1
    assert low.value >= -1
    assert high.note.startswith("lambda_max 0.")
    assert "Reported as a lower bound; resume with products=20." in high.note


@pytest.mark.parametrize(("rows", "within"), [(100, 1e-3), (20, 1.0)])
def test_asymmetry_counts_in_the_residual(rows: int, within: float) -> None:
    """Products that are not quite symmetric do not converge beyond their own noise; after restarts it is bounded."""

    class Noisy(Spectrum):
        def apply(self, V):  # a skew part of relative size 1e-3
            out = super().apply(V)
            return {n: t + 0.02 * (torch.roll(V[n], 1, -1) - torch.roll(V[n], -1, -1)) for n, t in out.items()}

    A = Noisy(outliers(300))
    found = eigenpairs(A, 1, tol=1e-6, max_products=60, rows=rows)
    V = A.domain.flatten(found.vectors)
    true = float((A @ V - V * found.top[0].value).norm())
    assert true <= float(found.residuals[0]) <= (1 + within) * true
    assert not found.converged
    assert found.asymmetry > 1e-4


def test_warm_start() -> None:
    """Eigenvectors of a nearby operator as start vectors: fewer products, the same answer; new outliers are found."""
    d = outliers(600)
    A, moved = Spectrum(d), Spectrum(d + 0.01 * torch.randn(600, dtype=torch.float64))
    cold = check(moved, moved.d)
    before = eigenpairs(A, 5, tol=1e-5)
    warm = check(moved, moved.d, start=before.vectors)
    assert warm.products <= cold.products - 4
    d = moved.d.clone()
    d[300] = 60.0
    check(Spectrum(d), d, start=before.vectors)
    one = {n: t[0] for n, t in before.vectors.items()}
    check(moved, moved.d, top=1, start=one)
    zero = {n: torch.zeros_like(t) for n, t in before.vectors.items()}
    check(moved, moved.d, top=1, start=zero)


def test_fresh_direction_is_followed_past_stale_ones() -> None:
    """Five nearly exact start vectors that all miss the largest eigenvector leave five rows that miss it too."""
    d = outliers(600)
    d[300] = 60.0
    A = Spectrum(d)
    vectors = torch.linalg.eigh(A.dense()).eigenvectors.flip(1)
    hidden, rest = vectors[:, :1], vectors[:, 1:6]
    noise = torch.randn(600, 5, dtype=torch.float64)
    start = rest + 1e-6 * (noise - hidden @ (hidden.T @ noise))
    found = check(A, d, start=A.domain.unflatten(start))
    assert found.top[0].value == pytest.approx(60)


def test_attention_hessian() -> None:
    """Eigenvalues of the closed-form Hessian of an attention layer, from its analytic products."""
    g = torch.Generator().manual_seed(1)
    X, Y = (torch.randn(6, 5, generator=g, dtype=torch.float64) for _ in range(2))
    W = [torch.randn(5, 5, generator=g, dtype=torch.float64) / 5**0.5 for _ in range(3)]
    H = AttentionLayer(X, *W, Y).hessian()
    check(H, torch.linalg.eigvalsh(H.dense()), top=4, bottom=3, tol=1e-6, max_products=75)


def test_seed_and_products() -> None:
    """The same seed gives the same bits; progress counts every product and shows the best value."""
    seen: list[tuple[int, int, float, str]] = []
    A = Spectrum(outliers(200))
    one = eigenpairs(A, 2, seed=3, progress=lambda *row: seen.append(row))
    two = eigenpairs(A, 2, seed=3)
    other = eigenpairs(A, 2, seed=4)
    assert torch.equal(one.residuals, two.residuals)
    assert not torch.equal(one.residuals, other.residuals)
    assert seen[-1][0] == one.products
    assert seen[-1][3].startswith("lambda_max 40")


def test_semi_orthogonality() -> None:
    """The selective basis stays orthogonal to sqrt(eps), the full one to round-off."""
    A = Spectrum(outliers(400, top=(1e9, 1e3, 40, 22)))  # images lie almost wholly in the basis: one pass loses much
    start = torch.randn(400, dtype=torch.float64)
    for selective, allowed in ((False, 1e-13), (True, torch.finfo(torch.float64).eps ** 0.5)):
        basis = Krylov(400, 60, lambda i: start, dtype=torch.float64, device=torch.device("cpu"), selective=selective)
        while basis.pending:
            basis.absorb((A @ basis.first(1).T).T)
        Q = basis.Q[: basis.count]
        assert float((Q @ Q.T - torch.eye(len(Q))).abs().max()) <= allowed


def test_no_room_for_the_vectors_beside_the_basis(tmp_path: Path) -> None:
    """With room for the smallest basis, a vector and its image alone, the basis makes way for the eigenvectors: right
    ones, and a search that can be continued."""
    d = outliers(400)
    rows, given = 5 + 2 + _SPARE, 8 * 400
    check(Spectrum(d), d, top=5, max_products=400, memory=(rows + 2) * given)
    few = eigenpairs(Spectrum(d), 5, max_products=12, memory=(rows + 2) * given, resume=tmp_path)
    assert not few.converged
    whole = eigenpairs(Spectrum(d), 5, max_products=400, memory=(rows + 2) * given, resume=tmp_path)
    assert whole.converged
    torch.testing.assert_close(torch.tensor([e.value for e in whole.top]), truth(d, 5, 0).float(), rtol=1e-3, atol=0)
    with pytest.raises(TooLarge, match=f"at least {rows + 2} vectors"):
        eigenpairs(Spectrum(d), 5, memory=(rows + 2) * given - 1)


def test_wide_rows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that go to the matrix library in pieces give the pairs of whole rows."""
    d = outliers(400)
    whole = check(Spectrum(d), d, top=3, rows=18)
    monkeypatch.setattr(vectors, "wide", lambda Q: True)
    monkeypatch.setattr(vectors, "_COLUMNS", 64)
    cut = check(Spectrum(d), d, top=3, rows=18)
    torch.testing.assert_close(cut.residuals, whole.residuals, rtol=1e-4, atol=1e-12)


def test_refusals() -> None:
    """What cannot be computed is said before any product."""
    A = Spectrum(outliers(100))
    with pytest.raises(InputError, match="ask for top"):
        eigenpairs(A, 0)
    for number in (None, float("nan"), float("inf"), "3", 2.5, True):
        with pytest.raises(InputError, match="top is a whole number of at least 0"):
            eigenpairs(A, number)
    with pytest.raises(InputError, match="5 eigenpairs need as many products"):
        eigenpairs(A, 5, max_products=3)
    with pytest.raises(InputError, match="positive relative residual"):
        eigenpairs(A, tol=0)
    with pytest.raises(TooLarge, match="keeps at least"):
        eigenpairs(A, memory=1000)
    flat = Dense(torch.ones(2, 3), Space((("x", (3,)),)), Space((("y", (2,)),)))
    with pytest.raises(InputError, match="symmetric"):
        eigenpairs(flat)
    assert A.count == 0


def test_not_finite() -> None:
    """A product with NaN is an error, not an eigenvalue."""
    d = outliers(50)
    d[3] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        eigenpairs(Spectrum(d))
