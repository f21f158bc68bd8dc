"""The Korean pages follow the English ones: the same headings, the same code, links that lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import korean  # noqa: E402  # beside the site it belongs to

PAGES = korean.pages()
#: The guides of daily work: each has a Korean page.
GUIDES = {"start", "guides", "measure", "panel", "preconditioners", "compress", "monitor", "landscape", "attention"}
GUIDES |= {"distributed", "teach"}


def test_the_guides_are_there() -> None:
    """README and guides by task; every Korean page has an English one."""
    assert not GUIDES - {page.stem for page in PAGES}
    assert all(english.exists() for english in PAGES.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_headings_and_code_are_those_of_the_english_page(page: Path) -> None:
    """Headings of the same levels in the same order; code blocks word for word."""
    own, english = page.read_text(), PAGES[page].read_text()
    assert korean.headings(own) == korean.headings(english), f"{page.name}: translate the headings of the English page"
    assert korean.blocks(own) == korean.blocks(english), "run: python docs/site/korean.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_in_korean(page: Path) -> None:
    """Every paragraph outside code and tables has Hangul."""
    text = re.sub(r"^( *)```.*?^\1```$|^\$\$.*?^\$\$$|^\|.*$", "", page.read_text(), flags=re.M | re.S)
    parts = [part for part in re.split(r"\n\s*\n", text) if part.strip() and part.strip() != "# quadform"]
    assert not [part for part in parts if not re.search("[가-힣]", part)]


def test_the_readmes_link_to_each_other() -> None:
    assert "(README.ko.md)" in (ROOT / "README.md").read_text()
    assert "(README.md)" in (ROOT / "README.ko.md").read_text()
