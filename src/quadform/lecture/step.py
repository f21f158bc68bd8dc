"""A step of the lecture: its controls, and what it shows for their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .controls import Control
from .pupil import Pupil
from .texts import Texts

Panel = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The values of the controls, the language of the reader, and the model that is trained in the lecture."""

    values: Mapping[str, Any]
    texts: Texts
    pupil: Pupil

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A sentence that follows from the numbers, pictures, an exercise, and the Python behind them.

    The last line of `python` prints the numbers `printed`. `most` narrows sliders whose range depends on the others,
    `actions` says what a button does now (`action_NAME`), `running` that the answer will change by itself.
    """

    says: str
    panels: Sequence[Panel]
    python: str
    printed: Sequence[float]
    exercise: str
    answer: str
    most: Mapping[str, float] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    actions: Mapping[str, str] = field(default_factory=dict)
    running: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step; its words are `title_NAME` and `text_NAME`. `acts` is what its buttons can do."""

    name: str
    controls: tuple[Control, ...]
    show: Callable[[Asked], Shown]
    acts: Mapping[str, Callable[[Asked], None]] = field(default_factory=dict)


# --- pictures ---------------------------------------------------------------------------------------------------------
def matrix(title: str, values: Tensor, rows: Sequence[str], columns: Sequence[str] = (), **more: Any) -> Panel:
    """A matrix as coloured cells. `high` is the value of the strongest colour, `numbers` writes them into the cells,
    `mark` outlines a row, `axes` names rows and columns."""
    body = {"kind": "matrix", "title": title, "rows": list(rows), "columns": list(columns)}
    high = float(values.abs().max()) or 1.0
    return body | {"values": values.tolist(), "high": high, "numbers": False, "mark": None, "axes": ["", ""]} | more


def bars(title: str, values: Tensor, labels: Sequence[str], **more: Any) -> Panel:
    """One bar a label; `mark` is the one spoken of, `unit` stands behind the numbers."""
    body = {"kind": "bars", "title": title, "labels": list(labels), "values": values.tolist()}
    return body | {"mark": None, "percent": False} | more


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], **more: Any) -> Panel:
    """Numbers to follow by hand; `mark` is the row spoken of, `foot` a line below."""
    return {"kind": "table", "title": title, "columns": columns, "rows": rows, "mark": None, "foot": ""} | more


def lines(title: str, x: str, y: str, series: Sequence[Mapping[str, Any]], **more: Any) -> Panel:
    """Lines over a number: `series` of name, points, and whether it is the one chosen."""
    body = {"kind": "lines", "title": title, "x": x, "y": y, "series": list(series)}
    return body | {"log": False, "low": None, "high": None} | more
