"""The answer of `quadform lr` and `qf.lr`: a ceiling from curvature with its evidence, the table, the trials.

Record "step-size": scalars `loss`, `gradient_norm`, `lambda_max`, `lambda_max_P`, `ceiling/yours` and those of the rows
`inputs["rows"]`, `taylor_rate`, `decay_share`, for Adam `floor_share`, of a training run `first_ceiling`; tensors
`ceilings` (one for each probe batch), `along/step, rate, ceiling, error` (along the run), and of the trial on a copy
`verify/fractions, measured, predicted, tolerance, losses`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.record import Estimate, Provenance
from .answer import Answer, Draft, Grid
from .course import Course, Stop, packed_stops, share_of
from .numbers import rate_text, times
from .texts import line
from .trial import HOLDS, Trial
from .verdict import NOTHING, Limits, Said, Status, Verdict, say
from .why import CHANGED

#: The learning rate over the ceiling.
STABLE = Limits(1.0, 1.0)
#: Where more of the top direction than this lies in entries with P near eps, Adam has seen nothing there yet.
FLOOR = 0.25
#: Weight decay is told where it makes at least this share of lambda_max.
DECAY_TOLD = 0.001


@dataclass(frozen=True)
class Ceiling:
    """The ceiling of one optimizer; `own` is the one that was asked about."""

    name: str
    formula: str
    estimate: Estimate
    own: bool


class StepSize(Answer):
    """The ceiling of one optimizer at one point of one loss, and of a run also along the way."""

    kind = "step-size"

    # --- numbers ----------------------------------------------------------------------------------------------------
    @property
    def ceiling(self) -> Estimate:
        return self.record.scalars["ceiling/yours"]

    @property
    def reach(self) -> Estimate | None:
        """The learning rate up to which a step of the optimizer stays where the quadratic model of the loss holds."""
        return self.record.scalars.get("taylor_rate")

    @property
    def applies(self) -> bool | None:
        """Whether the quadratic model holds up to the ceiling; None where that is not known."""
        e = self.reach
        return None if e is None or not math.isfinite(self.ceiling.value) else e.value >= self.ceiling.value

    @property
    def course(self) -> Course | None:
        """Ceiling and rate along the run, or along a short run of a fresh model."""
        return Course.of(self.record)

    @property
    def copies(self) -> int:
        """Steps on copies that an optimizer without a known rule was tried with; 0 where the ceiling has a rule."""
        return int(self.record.inputs.get("copies", 0))

    @property
    def rule(self) -> str:
        """`38 / lambda_max(P^-1 H)`."""
        return str(self.record.inputs["formula"])

    @property
    def optimizer(self) -> str:
        """`AdamW, b1 0.9`."""
        return str(self.record.inputs["rule"])

    @property
    def P(self) -> str:
        """Where the preconditioner comes from, in words."""
        return str(self.record.inputs["P"])

    @property
    def coverage(self) -> str:
        return str(self.record.inputs["coverage"])

    @property
    def loss(self) -> Estimate:
        return self.record.scalars["loss"]

    @property
    def lambda_max(self) -> Estimate:
        """Of H."""
        return self.record.scalars["lambda_max"]

    @property
    def lambda_max_P(self) -> Estimate:
        """Of the operator of the optimizer, P^-1 H for Adam."""
        return self.record.scalars["lambda_max_P"]

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """Those of SGD, SGD with momentum and the optimizer asked about."""
        s = self.record.scalars
        return tuple(
            Ceiling(n, rule, s[f"ceiling/{key}"], key == "yours") for key, n, rule in self.record.inputs["rows"]
        )

    @property
    def first_ceiling(self) -> Estimate | None:
        """The ceiling before the first step of a training run."""
        return self.record.scalars.get("first_ceiling")

    @property
    def interval(self) -> tuple[float, float] | None:
        """The smallest and largest ceiling on single probe batches; None for one batch."""
        each = self.record.tensors.get("ceilings")
        return None if each is None or len(each) < 2 else (float(each.min()), float(each.max()))

    @property
    def probe_shape(self) -> tuple[int, ...]:
        """Batches, and the shape of each."""
        return (int(self.record.inputs["batches"]), *self.record.inputs["probe"])

    @property
    def lr(self) -> float | None:
        """The rate that is held against the ceiling; None where there is none, or it is not known whose it is."""
        return self.record.inputs.get("lr") if "lr_is" in self.record.inputs else None

    @property
    def lr_is_yours(self) -> bool:
        """Whether the rate was given with the question; else it is the one in force at this step."""
        return self.record.inputs.get("lr_is") == "yours"

    @property
    def peak_lr(self) -> float | None:
        """The largest rate of the schedule, where it is another one."""
        return self.record.inputs.get("peak_lr")

    @property
    def share(self) -> Estimate | None:
        """The rate over the ceiling, with the error of the ceiling."""
        e, rate = self.ceiling, self.lr
        return None if not rate or not math.isfinite(e.value) else share_of(rate, e)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What the trial on a copy found; empty without one."""
        t = self.record.tensors
        if "verify/fractions" not in t:
            return ()
        measured = t["verify/measured"]
        unknown = torch.full_like(measured, math.nan)
        predicted = t.get("verify/predicted", unknown).tolist()
        losses = t.get("verify/losses", unknown[:, None]).tolist()
        allowed = t.get("verify/tolerance", torch.full_like(measured, HOLDS)).tolist()
        rows = zip(t["verify/fractions"].tolist(), measured.tolist(), predicted, losses, allowed, strict=True)
        return tuple(Trial(f, m, p, tuple(x for x in each if not math.isnan(x)), a) for f, m, p, each, a in rows)

    def suggest(self, fraction: float = 0.2) -> float:
        """That fraction of the ceiling. A ceiling is no recommendation; the fraction is your judgement."""
        if not 0 < fraction <= 1:
            raise InputError(f"a suggestion is a fraction of the ceiling between 0 and 1; got {fraction}.")
        return fraction * self.ceiling.value

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """The learning rate against the ceiling, here and along the run, and whether the trial on a copy went as
        theory says."""
        e, course = self.ceiling, self.course
        found = [Verdict("rate", self._status(), rate_text(e.value), e, self._judgement(), STABLE)]
        found += [course.verdict()] if course is not None else []
        return (*found, *self._trial())

    def _trial(self) -> tuple[Verdict, ...]:
        if not self.trials:
            return ()
        worst = max(self.trials, key=lambda t: (not t.as_expected, t.fraction == 1.0))
        measured = Estimate(worst.measured, worst.tolerance, "estimate", error_kind="residual")
        status: Status = "green" if worst.as_expected else "red"
        value = " | ".join(f"{t.fraction:g}x: {t.measured:.2g}" for t in self.trials)
        return (Verdict("trial", status, value, measured, self._tested(worst), check=True),)

    def _status(self) -> Status:
        e, share = self.ceiling, self.share
        if not math.isfinite(e.value) or not all(t.as_expected for t in self.trials):
            return "red"
        found = "green" if share is None else STABLE.grade(share)
        if self._place == "beyond":
            return "yellow"
        return found if found != "green" else "green" if (self.trials or self.copies) and e.converged else "yellow"

    def _judgement(self) -> Said:
        if not math.isfinite(self.ceiling.value):
            return say("rate_none") if self.ceiling.converged else say("rate_none_yet")
        told = {"rule": self.optimizer, "ceiling": rate_text(self.ceiling.value)}
        said = say("rate_ceiling_one", **told)
        if self.interval is not None:
            low, high = map(rate_text, self.interval)
            said = say("rate_ceiling_range", low=low, high=high, **told)
        return self._advice(told) + said + self._reached() + (self._peak() if self.course is None else NOTHING)

    @property
    def _place(self) -> str:
        """Where the rate is: below, above or near the ceiling; below it, but beyond the reach; "" without a rate."""
        if self.share is None or not self.lr:
            return ""
        found = {"green": "below", "red": "above"}.get(STABLE.grade(self.share), "near")
        return "beyond" if found == "below" and self.reach is not None and self.lr > self.reach.value else found

    def _advice(self, told: dict[str, str]) -> Said:
        """What to do with the rate."""
        place, share, rate = self._place, self.share, self.lr
        if not place or share is None or rate is None:
            return NOTHING
        place = "rose" if place == "above" and self.copies else place
        reach = "" if self.reach is None else rate_text(self.reach.value)
        told = told | {
            "steps": str(self.copies),
            "share": times(share.value),
            "rate": rate_text(rate),
            "reach": reach,
        }
        return say(f"rate_{'yours' if self.lr_is_yours else 'now'}_{place}", **told)

    def _peak(self) -> Said:
        return say("rate_peak", peak=rate_text(self.peak_lr)) if self.peak_lr else NOTHING

    def _reached(self) -> Said:
        """Where the ceiling does not speak of steps that long: the Taylor radius along the update."""
        place = self._place
        if self.applies is not False or self.reach is None or place == "beyond":
            return NOTHING
        key = f"rate_short_{place}" if place in ("below", "above") else "rate_short"
        return say(key, reach=rate_text(self.reach.value))

    def _tested(self, worst: Trial) -> Said:
        if worst.as_expected:
            return say("trial_agrees", told=lambda texts: ", ".join(t.said(texts) for t in self.trials))
        return say(
            "trial_disagrees",
            fraction=f"{worst.fraction:g}",
            measured=f"{worst.measured:.4g}",
            predicted=f"{worst.predicted:.4g}",
            tolerance=f"{worst.tolerance:.1g}",
        )

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        """One row for each optimizer: ceiling, rule, yours or not."""
        rows = [
            (c.name, c.estimate.value, c.formula, c.estimate.kind, line("line_yours") * c.own) for c in self.ceilings
        ]
        return Grid(("optimizer", "ceiling", "rule", "tag", ""), tuple(rows))

    def lines(self) -> Sequence[str]:
        told = [*self._table(), *self._beside(), *self._along()]
        return [*self._measured(), *told, *self.verdict_lines(), *self._cautions()]

    def _measured(self) -> Iterator[str]:
        measured = line("line_loss", probe=self.probe, loss=f"{self.loss.value:.4g}")
        yield line("line_untouched", probe=measured)
        yield line("line_data", data=self.data())
        yield "; ".join([self.coverage, *self.notes])
        adaptive = "P^-1 H" in self.rule
        width = 19 if adaptive else 14
        yield f"{'lambda_max(H)':{width}} {_number(self.lambda_max.value):<9} {how(self.lambda_max)}"
        if adaptive:
            e = self.lambda_max_P
            yield f"{'lambda_max(P^-1 H)':{width}} {_number(e.value):<9} {how(e)}; {self.P}"

    def _table(self) -> Iterator[str]:
        rows = [(c.name, _shown(c.estimate), c.formula, line("line_yours") * c.own) for c in self.ceilings]
        wide, middle, long = (max(map(len, column)) for column in list(zip(*rows, strict=True))[:3])
        middle = max(middle, 9)
        yield f"  {'optimizer':{wide}}  {'ceiling':{middle}}  rule"
        for name, shown, rule, own in rows:
            yield f"  {name:{wide}}  {shown:{middle}}  {rule:{long}}  {own}".rstrip()

    def _beside(self) -> Iterator[str]:
        if (reach := self.reach) is not None:
            side, rate = {"lower": "at_least", "upper": "at_most"}.get(reach.side or ""), rate_text(reach.value)
            yield line("line_reach", rate=line(f"line_{side}", value=rate) if side else rate)
        if self.interval is not None:
            low, high = self.interval
            yield line("line_per_batch", low=f"{low:.2e}", high=f"{high:.2e}", count=self.probe_shape[0])
        if decay := self.record.inputs.get("decay"):
            e = self.record.scalars["decay_share"].value
            key = "line_decay" if e >= DECAY_TOLD else "line_decay_small"
            yield line(key, decay=f"{decay:g}", share=f"{100 * e:.2g}")
        if self.trials:
            steps = max(len(t.losses) for t in self.trials) - 1
            ends = " | ".join(f"{t.fraction:g}x {t.last_loss(steps)}" for t in self.trials)
            yield line("line_trials", steps=steps, start=f"{self.trials[0].losses[0]:.4g}", ends=ends)

    def _along(self) -> Iterator[str]:
        course = self.course
        if course is None:
            return
        yield line("line_along_short", steps=course.short) if course.short else line("line_along")
        yield f"  {'step':>8}  {'rate':>9}  {'ceiling':>9}  {'share':>6}"
        for s in course.stops:
            edge = f"  {line('line_edge')}" if s.at_edge else ""
            yield f"  {s.step:>8,}  {s.rate:>9.2e}  {s.ceiling.value:>9.2e}  {s.share.value:>6.2g}{edge}"

    def _cautions(self) -> Iterator[str]:
        for name, e in self.record.scalars.items():
            if not e.converged:
                yield line("line_unconverged", name=name, products=e.matvecs)
        if not math.isfinite(self.ceiling.value):
            return
        floor = self.record.scalars.get("floor_share")
        if floor is not None and floor.value > FLOOR:
            yield line("line_unseen", share=f"{100 * floor.value:.0f}")
        yield f"{line('line_ceiling')} {self._first()}".strip()
        if unknown := self.record.inputs.get("no_step_0"):
            yield line("line_no_first", why=unknown)

    def _first(self) -> str:
        """The ceiling before the first step beside that of now: a reason for warm-up, or none."""
        e, now = self.first_ceiling, self.ceiling.value
        if e is None or not math.isfinite(e.value):
            return ""
        risen, fallen = now > CHANGED * e.value, now * CHANGED <= e.value
        key = "line_first_risen" if risen else "line_first_fallen" if fallen else "line_first_same"
        return line(key, ceiling=f"{e.value:.2e}")


