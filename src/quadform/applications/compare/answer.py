"""The answer of `quadform compare`: a table, a verdict, figures. It computes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...answers.answer import Answer, Grid
from ...core.errors import UnknownName, did_you_mean
from ...core.record import Estimate
from . import words
from .question import SORTS

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
#: Sorting: the best first. Gradient is by its distance from 1.
_BEST: dict[str, Callable[[float], float]] = {
    "loss": lambda v: v,
    "cosine": lambda v: v,
    "parameters": lambda v: v,
    "gradient": lambda v: abs(math.log(v)) if v > 0 else math.inf,
    "lr_ceiling": lambda v: -v,
    "rank": lambda v: -v,
    "speed": lambda v: -v,
}


class Compare(Answer):
    """The cells (design, depth) of a comparison."""

    kind = "compare"

    @property
    def cells(self) -> list[tuple[str, int]]:
        return [(str(d), int(n)) for d, n in self.record.inputs["cells"]]

    def get(self, design: str, depth: int, measure: str) -> Estimate | None:
        """One number of one cell; None where it is not there."""
        return self.record.scalars.get(f"{design}/{depth}/{measure}")

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

    def verdict(self) -> list[str]:
        """What follows from the stated limits."""
        return words.verdict(self)

    def lines(self) -> Sequence[str]:
        given = self.record.inputs
        many = len(self.cells)
        head = f"{many} models of width {given['dim']}, {given['heads']} heads, {given['dtype']}; {given['about']}"
        said: dict[str, list[str]] = {}
        for design, depth, note in given["notes"]:
            said.setdefault(note, []).append(f"{design} x {depth}")
        notes = [f"{', '.join(cells)}: {note}" for note, cells in said.items()]
        tags = "parameters, FLOPs and memory exact; speed and loss depend on this machine; the rest estimates"
        cut = ["PARTIAL: the time given was over before everything was measured."] if given["partial"] else []
        return [head, *str(self.table()).splitlines(), f"[{tags}]", *notes, *self.verdict(), *cut]
