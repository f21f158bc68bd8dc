"""The question of `quadform point` and `qf.point`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.question import option
from ..opening import ModelQuestion, Opening


@dataclass(frozen=True, kw_only=True)
class PointOpening(Opening):
    """A model in double precision, and several batches, so that the gradient has a noise."""

    batches: int = option(4, "Batches; their mean is the loss, and their gradients give its noise.", least=1)
    dtype: str = option(
        "float64",
        "Number format of the computation; half precision is refused, it underflows.",
        choices=("float32", "float64"),
    )


@dataclass(frozen=True, kw_only=True)
class PointQuestion(ModelQuestion):
    """What kind of point is this: a minimum, a saddle, or a point where the loss still descends?

    First whether it is stationary: the Newton decrement, and the gradient against its noise. Then the smallest
    eigenvalue with a direction. Of small models the signs of all eigenvalues, and which symmetries explain the zeros.
    """

    verb = "point"
    again = frozenset({"products"})

    polish: bool = option(False, "Move a copy to a stationary point first, by saddle-free Newton steps.")
    steps: int = option(100, "Most steps of the polish.", least=1)
    inertia: int = option(3000, "Most parameters for which the signs of all eigenvalues are counted.", least=0)
    damping: float = option(1e-4, "Damping of the Newton decrement, of the largest |eigenvalue|.", above=0)
    products: int = option(200, "Most Hessian-vector products for the eigenvalues, and for the decrement.", least=2)
    tol: float = option(
        1e-3, "Wanted relative residual of an eigenvalue, and error of the decrement.", above=0, below=1
    )

    def measurement(self, subject: Any = None) -> Any:
        from .measure import PointMeasurement

        return PointMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.kind import PointKind

        return PointKind(record)
