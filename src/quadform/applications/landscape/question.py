"""The question of `quadform landscape` and `qf.landscape`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError
from ...core.question import option, words_of
from ..opening import ModelQuestion


@dataclass(frozen=True, kw_only=True)
class LandscapeQuestion(ModelQuestion):
    """The loss on a line or a plane through the model, and where its quadratic model holds.

    Planes: the two sharpest directions (`top`), the gradient and the sharpest direction (`grad`), random directions
    scaled filter by filter (`random`), or a plane through other checkpoints of the same model: a line for one, a plane
    for two, the principal plane for more. For one other, `curve` also trains a curve of low loss between the two.
    """

    verb = "landscape"
    again = frozenset({"products"})

    plane: str = option(
        "top", "Directions of the plane, unless other checkpoints are given.", choices=("top", "grad", "random")
    )
    through: tuple[str, ...] = option(
        (),
        "Other checkpoints of the same model: the plane passes through them. In Python also modules.",
        parse=words_of,
        positional=True,
        metavar="[OTHER ...]",
        shown="(default: none)",
    )
    curve: int = option(
        0, "Training steps of the bend of a Bezier curve to one other checkpoint; 0 for no curve.", least=0
    )
    axes: int = option(2, "1 for a line, 2 for a plane.", least=1)
    points: int = option(25, "Points along each axis.", least=3)
    span: float | None = option(
        None,
        "Length of each axis to each side.",
        above=0,
        metavar="FLOAT",
        shown="(default: twice the radius of the quadratic model; 1 for random directions)",
    )
    share: float = option(0.1, "The quadratic model holds where its error is below this share.", above=0, below=1)
    products: int = option(60, "Maximum number of Hessian-vector products for the eigenvectors.", least=1)
    tol: float = option(1e-2, "Relative residual at which an eigenvector counts as converged.", above=0)

    def check(self) -> None:
        if self.axes > 2:
            raise InputError(f"axes={self.axes}: a landscape has one axis or two.")

    def measurement(self, subject: Any = None) -> Any:
        from .measure import LandscapeMeasurement

        return LandscapeMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.landscape import Landscape

        return Landscape(record)
