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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quadform.report.figure import svg

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"


@dataclass(frozen=True)
class Cell:
    """Markdown or Python of a script; of Python also what it printed and the picture it drew."""

    kind: str
    source: str
    text: str = ""
    picture: str = ""


def cells(script: str) -> list[Cell]:
    """The cells of a script in percent format."""
    found = []
    for part in script.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = (line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
            found.append(Cell("markdown", "\n".join(lines)))
        else:
            found.append(Cell("code", body.strip()))
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
    picture = _drawn(shown.to_dict()) if hasattr(shown, "to_dict") else ""
    return Cell("code", cell.source, printed.getvalue().rstrip(), picture)


def _drawn(chart: dict[str, Any]) -> str:
    """A chart as SVG, its coordinates to two digits."""
    return re.sub(r"(\.\d\d)\d+", r"\1", svg(chart))


def page(name: str, found: list[Cell]) -> str:
    """The tutorial as Markdown; its pictures lie beside it as `NAME-1.svg`, `NAME-2.svg`, ..."""
    parts, drawn = [], 0
    for cell in found:
        if cell.kind == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.text:
            parts.append(f"```text\n{cell.text}\n```")
        if cell.picture:
            drawn += 1
            parts.append(f"![What the code above draws]({name}-{drawn}.svg)")
    made = f"made from [{name}.py]({name}.py) by `make tutorials`; notebook: [{name}.ipynb]({name}.ipynb)"
    parts.append(f"This page is {made}.")
    return "\n\n".join(parts) + "\n"


def notebook(found: list[Cell]) -> dict[str, Any]:
    """The tutorial as a Jupyter notebook (nbformat 4.5)."""
    made: list[dict[str, Any]] = []
    for i, cell in enumerate(found):
        own: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{i}", "metadata": {}}
        own["source"] = cell.source.splitlines(keepends=True)
        if cell.kind == "code":
            outputs: list[dict[str, Any]] = []
            if cell.text:
                text = (cell.text + "\n").splitlines(keepends=True)
                outputs.append({"output_type": "stream", "name": "stdout", "text": text})
            if cell.picture:
                data = {"image/svg+xml": cell.picture.splitlines(keepends=True)}
                outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
            own |= {"execution_count": None, "outputs": outputs}
        made.append(own)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def write(script: Path, folder: Path = FOLDER) -> None:
    """Run a script and write its page, its pictures and its notebook to `folder`."""
    name, found = script.stem, execute(script.read_text(), script.stem)
    for old in folder.glob(f"{name}-*.svg"):
        old.unlink()
    for i, cell in enumerate((c for c in found if c.picture), 1):
        (folder / f"{name}-{i}.svg").write_text(cell.picture)
    (folder / f"{name}.md").write_text(page(name, found))
    (folder / f"{name}.ipynb").write_text(json.dumps(notebook(found), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.py")):
        print(f"{name} ...", file=sys.stderr)
        write(FOLDER / f"{name}.py")
