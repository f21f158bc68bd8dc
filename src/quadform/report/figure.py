"""Figure: one picture with the words that belong to it.

A figure is a value: the chart, a headline written from the data, how to read it, what it does not mean, the numbers
behind it, and the Python that draws it again. The report, a notebook and an exported file show the same value.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..answers.numbers import power
from .style import Style
from .texts import Texts
from .typeset import typeset


@dataclass(frozen=True)
class Table:
    """Named columns of plain values: numbers stay numbers, so a CSV of it loses nothing."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def csv(self) -> str:
        """The table as comma-separated text, full precision."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return out.getvalue()


@dataclass(frozen=True)
class Figure:
    """A chart and its words, in the language of `texts`. `tags` say what kind of numbers it shows."""

    name: str
    title: str
    chart: Any
    headline: str
    reading: str
    not_meaning: str
    table: Table
    python: str
    texts: Texts
    tags: tuple[str, ...] = ("exact",)
    caption: str = ""

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification, with nothing to fetch in it."""
        return self.chart.to_dict()

    def svg(self) -> str:
        """The picture as SVG text, drawn without a browser and without a network."""
        return svg(self.spec)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows: the live chart, or the picture with its words where charts are not drawn."""
        return bundle(self.spec) | {"text/html": self._repr_html_(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<Figure {self.name}: {self.headline}>"

    def _repr_html_(self) -> str:
        words = [
            (None, self.headline),
            (self.texts("read_like_this"), self.reading),
            (self.texts("does_not_mean"), self.not_meaning),
        ]
        lines = [
            f"<p>{f'<b>{html.escape(label)}</b> ' if label else ''}{html.escape(text)}</p>" for label, text in words
        ]
        return f"<figure><figcaption>{lines[0]}</figcaption>{self.svg()}{lines[1]}{lines[2]}</figure>"


def redraw(function: str) -> str:
    """The Python that draws a figure again from its saved record."""
    return (
        f"from quadform import Record\nfrom quadform.report import {function}\n\n"
        f'record = Record.load("RUN")  # the folder the record was saved to\n{function}(record).chart\n'
    )


def decades(low: float, high: float) -> dict[str, Any]:
    """Axis settings with ticks at powers of ten, at most eight of them, written as powers."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, -(-(last - first) // 7))
    marks = [m for m in range(first, last + 1) if m % step == 0]
    label = "".join(f"abs(log(datum.value) / LN10 - ({m})) < 0.01 ? '{power(m) if m else 1}' : " for m in marks) + "''"
    return {"values": [10.0**m for m in marks], "labelExpr": label}


class Rows:
    """The tables behind a chart, kept by name until it is finished.

    Altair copies and checks a chart at every step of its making; rows that wait outside are copied once.
    """

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        """A chart over these rows."""
        from .packages import alt

        name = f"rows{len(self.tables)}"
        self.tables[name] = rows
        return alt.Chart(alt.NamedData(name=name))

    def finish(self, chart: Any, style: Style, **usermeta: int) -> Any:
        """The chart with its rows, in the house style; `usermeta` tells the page how it may be fitted."""
        return offline(chart.configure(**style.config()).properties(datasets=self.tables, usermeta=usermeta))


class Offline:
    """A chart that a notebook shows without a network. Altair's own way loads Vega from a server and stays blank."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return bundle(self.to_dict())  # type: ignore[attr-defined]  # Altair's half of the class has it


@cache
def _offline_kind(kind: type) -> type:
    return type(kind.__name__, (Offline, kind), {"__module__": kind.__module__})


def offline(chart: Any) -> Any:
    """The same Altair chart, and every chart made from it by its methods, drawn here rather than by a server."""
    kind: Any = type(chart)
    object.__setattr__(chart, "__class__", _offline_kind(kind))  # past Altair, which keeps attributes as data
    return chart


def bundle(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart for notebooks: live in front ends that have Vega-Lite themselves, else as a picture."""
    version = spec["$schema"].rsplit("/v", 1)[-1].split(".", 1)[0]
    return {f"application/vnd.vegalite.v{version}+json": spec, "image/svg+xml": svg(spec), "text/plain": "<a chart>"}


def svg(spec: dict[str, Any]) -> str:
    """A specification as SVG text with its formulas set, drawn without a browser and without a network."""
    from .packages import vl_convert

    return typeset(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]))


def png(picture: str, scale: float) -> bytes:
    """An SVG picture as PNG, `scale` pixels for each of its own."""
    from .packages import vl_convert

    return vl_convert.svg_to_png(picture, scale=scale)


def pdf(picture: str) -> bytes:
    """An SVG picture as PDF. Pixels are those of a screen, 96 to the inch; the drawer takes them for points."""
    from .packages import vl_convert

    head, end, rest = picture.partition(">")
    head = re.sub(r' (width|height)="([\d.]+)"', lambda m: f' {m[1]}="{0.75 * float(m[2]):g}"', head)
    return vl_convert.svg_to_pdf(head + end + rest)
