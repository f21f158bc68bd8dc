"""Spectral density by Lanczos quadrature: Gauss rules, means over the spectrum with error bars, the curve."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import Spectrum, outliers

from quadform.core.errors import InputError, TooLarge
from quadform.estimate import Density, density, eigenpairs
from quadform.estimate.sampling import student
from quadform.estimate.vectors import orthogonalise, probes
from quadform.theory.attention import AttentionLayer

D = outliers(500)
A = Spectrum(D)
TRUTH = {
    "trace": float(D.sum()),
    "square": float(D.square().sum()),
    "absolute": float(D.abs().sum()),
    "dimension": float((D.clamp(min=0) / (D.clamp(min=0) + 0.1)).sum()),
    "negative": float((D < 0).double().mean()),
    "downwards": float(D[D < 0].abs().sum() / D.abs().sum()),
}


def read(found: Density) -> dict[str, object]:
    return {
        "trace": found.sum(lambda x: x),
        "square": found.sum(torch.square),
        "absolute": found.sum(torch.abs),
        "dimension": found.effective_dimension(0.1),
        "negative": found.negative_mass(),
        "downwards": found.negative_curvature(),
    }


@pytest.mark.parametrize("reorthogonalise", ["full", "selective", "none"])
@given(n=st.integers(13, 60), steps=st.integers(2, 6), seed=st.integers(0, 99))
def test_gauss_rule(reorthogonalise: str, n: int, steps: int, seed: int) -> None:
    """m steps from z give the rule with sum_i w_i theta_i^k = z^T A^k z for all k <= 2m - 1."""
    d = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    B = Spectrum(d, seed=seed)
    found = density(B, 2, steps, seed=seed, reorthogonalise=reorthogonalise)
    z = probes(B, seed, "density", [0], "gaussian")[0]
    z = z / z.norm()
    power = z
    for k in range(2 * steps):
        torch.testing.assert_close(
            (found.weights[0] * found.nodes[0] ** k).sum(), z @ power, rtol=1e-8, atol=1e-8 * float(d.abs().max()) ** k
        )
        power = B @ power


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("name", TRUTH)
def test_five_standard_errors(name: str, deflate: bool) -> None:
    """Trace, squares, nuclear norm, effective dimension, negative share: within five standard errors, over seeds."""
    known = eigenpairs(A, 6, 1) if deflate else None
    for seed in range(6):
        e = read(density(A, 16, 20, seed=seed, known=known))[name]
        assert e.kind == "estimate"
        assert abs(e.value - TRUTH[name]) <= 5 * e.stderr
        assert e.matvecs == 320


def test_coverage_and_root() -> None:
    """About 95 % of the traces lie within two standard errors, which fall as 1/sqrt(probes)."""
    B = Spectrum(0.3 * torch.randn(500, dtype=torch.float64))
    found = [density(B, 9, 4, seed=s).sum(lambda x: x) for s in range(60)]
    inside = [abs(e.value - float(B.d.sum())) <= 2 * e.stderr for e in found]
    assert 0.88 <= sum(inside) / 60 < 1
    many = [density(B, 81, 4, seed=s).sum(lambda x: x).stderr for s in range(6)]
    assert sum(e.stderr for e in found) / 60 / (sum(many) / 6) == pytest.approx(3 * student(9) / student(81), rel=0.2)


def test_known_eigenpairs_shrink_the_error() -> None:
    """Outliers that are known carry no spread: the errors fall several times, the weights still sum to 1."""
    plain = density(A, 8, 20)
    known = density(A, 8, 20, known=eigenpairs(A, 6, 1))
    for found in (plain, known):
        torch.testing.assert_close(found.weights.sum(1), torch.ones(8, dtype=torch.float64))
    for name in ("trace", "square", "absolute"):
        assert read(known)[name].stderr < read(plain)[name].stderr / 4


def test_known_is_the_projected_operator() -> None:
    """With known pairs the rule is that of P A P on the complement, scaled by (n - k) / n."""
    pairs = eigenpairs(A, 3, tol=0.1)
    V = A.domain.flatten(pairs.vectors).T
    found = density(A, 2, 8, known=pairs)
    z = orthogonalise(probes(A, 0, "density", [0], "gaussian")[0], V)[1]
    z = z / z.norm()
    power = z
    for k in range(1, 6):
        power = orthogonalise(A @ power, V)[1]
        want = (z @ power) * (500 - 3) / 500 + sum(e.value**k for e in pairs.top) / 500
        torch.testing.assert_close((found.weights[0] * found.nodes[0] ** k).sum(), want, rtol=1e-9, atol=0)


@given(n=st.integers(1, 20), zeros=st.integers(0, 20))
def test_small_is_exact(n: int, zeros: int) -> None:
    """Where n <= probes * steps all eigenvalues are known; zero eigenvalues are not negative."""
    d = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    d[: min(zeros, n)] = 0
    found = density(Spectrum(d), 4, 5)
    assert found.exact
    assert found.products == n
    share = found.negative_mass()
    assert share.kind == "exact"
    assert share.value == pytest.approx(float((d < 0).double().mean()))
    assert found.moment(2).value == pytest.approx(float(d.square().mean()), rel=1e-10, abs=1e-14)


def test_functions_without_a_value_everywhere() -> None:
    """log det where the rules stay inside the spectrum; told where a node lies beyond it; padding is no node."""
    d = torch.logspace(0, -2, 400, dtype=torch.float64)
    e = density(Spectrum(d), 6, 30).sum(torch.log)
    assert abs(e.value - float(d.log().sum())) < 4 * e.stderr < 200
    assert density(Spectrum(torch.full((400,), 2.0, dtype=torch.float64)), 4, 30).sum(torch.log).value == pytest.approx(
        400 * math.log(2), rel=1e-10
    )
    with pytest.raises(InputError, match=r"not finite at a node of this rule \(they reach from"):
        density(Spectrum(torch.logspace(0, -7, 400, dtype=torch.float64)), 6, 20).sum(torch.log)


def test_errors_of_shares_are_their_spread() -> None:
    """Over forty seeds: the error of the share of negative curvature is its spread, widened for 6 probes; that of the
    share of eigenvalues is up to five times its spread (what a rule cannot resolve is uniform between two nodes)."""
    d = torch.randn(120, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.7
    found = [density(Spectrum(d), 6, 8, seed=seed) for seed in range(40)]
    shares = {
        "curvature": ([f.negative_curvature() for f in found], float(d.clamp(max=0).abs().sum() / d.abs().sum()), 2.5),
        "mass": ([f.negative_mass() for f in found], float((d < 0).double().mean()), 5.0),
    }
    for name, (estimates, truth, most) in shares.items():
        off = torch.tensor([e.value - truth for e in estimates]).square().mean().sqrt()
        said = torch.tensor([e.stderr for e in estimates]).square().mean().sqrt()
        assert 0.7 <= float(said / off) <= most, name


def test_rank_deficient() -> None:
    """A large exact null space: the Krylov spaces end early, and the null space counts as neither sign."""
    d = torch.zeros(300, dtype=torch.float64)
    d[:3] = torch.tensor([2.0, 1.0, -1.0])
    for reorthogonalise in ("full", "selective", "none"):
        found = density(Spectrum(d), 6, 12, reorthogonalise=reorthogonalise)
        assert found.products == 24
        share = found.negative_mass()
        assert abs(share.value - 1 / 300) <= 5 * share.stderr
        assert share.value < 0.05


@pytest.mark.parametrize("exact", [False, True])
def test_curve(exact: bool) -> None:
    """The curve has area 1 on its axis, x = linear sinh u, and a band that is zero where all is known."""
    c = density(A, *((30, 20) if exact else (6, 20))).curve()
    assert float(torch.trapezoid(c.density, c.u)) == pytest.approx(1, abs=1e-3)
    torch.testing.assert_close(c.x, c.linear * c.u.sinh())
    assert (c.stderr >= 0).all()
    assert bool((c.stderr > 0).any()) != exact


def test_curve_against_the_truth() -> None:
    """The smoothed density lies within its band (five standard errors and the kernel's share) of the true one."""
    d = 0.3 * torch.randn(500, dtype=torch.float64)
    c = density(Spectrum(d), 24, 20).curve(linear=0.3, width=0.3)
    u = (d / 0.3).asinh()
    want = torch.exp(-0.5 * ((c.u[:, None] - u) / 0.3) ** 2).mean(1) / (0.3 * math.sqrt(2 * math.pi))
    assert ((c.density - want).abs() <= 5 * c.stderr + 0.02 * float(want.max())).all()


def test_attention_density() -> None:
    """The density of the closed-form attention Hessian from its analytic products; exact with enough of them."""
    g = torch.Generator().manual_seed(2)
    X, Y = (torch.randn(4, 8, generator=g, dtype=torch.float64) for _ in range(2))
    W = [torch.randn(8, 8, generator=g, dtype=torch.float64) / 8**0.5 for _ in range(3)]
    H = AttentionLayer(X, *W, Y).hessian()
    want = torch.linalg.eigvalsh(H.dense())
    share = density(H, 8, 20).negative_mass()
    scale = 100 * torch.finfo(torch.float64).eps * float(want.abs().max())
    assert abs(share.value - float((want < -scale).double().mean())) <= 5 * share.stderr
    torch.testing.assert_close(density(H, 20, 20).nodes[0], want)


def test_memory() -> None:
    """`auto` drops the basis where it does not fit, keeps the answer, and says it; `full` refuses."""
    row = 500 * 8
    tight = density(A, 4, 20, memory=15 * row)
    assert "reorthogonalisation none" in tight.note
    roomy = density(A, 4, 20)
    assert "reorthogonalisation full" in roomy.note
    assert tight.moment(1).value == pytest.approx(roomy.moment(1).value, rel=1e-9)
    with pytest.raises(TooLarge):
        density(A, 4, 20, memory=15 * row, reorthogonalise="full")


def test_refusals() -> None:
    """One probe has no error bar; an effective dimension needs a positive ridge."""
    with pytest.raises(InputError, match="probes is a whole number of at least 2"):
        density(A, 1)
    with pytest.raises(InputError, match="positive"):
        density(A, 2, 3).effective_dimension(0)
    with pytest.raises(InputError, match="width of a curve is a positive number; got 0"):
        density(A, 2, 3).curve(width=0)
