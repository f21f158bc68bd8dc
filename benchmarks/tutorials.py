"""Tutorials: a script in percent format in, its page and its notebook out, with what it printed and drew.

    python benchmarks/tutorials.py [NAME ...]        # all of docs/tutorials without a name

A cell begins at a line `# %%`; below `# %% [markdown]` every line is a comment with Markdown in it. A code cell shows
what it printed and, as in a notebook, the value of its last line: a chart as a picture, all else as text. Scripts run
in an empty folder. Progress goes to stderr and is not shown.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quadform.report.figure import svg

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
#: Letters in a line of a page; longer lines that were printed go on in the next.
WIDTH = 86


@dataclass(frozen=True)
class Cell:
    """Markdown or Python of a script; of Python also what it printed and the picture (SVG) it drew."""

    kind: str
    source: str
    text: str = ""
    picture: str = ""


def cells(script: str) -> list[Cell]:
    """The cells of a script in percent format."""
    found = []
    for part in re.split(r"^# %%", script, flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
        found.append(Cell("markdown" if head.strip() else "code", body.strip()))
    return found


def execute(script: str, name: str) -> list[Cell]:
    """The cells with what they printed and drew, run one after the other in a folder of their own."""
    own: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return [c if c.kind == "markdown" else _executed(c, own, f"{name} [{i}]") for i, c in enumerate(cells(script))]


def _executed(cell: Cell, own: dict[str, Any], where: str) -> Cell:
    tree, shown = ast.parse(cell.source), None
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, where, "exec"), own)
        if last is not None:
            shown = eval(compile(last, where, "eval"), own)
        if shown is not None and not hasattr(shown, "to_dict"):
            print(shown)
    text = "\n".join(_wrapped(line) for line in printed.getvalue().rstrip().splitlines())
    picture = re.sub(r"(\.\d\d)\d+", r"\1", svg(shown.to_dict())) if hasattr(shown, "to_dict") else ""
    return Cell("code", cell.source, text, picture)


def _wrapped(line: str) -> str:
    how: dict[str, Any] = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(line, WIDTH, **how) if len(line) > WIDTH else line


def page(name: str, found: list[Cell]) -> str:
    """The tutorial as Markdown; its pictures lie beside it as `NAME-1.svg`, `NAME-2.svg`, ..."""
    parts, drawn = [], 0
    for cell in found:
        parts.append(cell.source if cell.kind == "markdown" else f"```python\n{cell.source}\n```")
        if cell.text:
            parts.append(f"```text\n{cell.text}\n```")
        if cell.picture:
            drawn += 1
            parts.append(f"![What the code above draws]({name}-{drawn}.svg)")
    made = f"made from [{name}.py]({name}.py) by `make tutorials`; notebook: [{name}.ipynb]({name}.ipynb)"
    return "\n\n".join([*parts, f"This page is {made}."]) + "\n"


def notebook(found: list[Cell]) -> dict[str, Any]:
    """The tutorial as a Jupyter notebook (nbformat 4.5)."""
    made: list[dict[str, Any]] = []
    for i, cell in enumerate(found):
        own: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{i}", "metadata": {}}
        own["source"] = cell.source.splitlines(keepends=True)
        if cell.kind == "code":
            text, data = (cell.text + "\n").splitlines(keepends=True), cell.picture.splitlines(keepends=True)
            printed = [{"output_type": "stream", "name": "stdout", "text": text}] if cell.text else []
            drawn = [{"output_type": "display_data", "data": {"image/svg+xml": data}, "metadata": {}}] if data else []
            own |= {"execution_count": None, "outputs": [*printed, *drawn]}
        made.append(own)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def write(name: str, folder: Path = FOLDER) -> None:
    """Run a script of `folder` and write its page, its pictures and its notebook beside it."""
    found = execute((folder / f"{name}.py").read_text(), name)
    for old in folder.glob(f"{name}-*.svg"):
        old.unlink()
    for i, cell in enumerate((c for c in found if c.picture), 1):
        (folder / f"{name}-{i}.svg").write_text(cell.picture)
    (folder / f"{name}.md").write_text(page(name, found))
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook(found), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.py")):
        print(f"{name} ...", file=sys.stderr)
        write(name)
