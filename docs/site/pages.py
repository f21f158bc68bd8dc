"""Pages that have their source elsewhere: README, changelog, contributing, the list of decisions, the bibliography."""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
ROOT = DOCS.parent

#: Files of the root folder that are pages of the site.
FROM_ROOT = {
    "README.md": "index.md",
    "README.ko.md": "ko/index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def from_root() -> Iterator[tuple[str, str]]:
    """(path in the site, Markdown) of the files in the root folder."""
    for source, page in FROM_ROOT.items():
        text = linked((ROOT / source).read_text(), ".", page)
        yield page, f"---\nhide: [navigation]\n---\n{text}" if page == "index.md" else text


def linked(text: str, folder: str, page: str) -> str:
    """A text of `folder` of the repository as `page` of the site: links lead to pages, or stand as plain text.

    What is no page (code, records of benchmarks) is named, not linked: the site does not carry it.
    """

    def moved(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        path, _, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(folder, path))
        inside = FROM_ROOT.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else None)
        if inside is None and (ROOT / place).exists():
            return words if words == place else f"{words} (`{place}`)"
        if inside is None:
            logging.getLogger("mkdocs.links").warning("%s: there is no %s", page, place)  # an error with --strict
            return match.group()
        if inside == "decisions":
            inside += ".md"
        if words == target.removesuffix("/") or words == target:
            words = title(ROOT / place)
        there = os.path.relpath(inside, posixpath.dirname(page) or ".")
        return f"{picture}[{words}]({there}{'#' + anchor if anchor else ''})"

    return _LINK.sub(moved, text)


#: Who writes in which hundred of docs/decisions.
_ROOMS = {
    "00": "Records, command line, closed forms",
    "01": "Kernels",
    "02": "Signal propagation",
    "03": "Block designs, decoding, kernels on the GPU",
    "04": "Curvature, estimates, preconditioners, compression",
    "05": "Data and training",
    "06": "Sharded models",
    "08": "Experiments and claims",
    "09": "Questions, reports and the live page",
}


def decisions() -> str:
    """The list of decisions, by number."""
    parts = [
        "# Decisions",
        "What was tried, what was measured, and what was decided. Results that were negative are here too.",
    ]
    for hundred, files in groupby(sorted((DOCS / "decisions").glob("0*.md")), lambda f: f.name[:2]):
        rows = [f"- [{f.name[:4]}: {title(f)}](decisions/{f.name})" for f in files]
        parts += [f"## {_ROOMS[hundred]}", "\n".join(rows)]
    return "\n\n".join(parts)


def title(page: Path) -> str:
    """The heading of a page, without its number; a file or folder that has none is called by its name."""
    if page.suffix != ".md":
        return page.name
    return re.sub(r"^(Decision )?\d{4}\W*\s*", "", page.read_text().partition("\n")[0].lstrip("# "))


_ENTRY = re.compile(r"^@\w+\{(\w+),\n(.*?)^\}", re.M | re.S)
_FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*?)\},?$(?=\n\s*\w+\s*=|\s*\Z)", re.M | re.S)


def references() -> str:
    """The bibliography, an anchor for each key."""
    parts = ["# References", "Keys such as [ODS25] in these pages and in docstrings name these sources."]
    for key, body in sorted(_ENTRY.findall((DOCS / "references.bib").read_text())):
        got = {name.lower(): " ".join(re.sub(r"[{}\\]", "", value).split()) for name, value in _FIELD.findall(body)}
        where = got.get("journal") or got.get("booktitle") or got.get("howpublished") or got.get("publisher") or ""
        arxiv = f"arXiv:{got['eprint']}" if "eprint" in got else ""
        place = ", ".join(filter(None, [where, got.get("year", ""), arxiv]))
        text = ". ".join(filter(None, [got.get("author", ""), f"*{got['title']}*", place, got.get("note", "")]))
        parts.append(f"**{key}**{{ #{key} }}: {text}.")
    return "\n\n".join(parts)


def tutorials() -> list[str]:
    """The list of tutorials, then each in the order of that list."""
    listed = re.findall(r"^\| \[[^\]]+\]\((\w+\.md)\)", (DOCS / "tutorials" / "README.md").read_text(), re.M)
    return [f"tutorials/{name}" for name in ("README.md", *listed)]


def unlisted(nav: object) -> list[str]:
    """Pages of docs/ that the navigation in mkdocs.yml does not name."""
    return sorted(p.name for p in DOCS.glob("*.md") if f"'{p.name}'" not in repr(nav))
