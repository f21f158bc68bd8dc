"""Operators whose inverse and roots are closed forms: Kronecker products, tensors packed into one, direct sums.

    Kronecker   F_1 kron F_2 kron ...                     acting on one tensor, a factor for each of its axes
    Packed      R^T A R                                   R lays named tensors into one: weight and bias, (in, out)
    Blocks      A_1 + A_2 + ... on disjoint tensors

Functions of them are `core.structured.KroneckerDiagonal`s, packed and summed alike. P is a metric: the step along a
gradient g is `P.inverse(damping=...) @ g`. Row-major vec throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import final

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.inverting import eigh
from ..core.operator import Block, Operator
from ..core.space import Space, Vector
from ..core.structured import KroneckerDiagonal, along_axes


@final
class Kronecker(Operator):
    """F_1 kron F_2 kron ... on one tensor, a positive semi-definite factor for each axis, by one product an axis.

    A factor is a matrix `(n, n)` or, where it is diagonal, its diagonal `(n,)`. For a matrix and two factors this is
    V -> F_1 V F_2. Functions are taken in the eigenbases of the factors.
    """

    def __init__(self, factors: Sequence[Tensor], domain: Space | None = None) -> None:
        shape = tuple(len(F) for F in factors)
        domain = Space((("tensor", shape),)) if domain is None else domain
        if any(F.dim() not in (1, 2) or F.shape[-1] != len(F) for F in factors) or [s for _, s in domain] != [shape]:
            shapes = ", ".join(str(tuple(F.shape)) for F in factors)
            raise InputError(f"factors are (n, n) or (n,), one for each axis of one tensor; got {shapes} and {domain}.")
        first = factors[0]
        super().__init__(domain, dtype=first.dtype, device=first.device, symmetric=True, psd=True)
        self.factors = tuple(factors)

    def apply(self, V: Vector) -> dict[str, Tensor]:
        (name,) = self.domain.names
        return {name: along_axes(self.factors, V[name])}

    @cached_property
    def rotated(self) -> KroneckerDiagonal:
        """The same operator in the eigenbases of its factors."""
        pairs = [(F, None) if F.dim() == 1 else eigh(F, psd=True) for F in self.factors]
        values = reduce(lambda a, s: a[..., None] * s, [s for s, _ in pairs[1:]], pairs[0][0])
        return KroneckerDiagonal([U for _, U in pairs], values, self.domain)

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator:
        return self.rotated.spectral(f)


@dataclass(frozen=True)
class Piece:
    """Where a tensor lies in the packed one: `at`; read with `shape` there, transposed before if stored so."""

    name: str
    at: tuple[slice, ...]
    shape: tuple[int, ...]
    transposed: bool = False

    def read(self, tensor: Tensor) -> Tensor:
        """The stored tensor, with one axis of vectors in front, as it lies in the packed one."""
        return (tensor.mT if self.transposed else tensor).reshape(len(tensor), *self.shape)

    def write(self, packed: Tensor, stored: tuple[int, ...]) -> Tensor:
        """Back to the shape in which the tensor is stored."""
        part = packed[(slice(None), *self.at)]
        if self.transposed:
            return part.mT.reshape(len(packed), *stored)
        return part.reshape(len(packed), *stored)


@final
class Packed(Operator):
    """R^T A R: `base` acts on one tensor, in which the named tensors of `domain` lie as `pieces` say."""

    def __init__(self, base: Operator, pieces: Sequence[Piece], domain: Space) -> None:
        ((_, shape),) = base.domain.parts
        if base.domain.size != domain.size or {p.name for p in pieces} != set(domain.names):
            raise InputError(f"the pieces {', '.join(p.name for p in pieces)} do not fill {base.domain} from {domain}.")
        super().__init__(domain, dtype=base.dtype, device=base.device, symmetric=True, psd=base.psd)
        self.base, self.pieces, self.packed = base, tuple(pieces), shape

    def apply(self, V: Vector) -> dict[str, Tensor]:
        k = len(next(iter(V.values())))
        whole = torch.empty((k, *self.packed), dtype=self.dtype, device=self.device)
        for piece in self.pieces:
            whole[(slice(None), *piece.at)] = piece.read(V[piece.name])
        (image,) = self.base.apply({self.base.domain.names[0]: whole}).values()
        return {piece.name: piece.write(image, self.domain.shape(piece.name)) for piece in self.pieces}

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator | None:
        base = self.base.spectral(f)
        return None if base is None else Packed(base, self.pieces, self.domain)


@final
class Blocks(Operator):
    """The direct sum of operators over disjoint tensors that fill `domain`.

    `notes` say what it is made of; `stderr` are the standard errors of diagonals that were estimated, by name.
    """

    def __init__(
        self, blocks: Sequence[Operator], domain: Space, notes: Sequence[str] = (), stderr: Vector | None = None
    ) -> None:
        names = [n for A in blocks for n in A.domain.names]
        if sorted(names) != sorted(domain.names):
            raise InputError(f"blocks over {', '.join(names[:4])} do not fill {domain} once.")
        first = blocks[0]
        psd = all(A.psd for A in blocks)
        super().__init__(domain, dtype=first.dtype, device=first.device, symmetric=True, psd=psd)
        self.blocks, self.notes, self.stderr = tuple(blocks), tuple(notes), dict(stderr or {})

    def apply(self, V: Vector) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for A in self.blocks:
            out |= A.apply({n: V[n] for n in A.domain.names})
        return {n: out[n] for n in self.domain.names}

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator | None:
        blocks = [B for A in self.blocks if (B := A.spectral(f)) is not None]
        return Blocks(blocks, self.domain, self.notes) if len(blocks) == len(self.blocks) else None

    def sub(self, rows: Space, cols: Space) -> Operator:
        if rows.parts == cols.parts:
            inside = [A for A in self.blocks if set(A.domain.names) <= set(rows.names)]
            if sum(len(A.domain) for A in inside) == len(rows):
                return Blocks(inside, rows, self.notes)
        return Block(self, rows, cols)


def whole_block(name: str, base: Operator, domain: Space) -> Operator:
    """An operator on one tensor as the block of the tensor `name`."""
    ((_, shape),) = base.domain.parts
    return Packed(base, [Piece(name, (slice(None),) * len(shape), shape)], domain.select(name))


@final
class Seen(Operator):
    """S H S, with S = P^-1/2: the Hessian as a step along P^-1 g sees it. Similar to P^-1 H, and symmetric."""

    def __init__(self, S: Operator, H: Operator) -> None:
        if S.domain.parts != H.domain.parts or not (S.symmetric and H.symmetric):
            raise InputError(f"S H S takes two symmetric operators over the same tensors; got {S!r} and {H!r}.")
        super().__init__(H.domain, dtype=H.dtype, device=H.device, symmetric=True, psd=H.psd)
        self.S, self.H = S, H

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return self.S.apply(self.H.apply(self.S.apply(V)))


def mean_eigenvalue(P: Operator) -> float:
    """The mean eigenvalue of an operator whose functions are closed forms: the scale of a damping."""
    sums: list[float] = []

    def noted(x: Tensor) -> Tensor:
        sums.append(float(x.sum(dtype=torch.float64)))
        return x

    if P.spectral(noted) is None:
        raise InputError(f"the eigenvalues of {P!r} are not known in closed form.")
    return sum(sums) / P.domain.size
