"""Two stated standard errors contain the truth in 90 to 99 % of 200 seeds, few products and skew samples included.

Over 200 seeds a share of 0.95 comes out below 0.90 or above 0.99 about once in 200 times; seeds are fixed.
`benchmarks/coverage.py` measures the same on more operators, a trained Hessian among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats

from quadform.core.number import Estimate
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.estimate import block_norms, density, diagonal, frobenius, trace
from quadform.estimate.sampling import jackknife, mean_and_error, student, widening

SEEDS = 200


def operator(kind: str, n: int = 120) -> Dense:
    """A symmetric matrix with uniform eigenvectors: normal eigenvalues, one outlier, or a power law of both signs."""
    g = torch.Generator().manual_seed(3)
    d = torch.randn(n, generator=g, dtype=torch.float64)
    if kind == "one outlier":
        d = 1 + 0.1 * d
        d[0] = n
    if kind == "decay":
        signs = torch.where(d < -0.5, -0.1, 1.0)
        d = signs * torch.arange(1, n + 1, dtype=torch.float64) ** -1.2
    Q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q
    M = (Q * d) @ Q.T
    return Dense((M + M.T) / 2, Space((("a", (n // 2,)), ("b", (n // 2,)))), symmetric=True)


def share(ask: Callable[[int], Estimate], truth: float) -> float:
    found = [ask(seed) for seed in range(SEEDS)]
    assert all(e.error_kind == "stderr" for e in found)
    return sum(abs(e.value - truth) <= 2 * e.error for e in found) / SEEDS


# --- the factor -------------------------------------------------------------------------------------------------------
def test_students_factor() -> None:
    """Two widened standard errors are Student's interval that covers as two sigma do; one sample has none."""
    for k in (2, 3, 8, 60):
        assert 2 * student(k) == pytest.approx(stats.t.ppf(stats.norm.cdf(2), k - 1), rel=1e-9)
    assert student(1) == math.inf
    assert 1 < student(10_000) < 1.001


def test_skewness_widens() -> None:
    """Twice Johnson's term with the sample's own skewness, entry by entry; a symmetric or constant sample has none."""
    values = torch.tensor([[0.0, -1.0, 5.0], [0.0, 0.0, 5.0], [3.0, 1.0, 5.0]], dtype=torch.float64)
    skewness = stats.skew([0.0, 0.0, 3.0], bias=False)
    want = [student(3) + 9 / 6 * skewness / math.sqrt(3), student(3), student(3)]
    assert widening(values).tolist() == pytest.approx(want, rel=1e-12)
    assert widening(-values).tolist() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("k", [3, 4, 8, 20, 60])
@pytest.mark.parametrize("kind", ["normal", "chi square of 1", "chi square of 4"])
def test_means_cover(kind: str, k: int) -> None:
    """10,000 samples of k numbers; z^T A z of one dominant eigenvalue is a chi square of one degree, the worst case."""
    g = torch.Generator().manual_seed(k)
    draws = torch.randn((4, k, 10_000), generator=g, dtype=torch.float64)
    truth = {"normal": 0.0, "chi square of 1": 1.0, "chi square of 4": 4.0}[kind]
    values = {"normal": draws[0], "chi square of 1": draws[0] ** 2, "chi square of 4": draws.square().sum(0)}[kind]
    mean, error = mean_and_error(values)
    covered = float(((mean - truth).abs() <= 2 * error).double().mean())
    least = 0.92 if kind != "chi square of 1" else 0.86 if k < 8 else 0.90
    assert least <= covered <= 0.99


def test_the_jackknife_of_a_mean_is_its_error() -> None:
    values = torch.randn(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).exp()
    left = (values.sum() - values) / 8
    assert jackknife(float(values.mean()), left) == pytest.approx(float(mean_and_error(values)[1]), rel=1e-12)


# --- the estimators ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "products"), [("normal", 8), ("one outlier", 8), ("decay", 8), ("one outlier", 20), ("decay", 60)]
)
def test_traces_cover(kind: str, products: int) -> None:
    """The default estimator, from few products to the default budget."""
    A = operator(kind)
    truth = float(A.matrix.trace())
    assert 0.90 <= share(lambda seed: trace(A, products, seed=seed), truth) <= 0.99


@pytest.mark.parametrize(("method", "products"), [("hutchinson", 8), ("hutch++", 8), ("xtrace", 8)])
def test_named_methods_cover(method: str, products: int) -> None:
    A = operator("decay")
    truth = float(A.matrix.trace())
    assert 0.90 <= share(lambda seed: trace(A, products, method=method, seed=seed), truth) <= 0.99


def test_the_error_of_xtrace_is_its_spread() -> None:
    """Leave-one-out values share their sketch: without their covariance the error would be 0.75 of the spread."""
    A = operator("decay")
    found = [trace(A, 60, method="xtrace", seed=seed) for seed in range(SEEDS)]
    off = torch.tensor([e.value for e in found], dtype=torch.float64) - float(A.matrix.trace())
    stated = torch.tensor([e.error for e in found], dtype=torch.float64)
    assert 0.85 <= float(off.std() / stated.square().mean().sqrt()) <= 1.1
    assert 0.90 <= float((off.abs() <= 2 * stated).double().mean()) <= 0.99


@pytest.mark.parametrize("method", ["sketched", "sampled"])
def test_norms_cover(method: str) -> None:
    A = operator("decay")
    truth = float(A.matrix.norm())
    assert 0.90 <= share(lambda seed: frobenius(A, 20, method=method, seed=seed), truth) <= 0.99


def test_block_norms_cover() -> None:
    A = operator("decay")
    truth = float(A.matrix[:60, 60:].norm())
    assert 0.90 <= share(lambda seed: block_norms(A, "ab", 20, seed=seed)["a", "b"], truth) <= 0.995


@pytest.mark.parametrize("products", [4, 20])
def test_diagonals_cover(products: int) -> None:
    """Every entry of 40 diagonals."""
    A = operator("decay")
    inside = []
    for seed in range(40):
        d = diagonal(A, products, seed=seed)
        off = A.domain.flatten(d.value) - A.matrix.diagonal()
        inside.append(off.abs() <= 2 * A.domain.flatten(d.stderr))
    assert 0.92 <= float(torch.cat(inside).double().mean()) <= 0.98


def test_means_over_a_density_cover() -> None:
    """Moments and the share of negative curvature, from 4 probes of 8 steps."""
    A = operator("normal")
    lam = torch.linalg.eigvalsh(A.matrix)
    down = float(lam.clamp(max=0).abs().sum() / lam.abs().sum())
    found = [density(A, 4, 8, seed=seed) for seed in range(SEEDS)]
    for read, truth in ((lambda d: d.moment(2), float(lam.square().mean())), (lambda d: d.negative_curvature(), down)):
        assert 0.90 <= sum(abs((e := read(d)).value - truth) <= 2 * e.error for d in found) / SEEDS <= 0.99
