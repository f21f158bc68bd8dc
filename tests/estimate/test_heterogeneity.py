"""Distances of block spectra: a metric on densities, honest error bars, the attention layer's blocks."""

from __future__ import annotations

import math

import pytest
import torch
from spectra import Spectrum

from quadform.core.errors import InputError
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.estimate import density, js_distance
from quadform.estimate.heterogeneity import heterogeneity
from quadform.theory.attention import AttentionLayer


def normal(n: int, scale: float, shift: float = 0.0, seed: int = 0) -> Spectrum:
    g = torch.Generator().manual_seed(seed)
    return Spectrum(scale * torch.randn(n, generator=g, dtype=torch.float64) + shift)


def test_metric() -> None:
    """0 for equal densities, 1 for disjoint ones, symmetric, triangle inequality."""
    a, b, c = (density(normal(60, 1.0, s, seed=k), 8, 8) for k, s in enumerate((0.0, 1.0, 1e6)))
    assert js_distance(a, a, linear=1.0).value == 0
    assert js_distance(a, c, linear=1.0).value == pytest.approx(1, abs=1e-6)
    ab, bc, ac = (js_distance(x, y, linear=1.0).value for x, y in ((a, b), (b, c), (a, c)))
    assert js_distance(b, a, linear=1.0).value == pytest.approx(ab, rel=1e-12)
    assert 0 < ab < 1
    assert ac <= ab + bc + 1e-12


def test_two_lines() -> None:
    """Two spectra of one eigenvalue each, smoothed: the divergence of two normal densities, by direct integration."""
    a, b = (density(Spectrum(torch.full((4,), x, dtype=torch.float64)), 2, 2) for x in (math.sinh(1.0), math.sinh(2.0)))
    x = torch.linspace(-10, 10, 40001, dtype=torch.float64)
    p, q = (torch.exp(-0.5 * ((x - c) / 0.5) ** 2) / (0.5 * math.sqrt(2 * math.pi)) for c in (1.0, 2.0))
    kl = [torch.trapezoid(torch.xlogy(r, r / ((p + q) / 2)), x) / math.log(2) for r in (p, q)]
    want = math.sqrt(float(kl[0] + kl[1]) / 2)
    assert js_distance(a, b, linear=1.0, width=0.5).value == pytest.approx(want, rel=1e-3)


def test_error_bar() -> None:
    """The estimated distance of two large operators lies within five standard errors of the exact one."""
    A, B = normal(600, 1.0), normal(600, 0.4, 0.3, seed=1)
    want = js_distance(density(A, 30, 20), density(B, 30, 20), linear=1.0, width=0.4).value
    for seed in range(5):
        e = js_distance(density(A, 12, 20, seed=seed), density(B, 12, 20, seed=seed + 50), linear=1.0, width=0.4)
        assert e.kind == "estimate"
        assert abs(e.value - want) <= 5 * e.stderr


def test_error_bar_is_the_spread() -> None:
    """The standard error is the spread of the distance over seeds, widened by Student's factor of 6 probes (1.32)."""
    A, B = normal(400, 1.0), normal(400, 0.4, 0.3, seed=1)
    found = [
        js_distance(density(A, 6, 8, seed=s), density(B, 6, 8, seed=s + 500), linear=1.0, width=0.4) for s in range(60)
    ]
    spread = float(torch.tensor([e.value for e in found]).std())
    assert 1 <= sum(e.stderr for e in found) / 60 / spread <= 2


def test_attention_blocks() -> None:
    """Query, key and value blocks of the closed-form Hessian: sizes are |H(b, b)| / sqrt(n_b), ratio their quotient."""
    g = torch.Generator().manual_seed(1)
    X, Y = (torch.randn(5, 6, generator=g, dtype=torch.float64) for _ in range(2))
    W = [torch.randn(6, 6, generator=g, dtype=torch.float64) / 6**0.5 for _ in range(3)]
    H = AttentionLayer(0.3 * X, *W, Y).hessian()
    found = heterogeneity(H, ("W_Q", "W_K", "W_V"))
    want = [float(H.block(b).dense().norm()) / 6 for b in found.names]
    assert [e.value for e in found.sizes] == pytest.approx(want)
    assert found.ratio.value == pytest.approx(max(want) / min(want))
    assert found.mean.kind == "exact"
    assert found.mean.value == pytest.approx(float(found.distance.sum()) / 6)
    assert float(found.distance[0, 2]) > 0.3  # small inputs: value curvature stands far above query curvature


def test_equal_and_zero_blocks() -> None:
    """Equal blocks have distance 0 and ratio 1; a zero block an infinite ratio; one block cannot be compared."""
    M = torch.randn(5, 5, dtype=torch.float64)
    M = M + M.T
    space = Space((("a", (5,)), ("b", (5,)), ("c", (5,))))
    A = Dense(torch.block_diag(M, M, torch.zeros(5, 5, dtype=torch.float64)), space, symmetric=True)
    same = heterogeneity(A, ("a", "b"))
    assert same.mean.value == pytest.approx(0, abs=1e-6)
    assert same.ratio.value == pytest.approx(1)
    assert heterogeneity(A, ("a", "c")).ratio.value == math.inf
    with pytest.raises(InputError, match="at least 2"):
        heterogeneity(A, ("a",))
