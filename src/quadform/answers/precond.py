"""The answer of `quadform precond`: the Hessian as each preconditioner sees it, and one step with it.

Record "precond": scalar `loss`, and for each preconditioner NAME at its best damping (`NAME/damping`, a share of its
mean eigenvalue) `NAME/lambda_max`, `NAME/lambda_min` (the ends of P^-1/2 H P^-1/2), `NAME/participation`,
`NAME/downwards` (share of negative eigenvalues in the sum of |lambda|), `NAME/slope`, `NAME/curvature` (along P^-1 g),
`NAME/decrease` (of the quadratic model by the best step; absent where nothing stops it), `NAME/measured` (of the loss,
by the same step). Tensors `NAME/grid`: share, predicted and measured fall of every damping, -inf where there is none;
`NAME/shares`: x, the share of eigenvalues of at least x |lambda_max|, its error. Inputs: what each is `made_of`;
`refused`, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.record import Estimate
from .answer import Answer, Draft, Grid, cell
from .numbers import number, percent, times
from .texts import Texts, line
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


#: Share of the predicted fall that the loss itself must fall by, for the quadratic model to hold at a step.
HOLDS = 0.5


def holds(fall: float | None, measured: float | None) -> bool:
    """Whether the loss falls at a step as its quadratic model says, by at least half."""
    return fall is not None and measured is not None and measured >= HOLDS * fall


def called(*names: str) -> Callable[[Texts], str]:
    """Preconditioners as people write them, in the language that is asked for."""
    return lambda texts: ", ".join(NAMES.get(name) or texts(WORDS[name]) for name in names)


@dataclass(frozen=True)
class Seen:
    """The Hessian as one preconditioner sees it, at its best damping of `grid` (share, predicted and measured fall).

    `decrease` is None where the model falls for ever along its step, at every damping.
    """

    name: str
    top: Estimate
    bottom: Estimate
    participation: Estimate
    slope: float
    curvature: float
    decrease: Estimate | None
    measured: float | None
    damping: float
    downwards: Estimate
    grid: tuple[tuple[float, float | None, float | None], ...]

    @property
    def holds(self) -> bool:
        """Whether the loss falls at the best step as the quadratic model says."""
        return holds(None if self.decrease is None else self.decrease.value, self.measured)

    @property
    def falls(self) -> list[float]:
        """Predicted falls over the dampings, smallest first."""
        return sorted(fall for _, fall, _ in self.grid if fall is not None)

    @property
    def indefinite(self) -> bool:
        """Whether an eigenvalue below 0 was found, beyond rounding: a Ritz value is never below the lowest one."""
        return self.bottom.value < -1e-6 * abs(self.top.value)

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
                s[f"{n}/damping"].value,
                s[f"{n}/downwards"],
                tuple((share, _finite(fall), _finite(after)) for share, fall, after in self._rows(f"{n}/grid")),
            )
            for n in names
        )

    def _rows(self, key: str) -> list[list[float]]:
        rows: list[list[float]] = self.record.tensors[key].tolist()
        return rows

    def shares(self, name: str) -> list[list[float]]:
        """Rows (x, share of eigenvalues that are at least x |lambda_max| by size, standard error)."""
        return self._rows(f"{name}/shares")

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
        """Those with a predicted fall, the largest first; those whose step the loss does not follow come last."""
        found = [(x, x.decrease) for x in self.seen if x.decrease is not None]
        return sorted(found, key=lambda pair: (not pair[0].holds, -pair[1].value))

    @property
    def roundest(self) -> Seen | None:
        """The smallest ratio of the ends where all have one, else the most directions that carry the curvature."""
        ratios = [(x.ratio.value, x) for x in self.seen if x.ratio is not None]
        if ratios and len(ratios) == len(self.seen):
            return min(ratios, key=lambda pair: pair[0])[1]
        return max(self.seen, key=lambda x: x.participation.value, default=None)

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """How far the best step goes beside that of Adam, or of none, where the loss follows both."""
        ranked = [pair for pair in self.ranked if pair[0].holds]
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
        """Which are level with the best, dampings, steps that the loss does not follow, which is roundest."""
        told, ranked = NOTHING, [pair for pair in self.ranked if pair[0].holds]
        if len(ranked) > 1:
            low = span(ranked[0][1])[0]
            level = [x.name for x, e in ranked[1:] if span(e)[1] >= low]
            told += say("precond_level", names=called(*level)) if level else NOTHING
        told += self._dampings() + self._below()
        return told + self.roundest_said

    @property
    def roundest_said(self) -> Said:
        """Which preconditioner makes the Hessian roundest."""
        round_ = self.roundest if len(self.seen) > 1 else None
        if round_ is None:
            return NOTHING
        if round_.ratio is not None and all(x.ratio is not None for x in self.seen):
            return say("precond_round", name=called(round_.name), ratio=times(round_.ratio.value))
        values = {"name": called(round_.name), "count": number(round_.participation.value)}
        return say("precond_spread", **values, all=f"{self.record.inputs['parameters']:,}")

    def _dampings(self) -> Said:
        """What the choice of a damping is worth: the fall over the grid, of the method that it moves most."""
        wide = [x for x in self.seen if len(x.falls) > 1 and x.falls[0] > 0]
        if not wide:
            return NOTHING
        most = max(wide, key=lambda x: x.falls[-1] / x.falls[0])
        grid = ", ".join(f"{share:g}" for share in sorted({share for x in self.seen for share, *_ in x.grid}))
        low, high = (number(x) for x in (most.falls[0], most.falls[-1]))
        return say("precond_dampings", grid=grid, name=called(most.name), low=low, high=high)

    def _below(self) -> Said:
        """Negative curvature, steps without an end, and those that the loss does not follow."""
        told, lowest = NOTHING, [x for x in self.seen if x.indefinite]
        if lowest:
            plain = next((x for x in lowest if x.name == "none"), lowest[0])
            values = {"value": number(plain.bottom.value), "share": percent(plain.downwards.value)}
            told += say("precond_indefinite", name=called(plain.name), **values)
        endless = [x.name for x in self.seen if x.decrease is None]
        told += say("precond_endless", names=called(*endless)) if endless else NOTHING
        far = [
            (x.name, f"{number(fall.value)}, {'-' if x.measured is None else number(x.measured)}")
            for x, fall in self.ranked
            if not x.holds
        ]
        names = lambda texts: "; ".join(f"{called(name)(texts)} ({both})" for name, both in far)  # noqa: E731
        return told + (say("precond_far", names=names) if far else NOTHING)

    # --- showing ----------------------------------------------------------------------------------------------------
    COLUMNS = (
        "preconditioner", "damping", "lambda_max", "lambda_min", "ratio", "directions", "downwards", "ceiling",
        "best step", "predicted fall", "measured fall", "lowest of the grid", "highest of the grid",
    )  # fmt: skip

    def table(self) -> Grid:
        rows = [
            (
                x.name,
                x.damping,
                x.top.value,
                x.bottom.value,
                x.ratio and x.ratio.value,
                x.participation.value,
                x.downwards.value,
                x.ceiling and x.ceiling.value,
                x.step,
                x.decrease and x.decrease.value,
                x.measured,
                *((x.falls[0], x.falls[-1]) if x.falls else (None, None)),
            )
            for x in self.seen
        ]
        return Grid(self.COLUMNS, tuple(rows))

    def lines(self) -> Sequence[str]:
        out = self.measured_lines()
        out.append(
            f"{'P':<10}{'damping':>9}{'lambda_max':>12}{'lambda_min':>13}{'directions':>12}{'2/lambda_max':>14}"
            f"{'best step':>11}{'predicted':>11}{'measured':>11}"
        )
        for x in self.seen:
            fall = "no end" if x.decrease is None else cell(x.decrease.value)
            out.append(
                f"{x.name:<10}{x.damping:>9g}{_shown(x.top):>12}{_shown(x.bottom):>13}{cell(x.participation.value):>12}"
                f"{cell(x.ceiling and x.ceiling.value):>14}{cell(x.step):>11}{fall:>11}{cell(x.measured):>11}"
            )
        out += [f"{name:<10}{line('line_not_made', why=why)}" for name, why in self.refused.items()]
        made = {name: "; ".join(of) for name, of in self.record.inputs["made_of"].items() if of}
        out += [f"{name:<10}{text if len(text) <= 110 else text[:107] + '...'}" for name, text in made.items()]
        if not self.verdicts():
            return [*out, *([self._rest()()] if self._rest()() else []), *self.verdict_lines()]
        return [*out, *self.verdict_lines(), *([self._rest()()] if self._rest()() else [])]


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


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
        self.made_of[name] = list(found["notes"])
        for key, value in found.items():
            if key not in ("notes", "tensors"):
                self.scalars[f"{name}/{key}"] = value if isinstance(value, Estimate) else Estimate(value)
        self.tensors |= {f"{name}/{key}": t for key, t in found["tensors"].items()}
