"""Linear systems: quadform beside scipy's cg and minres (through `to_scipy`) and curvlinops' CG, on the same operators.

    python benchmarks/solve.py [--repeats 3] [--out benchmarks/records/solve-cpu.json]

A row is one solver on one operator: products with vectors, CPU seconds (the best of `--repeats`, products
included), and the largest true relative residual |b - A x| / |b|, from a product after the solve. All solvers
run with tolerance 1e-6 in float64; scipy's minres stops by |r| / (|A| |x|), so it is run with 1e-9 too. Peers that are
not installed are left out (`pip install --target DIR --no-deps curvlinops-for-pytorch linear_operator ...` and
PYTHONPATH=DIR).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import cg, minres
from torch import Tensor, nn

import quadform as qf
from quadform.core.operator import Operator
from quadform.core.record import Provenance, strict_json
from quadform.core.space import Space
from quadform.estimate import eigenpairs

TOL = 1e-6
N = 20_000
WHAT = "products, CPU seconds (one thread, best of the repeats), true relative residual; tolerance 1e-6, same operator"
Solver = Callable[[Operator, Tensor], Tensor]


class Counted(Operator):
    """An operator that counts the vectors it multiplies, and may add a damping."""

    def __init__(self, A: Operator, damping: float = 0.0, psd: bool = False) -> None:
        super().__init__(A.domain, dtype=A.dtype, device=A.device, symmetric=True, psd=psd)
        self.A, self.damping, self.count = A, damping, 0

    def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.count += next(iter(V.values())).shape[0]
        image = self.A.apply(V)
        return {name: t + self.damping * V[name] for name, t in image.items()} if self.damping else image


class Hartley(Operator):
    """Q^T diag(d) Q with Q = a Hartley transform after random signs: any spectrum, products in n log n."""

    def __init__(self, d: Tensor) -> None:
        super().__init__(Space((("x", (len(d),)),)), dtype=d.dtype, device="cpu", symmetric=True)
        self.d, self.signs = d, torch.randint(0, 2, d.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"x": self._turned(self._turned(V["x"] * self.signs) * self.d) * self.signs}

    @staticmethod
    def _turned(x: Tensor) -> Tensor:
        f = torch.fft.fft(x, norm="ortho")
        return f.real - f.imag


def gauss_newton() -> Operator:
    """H_o of a network of three layers with tanh, 17,282 parameters, on 256 points."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 120), nn.Tanh(), nn.Linear(120, 120), nn.Tanh(), nn.Linear(120, 2)).double()
    x, y = torch.randn(256, 20).double(), torch.randn(256, 2).double()
    return qf.gauss_newton(qf.Risk(net, lambda out, batch: (out - batch[1]).square().mean(), (x, y)))


def problems() -> dict[str, tuple[Callable[[], Counted], int]]:
    """Operators by name, and how many right-hand sides."""
    g = torch.Generator().manual_seed(1)
    bulk = torch.rand(N, generator=g, dtype=torch.float64)
    outliers = 1 + 0.2 * bulk
    outliers[:30] = torch.logspace(0.5, 3.5, 30, dtype=torch.float64)
    signed = outliers * torch.where(torch.rand(N, generator=g) < 0.3, -1.0, 1.0)
    return {
        "condition 1e4": (lambda: Counted(Hartley(torch.logspace(0, -4, N, dtype=torch.float64)), psd=True), 1),
        "30 outliers, 8 right-hand sides": (lambda: Counted(Hartley(outliers), psd=True), 8),
        "both signs, 30 outliers": (lambda: Counted(Hartley(signed)), 1),
        "Gauss-Newton, damping 1e-3": (lambda: Counted(gauss_newton(), 1e-3, psd=True), 1),
    }


def ours(method: str, **options: Any) -> Solver:
    return lambda A, B: qf.solve(A, B, method=method, tol=TOL, **options).x


def scipys(solver: Any, rtol: float = TOL) -> Solver:
    """One right-hand side after the other, as scipy's solvers take them."""

    def solve(A: Operator, B: Tensor) -> Tensor:
        S = A.to_scipy()
        return torch.from_numpy(np.stack([solver(S, b.numpy(), rtol=rtol, maxiter=20_000)[0] for b in B.T], 1))

    return solve


def curvlinops_cg() -> Solver:
    from curvlinops import CGInverseLinearOperator
    from curvlinops._torch_base import PyTorchLinearOperator

    class Wrapped(PyTorchLinearOperator):
        SELF_ADJOINT = True

        def __init__(self, A: Operator) -> None:
            super().__init__([(A.domain.size,)], [(A.domain.size,)])
            self.A = A

        dtype = property(lambda self: self.A.dtype)
        device = property(lambda self: self.A.device)

        def _matmat(self, X: list[Tensor]) -> list[Tensor]:
            return [self.A @ X[0]]

    options = {"tolerance": TOL, "max_iter": 1000, "max_tridiag_iter": 0}
    return lambda A, B: CGInverseLinearOperator(Wrapped(A), **options) @ B


def solvers(A: Counted) -> dict[str, Solver]:
    found: dict[str, Solver] = {"quadform minres": ours("minres"), "scipy minres": scipys(minres)}
    found["scipy minres, rtol 1e-9"] = scipys(minres, 1e-9)
    if A.psd:
        found = {"quadform cg": ours("cg"), "quadform block-cg": ours("block-cg"), "scipy cg": scipys(cg)} | found
        try:
            found["curvlinops CGInverseLinearOperator"] = curvlinops_cg()
        except ImportError as missing:
            print(f"left out: {missing}")
    return found


def timed(A: Counted, B: Tensor, solver: Solver, repeats: int) -> dict[str, float]:
    best, X = float("inf"), B
    for _ in range(repeats):
        A.count, begun = 0, time.process_time()
        X = solver(A, B)
        best = min(best, time.process_time() - begun)
    products = A.count
    left = ((B - A @ X).norm(dim=0) / B.norm(dim=0)).max()
    return {"products": products, "seconds": round(best, 4), "residual": float(left)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for where, (make, k) in problems().items():
        A = make()
        B = torch.randn(A.shape[0], k, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        rows[where] = {"one product": {"products": k, "seconds": round(product_time(A, B), 5), "residual": 0.0}}
        asked = solvers(A)
        if "30 outliers" in where:
            pairs = eigenpairs(A, 30 if A.psd else 20, 0 if A.psd else 15, tol=1e-4, max_products=600)
            method = "cg" if A.psd else "minres"
            asked[f"quadform {method}, deflated ({pairs.products} products before)"] = ours(method, deflate=pairs)
        for name, solver in asked.items():
            rows[where][name] = timed(A, B, solver, options.repeats)
            print(f"{where:48} {name:48}", "  ".join(f"{k} {v:.4g}" for k, v in rows[where][name].items()), flush=True)
        if options.out:
            made = asdict(Provenance.collect(seed=0, dtype=torch.float64))
            options.out.write_text(strict_json({"what": WHAT, "rows": rows, "made": made}))


def product_time(A: Counted, B: Tensor) -> float:
    """Seconds of one product with all right-hand sides, the second of two."""
    A @ B
    begun = time.process_time()
    A @ B
    return time.process_time() - begun


if __name__ == "__main__":
    main()
