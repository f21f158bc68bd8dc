"""Shampoo and SOAP: preconditioners from the second moments of gradients along each axis of a tensor.

    L_i = eps I + sum G_(i) G_(i)^T                      G_(i): the gradient unfolded along axis i of k
    Shampoo   P = L_1^(1/2k) kron L_2^(1/2k) ...         a matrix: L^1/4 kron R^1/4, so that P^-1 g = L^-1/4 G R^-1/4
    SOAP      P = U diag(sqrt(v_hat) + eps) U^T          Adam in the eigenbasis U = U_1 kron U_2 of the L_i

Source: [GKS18]; with decay [AGK20]; SOAP [VMZ25]. Gradients are given, or are those of the batches of a risk in order,
the weights held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.inverting import eigh
from ..core.space import Space, Vector
from ..core.structured import KroneckerDiagonal
from ..curvature.risk import Risk
from .operators import Blocks, Kronecker, whole_block

Gradients = Risk | Iterable[Vector]


def shampoo(
    gradients: Gradients,
    *,
    decay: float | None = None,
    eps: float = 1e-6,
    exponent: float | None = None,
    longest: int = 8192,
) -> Blocks:
    """Shampoo after the given gradients.

    Without `decay` the moments are sums, as in the paper; with it L <- decay L + (1 - decay) G G^T. `exponent` is the
    power of each factor in P, by default 1 / (2 k) for a tensor of k axes (1/4 for a matrix). The factor of an axis
    longer than `longest` keeps its diagonal alone.
    """
    space, stream = _stream(gradients)
    old, new = (1.0, 1.0) if decay is None else (decay, 1 - decay)
    L: dict[str, list[Tensor]] = {}
    for g in stream:
        for name, G in g.items():
            G = G if G.dim() else G[None]
            if name not in L:
                L[name] = [eps * (torch.ones if n > longest else torch.eye)(n).to(G) for n in G.shape]
            L[name] = [old * M + new * _moment(G, axis, M.dim()) for axis, M in enumerate(L[name])]
    blocks = []
    for name, own in L.items():
        power = 1 / (2 * len(own)) if exponent is None else exponent
        blocks.append(whole_block(name, Kronecker([powered(M, power) for M in own]), space))
    kind = "sums" if decay is None else f"decay {decay:g}"
    return Blocks(blocks, space, [f"Shampoo, {kind}"])


def soap(
    gradients: Gradients,
    *,
    beta2: float = 0.95,
    shampoo_beta: float | None = None,
    eps: float = 1e-8,
    frequency: int = 10,
    longest: int = 10_000,
) -> Blocks:
    """SOAP after the given gradients; the first one makes the basis alone, so there are at least two.

    Every `frequency` steps the basis is refreshed by one orthogonal iteration, and v keeps its entries. A vector has no
    basis: Adam. Momentum is no part of P.
    """
    space, stream = _stream(gradients)
    beta = beta2 if shampoo_beta is None else shampoo_beta
    states: dict[str, _Soap] = {}
    seen = 0
    for g in stream:
        for name, G in g.items():
            if name not in states:
                states[name] = _Soap(G, beta, longest)
            else:
                states[name].step(G, beta2, refresh=seen % frequency == 0)
        seen += 1
    if seen < 2:
        raise InputError("SOAP takes its basis from the first gradient and steps from the second on; got one gradient.")
    root = (1 - beta2 ** (seen - 1)) ** 0.5
    blocks = [KroneckerDiagonal(s.bases, (s.v.sqrt() + eps) / root, space.select(n)) for n, s in states.items()]
    return Blocks(blocks, space, [f"SOAP at step {seen - 1}"])


class _Soap:
    """The moments L_i, the bases U_i and the second moment v in them, of one tensor."""

    def __init__(self, G: Tensor, beta: float, longest: int) -> None:
        self.beta, self.v = beta, torch.zeros_like(G)
        with_basis = [G.dim() > 1 and n <= longest for n in G.shape]
        self.L = [G.new_zeros((n, n)) if own else None for n, own in zip(G.shape, with_basis, strict=True)]
        self._observe(G)
        self.bases = [None if L is None else torch.linalg.eigh(L)[1] for L in self.L]

    def _observe(self, G: Tensor) -> None:
        self.L = [
            None if L is None else self.beta * L + (1 - self.beta) * _moment(G, i, 2) for i, L in enumerate(self.L)
        ]

    def step(self, G: Tensor, beta2: float, *, refresh: bool) -> None:
        turned = G
        for axis, U in enumerate(self.bases):
            if U is not None:
                turned = (turned.movedim(axis, -1) @ U).movedim(-1, axis)
        self.v = beta2 * self.v + (1 - beta2) * turned.square()
        self._observe(G)
        if refresh:
            self._refresh()

    def _refresh(self) -> None:
        for axis, (L, U) in enumerate(zip(self.L, self.bases, strict=True)):
            if L is None or U is None:
                continue
            order = (U * (L @ U)).sum(0).argsort(descending=True)
            self.v = self.v.index_select(axis, order)
            self.bases[axis] = torch.linalg.qr((L @ U)[:, order])[0]


def powered(M: Tensor, p: float) -> Tensor:
    """M^p of a positive semi-definite matrix, or of a diagonal."""
    if M.dim() == 1:
        return M**p
    s, U = eigh(M, psd=True)
    return (U * s**p) @ U.mT


def _moment(G: Tensor, axis: int, dim: int) -> Tensor:
    """G_(i) G_(i)^T of the gradient unfolded along an axis, or its diagonal."""
    flat = G.movedim(axis, 0).flatten(1) if G.dim() > 1 else G[:, None]
    return flat @ flat.mT if dim == 2 else flat.square().sum(1)


def _stream(gradients: Gradients) -> tuple[Space, Iterator[Vector]]:
    if isinstance(gradients, Risk):
        return gradients.space, _of_batches(gradients)
    stream = iter(gradients)
    first = next(stream, None)
    if first is None:
        raise InputError("a preconditioner of gradients needs at least one; got none.")

    def whole() -> Iterator[Vector]:
        yield first
        yield from stream

    return Space.of(first), whole()


def _of_batches(risk: Risk) -> Iterator[Vector]:
    for batch in risk.batches:
        with risk.context():
            g = risk.batch_gradient(risk.params, batch)
        yield {n: t.detach() for n, t in g.items()}