def how(e: Estimate) -> str:
    """`estimate, residual 1e-04, 18 products`."""
    if e.kind == "exact":
        return f"exact, {e.matvecs} products"
    relative = (e.error or 0.0) / abs(e.value) if e.value else 0.0
    side = "" if e.converged else ", NOT converged: a lower bound"
    return f"{e.kind}, residual {relative:.0e}, {e.matvecs} products{side}"


def _number(value: float) -> str:
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def _shown(e: Estimate) -> str:
    """A ceiling; `at most` where lambda_max is a lower bound."""
    if not math.isfinite(e.value):
        return "none" if e.converged else "none yet"
    return f"{e.value:.2e}" if e.converged else f"at most {e.value:.2e}"


class StepSizeDraft(Draft):
    """A ceiling while it is measured."""

    def take_point(self, loss: float, slope: float) -> None:
        self.scalars |= {"loss": Estimate(loss), "gradient_norm": Estimate(slope)}

    def take_curvature(self, plain: Estimate, own: Estimate) -> None:
        """lambda_max of H and of the operator of the optimizer."""
        self.scalars |= {"lambda_max": plain, "lambda_max_P": own}

    def take_ceiling(self, key: str, e: Estimate) -> None:
        self.scalars[f"ceiling/{key}"] = e

    def take_shares(self, decay: float, floor: float | None) -> None:
        """How much of lambda_max is weight decay; of Adam, how much of the direction lies where P is near eps."""
        self.scalars["decay_share"] = Estimate(decay, note="of lambda_max, to first order")
        if floor is not None:
            self.scalars["floor_share"] = Estimate(floor, note="of the top direction, where P is near eps")

    def take_batches(self, ceilings: Sequence[float]) -> None:
        """The ceiling on each batch of the probe alone."""
        self.tensors["ceilings"] = torch.tensor(ceilings, dtype=torch.float64)

    def take_first(self, e: Estimate | None) -> None:
        """The ceiling at step 0."""
        self.scalars |= {} if e is None else {"first_ceiling": e}

    def take_reach(self, e: Estimate | None) -> None:
        """The rate up to which the quadratic model holds along the update."""
        self.scalars |= {} if e is None else {"taylor_rate": e}

    def take_course(self, stops: Sequence[Stop]) -> None:
        """Ceilings and rates along the run."""
        self.tensors |= packed_stops(stops)

    def take_trials(self, packed: dict[str, Tensor]) -> None:
        self.tensors |= {f"verify/{name}": t for name, t in packed.items()}

    def answer(self, made: Provenance, **inputs: Any) -> StepSize:
        return StepSize(self.record(StepSize.kind, inputs, made))
