"""PSGD: the preconditioner Q^T Q that fits pairs (v, h = H v) best; it tends to |H|^-1.

    minimise  E[h^T Q^T Q h + v^T (Q^T Q)^-1 v],   v ~ N(0, I)            optimum: Q^T Q = |H|^-1
    a = Q h,  b = Q^-T v,   Q <- Q - mu triu(a a^T - b b^T) Q             Q upper triangular: steps in its group

`"full"` is one Q over all parameters; `"kron"` one Q_1 kron Q_2 ... for every tensor, a factor for each axis. Source:
[Li18]; the steps are those of the author's package, normalised by the size of a a^T + b b^T.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Dense, Operator
from ..core.rng import stream
from .operators import Blocks, Kronecker, whole_block


def psgd(
    H: Operator,
    kind: Literal["kron", "full"] = "kron",
    *,
    steps: int = 200,
    rate: float = 0.1,
    probes: int = 1,
    seed: int = 0,
    longest: int = 8192,
    skew: float = 10.0,
) -> Blocks:
    """P = (Q^T Q)^-1, near |H|, after `steps` steps with `probes` products each.

    With as many probes as there are parameters they are the unit vectors: the expectation itself, and the steps lead to
    |H| exactly. In `"kron"` an axis longer than `longest`, or `skew` times longer than the second longest, has a
    diagonal factor.
    """
    if not H.symmetric:
        raise InputError(f"PSGD needs a symmetric operator; got {H!r}.")
    if kind not in ("kron", "full"):
        raise InputError(f"PSGD is 'kron' or 'full'; got {kind!r}.")
    n = H.domain.size
    generator = stream(seed, "psgd", H.device)
    fits: dict[str, _Fit] = {}
    for _ in range(steps):
        if probes >= n:
            V = torch.eye(n, dtype=H.dtype, device=H.device)
        else:
            V = torch.randn((probes, n), dtype=H.dtype, device=H.device, generator=generator)
        v = H.domain.unflatten(V.mT)
        h = H.apply(v)
        pairs = {"": (V, H.domain.flatten(h).mT)} if kind == "full" else {name: (v[name], h[name]) for name in v}
        for name, pair in pairs.items():
            if name not in fits:
                if not pair[1].any():
                    where = f" in `{name}`" if name else ""
                    raise InputError(f"H v is 0{where}, so |H|^-1 does not exist; leave such tensors out.")
                fits[name] = _Fit(*pair, longest=n if kind == "full" else longest, skew=n if kind == "full" else skew)
            fits[name].step(*pair, rate, by_trace=kind == "full" and len(V) == 1)
    notes = [f"PSGD {kind}, {steps} steps of {min(probes, n)} products"]
    if kind == "full":
        return Blocks([Dense(fits[""].metric().factors[0], H.domain, symmetric=True, psd=True)], H.domain, notes)
    return Blocks([whole_block(name, fit.metric(), H.domain) for name, fit in fits.items()], H.domain, notes)


class _Fit:
    """Q_1 kron Q_2 kron ... of one tensor: upper triangular factors, or diagonals of long axes."""

    def __init__(self, v: Tensor, h: Tensor, *, longest: float, skew: float) -> None:
        shape = v.shape[1:] or (1,)
        second = sorted(shape)[-2] if len(shape) > 1 else 1
        scale = float((v.square().sum() / h.square().sum()) ** 0.25) ** (1 / len(shape))
        dense = [not (n == 1 or n > longest or n > skew * second) for n in shape]
        eyes = [torch.eye(n) if full else torch.ones(n) for n, full in zip(shape, dense, strict=True)]
        self.shape, self.Q = shape, [scale * I.to(v) for I in eyes]

    def step(self, v: Tensor, h: Tensor, rate: float, *, by_trace: bool) -> None:
        a, b = h.reshape(-1, *self.shape), v.reshape(-1, *self.shape)
        for axis, Q in enumerate(self.Q, start=1):
            if Q.dim() == 1:
                wide = Q.view(-1, *(1,) * (a.dim() - axis - 1))
                a, b = wide * a, b / wide
            else:
                a = (a.movedim(axis, -1) @ Q.mT).movedim(-1, axis)
                last = b.movedim(axis, -1)
                solved = torch.linalg.solve_triangular(Q, last.flatten(0, -2), upper=True, left=False)
                b = solved.view(last.shape).movedim(-1, axis)
        for axis, Q in enumerate(self.Q, start=1):
            A, B = (_gram(t.movedim(axis, 0).flatten(1), Q.dim()) for t in (a, b))
            if Q.dim() == 1:
                self.Q[axis - 1] = Q - rate / (A + B).abs().max() * (A - B) * Q
            else:
                size = (A + B).trace() if by_trace else _norm_from_below(A + B)
                self.Q[axis - 1] = Q - rate / size * (A - B).triu() @ Q

    def metric(self) -> Kronecker:
        """(Q^T Q)^-1."""
        factors = []
        for Q in self.Q:
            inverse = None if Q.dim() == 1 else torch.linalg.solve_triangular(Q, torch.eye(len(Q)).to(Q), upper=True)
            factors.append(Q**-2 if inverse is None else inverse @ inverse.mT)
        return Kronecker(factors)


def _gram(flat: Tensor, dim: int) -> Tensor:
    return flat @ flat.mT if dim == 2 else flat.square().sum(1)


def _norm_from_below(A: Tensor) -> Tensor:
    """A lower bound of the spectral norm of a symmetric matrix, close to it: |A x| for x along A times its largest
    row."""
    row = A[A.square().sum(0).argmax()]
    x = A @ row
    return (A @ (x / x.norm())).norm()
