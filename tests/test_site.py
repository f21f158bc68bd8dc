"""The documentation site: it builds without a warning, loads nothing from outside, and describes every public name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import api  # noqa: E402
import docstrings  # noqa: E402
import pages  # noqa: E402


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a broken link or a missing anchor is an error (not with --quiet)."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_every_public_name_has_a_docstring() -> None:
    """Functions, classes and modules have one; a value has a string below its assignment."""
    named = [name for room in api.rooms() for name in api.names(room)]
    assert len(named) > 300
    assert not [name.path for name in named if not name.doc]


def test_a_missing_docstring_is_seen() -> None:
    """The text that dataclasses make up, and a value without a string below it, count as none."""
    from dataclasses import make_dataclass

    assert not api.Name("quadform.Made", make_dataclass("Made", ["x"])).doc
    assert not api.Name("quadform.core.designs.CODEPARROT", sys.modules["quadform.core.designs"].CODEPARROT).doc


def test_every_public_name_has_its_place(site: Path) -> None:
    """The page of its room has an anchor with the name people write, or says whose second name it is."""
    missing, first = [], set()
    for room in api.rooms():
        page = (site / "reference" / f"{room}.html").read_text()
        for name in api.names(room):
            again = name.defined in first
            first.add(name.defined)
            found = (
                f'id="{name.short.lower()}' in page and "The same as" in page if again else f'id="{name.path}"' in page
            )
            missing += [] if found else [name.path]
    assert not missing


def test_nothing_is_loaded_from_outside(site: Path) -> None:
    """No script, style, font or picture has an address on a network; the search index opens from disk."""
    loads = re.compile(
        r"""<(?:script|img|iframe)[^>]*\ssrc=["']?https?:|<link[^>]*href=["']?https?:|url\(["']?https?:"""
    )
    texts = {p: p.read_text() for kind in ("*.html", "*.css") for p in site.rglob(kind)}
    assert len(texts) > 100
    assert not [p.name for p, text in texts.items() if loads.search(text)]
    index = (site / "search" / "search_index.js").read_text().removeprefix("var __index = ")
    where = {entry["location"].partition("#")[0] for entry in json.loads(index)["docs"]}
    assert {"index.html", "reference/quadform.html", "notation.html"} <= where


def test_formulas_are_set_without_a_script(site: Path) -> None:
    """TeX in a page becomes MathML while the site is built; none of it is left."""
    texts = [p.read_text() for p in site.rglob("*.html")]
    assert any("<math" in text for text in texts)
    assert not any('class="arithmatex"' in text for text in texts)


def test_links_of_the_root_folder_lead_to_pages(caplog: pytest.LogCaptureFixture) -> None:
    """A page by its title, a picture as it is, a record of a benchmark as its name; what is broken is told."""
    linked = pages.linked
    assert linked("[docs/notation.md](docs/notation.md)", ".", "index.md") == "[Notation](notation.md)"
    assert linked("[n](docs/notation.md#x)", ".", "index.md") == "[n](notation.md#x)"
    assert linked("[n](../notation.md)", "docs/decisions", "decisions/0001.md") == "[n](../notation.md)"
    assert linked("[c](../CHANGELOG.md)", "docs", "panel.md") == "[c](changelog.md)"
    assert linked("[d](docs/decisions/)", ".", "index.md") == "[d](decisions.md)"
    assert linked("![p](docs/pictures/report.png)", ".", "index.md") == "![p](pictures/report.png)"
    assert linked("[r](../benchmarks/records/)", "docs", "panel.md") == "r (`benchmarks/records`)"
    assert not caplog.messages
    assert linked("[b](../no-such-file.md)", "docs", "panel.md") == "[b](../no-such-file.md)"
    assert caplog.messages == ["panel.md: there is no no-such-file.md"]


def test_docstrings_keep_their_signs() -> None:
    """Markup outside of code is escaped, inside it is not; a list stays a list."""
    assert docstrings.escaped("a < b, x*y, W_Q and `W_Q * x`") == r"a &lt; b, x\*y, W\_Q and `W_Q * x`"
    assert docstrings.escaped("Two:\n\n* one\n* two") == "Two:\n\n* one\n* two"
    told = docstrings.escaped("Args:\n    a, b: The first,\n        and W_Q.\n\nReturns:\n    A sum.")
    assert told == "**Args**\n\n- `a`, `b`: The first, and W\\_Q.\n\n**Returns**: A sum.\n"


def test_a_page_that_nobody_listed_is_found() -> None:
    """What mkdocs.yml does not name goes under More."""
    nav = [f"'{name}'" for name in re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())]
    assert "notation.md" not in pages.unlisted(nav)
    assert "notation.md" in pages.unlisted([page for page in nav if page != "'notation.md'"])


def test_references_have_an_anchor_each() -> None:
    """Every key of the bibliography, with its title."""
    text = pages.references()
    keys = re.findall(r"^@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text(), re.M)
    assert keys
    assert not [key for key in keys if f"**{key}**{{ #{key} }}" not in text]
    assert "What Does It Mean to Be a Transformer?" in text
