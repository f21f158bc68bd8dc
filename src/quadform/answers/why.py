"""The answer of `quadform why`: a model as it is and without each of its parts. It computes nothing.

Record "why": scalars `VARIANT/STEP/MEASURE` with the variants `full`, `no softmax`, ... and the measures below, and
`VARIANT/STEP/norm/query` (`key`, `query-key`, `value`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.errors import UnknownName, did_you_mean
from ..core.record import Estimate, Provenance
from ..core.space import LABELS
from .answer import Answer, Draft, Grid, cell
from .measured import data_words
from .numbers import number, times
from .texts import Texts, line
from .verdict import NOTHING, Limits, Said, Verdict, judged, say

#: Measures of a variant and the heads of their columns.
MEASURES = {
    "loss": "loss",
    "lambda_max": "lambda_max",
    "lambda_min": "lambda_min",
    "negative_curvature": "negative",
    "ratio": "value:query",
    "ceiling_sgd": "SGD ceiling",
    "ceiling_adamw": "AdamW ceiling",
    "H_f_share": "H_f share",
}
#: Blocks whose norms are measured, by the paper's names.
BLOCKS = {block: paper for block, paper in LABELS.items() if paper != "W_O"}
#: Norm of the value blocks over that of the query blocks.
UNEVEN = Limits(3.0, 10.0, either_way=True)
#: A number is said to change where it does so at least by this factor (shares: by this difference), beyond its error.
CHANGED = 2.0
CHANGED_SHARE = 0.1
#: The AdamW ceiling at the last step over that at the first.
STEADY = Limits(CHANGED, math.inf, either_way=True)


class Why(Answer):
    """The model as it is and without each part, at each step. `sentence(topic)` says one thing in words."""

    kind = "why"

    # --- numbers ----------------------------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        return str(self.record.inputs["name"])

    @property
    def variants(self) -> tuple[str, ...]:
        """`full` first, then `no PART`."""
        return tuple(self.record.inputs["variants"])

    @property
    def parts(self) -> tuple[str, ...]:
        """What was taken out."""
        return tuple(v.removeprefix("no ") for v in self.variants if v != "full")

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.record.inputs["steps"])

    @property
    def probe(self) -> str:
        return str(self.record.inputs["probe"])

    @property
    def notes(self) -> tuple[str, ...]:
        given = self.record.inputs
        left = [f"{part} is left out: {reason}" for part, reason in given.get("left_out", {}).items()]
        return (*left, *(f"{variant}, step {step}: {note}" for variant, step, note in given["notes"]))

    @property
    def P(self) -> dict[str, str]:
        """Where P of the AdamW ceiling comes from at the first step, by variant."""
        return dict(self.record.inputs.get("P", {}))

    def data(self, texts: Texts | None = None) -> str:
        return data_words(self.source or self.record.inputs, texts)

    def get(self, variant: str, measure: str, step: int | None = None) -> Estimate | None:
        """A measure of a variant (`full`, `no softmax`, ...) at a step (default: the first); None where it broke."""
        return self.record.scalars.get(f"{variant}/{self.steps[0] if step is None else step}/{measure}")

    def norm(self, variant: str, block: str) -> Estimate | None:
        """The norm of the `query`, `key`, `query-key` or `value` blocks of a variant at the first step."""
        return self.get(variant, f"norm/{block}")

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """Value against query blocks; with several steps, whether the AdamW ceiling asks for a warm-up."""
        found, e, change = [], self.get("full", "ratio"), self._ceiling_change()
        if e is not None and e.value > 0:
            status = UNEVEN.grade(e)
            key = {"green": "why_alike", "undecided": "why_differ"}.get(status)
            key = key or ("why_flatter" if e.value > 1 else "why_sharper")
            told = {"step": self.steps[0], "ratio": times(max(e.value, 1 / e.value)), "limit": number(UNEVEN.green)}
            found.append(judged("why", e, UNEVEN, f"{times(e.value)} : 1", say(key, **told)))
        if change is not None:
            found.append(self._warmup(change))
        return tuple(found)

    def _ceiling_change(self) -> Estimate | None:
        """The AdamW ceiling of the last step over that of the first; None where one is not known."""
        first, last = (self.get("full", "ceiling_adamw", step) for step in (self.steps[0], self.steps[-1]))
        return None if len(self.steps) < 2 else ratio_of(last, first)

    def _warmup(self, change: Estimate) -> Verdict:
        first, last = self.steps[0], self.steps[-1]
        ends = [self.get("full", "ceiling_adamw", step) for step in (first, last)]
        a, b = (f"{e.value:.2g}" for e in ends if e is not None)
        key = {"green": "warmup_steady", "undecided": "warmup_open"}.get(STEADY.grade(change))
        key = key or ("warmup_rises" if change.value > 1 else "warmup_falls")
        factor = times(max(change.value, 1 / change.value))
        said = say("warmup_course", a=a, b=b, first=first, last=last) + say(key, factor=factor, limit=f"{CHANGED:g}")
        return judged("warmup", change, STEADY, f"× {times(change.value)}", said)

    @property
    def largest_change(self) -> tuple[str, float] | None:
        """The part whose absence changes lambda_max most, beyond its error, and by which factor; else None."""
        whole = self.get("full", "lambda_max")
        ratios = [(part, ratio_of(self.get(f"no {part}", "lambda_max"), whole)) for part in self.parts]
        known = [(part, e.value) for part, e in ratios if e is not None and beyond_error(e)]
        return max(known, key=lambda pair: abs(math.log(pair[1])), default=None)

    @property
    def said(self) -> Said:
        found = sum((v.both for v in self.verdicts() if v.name == "why"), NOTHING)
        if self.parts and self.get("full", "lambda_max") is not None:
            part, factor = self.largest_change or ("", 1.0)
            key = "why_head" if max(factor, 1 / factor) >= CHANGED else "why_head_quiet"
            found += say(key, part=part, factor=times(factor), limit=number(CHANGED))
        return found + self.cut_short

    # --- words ------------------------------------------------------------------------------------------------------
    def sentence(self, topic: str) -> str:
        """One thing in words: `adam`, `warmup`, or a part that was taken out."""
        topics = ("adam", "warmup", *self.parts)
        if topic not in topics:
            raise UnknownName(
                f"no sentence about {topic!r}; there are {', '.join(topics)}.{did_you_mean(topic, topics)}"
            )
        if topic in self.parts:
            return self._without(topic)
        verdict = {v.name: v for v in self.verdicts()}.get("why" if topic == "adam" else topic)
        return line(f"{topic}_unknown") if verdict is None else verdict.sentence()

    def sentences(self) -> list[str]:
        """Every sentence there is."""
        return [self.sentence(t) for t in ("adam", *(("warmup",) if len(self.steps) > 1 else ()), *self.parts)]

    def _without(self, part: str) -> str:
        """What changes when a part is taken out, by at least `CHANGED` and beyond its error."""
        label = line("why_one_matrix" if part == "qk" else "why_without", part=part)
        if self.get(f"no {part}", "lambda_max") is None:
            return line("why_unmeasured", label=label)
        said = [*self._factors(f"no {part}"), *self._shares(f"no {part}")]
        rest = line("why_unchanged", factor=f"{CHANGED:g}", points=f"{100 * CHANGED_SHARE:.0f}")
        return line("why_told", label=label, said="; ".join(said) or rest)

    def _factors(self, variant: str) -> Iterator[str]:
        for measure, words in (("lambda_max", "lambda_max"), ("ratio", line("why_ratio"))):
            a, b = self.get("full", measure), self.get(variant, measure)
            change = ratio_of(b, a)
            if a is None or b is None or change is None or not beyond_error(change):
                continue
            away = max(change.value, 1 / change.value)
            if away >= CHANGED:
                shown = f"{away:.2g}x" if away < 10 or away >= 1e4 else f"{away:.0f}x"
                key = "why_rises" if change.value > 1 else "why_falls"
                yield line(key, what=words, factor=shown, before=cell(a.value), after=cell(b.value))

    def _shares(self, variant: str) -> Iterator[str]:
        for measure in ("negative_curvature", "H_f_share"):
            a, b = self.get("full", measure), self.get(variant, measure)
            if a is None or b is None:
                continue
            if abs(b.value - a.value) >= max(CHANGED_SHARE, math.hypot(a.reach, b.reach)):
                shares = {"before": f"{100 * a.value:.0f}", "after": f"{100 * b.value:.0f}"}
                yield line(f"why_share_{measure}", **shares)

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        """One row for each variant and step; a dash where it diverged or the block is not there."""
        rows = []
        for step, variant in itertools.product(self.steps, self.variants):
            found = [self.get(variant, m, step) for m in MEASURES]
            rows.append((variant, step, *(None if e is None else e.value for e in found)))
        return Grid(("variant", "step", *MEASURES.values()), tuple(rows))

    def lines(self) -> Sequence[str]:
        given = self.record.inputs
        where = f"{self.probe}, {self.record.made.dtype}"
        whole = [line("line_whole", count=f"{given['parameters']:,}")] if "parameters" in given else []
        head, tags = line("line_why", name=self.name, where="; ".join([where, *whole])), line("line_why_tags")
        missing = [self.sentence(topic) for topic in ("adam", "warmup") if topic == "adam" or len(self.steps) > 1]
        told = {v.sentence() for v in self.verdicts()}
        parts = [self.sentence(part) for part in self.parts]
        lines = [
            head,
            line("line_data", data=self.data()),
            *str(self.table()).splitlines(),
            f"[{tags}]",
            *self._about_P(),
            *self.notes,
            *parts,
        ]
        return [*lines, *(line for line in missing if line not in told), *self.verdict_lines()]

    def _about_P(self) -> list[str]:
        """Where P of the AdamW ceiling is from: one line, the variants apart where theirs is from elsewhere."""
        full = self.P.get("full", "")
        state = re.search(r"optimizer state at step (\d+)", full)
        if state is None:
            return [line("line_why_P", P=full)] if full else []
        return [line("line_why_P_state", step=state[1])]


def ratio_of(after: Estimate | None, before: Estimate | None) -> Estimate | None:
    """after / before with the joint relative error, where both are known and positive."""
    if before is None or after is None or not (0 < before.value < math.inf and 0 < after.value < math.inf):
        return None
    value = after.value / before.value
    reach = value * math.hypot(before.reach / before.value, after.reach / after.value)
    return Estimate(value, reach / 2, "estimate")


def beyond_error(e: Estimate) -> bool:
    """Whether a ratio is further from 1 than its error reaches."""
    return abs(math.log(max(e.value, 1e-300))) > e.reach / e.value


class WhyDraft(Draft):
    """The numbers of all variants while they are measured."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[list[Any]] = []
        self.P: dict[str, str] = {}

    def take(self, variant: str, step: int, found: Mapping[str, Estimate], note: str, P: str = "") -> None:
        """What was measured of a variant at a step, by measure; at its first step also where P of AdamW is from."""
        if P and "ceiling_adamw" in found:
            self.P.setdefault(variant, P)
        self.scalars |= {f"{variant}/{step}/{measure}": e for measure, e in found.items()}
        self.notes += [[variant, step, note]] if note else []

    def answer(self, made: Provenance, **inputs: Any) -> Why:
        return Why(self.record(Why.kind, {**inputs, "notes": self.notes, "P": self.P}, made))
