"""The report: ONE HTML file that needs no network, at most 3 MB, from records alone.

The drawing library is asked of vl-convert when the file is written, so nothing is vendored. All text reaches the page
through an escaping template; data reaches it as JSON in which no markup can begin.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from ..core.errors import FileError, InputError
from ..core.record import Record, strict_json, write_atomically
from .figure import Figure, Table
from .figures import drawn
from .numbers import number
from .reading import Reading
from .style import DARK, FONT, LIGHT, STYLES
from .tables import Row, measured
from .texts import Texts, language
from .verdict import cards, summary

#: The whole file stays below this many bytes; large matrices are left out first.
LIMIT = 3_000_000
#: Tensors up to this many entries are written as plain lists, larger ones as base64.
PLAIN_ENTRIES = 4096
#: Longer tables show this many rows at each end; their CSV has all.
TABLE_ENDS = 100

GLOSSARY = ("hessian", "outer", "functional", "block", "eigenvalue", "norm", "slope", "entropy", "ceiling", "tags")


def write_report(records: Record | Iterable[Record], path: str | Path, lang: str = "en") -> Path:
    """Write the report on one or several records to `path` and return it. A crash leaves no part of a file behind."""
    path = Path(path)
    page = render(records, lang).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write the report to {path}: {error}. Choose another path.") from error
    return path


def render(records: Record | Iterable[Record], lang: str = "en") -> str:
    """The report as a string."""
    texts = language(lang)
    records = [records] if isinstance(records, Record) else list(records)
    if not records:
        raise InputError("a report needs at least one record; got none. Make one with `quadform attention --out DIR`.")
    template = _environment(texts).get_template("report.html.j2")
    sections = [_section(record, i, texts) for i, record in enumerate(records)]
    charts = {figure["id"]: figure.pop("data") for section in sections for figure in section["figures"]}
    page = {
        "lang": lang,
        "font": FONT,
        "styles": STYLES,
        "sections": sections,
        "glossary": [(texts(f"gloss_{key}"), texts(f"gloss_{key}_text")) for key in GLOSSARY],
        "charts": in_script(charts),
        "bundle": _bundle(),
        "limit": f"{LIMIT / 1e6:g}",
        "words": in_script({key: texts(key) for key in ("copied", "to_dark", "to_light")}),
    }
    room = LIMIT - len(template.render(page).encode())
    for section, record in zip(sections, records, strict=True):
        raw, section["left_out"] = raw_data(record, room, texts)
        section["raw"] = in_script(raw)
        room -= len(section["raw"].encode())
    return template.render(page)


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from vl-convert; made once in a process, it takes a second."""
    import vl_convert

    return vl_convert.javascript_bundle().replace("</script", "<\\/script")


def _environment(texts: Texts) -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "quadform.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["t"] = texts
    environment.filters["cell"] = cell
    return environment


def _section(record: Record, index: int, texts: Texts) -> dict[str, Any]:
    read = Reading(record)
    rows = measured(record, texts)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    checks = [row for row in rows if row.status is not None]
    passed = sum(row.status == "good" for row in checks)
    given = record.inputs
    kind = f"attention_{given.get('attention')}"
    told = {"tokens": given.get("tokens"), "dim": given.get("dim"), "scale": number(float(given.get("scale", 1)))}
    layer = texts(kind) if kind in texts.sentences else str(given.get("attention"))
    return {
        "id": f"record-{index + 1}",
        "number": index + 1,
        "title": texts("record_attention", layer=layer, **told),
        "parameters": [(name, texts.parameter(name)) for name in read.space.names],
        "summary": summary(record, texts),
        "cards": cards(record, texts),
        "groups": groups,
        "checks": texts("checks_all" if passed == len(checks) else "checks_some", passed=passed, all=len(checks)),
        "checked": "good" if passed == len(checks) else "fair",
        "figures": [_figure(record, draw, index, texts) for draw in drawn(record)],
        "made": record.made,
        "versions": ", ".join(f"{name} {version}" for name, version in record.made.versions.items()),
        "inputs": strict_json(record.inputs),
        "raw": "",
        "left_out": [],
    }


def _figure(record: Record, draw: Any, index: int, texts: Texts) -> dict[str, Any]:
    drawings: dict[str, Figure] = {style.name: draw(record, texts, style) for style in (LIGHT, DARK)}
    figure = drawings[LIGHT.name]
    name = f"{figure.name}-{index + 1}"
    data: dict[str, Any] = {"name": figure.name, "csv": figure.table.csv(), "python": figure.python}
    data |= {style: drawing.spec for style, drawing in drawings.items()}
    return {"id": name, "figure": figure, "rows": shown(figure.table), "left": cut(figure.table), "data": data}


def cut(table: Table) -> int:
    """How many rows in the middle of a table the page leaves to its CSV."""
    return max(0, len(table.rows) - 2 * TABLE_ENDS)


def shown(table: Table) -> list[tuple[Any, ...] | None]:
    """The rows the page shows; None stands for those left out."""
    if not cut(table):
        return list(table.rows)
    return [*table.rows[:TABLE_ENDS], None, *table.rows[-TABLE_ENDS:]]


def cell(value: Any) -> str:
    """A table cell for people: four significant digits; a dash where there is nothing."""
    if value is None:
        return "–"
    return number(value, 4) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def raw_data(record: Record, room: int, texts: Texts) -> tuple[dict[str, Any], list[str]]:
    """The record as plain values that fit `room` bytes, smallest tensors first, and the names of those that did not."""
    tensors: dict[str, Any] = {}
    body = {
        "format": "quadform-record",
        "schema": record.schema,
        "kind": record.kind,
        "inputs": record.inputs,
        "scalars": {name: asdict(e) for name, e in record.scalars.items()},
        "made": asdict(record.made),
        "tensors": tensors,
    }
    left = room - len(in_script(body).encode())
    left_out = []
    for name, t in sorted(record.tensors.items(), key=lambda item: item[1].numel()):
        entry: dict[str, Any] = {"shape": list(t.shape)}
        if t.numel() <= PLAIN_ENTRIES:
            entry["values"] = t.tolist()
        else:
            flat = t.detach().cpu().double().contiguous().numpy().astype("<f8")
            entry |= {"dtype": "float64", "base64": base64.b64encode(flat.tobytes()).decode()}
        cost = len(in_script({name: entry}).encode())
        if cost > left - 400 * len(record.tensors):
            entry = {"shape": list(t.shape), "note": texts("tensor_left_out")}
            left_out.append(name)
        else:
            left -= cost
        tensors[name] = entry
    return body, left_out


def in_script(value: Mapping[str, Any]) -> str:
    """Strict JSON that may stand inside a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(json.loads(strict_json(value)), ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
