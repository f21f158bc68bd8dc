"""Answers as text: the same on a terminal, in a file and without colour. Reads Records, computes nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.record import Estimate, Record

if TYPE_CHECKING:
    from rich.table import Table

    from ..applications.configs import VerifyConfig
    from ..applications.doctor import Line
    from ..applications.verify import Check

LABELS = {"W_Q": "query", "W_K": "key", "W_V": "value", "W_QK": "query-key"}
#: Entropy below which the attention is called one-hot.
ONE_HOT = 0.01
#: A tensor with at most this many entries is printed whole in `--json`.
_SMALL = 4096


def attention(record: Record) -> None:
    """What the verb `attention` prints: the headline, the table of exponents, the verdict at both ends of the sweep."""
    s, inputs = record.scalars, record.inputs
    parameters = sum(math.prod(shape) for _, shape in inputs["space"])
    head = (
        f"exact Hessian, {parameters:,} parameters, {_seconds(s['seconds'].value)} per Hessian,"
        f" autodiff differs by {_power(s['autodiff_error'].value)}"
    )
    print(f"{head:<84} [exact]")
    if "fit_range" in inputs:
        lo, hi = inputs["fit_range"]
        where = f"fitted {lo:.2g}-{hi:.2g}; paper's exponents in brackets"
        print(f"growth of each block's norm with the input scale ({where})")
        _print(_growth_table(record))
    attention_verdict(record)
    if "fit_range" in inputs:
        print(_far_end(record))


def attention_verdict(record: Record) -> None:
    """Two lines: the spectrum at the scale that was asked for, and the largest step it allows."""
    s = record.scalars
    print(
        f"scale {record.inputs['scale']:g}: lambda_max {s['lambda_max'].value:.3g},"
        f" lambda_min {s['lambda_min'].value:.3g}, {100 * s['negative_share'].value:.0f} % of eigenvalues negative"
    )
    print(
        f"gradient descent: steps above 2 / lambda_max = {s['ceiling_sgd'].value:.3g} overshoot (a ceiling, no advice)"
    )


def _growth_table(record: Record) -> Table:
    table = _table("")
    names = [name for name, _ in record.inputs["space"]]
    for part in ("outer", "functional"):
        for i, name in enumerate(names):
            table.add_column(f"{part if i == 0 else ''}\n{LABELS[name]}", justify="left")
    for i, row in enumerate(names):
        cells = [LABELS[row]]
        for part in ("outer", "functional"):
            cells += [_exponent(record, part, row, col) if j >= i else "" for j, col in enumerate(names)]
        table.add_row(*cells)
    return table


def _exponent(record: Record, part: str, a: str, b: str) -> str:
    s = record.scalars
    block = f"{a},{b}" if f"norm/{part}/{a},{b}" in s else f"{b},{a}"
    fitted, paper = s.get(f"slope/{part}/{block}"), s[f"paper/{part}/{block}"]
    expected = "3,5" if "mix" in paper.note else f"{paper.value:g}"
    return f"{fitted.value:.1f}[{expected}]" if fitted else f"0  [{expected}]"


def _far_end(record: Record) -> str:
    """The largest scale of the sweep: what the attention and the two extreme blocks have become."""
    t = record.tensors
    scale = float(t["scales"][-1])
    query, value = (float(t["growth_total"][-1, i]) for i in (0, -1))  # the first and last diagonal blocks
    if "growth_entropy" not in t:
        state = "no softmax, nothing saturates"
    else:
        entropy = float(t["growth_entropy"][-1])
        state = f"attention is {'one-hot' if entropy < ONE_HOT else 'not one-hot'} (entropy {entropy:.2f})"
    first, last = (LABELS[record.inputs["space"][i][0]] for i in (0, -1))
    curvature = f"{first} curvature {_power(query)}, {last} curvature {_power(value)} (block norms)"
    return f"scale {scale:g}: {state}: {curvature}"


def verify(config: VerifyConfig, checks: Sequence[Check]) -> None:
    table = _table("check")
    for name in ("error", "limit", "tries", ""):
        table.add_column(name, justify="right" if name else "left")
    for c in checks:
        table.add_row(
            c.name, f"{c.error:.0e}", f"{c.tolerance:.0e}", str(c.count), "ok" if c.ok else f"FAILED at {c.worst}"
        )
    sizes = f"softmax, causal, linear, single W_QK; every size from 1 to {config.largest}"
    print(f"{config.shapes} random layers ({sizes}), errors relative to max|H|")
    _print(table)
    failed = [c for c in checks if not c.ok]
    if failed:
        print(f"{len(failed)} of {len(checks)} checks FAILED: results on this machine are not to be trusted.")
    else:
        print(f"all {len(checks)} checks hold.")


def doctor(lines: Sequence[Line]) -> None:
    table = _table("")
    for name in ("", "", ""):
        table.add_column(name)
    group = ""
    for line in lines:
        mark = {True: "ok", False: "MISSING", None: "-"}[line.ok]
        table.add_row(line.group if line.group != group else "", line.name, mark, _join(line.found, line.advice))
        group = line.group
    _print(table, header=False)
    broken = [line.name for line in lines if line.ok is False]
    print(
        f"not ready: {', '.join(broken)} missing." if broken else "ready; next: `quadform verify`, `quadform report`."
    )


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


def _seconds(value: float) -> str:
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _power(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def _join(found: str, advice: str) -> str:
    return f"{found}; {advice}" if advice else found


def _table(first: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(first)
    return table


def _print(table: Table, header: bool = True) -> None:
    """On a terminal as wide as it is; in a file never cut, and without trailing blanks."""
    from rich.console import Console

    table.show_header = header
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else 200, highlight=False, emoji=False, markup=False)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
