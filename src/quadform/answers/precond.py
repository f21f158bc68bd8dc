"""The answer of `quadform precond`: the Hessian as each preconditioner sees it, and one step with it.

Record "precond": scalar `loss`, and for each preconditioner NAME `NAME/lambda_max`, `NAME/lambda_min` (the ends of
P^-1/2 H P^-1/2), `NAME/participation`, `NAME/slope`, `NAME/curvature` (along P^-1 g), `NAME/decrease` (of the quadratic
model by the best step; absent where nothing stops it), `NAME/measured` (of the loss, by the same step). Inputs: what
each is `made_of` and its damping; `refused`, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.record import Estimate
from .answer import Answer, Draft, Grid, cell
from .numbers import number, percent, times
from .texts import Texts
from .verdict import NOTHING, Limits, Said, Verdict, judged, say, span

#: Predicted fall of the best preconditioner over that of Adam, or of none.
GAIN = Limits(1.5, math.inf)


#: Preconditioners as people write them: names, and keys of words.
NAMES = {
    "adam": "Adam",
    "adafactor": "Adafactor",
    "shampoo": "Shampoo",
    "soap": "SOAP",
    "kfac": "K-FAC",
    "ekfac": "EKFAC",
    "psgd": "PSGD",
}
WORDS = {"none": "precond_none", "diagonal": "precond_diagonal", "blocks": "precond_blocks"}


def called(*names: str) -> Callable[[Texts], str]:
    """Preconditioners as people write them, in the language that is asked for."""
    return lambda texts: ", ".join(NAMES.get(name) or texts(WORDS[name]) for name in names)


@dataclass(frozen=True)
class Seen:
    """The Hessian as one preconditioner sees it. `decrease` is None where the model falls for ever along its step."""

    name: str
    top: Estimate
    bottom: Estimate
    participation: Estimate
    slope: float
    curvature: float
    decrease: Estimate | None
    measured: float | None

    @property
    def ratio(self) -> Estimate | None:
        """lambda_max / lambda_min, with the sum of their relative errors; None where the lower end is not above 0."""
        low = span(self.bottom)[0]
        if not low > 0:
            return None
        value = self.top.value / self.bottom.value
        error = value * (self.top.reach / self.top.value + self.bottom.reach / low)
        return Estimate(value, error, "estimate", error_kind="residual") if error else Estimate(value)

    @property
    def ceiling(self) -> Estimate | None:
        """2 / lambda_max, in learning rates of this P; None where nothing curves upwards."""
        e = self.top
        if not e.value > 0:
            return None
        value = 2 / e.value
        if e.kind == "bound":
            return Estimate(value, None, "bound", e.matvecs, e.converged, side="upper")
        if not e.error:
            return Estimate(value, matvecs=e.matvecs)
        return Estimate(value, value * e.error / e.value, "estimate", e.matvecs, error_kind="residual")

    @property
    def step(self) -> float | None:
        """The learning rate at which the quadratic model is lowest along P^-1 g."""
        return self.slope / self.curvature if self.curvature > 0 else None


class Precond(Answer):
    """How preconditioners see the Hessian at one point."""

    kind = "precond"

    @property
    def seen(self) -> tuple[Seen, ...]:
        """The preconditioners that were measured, in the order they were asked for."""
        s = self.record.scalars
        names = [key.rpartition("/")[0] for key in s if key.endswith("/slope")]
        return tuple(
            Seen(
                n,
                s[f"{n}/lambda_max"],
                s[f"{n}/lambda_min"],
                s[f"{n}/participation"],
                s[f"{n}/slope"].value,
                s[f"{n}/curvature"].value,
                s.get(f"{n}/decrease"),
                s[f"{n}/measured"].value if f"{n}/measured" in s else None,
            )
            for n in names
        )

    def by(self, name: str) -> Seen | None:
        """One preconditioner by its name; None where it was not measured."""
        return next((x for x in self.seen if x.name == name), None)

    @property
    def refused(self) -> Mapping[str, str]:
        """Preconditioners that could not be made here, and why."""
        return dict(self.record.inputs["refused"])

    @property
    def loss(self) -> float:
        return self.record.scalars["loss"].value

    @property
    def complete(self) -> bool:
        """The lower end may be a bound: many eigenvalues lie near 0, where none stands apart."""
        return not self.partial and all(x.top.converged for x in self.seen)

    @property
    def ranked(self) -> list[tuple[Seen, Estimate]]:
        """Those with a predicted fall, the largest first."""
        found = [(x, x.decrease) for x in self.seen if x.decrease is not None]
        return sorted(found, key=lambda pair: -pair[1].value)

    @property
    def roundest(self) -> Seen | None:
        """The smallest ratio of the ends where all have one, else the most directions that carry the curvature."""
        ratios = [(x.ratio.value, x) for x in self.seen if x.ratio is not None]
        if ratios and len(ratios) == len(self.seen):
            return min(ratios, key=lambda pair: pair[0])[1]
        return max(self.seen, key=lambda x: x.participation.value, default=None)

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """How far the best step goes beside that of Adam, or of none."""
        ranked = self.ranked
        base = next((pair for name in ("adam", "none") for pair in ranked if pair[0].name == name), None)
        if base is None or len(ranked) < 2 or not base[1].value:
            return ()
        (best, fall), (own, usual) = ranked[0], base
        value = fall.value / usual.value
        spread = math.hypot(*((e.error or 0.0) / e.value for e in (fall, usual))) if best is not own else 0.0
        gain = Estimate(value, value * spread, "estimate") if spread else Estimate(value)
        told = {"best": called(best.name), "base": called(own.name), "gain": times(value), "fall": number(fall.value)}
        key = "precond_same" if best is own else "precond_best"
        return (judged("gain", gain, GAIN, times(value), say(key, **told, share=percent(fall.value / self.loss))),)

    @property
    def said(self) -> Said:
        return sum((v.both for v in self.verdicts()), NOTHING) + self._rest() + self.cut_short

    def _rest(self) -> Said:
        """Which are level with the best, whether the step leaves the model's reach, which is roundest."""
        told, ranked = NOTHING, self.ranked
        if len(ranked) > 1:
            low = span(ranked[0][1])[0]
            level = [x.name for x, e in ranked[1:] if span(e)[1] >= low]
            told += say("precond_level", names=called(*level)) if level else NOTHING
            told += self._reach(*ranked[0])
        round_ = self.roundest if len(self.seen) > 1 else None
        if round_ is None:
            return told
        if round_.ratio is not None and all(x.ratio is not None for x in self.seen):
            return told + say("precond_round", name=called(round_.name), ratio=times(round_.ratio.value))
        values = {"name": called(round_.name), "count": number(round_.participation.value)}
        return told + say("precond_spread", **values, all=f"{self.record.inputs['parameters']:,}")

    def _reach(self, best: Seen, fall: Estimate) -> Said:
        if best.measured is None or best.measured < 0.5 * fall.value:
            shown = "-" if best.measured is None else number(best.measured)
            return say("precond_far", name=called(best.name), measured=shown, fall=number(fall.value))
        return NOTHING

    # --- showing ----------------------------------------------------------------------------------------------------
    COLUMNS = (
        "preconditioner", "lambda_max", "lambda_min", "ratio", "directions", "ceiling", "best step", "predicted fall",
        "measured fall",
    )  # fmt: skip

    def table(self) -> Grid:
        rows = [
            (
                x.name,
                x.top.value,
                x.bottom.value,
                x.ratio and x.ratio.value,
                x.participation.value,
                x.ceiling and x.ceiling.value,
                x.step,
                x.decrease and x.decrease.value,
                x.measured,
            )
            for x in self.seen
        ]
        return Grid(self.COLUMNS, tuple(rows))

    def lines(self) -> Sequence[str]:
        out = ["; ".join([str(self.record.inputs["coverage"]), *self.notes]), f"{self.probe}; model left untouched"]
        out.append(f"data: {self.data()}")
        out.append(
            f"{'P':<10}{'lambda_max':>12}{'lambda_min':>13}{'directions':>12}{'2/lambda_max':>14}{'best step':>11}"
            f"{'predicted':>11}{'measured':>11}"
        )
        for x in self.seen:
            fall = "no end" if x.decrease is None else cell(x.decrease.value)
            out.append(
                f"{x.name:<10}{_shown(x.top):>12}{_shown(x.bottom):>13}{cell(x.participation.value):>12}"
                f"{cell(x.ceiling and x.ceiling.value):>14}{cell(x.step):>11}{fall:>11}{cell(x.measured):>11}"
            )
        out += [f"{name:<10}not made: {why}" for name, why in self.refused.items()]
        made = {name: "; ".join(of) for name, of in self.record.inputs["made_of"].items() if of}
        out += [f"{name:<10}{text if len(text) <= 110 else text[:107] + '...'}" for name, text in made.items()]
        if not self.verdicts():
            return [*out, *([self._rest()()] if self._rest()() else []), *self.verdict_lines()]
        return [*out, *self.verdict_lines(), *([self._rest()()] if self._rest()() else [])]


def _shown(e: Estimate) -> str:
    return {"upper": "<= ", "lower": ">= "}.get(e.side or "", "") + cell(e.value)


class PrecondDraft(Draft):
    """The answer while it is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.made_of: dict[str, list[str]] = {}
        self.refused: dict[str, str] = {}

    def take_loss(self, value: float) -> None:
        self.scalars["loss"] = Estimate(value)

    def take(self, name: str, found: Mapping[str, Any]) -> None:
        """One preconditioner, or why it could not be made."""
        if "refused" in found:
            self.refused[name] = found["refused"]
            return
        damped = [f"damping {found['damping']:.3g}"] if found["damping"] else []
        self.made_of[name] = [*found["notes"], *damped]
        for key in ("lambda_max", "lambda_min", "participation", "slope", "curvature", "decrease", "measured"):
            if key in found:
                value = found[key]
                self.scalars[f"{name}/{key}"] = value if isinstance(value, Estimate) else Estimate(value)
