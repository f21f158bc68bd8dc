"""Inverses of operators: closed forms that classes give, and the call of `quadform.estimate` where there is none.

Why the iterative ones are looked up and not imported: docs/decisions/0420-inverses-of-operators.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .errors import InputError
from .lazy import public

if TYPE_CHECKING:
    from .operator import Operator

#: How a linear system is solved.
SolveMethod = Literal["auto", "exact", "cg", "block-cg", "minres", "lsmr"]


class Invertible:
    """What every operator can do about its inverse."""

    def spectral(self, f: Callable[[Tensor], Tensor]) -> Operator | None:
        """f(A) of a symmetric operator, f on its eigenvalues, where a class knows them all; else None."""
        return None

    def exact_inverse(self, damping: float = 0.0) -> Operator | None:
        """(A + damping I)^-1 in closed form; None where a class knows none."""
        return self.spectral(lambda x: power(x + damping, -1.0))

    def inverse(  # type: ignore[misc]  # a part of Operator
        self: Operator,
        *,
        damping: float = 0.0,
        method: SolveMethod = "auto",
        preconditioner: Operator | None = None,
        tol: float = 1e-6,
        **options: Any,
    ) -> Operator:
        """(A + damping I)^-1: in closed form where the class has one, else each product solves a system to `tol`.

        With `lsmr` it is (A^T A + damping I)^-1 A^T. Further options are those of `quadform.solve`. A product whose
        solve does not converge raises `CheckFailed`.
        """
        exact = closed_inverse(self, damping, method)
        if exact is not None:
            return exact
        iterative: Operator = public("estimate").Inverse(
            self, damping=damping, method=method, preconditioner=preconditioner, tol=tol, **options
        )
        return iterative

    def solve(self: Operator, b: Any, **options: Any) -> Any:  # type: ignore[misc]  # a part of Operator
        """The `Solution` of (A + damping I) x = b, for a dict or a flat tensor, one vector or k: `quadform.solve`."""
        return public("estimate").solve(self, b, **options)

    def sqrt_inverse(  # type: ignore[misc]  # a part of Operator
        self: Operator, *, damping: float = 0.0, tol: float = 1e-6, **options: Any
    ) -> Operator:
        """(A + damping I)^-1/2 of a symmetric operator: in closed form where there is one, else by Lanczos."""
        exact = self.spectral(lambda x: power(x + damping, -0.5)) if self.symmetric else None
        if exact is not None:
            return exact
        root: Operator = public("estimate").MatrixFunction(self, "inverse-sqrt", damping=damping, tol=tol, **options)
        return root


def closed_inverse(A: Operator, damping: float, method: SolveMethod) -> Operator | None:
    """The inverse in closed form where `auto` finds one; `exact` makes the matrix where the class has none."""
    if method not in ("auto", "exact"):
        return None
    exact = A.exact_inverse(damping)
    if exact is None and method == "exact":
        if A.domain.parts != A.codomain.parts:
            raise InputError(f"only an operator of a space into itself has an inverse; got {A!r}. Use lsmr.")
        matrix = public("Dense")(A.dense(), A.domain, A.codomain, symmetric=A.symmetric, psd=A.psd)
        exact = matrix.exact_inverse(damping)
    return exact


def eigh(matrix: Tensor, psd: bool = False) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of a symmetric matrix; those below the round-off of the largest are zero."""
    values, U = torch.linalg.eigh(matrix if matrix.dtype.itemsize > 2 else matrix.float())
    floor = len(values) * torch.finfo(values.dtype).eps * values.abs().max()
    values = torch.where(values.abs() > floor, values, torch.zeros_like(values))
    return values.clamp(min=0) if psd else values, U


def power(x: Tensor, p: float) -> Tensor:
    """x^p of eigenvalues, p < 0; refused where one of them is zero, or negative under a root."""
    low = float((x.abs() if p == -1 else x).min())
    if not low > 0:
        word = "not positive" if low < 0 else "singular"
        raise InputError(
            f"the operator is {word}: its eigenvalues reach {low:.3g}, the largest is {float(x.max()):.3g}."
            " Give a larger `damping`; `lsmr` and `minres` solve singular systems."
        )
    return x**p


def inverted(matrix: Tensor) -> Tensor:
    """The inverse of a square matrix; one that is singular to round-off is refused."""
    inverse = torch.linalg.inv_ex(matrix).inverse
    condition = float(matrix.norm() * inverse.norm())
    if not condition * torch.finfo(matrix.dtype).eps < 1:
        raise InputError(f"the operator is singular: condition {condition:.1g}. Give a damping, or solve with `lsmr`.")
    return inverse
