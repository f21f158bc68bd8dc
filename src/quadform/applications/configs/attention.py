"""The question of `quadform attention`, and the grid a sweep runs over."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError, did_you_mean
from ...core.question import option
from .shared import Numerics

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
                f"`--vary {self.name}` is not something a sweep can vary ({', '.join(VARIED)})."
                f"{did_you_mean(self.name, VARIED)}"
            )
        if not (0 < self.lo < self.hi < math.inf):
            raise InputError(
                f"a sweep runs from a positive number to a larger one; got {self.lo:g}:{self.hi:g}."
                f" Write `--vary {self.name}=0.01:30`."
            )
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
                f"`--vary {text}` is not a sweep. Write `--vary scale=0.01:30` or `--vary scale=0.01:30:25`"
                f" (from, to, points), or `--vary none`; what can be varied: {', '.join(VARIED)}."
            ) from error

    @property
    def grid(self) -> list[float]:
        """The points, equally spaced in the logarithm; both ends exact."""
        step = math.log(self.hi / self.lo) / (self.points - 1)
        return [self.lo, *(self.lo * math.exp(step * i) for i in range(1, self.points - 1)), self.hi]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Numerics):
    """The exact Hessian of one attention layer with mean squared loss, on a seeded toy problem.

    Tokens X ~ scale N(0, 1), targets Y ~ N(0, 1), weights ~ N(0, 1/dim). The layer is softmax(Q K^T / (t sqrt(d_k))) V,
    or the same without the softmax. Every number is exact; the slopes are fits and carry their standard error.
    """

    tokens: int = option(8, "Tokens in the sequence.")
    dim: int = option(8, "Width of a token.")
    d_k: int | None = option(None, "Width of queries and keys.", metavar="INT", shown="(default: dim)")
    d_v: int | None = option(None, "Width of values.", metavar="INT", shown="(default: dim)")
    attention: str = option(
        "softmax", "Softmax attention, or the same layer without the softmax.", choices=("softmax", "linear")
    )
    factor: str = option(
        "qk",
        "Scores from two matrices W_Q and W_K, or from the single matrix W_QK = W_Q W_K^T.",
        choices=("qk", "single"),
    )
    scale: float = option(1.0, "Standard deviation of the tokens.")
    temperature: float = option(1.0, "Scores are divided by this (besides sqrt(d_k)).")
    mask: str = option("none", "Which tokens a token sees.", choices=("none", "causal"))
    sink: float = option(0.0, "Added to every score of the first token: an attention sink.")
    vary: str = option(
        "scale=0.01:30:25", "Sweep NAME=LO:HI[:POINTS] of the input scale, for the growth of the blocks, or `none`."
    )
    dry_run: bool = option(False, "Print the plan and its cost, and stop.")

    def check(self) -> None:
        for name in ("tokens", "dim", "d_k", "d_v"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`--{name.replace('_', '-')} {value}`: a layer has at least 1. Give 1 or more.")
        for name in ("scale", "temperature"):
            value = getattr(self, name)
            if not (0 < value < math.inf):
                raise InputError(f"`--{name} {value:g}`: a {name} is a positive finite number.")
        if self.attention == "linear" and self.mask != "none":
            raise InputError("linear attention has no masked closed form. Use `--mask none` or `--attention softmax`.")
        if self.attention == "linear" and self.factor == "single":
            raise InputError("linear attention with one matrix W_QK has no closed form here. Use `--factor qk`.")
        if not math.isfinite(self.sink):
            raise InputError(f"`--sink {self.sink:g}`: give a finite number.")
        if self.sink and self.attention == "linear":
            raise InputError("a sink is drawn by the softmax; linear attention has none. Leave out `--sink`.")
        _ = self.sweep

    @property
    def sweep(self) -> Vary | None:
        return Vary.parse(self.vary)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """tokens, dim, d_k, d_v."""
        return self.tokens, self.dim, self.d_k or self.dim, self.d_v or self.dim

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

    @property
    def blocks(self) -> tuple[str, ...]:
        return MERGED_BLOCKS if self.factor == "single" else BLOCKS

    def inputs(self) -> dict[str, Any]:
        """The question as plain JSON, every default spelled out."""
        _, _, d_k, d_v = self.shape
        sweep = self.sweep
        asked = {name: value for name, value in dataclasses.asdict(self).items() if name != "dry_run"}
        return asked | {
            "d_k": d_k,
            "d_v": d_v,
            "vary": {sweep.name: [sweep.lo, sweep.hi, sweep.points]} if sweep else None,
            "space": [[name, list(shape)] for name, shape in self.space.items()],
        }
