"""The answer of `quadform why`: a table, sentences, figures. It computes nothing.

Record "why": scalars `VARIANT/STEP/MEASURE` with the variants `full`, `no softmax`, ... and the measures below, and
`VARIANT/STEP/norm/query` (`key`, `query-key`, `value`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...answers.answer import Answer, Grid
from ...answers.measured import data_words
from ...core.errors import UnknownName, did_you_mean
from ...core.record import Estimate
from . import words

MEASURES = (
    "loss",
    "lambda_max",
    "lambda_min",
    "negative_curvature",
    "ratio",
    "ceiling_sgd",
    "ceiling_adamw",
    "H_f_share",
)
HEADS = ("loss", "lambda_max", "lambda_min", "negative", "value:query", "SGD ceiling", "AdamW ceiling", "H_f share")


class Why(Answer):
    """The model as it is and without each part, at each step. `sentence(topic)` says one thing in words."""

    kind = "why"

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(self.record.inputs["variants"])

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.record.inputs["steps"])

    def get(self, variant: str, measure: str, step: int | None = None) -> Estimate | None:
        """A measure of a variant (`full`, `no softmax`, ...) at a step (default: the first); None where it broke."""
        return self.record.scalars.get(f"{variant}/{self.steps[0] if step is None else step}/{measure}")

    def table(self) -> Grid:
        """One row for each variant and step; a dash where it diverged or the block is not there."""
        rows = []
        for step, variant in itertools.product(self.steps, self.variants):
            found = [self.get(variant, m, step) for m in MEASURES]
            rows.append((variant, step, *(None if e is None else e.value for e in found)))
        return Grid(("variant", "step", *HEADS), tuple(rows))

    def sentence(self, topic: str) -> str:
        """One thing in words: `adam`, `warmup`, or a part that was taken out."""
        topics = ("adam", "warmup", *(v.removeprefix("no ") for v in self.variants if v != "full"))
        if topic not in topics:
            raise UnknownName(
                f"no sentence about {topic!r}; there are {', '.join(topics)}.{did_you_mean(topic, topics)}"
            )
        if topic == "adam":
            return words.adam(self)
        return words.warmup(self) if topic == "warmup" else words.part(self, topic)

    def sentences(self) -> list[str]:
        """Every sentence there is."""
        parts = [v.removeprefix("no ") for v in self.variants if v != "full"]
        return [self.sentence(t) for t in ("adam", *(("warmup",) if len(self.steps) > 1 else ()), *parts)]

    def lines(self) -> Sequence[str]:
        given = self.record.inputs
        where = f"{given['probe']}, {self.record.made.dtype}"
        covered = f"; whole models, {given['parameters']:,} parameters" if "parameters" in given else ""
        head = f"{given['name']}: one part at a time taken out, same weights, data and seed; {where}{covered}"
        notes = [f"{part} is left out: {reason}" for part, reason in given.get("left_out", {}).items()]
        notes += [f"{variant}, step {step}: {note}" for variant, step, note in given["notes"]]
        cut = ["PARTIAL: the time given was over before everything was measured."] if given["partial"] else []
        tags = "losses exact; all other numbers are estimates (s.e. in --json)"
        data = f"data: {data_words(given.get('source', given))}"
        return [head, data, *str(self.table()).splitlines(), f"[{tags}]", *notes, *self.sentences(), *cut]
