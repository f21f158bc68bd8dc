"""The answer of `quadform lr` in words. Sentences come from the limits below and those of `step_size`, nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...answers.measured import data_words, probe_words
from ...core.record import Estimate
from ...report.step_size import rate_of
from ...report.why import CHANGED
from .rules import FLOOR

if TYPE_CHECKING:
    from .answer import StepSize
    from .trial import Trial

#: Weight decay is told where it makes at least this share of lambda_max.
DECAY_TOLD = 0.001
#: A tolerance of the trial above this is told.
COARSE = 0.03
#: A learning rate below this share of the ceiling is well below it.
WELL_BELOW = 0.5


def lines(answer: StepSize) -> list[str]:
    """What the verb prints."""
    return [
        *_measured(answer),
        *_table(answer),
        *_interval(answer),
        *_trial(answer),
        *_yours(answer),
        *_limits(answer),
        *failed(answer),
    ]


def _measured(answer: StepSize) -> Iterator[str]:
    s, given = answer.record.scalars, answer.record.inputs
    yield f"{probe_words(answer.record)}, loss {s['loss'].value:.4g}; model left untouched"
    yield f"data: {data_words(given.get('source', {}))}"
    yield "; ".join([given["coverage"], *given.get("notes", ())])
    adaptive = "P^-1 H" in given["formula"]
    width = 19 if adaptive else 14
    yield f"{'lambda_max(H)':{width}} {number(s['lambda_max'].value):<9} {how(s['lambda_max'])}"
    if adaptive:
        e = s["lambda_max_P"]
        yield f"{'lambda_max(P^-1 H)':{width}} {number(e.value):<9} {how(e)}; {given['P']}"


def how(e: Estimate) -> str:
    """`estimate, residual 1e-04, 18 products`."""
    if e.kind == "exact":
        return f"exact, {e.matvecs} products"
    relative = (e.error or 0.0) / abs(e.value) if e.value else 0.0
    side = "" if e.converged else ", NOT converged: a lower bound"
    return f"{e.kind}, residual {relative:.0e}, {e.matvecs} products{side}"


def number(value: float) -> str:
    """Four digits; powers of ten for the very large and small."""
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def _table(answer: StepSize) -> Iterator[str]:
    rows = [(name, _shown(answer, key), rule) for key, name, rule in answer.record.inputs["rows"]]
    wide, middle, long = (max(map(len, column)) for column in zip(("", " " * 9, ""), *rows, strict=True))
    yield f"  {'optimizer':{wide}}  {'ceiling':{middle}}  rule"
    for (name, shown, rule), (key, _, _) in zip(rows, answer.record.inputs["rows"], strict=True):
        yield f"  {name:{wide}}  {shown:{middle}}  {rule:{long}}  {'<- yours' if key == 'yours' else ''}".rstrip()


def _shown(answer: StepSize, key: str) -> str:
    """The ceiling of a row; `at most` where lambda_max is a lower bound."""
    e = answer.record.scalars[f"ceiling/{key}"]
    if not math.isfinite(e.value):
        return "none" if e.converged else "none yet"
    return f"{e.value:.2e}" if e.converged else f"at most {e.value:.2e}"


def _interval(answer: StepSize) -> Iterator[str]:
    if answer.interval is not None:
        low, high = answer.interval
        count = answer.record.inputs["batches"]
        yield f"on single probe batches the ceiling runs from {low:.2e} to {high:.2e} ({count} batches)"
    e = answer.record.scalars["decay_share"].value
    if answer.record.inputs["decay"]:
        shift = (
            f"lowers the ceiling by {100 * e:.2g} %" if e >= DECAY_TOLD else "changes the ceiling by less than 0.1 %"
        )
        yield f"weight decay {answer.record.inputs['decay']:g} {shift}"


def said(trial: Trial) -> str:
    """`2x grows 3.0x a step`; where the trial is coarse, how coarse."""
    by = f" {trial.measured:.3g}x a step" if trial.word == "grows" else ""
    coarse = trial.word == "holds" and trial.tolerance > COARSE
    how = f" ({trial.measured:.3g}x a step, within its tolerance of {trial.tolerance:.1g})" if coarse else ""
    wrong = "" if trial.as_expected else " (NOT as theory says)"
    return f"{trial.fraction:g}x {trial.word}{by}{how}{wrong}"


def _trial(answer: StepSize) -> Iterator[str]:
    trials = answer.trials
    if not trials:
        return
    steps = max(len(t.losses) for t in trials) - 1
    yield f"tried on a copy, along the top direction: {' | '.join(map(said, trials))}"
    ends = " | ".join(f"{t.fraction:g}x {loss_word(t, steps)}" for t in trials)
    yield f"loss of plain runs, {steps} steps (seen, not predicted): {trials[0].losses[0]:.4g} -> {ends}"


def failed(answer: StepSize) -> Iterator[str]:
    """Every check that failed: which one, what was found, what to do."""
    for t in answer.trials:
        if not t.as_expected:
            yield (
                f"CHECK FAILED: the trial at {t.fraction:g}x the ceiling. A step multiplies the perturbation by"
                f" {t.measured:.4g}, theory says {t.predicted:.4g} +- {t.tolerance:.1g}: lambda_max is not the"
                " curvature the copy sees along this direction. Measure in float64, with more products"
                " or another seed; if it stays, do not trust this ceiling."
            )
    for name, e in answer.record.scalars.items():
        if not e.converged:
            yield (
                f"CHECK FAILED: {name} did not converge in {e.matvecs} products, so it is a bound. Allow more products."
            )


def loss_word(trial: Trial, steps: int) -> str:
    """The last loss; `diverges` where the run was given up."""
    last = trial.losses[-1]
    return f"{last:.4g}" if len(trial.losses) - 1 == steps and math.isfinite(last) else "diverges"


def _yours(answer: StepSize) -> Iterator[str]:
    given = answer.record.inputs
    rate, step = rate_of(answer.record), given.get("source", {}).get("step")
    if rate and math.isfinite(answer.ceiling):
        share = rate / answer.ceiling
        place = "above the ceiling" if share > 1 else "below it" if share > WELL_BELOW else "well below it"
        if given["lr_is"] == "yours":
            yield f"your learning rate {rate:.3g} is {share:.2g} of the ceiling: {place}"
        else:
            when = "" if step is None else f" at step {step}"
            yield f"learning rate in force{when}: {rate:.3g}, {share:.2g} of the ceiling: {place}"
    if given.get("peak_lr"):
        yield f"peak rate of the schedule: {given['peak_lr']:.3g}; the ceiling at its own step was not measured"


def _limits(answer: StepSize) -> Iterator[str]:
    s = answer.record.scalars
    if answer.record.inputs["partial"]:
        yield "PARTIAL: the time given was over before everything was measured."
    if not math.isfinite(answer.ceiling):
        if answer.estimate.converged:
            yield "No direction of this loss curves up, so curvature sets no ceiling here."
        return
    if "floor_share" in s and s["floor_share"].value > FLOOR:
        share = 100 * s["floor_share"].value
        yield (
            f"{share:.0f} % of the top direction lies where Adam has seen no gradient yet (P = eps) and P is about to"
            " change: train a few steps and ask again."
        )
    yield "A ceiling, not a recommendation: batch noise and later sharpening lower it." + _first(answer)
    if answer.record.inputs.get("no_step_0"):
        yield f"The ceiling at step 0 cannot be known: {answer.record.inputs['no_step_0']}."


def _first(answer: StepSize) -> str:
    """The ceiling before the first step beside that of now: a reason for warm-up, or none."""
    e, now = answer.record.scalars.get("first_ceiling"), answer.ceiling
    if e is None or not math.isfinite(e.value):
        return ""
    said = f" Ceiling at step 0 was {e.value:.2e}"
    if now > CHANGED * e.value:
        return f"{said}, so warm up."
    return f"{said}: no reason to warm up." if now * CHANGED > e.value else f"{said}: it has fallen since."
