"""Operator: a linear map between named spaces, known by what it does to k vectors at once.

A class here is abstract (`Operator`) or final (all others). A final one gives `apply`, and `adjoint` where it is not
symmetric; the algebra, named off-diagonal blocks, the dense form and the scipy bridge are written once, below.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from .errors import InputError, TooLarge
from .space import Space, Vector

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator


class Operator(ABC):
    """A linear map `codomain <- domain`. `symmetric` and `psd` are promises that `check_operator` tests."""

    def __init__(
        self,
        domain: Space,
        codomain: Space | None = None,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        symmetric: bool,
        psd: bool = False,
    ) -> None:
        self.domain = domain
        self.codomain = domain if codomain is None else codomain
        self.dtype = dtype
        self.device = torch.device(device)
        self.symmetric = symmetric
        self.psd = psd
        if (symmetric or psd) and self.domain.parts != self.codomain.parts:
            raise InputError(f"a symmetric operator maps a space to itself; got {self.domain} -> {self.codomain}.")
        if psd and not symmetric:
            raise InputError("a positive semi-definite operator is symmetric; pass symmetric=True with psd=True.")

    # --- what a final class gives -----------------------------------------------------------------------------------
    @abstractmethod
    def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The images of k vectors: `{name: (k, *shape)}` of the domain -> the same of the codomain."""

    def adjoint(self) -> Operator:
        """The transpose. A class that is not symmetric gives its own."""
        if self.symmetric:
            return self
        raise InputError(f"{type(self).__name__} is not symmetric and gives no adjoint.")

    def sub(self, rows: Space, cols: Space) -> Operator:
        """The block `rows <- cols`; a class that knows a cheaper way gives it here."""
        return Block(self, rows, cols)

    # --- written once -----------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, int]:
        return self.codomain.size, self.domain.size

    @property
    def T(self) -> Operator:
        return self.adjoint()

    def __matmul__(self, v: Any) -> Any:
        """`A @ v` for a dict (one vector or a stack), a flat `(n,)` or `(n, k)` tensor, or another operator."""
        if isinstance(v, Operator):
            return Product(self, v)
        if isinstance(v, Tensor):
            flat = self.codomain.flatten(
                self.apply(self._given(self.domain.unflatten(v if v.dim() == 2 else v[:, None])))
            )
            return flat if v.dim() == 2 else flat[:, 0]
        if isinstance(v, Mapping):
            if self.domain.lead(v):
                return self.apply(self._given(v))
            out = self.apply(self._given({name: t[None] for name, t in v.items()}))
            return {name: t[0] for name, t in out.items()}
        raise InputError(
            f"an operator multiplies a dict of tensors, a flat tensor or an operator; got {type(v).__name__}."
        )

    def _given(self, V: Vector) -> dict[str, Tensor]:
        for name, t in V.items():
            if t.dtype != self.dtype or t.device.type != self.device.type:
                raise InputError(
                    f"{name} is {t.dtype} on {t.device}; this operator works in {self.dtype} on {self.device}."
                    " Convert the vector with `.to(...)`."
                )
        return dict(V)

    def __add__(self, other: Operator) -> Operator:
        return Sum(self, other)

    def __sub__(self, other: Operator) -> Operator:
        return Sum(self, Scaled(-1.0, other))

    def __neg__(self) -> Operator:
        return Scaled(-1.0, self)

    def __mul__(self, factor: float) -> Operator:
        return Scaled(factor, self)

    __rmul__ = __mul__

    def block(self, rows: str | tuple[str, ...], cols: str | tuple[str, ...] | None = None) -> Operator:
        """The block between named tensors, off-diagonal ones included: `H.block("layers.0.*.W_Q", "layers.3.*.W_V")`.

        Names may be globs, labels (`query`) or views (`W_V[2]`); `cols` defaults to `rows`.
        """
        rows = (rows,) if isinstance(rows, str) else rows
        cols = rows if cols is None else (cols,) if isinstance(cols, str) else cols
        return self.sub(self.codomain.select(*rows), self.domain.select(*cols))

    def dense(self, *, chunk: int = 256) -> Tensor:
        """The matrix `(codomain.size, domain.size)`, from applications to unit vectors, `chunk` at a time."""
        m, n = self.shape
        guard_memory(m, n, self.dtype, self.device)
        out = torch.empty((m, n), dtype=self.dtype, device=self.device)
        for start in range(0, n, chunk):
            stop = min(start + chunk, n)
            units = torch.zeros((n, stop - start), dtype=self.dtype, device=self.device)
            units[torch.arange(start, stop), torch.arange(stop - start)] = 1
            out[:, start:stop] = self @ units
        return out

    def to_scipy(self) -> LinearOperator:
        """This operator for `scipy.sparse.linalg` (`eigsh`, `svds`, `cg`, ...): numpy in, numpy out, on the CPU."""
        import numpy as np
        from scipy.sparse.linalg import LinearOperator

        def through(op: Operator, x: Any) -> Any:
            given = torch.as_tensor(np.ascontiguousarray(x), dtype=op.dtype).to(op.device)
            return (op @ given).detach().cpu().numpy()

        return LinearOperator(
            shape=self.shape,
            dtype=np.dtype(str(self.dtype).removeprefix("torch.")),
            matvec=lambda x: through(self, x.reshape(-1)),
            matmat=lambda x: through(self, x),
            rmatvec=lambda x: through(self.T, x.reshape(-1)),
            rmatmat=lambda x: through(self.T, x),
        )

    def __repr__(self) -> str:
        kind = "psd " if self.psd else "symmetric " if self.symmetric else ""
        return f"<{kind}{type(self).__name__} {self.shape[0]:,} x {self.shape[1]:,}, {self.dtype}, {self.device}>"


