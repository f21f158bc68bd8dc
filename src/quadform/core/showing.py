"""How values show themselves: in one line, and as a small HTML table in notebooks, without style, script or network."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .errors import QuadformError

#: Items of a mapping or a sequence in one line, and rows of a table, that are shown.
MOST_ITEMS, MOST_ROWS = 4, 40


class MissingPackage(QuadformError, ImportError):
    """A package of somebody else is not installed."""

    exit_code = 4


def brief(value: Any) -> str:
    """A value in a few words: tensors by shape and type, long mappings and sequences by their first items."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        shown = [f"{name}: {brief(item)}" for name, item in list(value.items())[:MOST_ITEMS]]
        return "{" + ", ".join(shown + _more(len(value))) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join([*map(brief, value[:MOST_ITEMS]), *_more(len(value))]) + ")"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _more(count: int) -> list[str]:
    return [f"... {count} in all"] if count > MOST_ITEMS else []


def fields_in_brief(self: Any) -> str:
    """A `__repr__` for dataclasses that hold tensors."""
    told = [f"{f.name}={brief(getattr(self, f.name))}" for f in dataclasses.fields(self) if f.repr]
    return f"{type(self).__name__}({', '.join(told)})"


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table of texts; every one is escaped."""

    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead>{line(columns, 'th')}</thead><tbody>{body}</tbody></table>"


def first_rows(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """At most MOST_ROWS rows; the last says how many there are."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    return [*rows[:MOST_ROWS], (f"... {len(rows):,} in all", *("" for _ in rows[0][1:]))]


def data_frame(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """A pandas DataFrame; pandas is imported here and nowhere else."""
    try:
        import pandas
    except ImportError as error:
        raise MissingPackage("a data frame needs pandas: `pip install pandas`.") from error
    return pandas.DataFrame([list(row) for row in rows], columns=list(columns))
