"""Operator: a linear map between named spaces, known by what it does to k vectors at once.

A class here is abstract (`Operator`) or final (all others). A final one gives `apply`, and `adjoint` where it is not
symmetric; the algebra, named off-diagonal blocks, the dense form and the scipy bridge are written once, below, what
concerns inverses in `inverting`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from .errors import InputError
from .inverting import Invertible, eigh, inverted
from .memory import guard_memory
from .precision import own_precision
from .showing import first_rows, html_table
from .space import Space, Vector

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator


#: Entries of the largest temporary that a product makes beside its result (256 MB in float64).
_SCRATCH = 2**25


class Operator(Invertible, ABC):
    """A linear map between named spaces: `A @ v`, sums, products, named blocks, solves.

    A class of your own gives `apply`. `symmetric` and `psd` choose methods; `testing.check_operator` tests them.

    Args:
        domain: The space of vectors it is applied to.
        codomain: The space of the results; `domain` by default.
        dtype, device: Of the vectors.
        symmetric: Promises that it is symmetric.
        psd: Promises that it is positive semi-definite.

    >>> space = qf.Space((("w", (2,)), ("b", (1,))))
    >>> A = qf.Dense(torch.diag(torch.tensor([1.0, 2.0, 3.0])), space)
    >>> A @ {"w": torch.ones(2), "b": torch.ones(1)}
    {'w': tensor([1., 2.]), 'b': tensor([3.])}
    >>> (2 * A).block("w", "w").dense()
    tensor([[2., 0.],
            [0., 4.]])
    """

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
        raise InputError(f"{self._title} is not symmetric and gives no adjoint.")

    def sub(self, rows: Space, cols: Space) -> Operator:
        """The block `rows <- cols`; a class that knows a cheaper way gives it here."""
        return Block(self, rows, cols)

    def columns(self, start: int, stop: int) -> Tensor:
        """Columns `start .. stop` of the matrix, from products with unit vectors; a cheaper way is given here too."""
        if getattr(self.domain.group, "cut", False):
            raise InputError("the weights are sharded (FSDP): no process holds a column of the matrix.")
        units = torch.zeros((stop - start, self.domain.size), dtype=self.dtype, device=self.device)
        units.diagonal(start).fill_(1)
        return self.codomain.flatten(self.apply(self.domain.unflatten(units.T)))

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
            return self.codomain.flatten(self @ self.domain.unflatten(v))
        if isinstance(v, Mapping):
            if self.domain.lead(v):
                return self._applied(v)
            out = self._applied({name: t[None] for name, t in v.items()})
            return {name: t[0] for name, t in out.items()}
        raise InputError(
            f"an operator multiplies a dict of tensors, a flat tensor or an operator; got {type(v).__name__}."
        )

    def _applied(self, V: Vector) -> dict[str, Tensor]:
        with own_precision():
            return self.apply(self._given(V))

    def _given(self, V: Vector) -> dict[str, Tensor]:
        for name, t in V.items():
            if t.dtype != self.dtype or t.device.type != self.device.type:
                raise InputError(
                    f"{name} is {t.dtype} on {t.device}; this operator works in {self.dtype} on {self.device}."
                    " Convert the vector with `.to(...)`."
                )
        return dict(V)

    def __add__(self, other: Operator) -> Operator:
        return Sum(self, other) if isinstance(other, Operator) else NotImplemented

    def __sub__(self, other: Operator) -> Operator:
        return Sum(self, Scaled(-1.0, other)) if isinstance(other, Operator) else NotImplemented

    def __neg__(self) -> Operator:
        return Scaled(-1.0, self)

    def __mul__(self, factor: float) -> Operator:
        if isinstance(factor, Operator):
            raise InputError("`*` multiplies an operator by a number; the product of two operators is `A @ B`.")
        return Scaled(factor, self)

    __rmul__ = __mul__
    __array_ufunc__ = None  # numpy's numbers leave `c * A` to us

    def block(self, rows: str | tuple[str, ...], cols: str | tuple[str, ...] | None = None) -> Operator:
        """The block between named tensors, off-diagonal ones included: `H.block("layers.0.*.W_Q", "layers.3.*.W_V")`.

        Names may be globs, labels (`query`) or views (`W_V[2]`); `cols` defaults to `rows`.
        """
        rows = (rows,) if isinstance(rows, str) else rows
        cols = rows if cols is None else (cols,) if isinstance(cols, str) else cols
        return self.sub(self.codomain.select(*rows), self.domain.select(*cols))

    def dense(self, *, chunk: int = 256) -> Tensor:
        """The matrix `(codomain.size, domain.size)`, at most `chunk` columns at a time: little memory beside it."""
        m, n = self.shape
        guard_memory(m, n, self.dtype, self.device)
        chunk = max(1, min(chunk, _SCRATCH // max(m, n, 1)))
        out = torch.empty((m, n), dtype=self.dtype, device=self.device)
        for start in range(0, n, chunk):
            stop = min(start + chunk, n)
            out[:, start:stop] = self.columns(start, stop)
        return out

    def to_scipy(self) -> LinearOperator:
        """This operator for `scipy.sparse.linalg` (`eigsh`, `svds`, `cg`, ...): numpy in, numpy out, on the CPU."""
        import numpy as np
        from scipy.sparse.linalg import LinearOperator

        if self.dtype not in (torch.float32, torch.float64):
            raise InputError(f"scipy works in float32 and float64; this operator works in {self.dtype}.")

        def through(op: Operator, x: Any) -> Any:
            if np.iscomplexobj(x):
                return through(op, x.real) + 1j * through(op, x.imag)
            return (op @ torch.tensor(x, dtype=op.dtype, device=op.device)).detach().cpu().numpy()

        return LinearOperator(
            shape=self.shape,
            dtype=np.dtype(str(self.dtype).removeprefix("torch.")),
            matvec=lambda x: through(self, x.reshape(-1)),
            matmat=lambda x: through(self, x),
            rmatvec=lambda x: through(self.T, x.reshape(-1)),
            rmatmat=lambda x: through(self.T, x),
        )

    @property
    def _title(self) -> str:
        """What it calls itself where it is printed."""
        return type(self).__name__.lstrip("_")

    def __repr__(self) -> str:
        kind = "psd " if self.psd else "symmetric " if self.symmetric else ""
        return f"<{kind}{self._title} {self.shape[0]:,} x {self.shape[1]:,}, {self.dtype}, {self.device}>"

    def _repr_html_(self) -> str:
        spaces = {"from": self.domain} if self.symmetric else {"from": self.domain, "to": self.codomain}
        rows = [(end, name, " x ".join(map(str, shape))) for end, space in spaces.items() for name, shape in space]
        return html_table(("space", "tensor", "shape"), first_rows(rows), repr(self))


def _agree(a: Operator, b: Operator) -> None:
    if a.domain.parts != b.domain.parts or a.codomain.parts != b.codomain.parts:
        raise InputError(
            "operators to be added act between different spaces:"
            f" {a.domain} -> {a.codomain} and {b.domain} -> {b.codomain}."
        )
    _same_kind(a, b)


def _same_kind(a: Operator, b: Operator) -> None:
    if a.dtype != b.dtype or a.device.type != b.device.type:
        raise InputError(f"operators differ in dtype or device: {a.dtype} on {a.device} and {b.dtype} on {b.device}.")


@final
class Dense(Operator):
    """The operator of a matrix `(codomain.size, domain.size)`, with named rows and columns.

    Args:
        matrix: The entries.
        domain: The space of its columns.
        codomain: The space of its rows; `domain` by default.
        symmetric: Whether it is symmetric; the entries are compared where this is not given.
        psd: Promises that it is positive semi-definite.
    """

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
        entries = self.matrix[self.codomain.coordinates(rows)[:, None], self.domain.coordinates(cols)]
        same = rows.parts == cols.parts
        return Dense(entries, cols, rows, symmetric=self.symmetric and same, psd=self.psd and same)

    def columns(self, start: int, stop: int) -> Tensor:
        return self.matrix[:, start:stop]

    def dense(self, *, chunk: int = 256) -> Tensor:
        return self.matrix.clone()

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of a symmetric matrix; several functions of it share them."""
        return eigh(self.matrix, self.psd)

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator | None:
        if not self.symmetric:
            return None
        values, U = self.eigen
        values = f(values)
        matrix = (U * values) @ U.T
        matrix = ((matrix + matrix.T) / 2).to(self.dtype)
        return Dense(matrix, self.domain, symmetric=True, psd=bool((values >= 0).all()))

    def exact_inverse(self, damping: float = 0.0) -> Operator | None:
        if self.symmetric or self.domain.parts != self.codomain.parts:
            return super().exact_inverse(damping)
        matrix = self.matrix + damping * torch.eye(len(self.matrix), dtype=self.dtype, device=self.device)
        return Dense(inverted(matrix), self.codomain, self.domain, symmetric=False)


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
        total = self.terms[0].apply(V)
        for term in self.terms[1:]:
            image = term.apply(V)
            total = {name: total[name] + image[name] for name in self.codomain.names}
        return total

    def adjoint(self) -> Operator:
        return self if self.symmetric else Sum(*(t.adjoint() for t in self.terms))

    def sub(self, rows: Space, cols: Space) -> Operator:
        return Sum(*(t.sub(rows, cols) for t in self.terms))

    def columns(self, start: int, stop: int) -> Tensor:
        total = self.terms[0].columns(start, stop)
        for term in self.terms[1:]:
            total = total + term.columns(start, stop)
        return total


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

    def columns(self, start: int, stop: int) -> Tensor:
        return self.factor * self.base.columns(start, stop)

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator | None:
        return self.base.spectral(lambda x: f(self.factor * x))

    def exact_inverse(self, damping: float = 0.0) -> Operator | None:
        if self.factor == 0:
            return super().exact_inverse(damping)
        inverse = self.base.exact_inverse(damping / self.factor)
        return None if inverse is None else Scaled(1 / self.factor, inverse)


@final
class Product(Operator):
    """A B. Symmetric only where it is the same symmetric operator twice; it is then positive semi-definite."""

    def __init__(self, left: Operator, right: Operator) -> None:
        if left.domain.parts != right.codomain.parts:
            raise InputError(
                f"the product A B needs A's domain to be B's codomain; got {left.domain} and {right.codomain}."
            )
        _same_kind(left, right)
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

    def sub(self, rows: Space, cols: Space) -> Operator:
        return self.base.sub(rows, cols)

    def columns(self, start: int, stop: int) -> Tensor:
        step = max(1, _SCRATCH // max(*self.base.shape, 1))  # products see vectors of the base's length
        pieces = [Operator.columns(self, a, min(a + step, stop)) for a in range(start, stop, step)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
