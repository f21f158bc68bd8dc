"""The question of `quadform taylor` and `qf.taylor`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError
from ...core.question import option, words_of
from ..opening import ModelQuestion

#: Directions that need no other model: down the gradient, the sharpest and the lowest eigenvector, the optimizer's next
#: update, random ones.
DIRECTIONS = ("grad", "top", "bottom", "update", "random")


@dataclass(frozen=True, kw_only=True)
class TaylorQuestion(ModelQuestion):
    """How far does the quadratic model of the loss hold?

    Along a direction v the loss is compared with L + g.v r + v.Hv r^2 / 2. The radius is the first r at which the error
    of this model is 10 % of its largest change. It is predicted from the third and fourth derivative and the kinks of
    ReLU, and measured.
    """

    verb = "taylor"
    again = frozenset({"products"})

    along: tuple[str, ...] = option(
        ("grad", "top", "random"),
        "Directions: grad, top, bottom, update (of the optimizer), random; or another checkpoint of the same model.",
        parse=words_of,
        metavar="LIST",
        shown="(default: grad,top,random)",
    )
    random: int = option(4, "Number of random directions.", least=1)
    share: float = option(
        0.1, "The quadratic model holds while its error is below this share of its largest change.", above=0, below=1
    )
    points: int = option(33, "Points of the curve along each direction.", least=3)
    products: int = option(60, "Maximum number of Hessian-vector products for one eigenvector.", least=1)
    tol: float = option(1e-2, "Relative residual at which an eigenvector counts as converged.", above=0)

    def check(self) -> None:
        if not self.along:
            raise InputError("along=(): name at least one direction.")

    def measurement(self, subject: Any = None) -> Any:
        from .measure import TaylorMeasurement

        return TaylorMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.taylor import Taylor

        return Taylor(record)
