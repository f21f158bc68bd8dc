"""The estimators on a GPU: same answers as on the CPU, nothing left behind on the wrong device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from spectra import Spectrum, outliers

from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.estimate import (
    block_norms,
    condition_number,
    density,
    diagonal,
    eigenpairs,
    frobenius,
    nuclear_norm,
    spectral_norm,
    trace,
    vectors,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_estimator(dtype: torch.dtype, tmp_path: Path) -> None:
    """Eigenpairs, density, traces, diagonal, norms of an operator on the GPU lie within their errors of the truth."""
    d = outliers(2000)
    A = Spectrum(d.to("cuda", dtype))
    slack = 1e-12 if dtype == torch.float64 else 1e-3
    pairs = eigenpairs(A, 5, 1, start=None, resume=tmp_path)
    want = torch.cat([d.sort(descending=True).values[:5], d.sort().values[:1]])
    for e, w in zip(pairs.values, want.tolist(), strict=True):
        assert abs(e.value - w) <= e.error + slack
    assert all(t.device.type == "cuda" for t in pairs.vectors.values())
    for method in ("hutchinson", "hutch++", "xtrace", "auto"):
        e = trace(A, 60, method=method)
        assert abs(e.value - float(d.sum())) <= 5 * e.stderr
    for method in ("sketched", "sampled"):
        e = frobenius(A, 60, method=method)
        assert abs(e.value - float(d.norm())) <= 5 * e.stderr
    for known in (None, pairs):
        for how in ("full", "none"):
            e = density(A, 8, 20, known=known, reorthogonalise=how).sum(lambda x: x)
            assert abs(e.value - float(d.sum())) <= 5 * e.stderr
    assert all(t.device.type == "cuda" for t in diagonal(A, 20).stderr.values())
    assert block_norms(A, ("a", "b"), 20)["a", "b"].value > 0
    assert abs(spectral_norm(A).value - 40) <= 0.05
    assert nuclear_norm(A).kind == "estimate"


def test_rectangular() -> None:
    """A rectangular operator on the GPU."""
    M = torch.randn(300, 200, dtype=torch.float64, device="cuda")
    A = Dense(M, Space((("x", (200,)),)), Space((("y", (300,)),)))
    s = torch.linalg.svdvals(M)
    assert spectral_norm(A).value == pytest.approx(float(s[0]), rel=1e-4)
    assert condition_number(A).value == pytest.approx(float(s[0] / s[-1]))
    assert abs(frobenius(A, 60).value - float(M.norm())) <= 5 * frobenius(A, 60).stderr


def test_resume(tmp_path: Path) -> None:
    """A state saved on the GPU is read back on the GPU."""
    A = Spectrum(outliers(2000).cuda())
    first = eigenpairs(A, 3, max_products=9, resume=tmp_path)
    second = eigenpairs(A, 3, resume=tmp_path)
    assert second.products > first.products
    assert second.converged


def test_a_basis_that_half_of_the_memory_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where half of what is free is too little, what is free beside a product counts, and the answer is right."""
    d, row = outliers(2000), 8 * 2000
    torch.cuda.reset_peak_memory_stats()
    monkeypatch.setattr("quadform.distributed.processes.free_bytes", lambda device: 24.0 * row + 2**21)
    pairs = eigenpairs(Spectrum(d.cuda()), 5, max_products=400)
    assert all(
        abs(e.value - w) <= e.error + 1e-12
        for e, w in zip(pairs.top, d.sort(descending=True).values.tolist(), strict=False)
    )
    asked = []
    monkeypatch.setattr(vectors, "free_beside_a_product", lambda A: asked.append(A) or 15.0 * row)
    monkeypatch.setattr("quadform.distributed.processes.free_bytes", lambda device: 24.0 * row)
    eigenpairs(Spectrum(d.cuda()), 5, max_products=400)
    assert len(asked) == 1
