"""The answer of `quadform flat`: measures of flatness, here and at their least among equal models.

Record "flat": scalars `loss`, and for each measure NAME `NAME/here` and `NAME/least`; inputs `orbit` (pairs of weights
that can be rescaled without changing the model).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.record import Estimate
from .answer import Answer, Draft, Grid, cell
from .numbers import number, times
from .texts import line
from .verdict import NOTHING, Limits, Said, Verdict, judged, say

#: lambda_max here over its least among equal models.
SCALE = Limits(2.0, 10.0)


@dataclass(frozen=True)
class Measure:
    """One measure: here, and at its least among equal models (None where there are none)."""

    name: str
    here: Estimate
    least: Estimate | None

    @property
    def ratio(self) -> float | None:
        return None if self.least is None or not self.least.value > 0 else self.here.value / self.least.value


class Flat(Answer):
    """How flat the loss is around a model."""

    kind = "flat"

    @property
    def loss(self) -> Estimate:
        return self.record.scalars["loss"]

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Those that were measured, in the order they were asked for."""
        s = self.record.scalars
        names = [key.rpartition("/")[0] for key in s if key.endswith("/here")]
        return tuple(Measure(n, s[f"{n}/here"], s.get(f"{n}/least")) for n in names)

    def measure(self, name: str) -> Measure | None:
        """One measure by its name; None where it was not measured."""
        return next((m for m in self.measures if m.name == name), None)

    @property
    def pairs(self) -> int:
        """Pairs of weights that can be rescaled without changing the model."""
        return int(self.record.inputs["orbit"])

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """How much of the sharpness is the choice among equal models."""
        found = self.measure("lambda_max")
        if found is None or found.least is None or found.ratio is None:
            return ()
        e, least = found.here, found.least
        error = found.ratio * ((e.error or 0.0) / abs(e.value) + (least.error or 0.0) / abs(least.value))
        ratio = Estimate(found.ratio, error, "estimate", error_kind="residual")
        told = {"here": number(e.value), "least": number(least.value), "ratio": times(found.ratio)}
        key = "flat_balanced" if SCALE.grade(ratio) == "green" else "flat_scaled"
        return (judged("flat", ratio, SCALE, times(ratio.value), say(key, **told), times),)

    @property
    def said(self) -> Said:
        without = say("flat_without") if not self.pairs else NOTHING
        return sum((v.both for v in self.verdicts()), NOTHING) + without + self.cut_short

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        rows = [(m.name, m.here.value, m.least and m.least.value, m.ratio, m.here.kind) for m in self.measures]
        return Grid(("measure", "here", "least among equals", "ratio", "tag"), tuple(rows))

    def lines(self) -> Sequence[str]:
        out = self.measured_lines()
        out.append(
            f"{'measure':<12}{'here':>12}{'least':>12}{'ratio':>8}  tag ({line('line_pairs', count=self.pairs)})"
        )
        for m in self.measures:
            least = cell(m.least and m.least.value)
            out.append(f"{m.name:<12}{cell(m.here.value):>12}{least:>12}{cell(m.ratio):>8}  {m.here.kind}")
        above = [m.name for m in self.measures if m.ratio is not None and m.ratio < 1]
        out += [line("line_above", name=name) for name in above]
        told = [*self.verdict_lines()]
        return [*out, *told, *([say("flat_without")()] if not self.pairs else [])]


class FlatDraft(Draft):
    """The answer while it is measured."""

    def take_loss(self, value: float) -> None:
        self.scalars["loss"] = Estimate(value)

    def take_here(self, name: str, e: Estimate) -> None:
        """A measure of the model as it stands."""
        self.scalars[f"{name}/here"] = e

    def take_orbit(self, name: str, e: Estimate) -> None:
        """Its least among equal models."""
        self.scalars[f"{name}/least"] = e
