"""The answer of `quadform compare`: designs and depths side by side. It computes nothing.

Record "compare": scalars `DESIGN/DEPTH/MEASURE` with the measures `COLUMNS` and `first_lr`, tensors
`DESIGN/DEPTH/cosine, rank, gradient` (one number a layer) and `DESIGN/DEPTH/losses`; `inputs["cells"]` are the models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..core.errors import UnknownName, did_you_mean
from ..core.record import Estimate, Provenance
from .answer import Answer, Draft, Grid
from .measured import data_words
from .numbers import number
from .signal import COSINE, FACTOR
from .texts import Texts, line
from .verdict import Limits, Status, Verdict, judged, say

Cell = tuple[str, int]

COLUMNS = {
    "parameters": "parameters",
    "flops": "FLOPs/token",
    "memory": "memory MB",
    "cosine": "cosine",
    "rank": "rank",
    "gradient": "gradient",
    "lambda_max": "lambda_max",
    "lr_ceiling": "lr ceiling",
    "loss": "loss",
    "steps": "steps",
    "speed": "tokens/s",
}
_WHOLE = ("parameters", "steps")
#: Training steps from which losses are ranked; fewer say how a design starts, not where it goes.
LONG = 100
#: A learning rate over the ceiling at initialization.
STABLE = Limits(1.0, 1.0)
#: Sorting: the best first. Gradient is by its distance from 1.
_BEST: dict[str, Callable[[float], float]] = {
    "loss": lambda v: v,
    "lr_ceiling": lambda v: -v,
    "rank": lambda v: -v,
    "cosine": lambda v: v,
    "gradient": lambda v: abs(math.log(v)) if v > 0 else math.inf,
    "parameters": lambda v: v,
    "speed": lambda v: -v,
}
SORTS = ("design", *_BEST)


@dataclass(frozen=True)
class Outcome:
    """What the losses say. `kind`: `winner`, `tie` (with `ties`), `short` (the fewest steps) or `alone`."""

    kind: Literal["winner", "tie", "short", "alone"]
    best: Cell
    loss: Estimate
    ties: tuple[Cell, ...] = ()
    steps: int = 0


class Compare(Answer):
    """The cells (design, depth) of a comparison."""

    kind = "compare"

    # --- numbers ----------------------------------------------------------------------------------------------------
    @property
    def cells(self) -> list[Cell]:
        return [(str(d), int(n)) for d, n in self.record.inputs["cells"]]

    @property
    def about(self) -> str:
        """Data, batches and learning rate in words."""
        return str(self.record.inputs["about"])

    @property
    def lr(self) -> float:
        """The peak of the schedule."""
        return float(self.record.inputs["lr"])

    @property
    def notes(self) -> tuple[str, ...]:
        said: dict[str, list[str]] = {}
        for design, depth, note in self.record.inputs["notes"]:
            said.setdefault(note, []).append(f"{design} x {depth}")
        return tuple(f"{', '.join(cells)}: {note}" for note, cells in said.items())

    def data(self, texts: Texts | None = None) -> str:
        return data_words(self.record.inputs, texts)

    def get(self, design: str, depth: int, measure: str) -> Estimate | None:
        """One number of one cell; None where it is not there."""
        return self.record.scalars.get(f"{design}/{depth}/{measure}")

    def each(self, measure: str) -> dict[Cell, Estimate]:
        """One number of every cell that has it, where it is finite."""
        known = {cell: self.get(*cell, measure) for cell in self.cells}
        return {cell: e for cell, e in known.items() if e is not None and math.isfinite(e.value)}

    def layers(self, cell: Cell, measure: str) -> list[float]:
        """`cosine`, `rank` or `gradient` after each block at initialization; empty where it is not known."""
        found = self.record.tensors.get(f"{cell[0]}/{cell[1]}/{measure}")
        return [] if found is None else found.tolist()

    @property
    def outcome(self) -> Outcome | None:
        """A winner only where every model was trained for `LONG` steps and all others lie two standard errors above."""
        losses, steps = self.each("loss"), self.each("steps")
        if not losses:
            return None
        best = min(losses, key=lambda cell: losses[cell].value)
        least = int(min(steps[cell].value if cell in steps else 0.0 for cell in losses))
        low, others = losses[best], {cell: e for cell, e in losses.items() if cell != best}
        ties = tuple(c for c, e in others.items() if e.value - low.value <= math.hypot(low.reach, e.reach))
        kind: Any = "alone" if not others else "short" if least < LONG else "tie" if ties else "winner"
        return Outcome(kind, best, low, ties, least)

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """The lowest loss, the worst token cosine, the worst gradient, learning rates against their ceilings."""
        cosines, gradients = self.each("cosine"), {c: e for c, e in self.each("gradient").items() if e.value > 0}
        found = [self._winner(self.outcome)] if self.outcome is not None else []
        if cosines:
            worst = max(cosines, key=lambda c: cosines[c].value)
            found.append(self._worst("collapse", cosines, worst, COSINE, number(cosines[worst].value)))
        if gradients:
            worst = max(gradients, key=lambda c: abs(math.log(gradients[c].value)))
            found.append(self._worst("lost", gradients, worst, FACTOR, f"× {number(gradients[worst].value)}"))
        return (*found, *self._rates())

    def _winner(self, found: Outcome) -> Verdict:
        told = {"name": name(found.best), "loss": number(found.loss.value), "steps": found.steps, "limit": LONG}
        said = say(f"compare_{found.kind}", ties=names(found.ties), **told)
        won = found.kind == "winner"
        value = name(found.best) if won else number(found.loss.value)
        status: Status = "green" if won else "yellow"
        return Verdict("compare", status, value, found.loss, said, shown_limits=(str(LONG),))

    def _worst(self, which: str, known: Mapping[Cell, Estimate], worst: Cell, limits: Limits, value: str) -> Verdict:
        """The worst of all models by a limit, with the names of all that are red."""
        red = [cell for cell, e in known.items() if limits.grade(e) == "red"]
        key = f"compare_{which}" if red else f"compare_{which}_not"
        said = say(key, names=names(red), limit=number(limits.red), name=name(worst), value=value)
        return judged(which, known[worst], limits, value, said)

    def _rates(self) -> tuple[Verdict, ...]:
        """The rate of the first step against the ceiling there; the peak by itself, since it comes at a later step."""
        ceilings, first = self.each("lr_ceiling"), self.each("first_lr")
        if not ceilings:
            return ()
        at_once = {c: STABLE.grade(over(first[c].value, e)) for c, e in ceilings.items() if c in first}
        later = {c: STABLE.grade(over(self.lr, e)) for c, e in ceilings.items()}
        above = [c for c, status in at_once.items() if status == "red"] or [c for c in later if later[c] == "red"]
        status: Status = "green"
        if above:
            status = "red" if at_once.get(above[0]) == "red" else "yellow"
        elif "undecided" in {*at_once.values(), *later.values()}:
            status = "undecided"
        key = {"red": "first", "yellow": "peak", "green": "rates_fit", "undecided": "rates_near"}[status]
        lowest = min(ceilings.values(), key=lambda e: e.value)
        said = say(f"compare_{key}", names=names(above), peak=f"{self.lr:g}")
        return (Verdict("rates", status, f"{lowest.value:.2e}", lowest, said, STABLE),)

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self, sort: str | None = None) -> Grid:
        """One row a cell, the best first by `sort`; a dash where a number is not there."""
        sort = sort or str(self.record.inputs["sort"])
        if sort not in SORTS:
            raise UnknownName(f"rows cannot be sorted by {sort!r} ({', '.join(SORTS)}).{did_you_mean(sort, SORTS)}")
        cells = self.cells
        if sort != "design":
            known = {c: self.get(*c, sort) for c in cells}
            cells = sorted(cells, key=lambda c: math.inf if (e := known[c]) is None else _BEST[sort](e.value))
        rows = []
        for cell in cells:
            values: list[Any] = []
            for measure in COLUMNS:
                e = self.get(*cell, measure)
                values.append(None if e is None else int(e.value) if measure in _WHOLE else e.value)
            rows.append((*cell, *values))
        return Grid(("design", "depth", *COLUMNS.values()), tuple(rows))

    def lines(self) -> Sequence[str]:
        given = self.record.inputs
        width = given.get("d_model", given.get("dim"))  # older records
        about = {"width": width, "heads": given["heads"], "dtype": given["dtype"], "about": self.about}
        head, tags = line("line_compare", count=len(self.cells), **about), line("line_compare_tags")
        lines = [head, *str(self.table()).splitlines(), f"[{tags}]", *self.notes]
        return [*lines, *self.verdict_lines()]


def name(cell: Cell) -> str:
    """`pre-ln × 6`."""
    return f"{cell[0]} × {cell[1]}"


def names(cells: Sequence[Cell]) -> str:
    """Several cells in words."""
    return ", ".join(map(name, cells))


def over(rate: float, ceiling: Estimate) -> Estimate:
    """A learning rate over a ceiling, with the ceiling's error."""
    return Estimate(rate / ceiling.value, rate * ceiling.reach / ceiling.value**2 / 2, "estimate")


class CompareDraft(Draft):
    """The numbers of all models while they are measured."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[list[Any]] = []

    def take(self, cell: Cell, part: Mapping[str, Any]) -> None:
        """What was measured of one model: `scalars` by measure, `curves` (a number a layer or a step), a `note`."""
        key = f"{cell[0]}/{cell[1]}"
        self.scalars |= {f"{key}/{m}": e for m, e in part["scalars"].items()}
        curves = part["curves"].items()
        self.tensors |= {f"{key}/{label}": torch.tensor(values, dtype=torch.float64) for label, values in curves}
        self.note(cell, part["note"])

    def note(self, cell: Cell, note: str) -> None:
        self.notes += [[*cell, note]] if note else []

    def answer(self, made: Provenance, **inputs: Any) -> Compare:
        return Compare(self.record(Compare.kind, {**inputs, "notes": self.notes}, made))
