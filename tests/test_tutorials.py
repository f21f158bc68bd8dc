"""The tutorials run, and their pages and notebooks say what the scripts say and print."""

from __future__ import annotations

import ast
import importlib
import json
import math
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import tutorials  # noqa: E402  # the renderer; not a package

FOLDER = ROOT / "docs" / "tutorials"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
#: What a tutorial needs besides quadform and its reports.
NEEDS = {"hessian": "transformers"}
NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
#: Numbers of another machine may differ by this share; those below the second are round-off.
SHARE, NOTHING = 0.1, 1e-6


def differences(got: str, want: str) -> list[str]:
    """Where two printed texts differ by more than the last digits of their numbers."""
    texts = [" ".join(NUMBER.sub("#", text).replace("-#", "#").split()) for text in (got, want)]
    if texts[0] != texts[1]:
        return [f"printed: {got}", f"on the page: {want}"]
    pairs = zip(*(map(_value, NUMBER.findall(text)) for text in (got, want)), strict=True)
    return [f"{a:g} instead of {b:g}" for a, b in pairs if not math.isclose(a, b, rel_tol=SHARE, abs_tol=NOTHING)]


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def printed(page: str) -> list[str]:
    return re.findall(r"^```text\n(.*?)\n```$", page, re.S | re.M)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_prints_what_its_page_says(name: str) -> None:
    """Code, words and pictures are the same; printed numbers differ in their last digits at most."""
    pytest.importorskip(NEEDS.get(name, "torch"))
    page = (FOLDER / f"{name}.md").read_text()
    anew = tutorials.page(name, tutorials.execute((FOLDER / f"{name}.py").read_text(), name))
    blank = [re.sub(r"^```text\n.*?\n```$", "```text```", text, flags=re.S | re.M) for text in (anew, page)]
    assert blank[0] == blank[1], "the page is older than the script: make tutorials"
    assert [differences(a, b) for a, b in zip(printed(anew), printed(page), strict=True)] == [[]] * len(printed(page))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_page(name: str) -> None:
    """Cells of the script, printed text of the page, pictures beside the page."""
    book, page = json.loads((FOLDER / f"{name}.ipynb").read_text()), (FOLDER / f"{name}.md").read_text()
    made = [(c["cell_type"], "".join(c["source"])) for c in book["cells"]]
    assert made == [(c.kind, c.source) for c in tutorials.cells((FOLDER / f"{name}.py").read_text())]
    shown = [out for c in book["cells"] for out in c.get("outputs", [])]
    assert ["".join(out["text"]).rstrip() for out in shown if "text" in out] == printed(page)
    pictures = ["".join(out["data"]["image/svg+xml"]) for out in shown if "data" in out]
    named = re.findall(r"\((\S+\.svg)\)", page)
    assert [(FOLDER / n).read_text() for n in named] == pictures
    assert sorted(named) == sorted(p.name for p in FOLDER.glob(f"{name}-*.svg"))
    assert all(len(picture) < 150_000 for picture in pictures)


def test_every_tutorial_is_listed_once() -> None:
    """The table names each page with a sentence."""
    rows = re.findall(r"^\| \[[^\]]+\]\((\w+)\.md\) \| .+\. \|$", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(rows) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_tutorials_use_public_names_alone(name: str) -> None:
    """Names come from `quadform` and from packages that it names; what a package gives is in its table of names."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "quadform":
            public = set(importlib.import_module(node.module or "").__all__)
            assert {alias.name for alias in node.names} <= public, f"{name}: from {node.module}"
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_") or node.attr.startswith("__"), f"{name}: {node.attr}"


def test_links_of_tutorials_lead_somewhere() -> None:
    """Every relative link of the pages is a file of the repository."""
    for page in FOLDER.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


SCRIPT = """# %% [markdown]
# # Title
#
# Words.

# %%
def double(x):
    return 2 * x


double(21)

# %%
print("printed")
y = 1
"""


@pytest.mark.parametrize("name", NAMES)
def test_lines_fit_a_page(name: str) -> None:
    """Code and printed text of a page need no scrolling sideways."""
    blocks = re.findall(r"^```\w+\n(.*?)\n```$", (FOLDER / f"{name}.md").read_text(), re.S | re.M)
    assert [line for block in blocks for line in block.splitlines() if len(line) > tutorials.WIDTH] == []


def test_the_renderer_shows_what_is_printed_and_the_last_value() -> None:
    """As a notebook does; an assignment shows nothing."""
    words, first, second = tutorials.execute(SCRIPT, "x")
    assert (words.kind, words.source) == ("markdown", "# Title\n\nWords.")
    assert (first.text, second.text) == ("42", "printed")
    assert "```text\n42\n```" in tutorials.page("x", [words, first, second])


@pytest.mark.parametrize(
    ("got", "want", "same"),
    [
        ("loss 0.123 +-2e-8", "loss  0.124 +-4e-9", True),
        ("loss 0.12", "loss 0.2", False),
        ("loss 0.12", "cost 0.12", False),
        ("1,024 x 512, −20", "1,024 x 512, −19.9", True),
        ("-0.5", "0.5", False),
        ("W_1 is (3, 4)", "W_2 is (3, 4)", False),
    ],
)
def test_what_counts_as_the_same_text(got: str, want: str, same: bool) -> None:
    """Numbers to a tenth, words exactly, spaces not at all."""
    assert (differences(got, want) == []) is same
