"""The answer of `quadform taylor`: how far the quadratic model holds along each direction.

Record "taylor": scalars `gradient_norm`, `lambda_max`, and for each direction NAME `NAME/slope`, `NAME/curve`,
`NAME/third`, `NAME/fourth`, `NAME/predicted` (absent where it is infinite), `NAME/measured`; tensors `NAME/r`,
`NAME/loss`, `NAME/model`, the loss and its model along the direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..core.record import Estimate
from .answer import Answer, Draft, Grid, cell
from .numbers import number, times
from .verdict import NOTHING, Limits, Said, Verdict, judged, say

#: Radius along the gradient as a learning rate, over 2 / lambda_max.
REACH = Limits(1.0, 0.1)
#: A predicted radius is good within this factor of the measured one.
GOOD = 1.5


@dataclass(frozen=True)
class Direction:
    """One direction: derivatives along the unit vector, the radii, and the curve that was evaluated."""

    name: str
    slope: float
    curve: float
    third: float
    fourth: float
    predicted: float | None
    measured: Estimate | None
    r: Tensor | None
    loss: Tensor | None
    model: Tensor | None

    @property
    def ratio(self) -> float | None:
        """Predicted over measured radius; None where one of them is not a number."""
        if self.predicted is None or self.measured is None or self.measured.kind == "bound":
            return None
        return self.predicted / self.measured.value


class Taylor(Answer):
    """How far the quadratic model of the loss holds at one point."""

    kind = "taylor"

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that were measured, in the order they were asked for."""
        s, t = self.record.scalars, self.record.tensors
        names = [key.rpartition("/")[0] for key in s if key.endswith("/slope")]
        return tuple(
            Direction(
                n,
                s[f"{n}/slope"].value,
                s[f"{n}/curve"].value,
                s[f"{n}/third"].value,
                s[f"{n}/fourth"].value,
                s[f"{n}/predicted"].value if f"{n}/predicted" in s else None,
                s.get(f"{n}/measured"),
                t.get(f"{n}/r"),
                t.get(f"{n}/loss"),
                t.get(f"{n}/model"),
            )
            for n in names
        )

    def along(self, name: str) -> Direction | None:
        """One direction by its name; None where it was not measured."""
        return next((d for d in self.directions if d.name == name), None)

    @property
    def gradient_norm(self) -> float:
        return self.record.scalars["gradient_norm"].value

    @property
    def bound(self) -> Estimate | None:
        """2 / lambda_max; None where nothing curves upwards."""
        e = self.record.scalars.get("lambda_max")
        if e is None or e.value <= 0:
            return None
        value, error = 2 / e.value, 2 * (e.error or 0.0) / e.value**2
        return Estimate(value, error, "estimate", e.matvecs, e.converged, error_kind="residual")

    @property
    def rate(self) -> Estimate | None:
        """The radius down the gradient as a learning rate: r / |g|."""
        d = self.along("grad")
        if d is None or d.measured is None or not self.gradient_norm:
            return None
        e = d.measured
        error = None if e.error is None else e.error / self.gradient_norm
        return replace(e, value=e.value / self.gradient_norm, error=error)

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """Whether 2 / lambda_max lies inside the radius along the gradient."""
        rate, bound = self.rate, self.bound
        if rate is None or bound is None:
            return ()
        told = {"rate": number(rate.value), "bound": number(bound.value)}
        spread = None if rate.error is None else rate.error / bound.value
        e = Estimate(rate.value / bound.value, spread, rate.kind, error_kind=rate.error_kind, side=rate.side)
        key = {"green": "taylor_far", "undecided": "taylor_unjudged"}.get(REACH.grade(e), "taylor_short")
        return (judged("reach", e, REACH, times(e.value), say(key, **told), times),)

    @property
    def said(self) -> Said:
        ratios = [d.ratio for d in self.directions if d.ratio is not None]
        good = sum(1 / GOOD <= r <= GOOD for r in ratios)
        agree = say("taylor_agree", good=good, all=len(ratios)) if ratios else NOTHING
        return sum((v.both for v in self.verdicts()), NOTHING) + agree + self.cut_short

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        rows = [
            (d.name, d.slope, d.curve, d.third, d.predicted, d.measured and d.measured.value, d.ratio)
            for d in self.directions
        ]
        return Grid(("direction", "slope", "curvature", "third", "predicted", "measured", "ratio"), tuple(rows))

    def lines(self) -> Sequence[str]:
        out = self.measured_lines()
        out.append(f"{'direction':<16}{'slope':>11}{'curvature':>11}{'predicted r':>13}{'measured r':>13}")
        for d in self.directions:
            out.append(
                f"{d.name:<16}{cell(d.slope):>11}{cell(d.curve):>11}{cell(d.predicted):>13}{_shown(d.measured):>13}"
            )
        ratios = [d.ratio for d in self.directions if d.ratio is not None]
        if ratios:
            good = sum(1 / GOOD <= r <= GOOD for r in ratios)
            out.append(say("taylor_agree", good=good, all=len(ratios))())
        return [*out, *self.verdict_lines()]


def _shown(e: Estimate | None) -> str:
    if e is None:
        return "-"
    return {"upper": "<= ", "lower": ">= "}.get(e.side or "", "") + cell(e.value)


class TaylorDraft(Draft):
    """The answer while it is measured."""

    def take_gradient(self, norm: float) -> None:
        self.scalars["gradient_norm"] = Estimate(norm)

    def take_top(self, e: Estimate) -> None:
        """The largest eigenvalue."""
        self.scalars["lambda_max"] = e

    def take(self, name: str, found: Mapping[str, Any]) -> None:
        """One direction: `line` has the derivatives; without slope and curvature there is no radius."""
        self.scalars |= {f"{name}/{k}": Estimate(v) for k, v in found["line"].items() if k != "value"}
        if "measured" not in found:
            return
        if found["predicted"] is not None:
            self.scalars[f"{name}/predicted"] = Estimate(found["predicted"])
        self.scalars[f"{name}/measured"] = found["measured"]
        self.tensors |= {f"{name}/{k}": found[k] for k in ("r", "loss", "model")}