def guard_memory(m: int, n: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse an `(m, n)` matrix that does not fit the memory of the device, before the machine starts to swap."""
    need = m * n * torch.empty((), dtype=dtype).element_size()
    have = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_host_memory()
    if need > have:
        raise TooLarge(
            f"The full matrix of {m:,} x {n:,} entries needs {_bytes(need)}; {_bytes(have)} are free."
            " Use products (`A @ v`, matrix-free) or a named block (`A.block(rows, cols).dense()`)."
        )


def _free_host_memory() -> float:
    try:
        with open("/proc/meminfo") as f:
            rows = dict(line.split(":", 1) for line in f)
        return float(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if count < 1000 or unit == "PB":
            return f"{count:.3g} {unit}"
        count /= 1000
    return ""


def _agree(a: Operator, b: Operator) -> None:
    if a.domain.parts != b.domain.parts or a.codomain.parts != b.codomain.parts:
        raise InputError(f"operators to be added act between different spaces: {a.domain} and {b.domain}.")
    if a.dtype != b.dtype or a.device.type != b.device.type:
        raise InputError(f"operators differ in kind: {a.dtype} on {a.device} and {b.dtype} on {b.device}.")


@final
class Dense(Operator):
    """A matrix `(codomain.size, domain.size)` with named rows and columns."""

    def __init__(
        self,
        matrix: Tensor,
        domain: Space,
        codomain: Space | None = None,
        *,
        symmetric: bool | None = None,
        psd: bool = False,
    ) -> None:
        codomain = domain if codomain is None else codomain
        if tuple(matrix.shape) != (codomain.size, domain.size):
            raise InputError(
                f"a matrix {domain} -> {codomain} has shape {(codomain.size, domain.size)}; got {tuple(matrix.shape)}."
            )
        if symmetric is None:
            symmetric = domain.parts == codomain.parts and bool(torch.equal(matrix, matrix.T))
        super().__init__(domain, codomain, dtype=matrix.dtype, device=matrix.device, symmetric=symmetric, psd=psd)
        self.matrix = matrix

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return self.codomain.unflatten(self.matrix @ self.domain.flatten(V))

    def adjoint(self) -> Operator:
        return self if self.symmetric else Dense(self.matrix.T, self.codomain, self.domain, symmetric=False)

    def sub(self, rows: Space, cols: Space) -> Operator:
        entries = self.matrix[self.codomain.coordinates(rows)][:, self.domain.coordinates(cols)]
        same = rows.parts == cols.parts
        return Dense(entries, cols, rows, symmetric=self.symmetric and same, psd=self.psd and same)

    def dense(self, *, chunk: int = 256) -> Tensor:
        return self.matrix.clone()


@final
class Sum(Operator):
    """A + B + ...; sums inside it are flattened."""

    terms: tuple[Operator, ...]

    def __init__(self, *terms: Operator) -> None:
        flat: tuple[Operator, ...] = tuple(
            t for term in terms for t in (term.terms if isinstance(term, Sum) else (term,))
        )
        first = flat[0]
        for other in flat[1:]:
            _agree(first, other)
        super().__init__(
            first.domain,
            first.codomain,
            dtype=first.dtype,
            device=first.device,
            symmetric=all(t.symmetric for t in flat),
            psd=all(t.psd for t in flat),
        )
        self.terms = flat

    def apply(self, V: Vector) -> dict[str, Tensor]:
        images = [t.apply(V) for t in self.terms]
        return {name: sum((im[name] for im in images[1:]), start=images[0][name]) for name in self.codomain.names}

    def adjoint(self) -> Operator:
        return self if self.symmetric else Sum(*(t.adjoint() for t in self.terms))

    def sub(self, rows: Space, cols: Space) -> Operator:
        return Sum(*(t.sub(rows, cols) for t in self.terms))


@final
class Scaled(Operator):
    """c A."""

    def __init__(self, factor: float, base: Operator) -> None:
        psd = base.psd and factor >= 0
        super().__init__(
            base.domain, base.codomain, dtype=base.dtype, device=base.device, symmetric=base.symmetric, psd=psd
        )
        self.factor = float(factor)
        self.base = base

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return {name: self.factor * t for name, t in self.base.apply(V).items()}

    def adjoint(self) -> Operator:
        return self if self.symmetric else Scaled(self.factor, self.base.adjoint())

    def sub(self, rows: Space, cols: Space) -> Operator:
        return Scaled(self.factor, self.base.sub(rows, cols))


@final
class Product(Operator):
    """A B. Symmetric only where it is the same symmetric operator twice; it is then positive semi-definite."""

    def __init__(self, left: Operator, right: Operator) -> None:
        if left.domain.parts != right.codomain.parts:
            raise InputError(
                f"the product A B needs A's domain to be B's codomain; got {left.domain} and {right.codomain}."
            )
        square = left is right and left.symmetric
        super().__init__(
            right.domain, left.codomain, dtype=left.dtype, device=left.device, symmetric=square, psd=square
        )
        self.left = left
        self.right = right

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return self.left.apply(self.right.apply(V))

    def adjoint(self) -> Operator:
        return self if self.symmetric else Product(self.right.adjoint(), self.left.adjoint())


@final
class Block(Operator):
    """The block of `base` between two selections of its spaces: restrict . base . embed."""

    def __init__(self, base: Operator, rows: Space, cols: Space) -> None:
        same = rows.parts == cols.parts
        super().__init__(
            cols,
            rows,
            dtype=base.dtype,
            device=base.device,
            symmetric=base.symmetric and same,
            psd=base.psd and same,
        )
        self.base = base

    def apply(self, V: Vector) -> dict[str, Tensor]:
        whole = self.base.apply(self.base.domain.embed(self.domain, V))
        return self.base.codomain.restrict(self.codomain, whole)

    def adjoint(self) -> Operator:
        return self if self.symmetric else Block(self.base.adjoint(), self.domain, self.codomain)


@final
class KroneckerSum(Operator):
    """`sum_n A_n kron B_n`, acting on one matrix: `V -> sum_n A_n V B_n^T` (row-major vec).

    `A` is `(N, p, q)`, `B` is `(N, r, s)`; the domain holds one `(q, s)` tensor, the codomain one `(p, r)` tensor.
    Every token-wise Gauss-Newton block of attention has this form with rank-one `A_n`. Source: [ODS25, Thm 3.1].
    """

    def __init__(
        self, A: Tensor, B: Tensor, domain: Space, codomain: Space | None = None, *, psd: bool = False
    ) -> None:
        codomain = domain if codomain is None else codomain
        want_in, want_out = ((A.shape[2], B.shape[2]),), ((A.shape[1], B.shape[1]),)
        if (
            A.shape[0] != B.shape[0]
            or tuple(s for _, s in domain) != want_in
            or tuple(s for _, s in codomain) != want_out
        ):
            raise InputError(
                f"factors {tuple(A.shape)} and {tuple(B.shape)} map one tensor of shape {want_in[0]} to one of shape"
                f" {want_out[0]}; got {domain} -> {codomain}."
            )
        symmetric = domain.parts == codomain.parts and bool(
            torch.equal(A, A.transpose(1, 2)) and torch.equal(B, B.transpose(1, 2))
        )
        super().__init__(domain, codomain, dtype=A.dtype, device=A.device, symmetric=symmetric, psd=psd)
        self.A = A
        self.B = B

    def apply(self, V: Vector) -> dict[str, Tensor]:
        (name,), (out,) = self.domain.names, self.codomain.names
        return {out: torch.einsum("npq,kqs,nrs->kpr", self.A, V[name], self.B)}

    def adjoint(self) -> Operator:
        if self.symmetric:
            return self
        return KroneckerSum(self.A.transpose(1, 2), self.B.transpose(1, 2), self.codomain, self.domain)
