"""Operators whose inverse and roots are closed forms: Kronecker products, bases with a spectrum, and direct sums.

    Kronecker   F_1 kron F_2 kron ...                     acting on one tensor, a factor for each of its axes
    Rotated     (U_1 kron U_2 ...) diag(s) (.)^T          the same with any spectrum s: (F + damping)^p, EKFAC, SOAP
    Packed      R^T A R                                   R lays named tensors into one: weight and bias, (in, out)
    Blocks      A_1 + A_2 + ... on disjoint tensors

P is a metric: the step along a gradient g is `P.inverse(damping=...) @ g`. Row-major vec throughout.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, final

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Block, Operator
from ..core.space import Space, Vector


class Spectral(Operator):
    """A symmetric operator that gives (A + damping I)^p in closed form."""

    @abstractmethod
    def power(self, p: float, damping: float = 0.0) -> Spectral:
        """(A + damping I)^p."""

    def inverse(self, damping: float = 0.0, **solver: Any) -> Operator:
        """(A + damping I)^-1, a closed form: what an iterative solver would be told (`tol`, ...) is not needed."""
        return self.power(-1.0, damping)

    def sqrt_inverse(self, damping: float = 0.0, **solver: Any) -> Operator:
        """(A + damping I)^-1/2, a closed form."""
        return self.power(-0.5, damping)


@final
class Rotated(Spectral):
    """(U_1 kron U_2 kron ...) diag(s) (.)^T on one tensor of the shape of s; a basis that is None is the identity."""

    def __init__(self, bases: Sequence[Tensor | None], spectrum: Tensor, domain: Space | None = None) -> None:
        domain = Space((("tensor", tuple(spectrum.shape)),)) if domain is None else domain
        _fits(domain, spectrum.shape, [None if U is None else len(U) for U in bases])
        psd = bool((spectrum >= 0).all())
        super().__init__(domain, dtype=spectrum.dtype, device=spectrum.device, symmetric=True, psd=psd)
        self.bases, self.spectrum = tuple(bases), spectrum

    def apply(self, V: Vector) -> dict[str, Tensor]:
        (name,) = self.domain.names
        turned = _along_axes([None if U is None else U.mT for U in self.bases], V[name])
        return {name: _along_axes(self.bases, self.spectrum * turned)}

    def power(self, p: float, damping: float = 0.0) -> Spectral:
        return Rotated(self.bases, _powered(self.spectrum + damping, p, damping), self.domain)


@final
class Kronecker(Spectral):
    """F_1 kron F_2 kron ... on one tensor, a positive semi-definite factor for each axis, by one product an axis.

    A factor is a matrix `(n, n)` or, where it is diagonal, its diagonal `(n,)`. For a matrix and two factors this is
    V -> F_1 V F_2. Powers with damping are taken in the eigenbases of the factors.
    """

    def __init__(self, factors: Sequence[Tensor], domain: Space | None = None) -> None:
        shape = tuple(len(F) for F in factors)
        domain = Space((("tensor", shape),)) if domain is None else domain
        _fits(domain, shape, shape)
        if any(F.dim() not in (1, 2) or F.shape[-1] != len(F) for F in factors):
            raise InputError(f"factors are (n, n) or (n,); got {', '.join(str(tuple(F.shape)) for F in factors)}.")
        first = factors[0]
        super().__init__(domain, dtype=first.dtype, device=first.device, symmetric=True, psd=True)
        self.factors = tuple(factors)

    def apply(self, V: Vector) -> dict[str, Tensor]:
        (name,) = self.domain.names
        return {name: _along_axes(self.factors, V[name])}

    @cached_property
    def eigen(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        """Eigenvalues (rounding below 0 set to 0) and eigenvectors of every factor; None: those of a diagonal."""
        pairs = ((F, None) if F.dim() == 1 else torch.linalg.eigh(F) for F in self.factors)
        return tuple((s.clamp_min(0), U) for s, U in pairs)

    def rotated(self) -> Rotated:
        """The same operator in the eigenbasis of its factors."""
        spectrum = reduce(lambda a, s: a[..., None] * s, [s for s, _ in self.eigen[1:]], self.eigen[0][0])
        return Rotated([U for _, U in self.eigen], spectrum, self.domain)

    def power(self, p: float, damping: float = 0.0) -> Spectral:
        if damping:
            return self.rotated().power(p, damping)
        factors = []
        for s, U in self.eigen:
            s = _powered(s, p, damping)
            factors.append(s if U is None else (U * s) @ U.mT)
        return Kronecker(factors, self.domain)


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
class Packed(Spectral):
    """R^T A R: `base` acts on one tensor, in which the named tensors of `domain` lie as `pieces` say."""

    def __init__(self, base: Spectral, pieces: Sequence[Piece], domain: Space) -> None:
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

    def power(self, p: float, damping: float = 0.0) -> Spectral:
        return Packed(self.base.power(p, damping), self.pieces, self.domain)


@final
class Blocks(Spectral):
    """The direct sum of operators over disjoint tensors that fill `domain`.

    `notes` say what it is made of; `stderr` are the standard errors of diagonals that were estimated, by name.
    """

    def __init__(
        self, blocks: Sequence[Spectral], domain: Space, notes: Sequence[str] = (), stderr: Vector | None = None
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

    def power(self, p: float, damping: float = 0.0) -> Spectral:
        return Blocks([A.power(p, damping) for A in self.blocks], self.domain, self.notes)

    def sub(self, rows: Space, cols: Space) -> Operator:
        if rows.parts == cols.parts:
            inside = [A for A in self.blocks if set(A.domain.names) <= set(rows.names)]
            if sum(len(A.domain) for A in inside) == len(rows):
                return Blocks(inside, rows, self.notes)
        return Block(self, rows, cols)


def diagonal_blocks(diagonal: Mapping[str, Tensor], domain: Space) -> list[Spectral]:
    """A diagonal as blocks, one for each of its tensors."""
    return [Rotated([None] * d.dim(), d, domain.select(n)) for n, d in diagonal.items()]


def whole_block(name: str, base: Spectral, domain: Space) -> Spectral:
    """An operator on one tensor as the block of the tensor `name`."""
    ((_, shape),) = base.domain.parts
    return Packed(base, [Piece(name, (slice(None),) * len(shape), shape)], domain.select(name))


def flat_block(matrix: Tensor, domain: Space) -> Spectral:
    """A symmetric matrix over the flat form of `domain`, with its eigenvectors."""
    s, U = torch.linalg.eigh(matrix)
    pieces = [Piece(n, (at,), (at.stop - at.start,)) for n, at in domain.slices().items()]
    return Packed(Rotated([U], s), pieces, domain)


def _along_axes(factors: Sequence[Tensor | None], X: Tensor) -> Tensor:
    """Each axis of k stacked tensors times its factor: a matrix, a diagonal or None."""
    for axis, F in enumerate(factors, start=1):
        if F is None:
            continue
        if F.dim() == 1:
            X = X * F.view(-1, *(1,) * (X.dim() - axis - 1))
        else:
            X = (X.movedim(axis, -1) @ F.mT).movedim(-1, axis)
    return X


def _powered(s: Tensor, p: float, damping: float) -> Tensor:
    """s^p; a singular s is refused where p is below 0, a negative one where p is no whole number."""
    most = float(s.abs().max()) if s.numel() else 0.0
    rounding = s.numel() * torch.finfo(s.dtype).eps * most
    least = float(s.min()) if s.numel() else 0.0
    if p != int(p):
        if least < -rounding:
            raise InputError(
                f"a root of an indefinite operator was asked for (an eigenvalue is {least:.3g}); take the Gauss-Newton"
                f" matrix, or damping above {damping - least:.3g}."
            )
        s = s.clamp_min(0)
    floor = 0.0 if damping else torch.finfo(s.dtype).eps * most
    if p < 0 and s.numel() and not float(s.abs().min()) > floor:
        raise InputError(
            f"this operator is singular (eigenvalues from {least:.3g} to {float(s.max()):.3g}, with damping"
            f" {damping:g}) and has no inverse; give damping > 0."
        )
    return s**p


def _fits(domain: Space, shape: Sequence[int], lengths: Sequence[int | None]) -> None:
    if tuple(s for _, s in domain) != (tuple(shape),):
        raise InputError(f"factors for one tensor of shape {tuple(shape)} cannot act on {domain}.")
    if len(lengths) != len(shape) or any(n not in (None, m) for n, m in zip(lengths, shape, strict=True)):
        raise InputError(f"a tensor of shape {tuple(shape)} needs a factor for each axis; got {tuple(lengths)}.")
