"""The question of `quadform point` and `qf.point`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.question import option
from ..opening import ModelQuestion, Opening


@dataclass(frozen=True, kw_only=True)
class PointOpening(Opening):
    """A model in double precision, and several batches, so that the gradient has a noise."""

    batches: int = option(
        4, "Number of batches; the loss is their mean, and the spread of their gradients is the noise.", least=1
    )
    dtype: str = option(
        "float64",
        "Floating-point type of the computation. Half precision is refused because it underflows.",
        choices=("float32", "float64"),
    )


@dataclass(frozen=True, kw_only=True)
class PointQuestion(ModelQuestion):
    """What kind of point is this: a minimum, a saddle, or a point where the loss still descends?

    Checks first whether the point is stationary (Newton decrement, gradient against its noise), then computes the
    smallest eigenvalue and its direction. For small models it counts the signs of all eigenvalues and says which
    symmetries explain the zeros.
    """

    verb = "point"
    again = frozenset({"products"})

    polish: bool = option(False, "First move a copy of the model to a stationary point, by saddle-free Newton steps.")
    steps: int = option(100, "Maximum number of these steps.", least=1)
    inertia: int = option(3000, "Count the signs of all eigenvalues up to this number of parameters.", least=0)
    damping: float = option(1e-4, "Damping of the Newton decrement, as a share of the largest |eigenvalue|.", above=0)
    products: int = option(
        200, "Maximum number of Hessian-vector products for the eigenvalues, and for the decrement.", least=2
    )
    tol: float = option(
        1e-3,
        "Relative residual at which an eigenvalue counts as converged, and relative error of the decrement.",
        above=0,
        below=1,
    )

    def measurement(self, subject: Any = None) -> Any:
        from .measure import PointMeasurement

        return PointMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.kind import PointKind

        return PointKind(record)
