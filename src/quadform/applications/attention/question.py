"""The question of `quadform attention` and `qf.attention`, and the grid a sweep runs over. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError, did_you_mean
from ...core.question import Question, option
from ..opening import Numerics

#: The six unique blocks of the Hessian of one head, row then column, in the order used everywhere.
BLOCKS = ("W_Q,W_Q", "W_Q,W_K", "W_K,W_K", "W_V,W_Q", "W_V,W_K", "W_V,W_V")
#: The three of a head with one matrix W_QK in place of W_Q W_K^T.
MERGED_BLOCKS = ("W_QK,W_QK", "W_V,W_QK", "W_V,W_V")

#: What a sweep can vary.
VARIED = ("scale",)


@dataclass(frozen=True)
class Vary:
    """A geometric grid of one quantity: `name=lo:hi` or `name=lo:hi:points`."""

    name: str
    lo: float
    hi: float
    points: int = 25

    def __post_init__(self) -> None:
        if self.name not in VARIED:
            raise InputError(
                f"a sweep cannot vary {self.name!r}; choose from {', '.join(VARIED)}.{did_you_mean(self.name, VARIED)}"
            )
        if not (0 < self.lo < self.hi < math.inf):
            raise InputError(f"a sweep runs from a positive number to a larger one; got {self.lo:g}:{self.hi:g}.")
        if self.points < 2:
            raise InputError(f"a sweep has at least 2 points; got {self.points}.")

    @classmethod
    def parse(cls, text: str) -> Vary | None:
        """The sweep written `scale=0.01:30`, or None for `none`."""
        if text == "none":
            return None
        name, _, span = text.partition("=")
        try:
            lo, hi, *more = span.split(":")
            points = [int(p) for p in more]
            if len(points) > 1:
                raise ValueError
            return cls(name.strip(), float(lo), float(hi), *points)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(
                f"{text!r} is not a sweep. Write `scale=0.01:30` or `scale=0.01:30:25` (from, to, points), or `none`."
            ) from error

    @property
    def grid(self) -> list[float]:
        """The points, equally spaced in the logarithm; both ends exact."""
        step = math.log(self.hi / self.lo) / (self.points - 1)
        return [self.lo, *(self.lo * math.exp(step * i) for i in range(1, self.points - 1)), self.hi]


@dataclass(frozen=True, kw_only=True)
class AttentionQuestion(Numerics, Question):
    """The exact Hessian of one attention layer with mean squared loss, on a seeded toy problem.

    Tokens X ~ scale N(0, 1), targets Y ~ N(0, 1), weights ~ N(0, 1/d_model). The layer is
    softmax(Q K^T / (t sqrt(d_k))) V, or the same without the softmax. Every number is exact, except
    the slopes: they are fits with a standard error.
    """

    verb = "attention"

    tokens: int = option(8, "Tokens in the sequence.", least=1)
    d_model: int = option(8, "Width of a token.", least=1)
    d_k: int | None = option(None, "Width of queries and keys.", least=1, metavar="INT", shown="(default: d_model)")
    d_v: int | None = option(None, "Width of values.", least=1, metavar="INT", shown="(default: d_model)")
    attention: str = option(
        "softmax", "Softmax attention, or the same layer without the softmax.", choices=("softmax", "linear")
    )
    factor: str = option(
        "qk",
        "Scores from two matrices W_Q and W_K, or from the single matrix W_QK = W_Q W_K^T.",
        choices=("qk", "single"),
    )
    scale: float = option(1.0, "Standard deviation of the tokens.", above=0)
    temperature: float = option(1.0, "Scores are divided by this, in addition to sqrt(d_k).", above=0)
    mask: str = option("none", "Which tokens each token attends to.", choices=("none", "causal"))
    sink: float = option(0.0, "Added to every score of the first token: an attention sink.")
    precond: str = option(
        "none",
        "Exact relative error of a Kronecker preconditioner for each block H_o(W, W), without sampling.",
        choices=("none", "kfac", "shampoo"),
    )
    vary: Vary | None = option(
        Vary("scale", 0.01, 30.0),
        "Sweep NAME=LO:HI[:POINTS] of the input scale, for the growth of the blocks, or `none`.",
        parse=Vary.parse,
        metavar="STR",
        shown="(default: scale=0.01:30:25)",
    )

    def check(self) -> None:
        if self.precond != "none" and (self.attention == "linear" or self.factor == "single"):
            raise InputError(
                f"precond={self.precond!r}: errors exist for softmax attention with W_Q and W_K. Leave precond out."
            )
        if self.attention == "linear" and self.mask != "none":
            raise InputError("linear attention has no masked closed form. Use mask='none' or attention='softmax'.")
        if self.attention == "linear" and self.factor == "single":
            raise InputError("linear attention with one matrix W_QK has no closed form here. Use factor='qk'.")
        if self.sink and self.attention == "linear":
            raise InputError(f"sink={self.sink:g}: linear attention has no softmax and so no sink. Leave sink at 0.")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """tokens, d_model, d_k, d_v."""
        return self.tokens, self.d_model, self.d_k or self.d_model, self.d_v or self.d_model

    @property
    def space(self) -> dict[str, tuple[int, int]]:
        """The parameters: name -> shape."""
        _, d, d_k, d_v = self.shape
        if self.factor == "single":
            return {"W_QK": (d, d), "W_V": (d, d_v)}
        return {"W_Q": (d, d_k), "W_K": (d, d_k), "W_V": (d, d_v)}

    @property
    def parameters(self) -> int:
        return sum(rows * columns for rows, columns in self.space.values())

    def inputs(self) -> dict[str, Any]:
        """The question as plain JSON, every default spelled out."""
        _, _, d_k, d_v = self.shape
        return vars(self) | {
            "d_k": d_k,
            "d_v": d_v,
            "vary": {self.vary.name: [self.vary.lo, self.vary.hi, self.vary.points]} if self.vary else None,
            "space": [[name, list(shape)] for name, shape in self.space.items()],
        }

    def measurement(self, subject: Any = None) -> Any:
        from .measure import AttentionMeasurement

        return AttentionMeasurement(self)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.attention import AttentionAnswer

        return AttentionAnswer(record)
