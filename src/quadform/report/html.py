"""The report: ONE HTML file that needs no network, at most 3 MB, from records alone.

The drawing library is asked of vl-convert when the file is written, so nothing is vendored. All text reaches the page
through an escaping template; data reaches it as JSON in which no markup can begin.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from ..answers.numbers import number
from ..answers.verdict import Verdict
from ..core.errors import FileError, InputError
from ..core.record import Record, strict_json, write_atomically
from .figure import Figure, Table
from .page import Draw, page_of
from .rows import Row
from .style import DARK, FONT, LIGHT, STYLES
from .texts import Texts, language
from .typeset import words

#: The whole file stays below this many bytes; large matrices are left out first.
LIMIT = 3_000_000
#: Tensors up to this many entries are written as plain lists, larger ones as base64.
PLAIN_ENTRIES = 4096
#: The looks every figure is drawn in, the first is the one exported.
DRAWN = (LIGHT, DARK)
#: Longer tables show this many rows at each end; their CSV has all.
TABLE_ENDS = 100

#: Verdicts at the top of a study.
BRIEF = 3

GLOSSARY = ("hessian", "outer", "functional", "block", "eigenvalue", "norm", "slope", "entropy", "ceiling", "tags")


#: What a report is about: one record, or several of the same subject, shown as one.
Study = Record | Sequence[Record]


def write_report(
    studies: Study | Iterable[Study], path: str | Path, lang: str = "en", missing: Sequence[Sequence[str]] = ()
) -> Path:
    """Write the report on one or several studies to `path` and return it. A crash leaves no part of a file behind.

    `missing` names, for each study, the stages (`lr`, `spectrum`, ...) that were not measured to their end.
    """
    path = Path(path)
    page = render(studies, lang, missing).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write the report to {path}: {error}. Choose another path.") from error
    return path


def render(studies: Study | Iterable[Study], lang: str = "en", missing: Sequence[Sequence[str]] = ()) -> str:
    """The report as a string."""
    texts = language(lang)
    given = [studies] if isinstance(studies, Record) else list(studies)
    listed = [[study] if isinstance(study, Record) else list(study) for study in given]
    if not any(listed):
        raise InputError("a report needs at least one record; got none. Make one with `quadform attention --out DIR`.")
    template = _environment(texts).get_template("report.html.j2")
    unmeasured = [*missing, *[()] * (len(listed) - len(missing))]
    kept = [(study, left) for study, left in zip(listed, unmeasured, strict=True) if study]
    sections = [_section(study, i, texts, left) for i, (study, left) in enumerate(kept)]
    charts = {figure["id"]: figure.pop("data") for section in sections for figure in section["figures"]}
    page = {
        "lang": lang,
        "font": FONT,
        "styles": STYLES,
        "sections": sections,
        "compared": (beside := compared(sections)),
        "heading": texts("page_heading") if beside else sections[0]["title"],
        "glossary": [(texts(f"gloss_{key}"), texts(f"gloss_{key}_text")) for key in GLOSSARY],
        "charts": in_script(charts),
        "bundle": _bundle(),
        "limit": f"{LIMIT / 1e6:g}",
        "words": in_script({key: texts(key) for key in ("copied", "to_dark", "to_light")}),
    }
    room = LIMIT - len(template.render(page).encode())
    for part in (part for section in sections for part in section["parts"]):
        raw, part["left_out"] = raw_data(part.pop("record"), room, texts)
        part["raw"] = in_script(raw)
        room -= len(part["raw"].encode())
    return template.render(page)


def compared(sections: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Studies of the same kind side by side: (title, one card or None per study) of every card more than one has."""
    if len(sections) < 2 or len({section["kind"] for section in sections}) > 1:
        return []
    cards = [{card.name: card for card in section["cards"]} for section in sections]
    names = list(dict.fromkeys(name for of in cards for name in of))
    shared = [name for name in names if sum(name in of for of in cards) > 1]
    return [(next(of[n].title for of in cards if n in of), [of.get(n) for of in cards]) for n in shared]


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from vl-convert; made once in a process, it takes a second."""
    from .packages import vl_convert

    script = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # a snippet may be left out
    return script.replace("</script", "<\\/script")


def _environment(texts: Texts) -> Any:
    from .packages import jinja2, markupsafe

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "quadform.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["t"] = texts
    environment.filters["cell"] = cell
    environment.filters["formulas"] = lambda text: markupsafe.Markup(words(text))
    return environment


def _section(study: Sequence[Record], index: int, texts: Texts, missing: Sequence[str] = ()) -> dict[str, Any]:
    """One study: its verdict from all its records, their rows, their figures, and how each was made."""
    pages = [page_of(record) for record in study]
    name = f"record-{index + 1}"
    parts = [_part(record, f"{name}-{i + 1}", texts) for i, record in enumerate(study)]
    return {
        "id": name,
        "number": index + 1,
        "kind": study[0].kind,
        "notice": _notice(parts, missing, texts),
        "title": next((p["title"] for p in parts if p["kind"] == "training"), parts[0]["title"]),
        "brief": brief(study, texts),
        "cards": [card for page, record in zip(pages, study, strict=True) for card in page.cards(record, texts)],
        "parts": parts,
        "figures": [
            _figure(record, draw, f"{index + 1}" + f"-{i + 1}" * (len(study) > 1), texts) | {"first": i == j == 0}
            for i, (page, record) in enumerate(zip(pages, study, strict=True))
            for j, draw in enumerate(page.figures(record))
        ],
    }


def brief(study: Sequence[Record], texts: Texts) -> list[dict[str, str]]:
    """What to read first, BRIEF items: what is red, then what each record says as a whole, then its other verdicts."""
    found = []
    for place, record in enumerate(study):
        answer = page_of(record).answer(record)
        if not answer.verdicts():
            told = {"about": _stage(record, texts), "status": "", "said": _short(answer.said(texts.lang)), "do": ""}
            found.append(((True, 0, place), told))
        for turn, v in enumerate(answer.verdicts()):
            whole = turn == 0 and v.status != "red"
            said = answer.said(texts.lang) if whole else v.sentence(texts.lang)
            told = {
                "about": _stage(record, texts),
                "status": v.status,
                "said": said if v.status == "red" else _short(said),
                "do": _to_do(v, texts),
            }
            found.append(((v.status != "red", turn, place), told))
    return [told for _, told in sorted(found, key=lambda f: f[0])[:BRIEF]]


def _to_do(verdict: Verdict, texts: Texts) -> str:
    """What to do about a verdict; nothing where it says so itself."""
    key = "do_undecided" if verdict.status == "undecided" else f"do_{verdict.name}_{verdict.status}"
    return texts(key) if key in texts.sentences else ""


def _short(said: str) -> str:
    """The first two sentences."""
    return " ".join(re.split(r"(?<=[.!?])\s", said)[:2])


def _stage(record: Record, texts: Texts) -> str:
    """What a sentence of the verdict is about: the records of a study look at one model at different times."""
    return texts(f"stage_{'lr' if record.kind == 'step-size' else record.kind}")


def _notice(parts: Sequence[Mapping[str, Any]], missing: Sequence[str], texts: Texts) -> str:
    """What was cut short and what is not there at all; empty where all was measured."""
    if missing:
        return texts("notice_missing", stages=", ".join(texts(f"stage_{name}") for name in missing))
    cut_short = [part["title"] for part in parts if part["partial"]]
    return texts("notice_partial", parts="; ".join(cut_short)) if cut_short else ""


def _part(record: Record, name: str, texts: Texts) -> dict[str, Any]:
    """What one record of a study adds to the tables."""
    page = page_of(record)
    rows = page.rows(record, texts)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    checks = [row for row in rows if row.status is not None]
    passed = sum(row.status == "green" for row in checks)
    return {
        "id": name,
        "kind": record.kind,
        "title": page.title(record, texts),
        "partial": page.answer(record).partial,
        "groups": groups,
        "checks": _checked(passed, len(checks), texts),
        "checked": "green" if passed == len(checks) else "yellow",
        "made": record.made,
        "versions": ", ".join(f"{name} {version}" for name, version in record.made.versions.items()),
        "inputs": strict_json(record.inputs),
        "record": record,
        "raw": "",
        "left_out": [],
    }


def _checked(passed: int, all_: int, texts: Texts) -> str:
    """How many checks passed, in words; nothing where there was nothing to check."""
    return texts("checks_all" if passed == all_ else "checks_some", passed=passed, all=all_) if all_ else ""


def _figure(record: Record, draw: Draw, suffix: str, texts: Texts) -> dict[str, Any]:
    drawings: dict[str, Figure] = {style.name: draw(record, texts, style) for style in DRAWN}
    figure = drawings[LIGHT.name]
    name = f"{figure.name}-{suffix}"
    data: dict[str, Any] = {"name": figure.name, "csv": figure.table.csv(), "python": figure.python}
    data |= _shared({style: drawing.spec for style, drawing in drawings.items()})
    return {"id": name, "figure": figure, "rows": shown(figure.table), "left": cut(figure.table), "data": data}


def _shared(specs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The specification of each style; tables that all styles draw alike stand once, under `datasets`."""
    tables = [spec.get("datasets", {}) for spec in specs.values()]
    common = {name: rows for name, rows in tables[0].items() if all(t.get(name) == rows for t in tables[1:])}
    apart = {
        style: spec | {"datasets": {n: rows for n, rows in spec.get("datasets", {}).items() if n not in common}}
        for style, spec in specs.items()
    }
    return apart | {"datasets": common}


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
