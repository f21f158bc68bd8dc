"""What `quadform why` says in words: from the limits below alone, and only where a difference exceeds its error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...answers.answer import cell
from ...core.record import Estimate
from ...report.why import CHANGED, CHANGED_SHARE, FLATTER, beyond_error

if TYPE_CHECKING:
    from .answer import Why


def factor(before: Estimate | None, after: Estimate | None) -> float | None:
    """after / before where both are known, positive, and their difference is above their error; else None."""
    if before is None or after is None or not (0 < before.value < math.inf and 0 < after.value < math.inf):
        return None
    spread = math.hypot(before.reach / before.value, after.reach / after.value)
    ratio = after.value / before.value
    return ratio if abs(math.log(ratio)) > spread else None


def _times(ratio: float) -> str:
    return f"{ratio:.2g}x" if ratio < 10 or ratio >= 1e4 else f"{ratio:.0f}x"


def adam(why: Why) -> str:
    e = why.get("full", "ratio")
    if e is None or not e.value > 0:
        return "This model has no query and value blocks to compare."
    away = max(e.value, 1 / e.value)
    if away < FLATTER:
        return f"Query and value blocks differ by less than {FLATTER:g}x ({e.value:.2g}): one step size can fit both."
    if not beyond_error(e):
        return f"Query and value blocks differ {_times(away)}, within two standard errors: nothing can be said of them."
    flat, sharp = ("Query", "value") if e.value > 1 else ("Value", "query")
    return f"{flat} blocks are {_times(away)} flatter than {sharp} blocks, so one step size fits neither."


def warmup(why: Why) -> str:
    first, last = why.steps[0], why.steps[-1]
    if first == last:
        return "Only one step was measured, so nothing can be said about warm-up."
    a, b = why.get("full", "ceiling_adamw", first), why.get("full", "ceiling_adamw", last)
    change = factor(a, b)
    if a is None or b is None:
        return "The AdamW ceiling is not known at both steps, so nothing can be said about warm-up."
    told = f"The AdamW ceiling goes from {a.value:.2g} at step {first} to {b.value:.2g} at step {last}"
    if change is not None and change >= CHANGED:
        return f"{told}: it starts {_times(change)} lower, so warm up."
    if change is not None and change <= 1 / CHANGED:
        return f"{told}: it falls {_times(1 / change)}, so decay rather than warm up."
    if change is None and not 1 / CHANGED < b.value / a.value < CHANGED:
        return f"{told}, within two standard errors: nothing can be said about warm-up."
    return f"{told}: less than {CHANGED:g}x, no reason for warm-up."


def part(why: Why, name: str) -> str:
    variant = f"no {name}"
    said = []
    for measure, words in (("lambda_max", "lambda_max"), ("ratio", "the value:query ratio")):
        change = factor(why.get("full", measure), why.get(variant, measure))
        a, b = why.get("full", measure), why.get(variant, measure)
        if change is not None and a is not None and b is not None and not 1 / CHANGED < change < CHANGED:
            verb = "rises" if change > 1 else "falls"
            said.append(f"{words} {verb} {_times(max(change, 1 / change))} ({cell(a.value)} to {cell(b.value)})")
    for measure, words in (
        ("negative_curvature", "the share of negative curvature"),
        ("H_f_share", "the share of H_f in the curvature"),
    ):
        a, b = why.get("full", measure), why.get(variant, measure)
        if a is None or b is None:
            continue
        spread = math.hypot(a.reach, b.reach)
        if abs(b.value - a.value) >= max(CHANGED_SHARE, spread):
            said.append(f"{words} goes from {100 * a.value:.0f} % to {100 * b.value:.0f} %")
    label = {"qk": "With one matrix W_QK in place of W_Q W_K^T"}.get(name, f"Without {name}")
    if why.get(variant, "lambda_max") is None:
        return f"{label} nothing could be measured."
    rest = f"no measure changes by {CHANGED:g}x or {100 * CHANGED_SHARE:.0f} points beyond its error"
    return f"{label} {'; '.join(said) if said else rest}."
