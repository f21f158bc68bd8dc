"""Answers as text: the same on a terminal, in a file and without colour. Reads Records, computes nothing."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ..core.record import Estimate, Record, strict_json
from .options import Output

if TYPE_CHECKING:
    from ..core.question import Listing

#: A tensor with at most this many entries is printed whole in `--json`.
_SMALL = 4096


def record_json(record: Record) -> dict[str, Any]:
    """A record as plain JSON values; tensors as lists where they are small, else only their shape."""
    from dataclasses import asdict

    return {
        "kind": record.kind,
        "inputs": dict(record.inputs),
        "scalars": {name: _estimate_json(e) for name, e in record.scalars.items()},
        "tensors": {
            name: {"shape": list(t.shape), "values": t.tolist() if t.numel() <= _SMALL else None}
            for name, t in record.tensors.items()
        },
        "made": asdict(record.made),
        "schema": record.schema,
    }


def _estimate_json(e: Estimate) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(e)


def print_json(body: dict[str, object]) -> None:
    """One JSON value on stdout, in letters that stdout has."""
    text = strict_json(body)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # letters this stdout lacks, in escapes that JSON knows
        text = json.dumps(json.loads(text), indent=1) + "\n"
    sys.stdout.write(text)


def print_plan(body: dict[str, Any], output: Output) -> int:
    """What `--dry-run` prints, and its exit code."""
    if output.json:
        print_json(body)
    else:
        print(body["text"])
    return 0


def print_listing(listing: Listing) -> None:
    """On a terminal as wide as it is; in a file never cut, and without trailing blanks."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in listing.columns:
        table.add_column(name, justify="right" if name in ("parameters", "download") else "left")
    for row in listing.rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 200
    console = Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
    print(listing.below)
