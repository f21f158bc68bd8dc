"""Inverses and functions of an operator as operators: every product solves a system, or runs Lanczos."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from ...core.errors import CheckFailed
from ...core.inverting import SolveMethod
from ...core.operator import Operator
from ...core.space import Vector
from ..vectors import need_symmetric
from .driver import chosen_method, solve
from .functions import Function, FunctionValue, matrix_function
from .solution import Solution


@final
class Inverse(Operator):
    """(A + damping I)^-1, or (A^T A + damping I)^-1 A^T by `lsmr`: each product is a `solve` to `tol`.

    Symmetric, linear and equal for k vectors at once to that tolerance. `method` is the one in use, `last` the
    `Solution` of the last product. A product that does not converge raises `CheckFailed`.
    """

    def __init__(self, A: Operator, *, damping: float = 0.0, method: SolveMethod = "auto", **options: Any) -> None:
        self.A, self.damping, self.options = A, damping, options
        self.method: SolveMethod = chosen_method(A, method, damping)
        same = A.symmetric and self.method != "lsmr"
        super().__init__(
            A.codomain, A.domain, dtype=A.dtype, device=A.device, symmetric=same, psd=same and A.psd and damping >= 0
        )
        self.last: Solution | None = None

    def apply(self, V: Vector) -> dict[str, Tensor]:
        self.last = solve(self.A, V, damping=self.damping, method=self.method, **self.options)
        if not self.last.converged:
            raise CheckFailed(
                f"a product with the inverse of {self.A!r} did not converge. {self.last}. `A.solve(b)` gives the best"
                " x so far."
            )
        return {name: t.to(self.dtype) for name, t in self.last.x.items()}  # type: ignore[union-attr]  # set by a solve

    def adjoint(self) -> Operator:
        if self.symmetric:
            return self
        return Inverse(self.A.T, damping=self.damping, method=self.method, **self.options)


@final
class MatrixFunction(Operator):
    """f(A + damping I) of a symmetric operator by Lanczos, see `matrix_function`; `last` is its last value."""

    def __init__(self, A: Operator, f: Function, *, damping: float = 0.0, **options: Any) -> None:
        need_symmetric(A, "a function of an operator")
        psd = f in ("abs-inverse", "inverse-sqrt", "exp") or (f == "inverse" and A.psd and damping >= 0)
        super().__init__(A.domain, dtype=A.dtype, device=A.device, symmetric=True, psd=psd)
        self.A, self.f, self.damping, self.options = A, f, damping, options
        self.last: FunctionValue | None = None

    def apply(self, V: Vector) -> dict[str, Tensor]:
        self.last = matrix_function(self.A, V, self.f, damping=self.damping, **self.options)
        if not self.last.converged:
            raise CheckFailed(f"a product with a function of {self.A!r} did not converge. {self.last}.")
        return {name: t.to(self.dtype) for name, t in self.last.value.items()}  # type: ignore[union-attr]  # set by a solve
