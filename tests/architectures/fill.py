"""Fill the table of architectures: what its record does not hold is measured, the page is written anew.

    python tests/architectures/fill.py [NAME ...]      names: measure these anew

First eager and by units for every batch, then the named blocks, then traced for one batch of each architecture: half an
hour on two cores. What is measured is kept if it is stopped; delete the record to begin from nothing.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from cells import ALLOWED, KINDS, blocks, products
from tiny_models import ARCHITECTURES, Architecture

from quadform.core import progress
from quadform.core.record import Provenance, strict_json

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "records" / "architectures-cpu.json"
PAGE = ROOT / "docs" / "architectures.md"
WHAT = "error of products and named blocks against a double backward in float64, relative to its size"
COLUMNS = ("plain", "ones", "left", "right", "no cache", "packed")


def hardest(architecture: Architecture) -> str:
    """The batch that is traced too, and whose named blocks are looked at."""
    return next(b for b in ("left", "right", "plain") if b in architecture.batches)


def eager_and_units(architecture: Architecture, row: dict[str, Any]) -> bool:
    """Products of all batches; whether something was missing."""
    missing = [b for b in architecture.batches if b not in row["batches"]]
    for name in missing:
        row["batches"][name] = products(architecture, architecture.batches[name](), ("eager", "units"))
    row["batches"] = {b: row["batches"][b] for b in architecture.batches}
    return bool(missing)


def named(architecture: Architecture, row: dict[str, Any]) -> bool:
    """The named blocks on one batch."""
    if row["blocks"]:
        return False
    as_made = row["batches"][hardest(architecture)].get("dtype") == str(architecture.dtype).removeprefix("torch.")
    batch = hardest(architecture) if as_made else "plain"
    row["blocks"][batch] = blocks(architecture, architecture.batches[batch]())
    return True


def traced(architecture: Architecture, row: dict[str, Any]) -> bool:
    """The traced products of one batch."""
    cell = row["batches"][hardest(architecture)]
    if "refused" in cell or "traced" in cell["routes"]:
        return False
    cell["routes"] |= products(architecture, architecture.batches[hardest(architecture)](), ("traced",))["routes"]
    return True


# --- the page -------------------------------------------------------------------------------------------------------
class _Notes:
    """Reasons in the order in which they are met, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


def page(record: dict[str, Any]) -> str:
    """docs/architectures.md of a record."""
    rows, notes = record["rows"], _Notes()
    cells = sum(len(r["batches"]) for r in rows.values())
    refused = sum("refused" in c for r in rows.values() for c in r["batches"].values())
    low = {n: [b for b, c in r["batches"].items() if c.get("dtype") == "float32"] for n, r in rows.items()}
    in_low = ", ".join(f"{n} ({', '.join(b)})" for n, b in low.items() if b)
    lines = [
        "# Supported architectures",
        "",
        f"{len(rows)} architectures of transformers {record['transformers']}, tiny and random, {cells} batches,"
        f" {refused} of them refused.",
        "",
        "A number is the largest error of products with H, H_o (Gauss-Newton, split at the logits) and H_f, eager and"
        " by units, against a double backward in float64, relative to its size; models that compute norms, softmax or"
        f" the loss in float32 leave about 1e-7. Above {ALLOWED['float64']:.0e} a cell is wrong. Left and right: padded"
        " there; packed: two sequences in one row, told apart by their `position_ids`; no cache: `use_cache=False`. A"
        " dash: the model takes no such batch. *W_Q, W_K, W_V*: their nine blocks and one head by name, against slices"
        " of the dense Hessian. *Units* and *traced*: yes where that route is taken when asked for, or the reason. The"
        " traced program, which the compiled route compiles, is measured on one batch (the first of left, right and"
        " plain); a dash there: not measured.",
        "",
        "In float32 on both sides, as these are not finite or not stored in float64 (a cell is wrong above"
        f" {ALLOWED['float32']:.0e}): {in_low}.",
        "",
        "Made by `python tests/architectures/fill.py` from",
        "[benchmarks/records/architectures-cpu.json](../benchmarks/records/architectures-cpu.json).",
    ]
    for family in dict.fromkeys(r["family"] for r in rows.values()):
        lines += [
            "",
            f"## {family.capitalize()}{'' if family in ('vision', 'audio', 'experts') else 's'}",
            "",
            f"| model | {' | '.join(COLUMNS)} | W_Q, W_K, W_V | units | traced |",
            f"|{'---|' * (len(COLUMNS) + 4)}",
        ]
        lines += [_line(name, r, notes) for name, r in rows.items() if r["family"] == family]
    lines += ["", "## Reasons", "", *(f"{i}. {text}" for i, text in enumerate(notes.texts, 1)), ""]
    return "\n".join(lines)


def _line(name: str, row: dict[str, Any], notes: _Notes) -> str:
    batches = row["batches"]
    cells = [_cell(batches[b], notes) if b in batches else "–" for b in COLUMNS]
    (named,) = row["blocks"].values()
    cells.append(notes.mark(f"No names: {named}.") if isinstance(named, str) else f"{named:.0e}")
    for route in ("units", "traced"):
        cells.append(
            _taken(route, [c["routes"][route] for c in batches.values() if route in c.get("routes", ())], notes)
        )
    return f"| {name} | {' | '.join(cells)} |"


def _cell(cell: dict[str, Any], notes: _Notes) -> str:
    if "refused" in cell:
        return notes.mark(f"Refused: {cell['refused']}")
    found = [r[kind] for r in cell["routes"].values() for kind in KINDS]
    marks = [notes.mark(f"Refused: {text}") for text in found if isinstance(text, str)]
    numbers = [f"{max(e for e in found if not isinstance(e, str)):.0e}"] if len(marks) < len(found) else []
    return " ".join([*numbers, ", ".join(dict.fromkeys(marks))]).strip()


def _taken(route: str, cells: list[dict[str, Any]], notes: _Notes) -> str:
    if not cells:
        return "–"
    marks = [notes.mark(f"{line[0].upper()}{line[1:]}") for cell in cells for line in cell["why"]]
    taken = all(cell["route"] == route for cell in cells)
    return " ".join([*["yes"] * taken, ", ".join(dict.fromkeys(marks))]).strip()


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    progress.quiet = True
    rows = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else {}
    for name in sys.argv[1:]:
        rows.pop(name, None)
    for measure in (eager_and_units, named, traced):
        for name, a in ARCHITECTURES.items():
            row = rows.setdefault(name, {"family": a.family, "task": a.task, "batches": {}, "blocks": {}})
            if measure(a, row):
                print(measure.__name__, name, flush=True)
                write({n: rows[n] for n in ARCHITECTURES if n in rows})


def write(rows: dict[str, Any]) -> None:
    """The record and, once it is complete, its page."""
    made = asdict(Provenance.collect(seed=0, dtype=torch.float64))
    record = {"what": WHAT, "transformers": transformers.__version__, "rows": rows, "made": made}
    RECORD.write_text(strict_json(record))
    if len(rows) == len(ARCHITECTURES) and all(r["blocks"] for r in rows.values()):
        PAGE.write_text(page(record))


if __name__ == "__main__":
    main()
