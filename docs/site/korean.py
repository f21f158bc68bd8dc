"""The Korean pages: the same headings as the English ones, and their code blocks word for word.

`python docs/site/korean.py` copies the code blocks of the English pages into the Korean ones. Their text is written by
hand.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
ROOT = DOCS.parent

_BLOCK = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def pages() -> dict[Path, Path]:
    """Every Korean page and the English page it is a translation of."""
    found = {page: DOCS / page.name for page in sorted((DOCS / "ko").glob("*.md"))}
    return {ROOT / "README.ko.md": ROOT / "README.md"} | found


def blocks(text: str) -> list[str]:
    """The code blocks of a page, with what they print."""
    return [match.group() for match in _BLOCK.finditer(text)]


def headings(text: str) -> list[int]:
    """The level of every heading."""
    return [len(mark) for mark in re.findall(r"^(#+) ", _BLOCK.sub("", text), re.M)]


def synced(korean: str, english: str) -> str:
    """The Korean page with the code blocks of the English one."""
    theirs = iter(blocks(english))
    return _BLOCK.sub(lambda own: next(theirs, own.group()), korean)


if __name__ == "__main__":
    for korean, english in pages().items():
        korean.write_text(synced(korean.read_text(), english.read_text()))
