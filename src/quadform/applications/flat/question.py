"""The question of `quadform flat` and `qf.flat`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import UnknownName, did_you_mean
from ...core.question import option, words_of
from ..opening import ModelQuestion, Opening

#: What is measured: the largest eigenvalue and the trace of H, the rise of the loss by one step of SAM and of ASAM,
#: Keskar's sharpness in a box, the effective dimension of H_o.
MEASURES = ("lambda_max", "trace", "sam", "asam", "keskar", "dimension")


@dataclass(frozen=True, kw_only=True)
class FlatOpening(Opening):
    """A model in double precision: measures on equal models are compared to the last digits."""

    dtype: str = option(
        "float64",
        "Floating-point type of the computation. Half precision is refused because it underflows.",
        choices=("float32", "float64"),
    )


@dataclass(frozen=True, kw_only=True)
class FlatQuestion(ModelQuestion):
    """How flat is the loss around this model?

    Rescaling queries against keys, values against outputs, or the units of a ReLU changes these measures, but not
    the function the model computes. So each measure is given at the model itself, and at its least over these
    rescalings; the least does not depend on the scaling of the weights.
    """

    verb = "flat"
    again = frozenset({"products"})

    measures: tuple[str, ...] = option(
        MEASURES,
        "Measures, comma-separated: lambda_max, trace, sam, asam, keskar, dimension.",
        parse=words_of,
        metavar="LIST",
        shown="(default: all)",
    )
    rho: float = option(0.05, "Radius of SAM: the rise of the loss after one step of this length uphill.", above=0)
    asam: float = option(0.5, "Radius of ASAM, in units of each weight's own size.", above=0)
    box: float = option(1e-3, "Keskar's box: each weight w may move by box (|w| + 1).", above=0)
    ridge: float = option(0.1, "Effective dimension: eigenvalues of H_o well above this count as 1.", above=0)
    rounds: int = option(1, "Rounds of line searches over rescalings; 0: only the balanced model; -1: none.", least=-1)
    products: int = option(200, "Maximum number of Hessian-vector products for one eigenvalue.", least=4)
    tol: float = option(1e-5, "Relative residual at which an eigenvalue counts as converged.", above=0)

    def check(self) -> None:
        for name in self.measures:
            if name not in MEASURES:
                near = did_you_mean(name, MEASURES)
                raise UnknownName(f"unknown measure {name!r}; choose from {', '.join(MEASURES)}.{near}")

    def measurement(self, subject: Any = None) -> Any:
        from .measure import FlatMeasurement

        return FlatMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.flat import Flat

        return Flat(record)
