"""Answers own the keys of their records: page, terminal and live page ask them by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import quadform

ROOT = Path(quadform.__file__).parent
HELD = {"scalars", "tensors", "inputs"}
#: Not records: the tensors of a file somebody gave to the live page.
UPLOADS = {"explorer/data.py", "explorer/cost.py"}


def held(node: ast.AST) -> bool:
    """`anything.scalars`, `.tensors`, `.inputs`."""
    return isinstance(node, ast.Attribute) and node.attr in HELD


def text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def looked_up(source: str) -> list[int]:
    """The lines that look a key up by its text, or give a part of a record another name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and held(node.value) and text(node.slice):
            found.append(node.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            found += [node.lineno] * held(node.func.value)
        if isinstance(node, ast.Compare) and any(map(held, node.comparators)):
            found.append(node.lineno)
        if isinstance(node, ast.Assign | ast.NamedExpr):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            found += [node.lineno] * any(map(held, values))
    return found


@pytest.mark.parametrize("room", ["report", "cli", "explorer"])
def test_no_key_of_a_record_is_looked_up_outside_its_answer(room: str) -> None:
    files = [p for p in (ROOT / room).rglob("*.py") if p.relative_to(ROOT).as_posix() not in UPLOADS]
    assert files
    found = [f"{p.relative_to(ROOT)}:{line}" for p in files for line in looked_up(p.read_text(encoding="utf-8"))]
    assert not found, f"ask the answer by a name of its own: {', '.join(found)}"


@pytest.mark.parametrize(
    "line",
    [
        'x = record.scalars["loss"].value',
        'x = answer.record.tensors[f"{i}/cosine"]',
        'x = record.inputs.get("partial")',
        'x = 1 if "entropy" in record.scalars else 2',
        "s, given = record.scalars, record.inputs",
        "s = record.scalars",
    ],
)
def test_a_planted_look_up_is_caught(line: str) -> None:
    assert looked_up(line) == [1]


def test_whole_records_may_be_written_out() -> None:
    assert not looked_up(
        "body = {n: e for n, e in record.scalars.items()}\nsum(t.numel() for t in record.tensors.values())"
    )
