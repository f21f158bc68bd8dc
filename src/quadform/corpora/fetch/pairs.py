"""Parallel text from what was fetched: lines `group TAB source TAB target`, held out by group. Torch-free.

A group is what must not be torn apart by the split, because its members are near-copies of each other.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import re
import tarfile
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from quadform.core.errors import FileError

from .sources import list_language

FILE = "pairs.tsv.gz"
Row = tuple[str, str, str]


def clean(text: str) -> str:
    """One line in Unicode normal form C, single blanks."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def write_pairs(rows: Iterable[Row], folder: Path) -> dict[str, Any]:
    """Write (group, source, target); a source that came before, an empty side, or two equal sides are left out."""
    seen: set[str] = set()
    kept, words, groups = [], 0, set()
    for group, source, target in rows:
        group, source, target = clean(group), clean(source), clean(target)
        if not source or not target or source == target or source in seen:
            continue
        seen.add(source)
        groups.add(group)
        words += len(source.split())
        kept.append(f"{group}\t{source}\t{target}\n")
    if not kept:
        raise FileError("no pair of sentences was found in what was read.")
    blob = "".join(kept).encode()
    (folder / FILE).write_bytes(gzip.compress(blob, mtime=0))
    counts = {"pairs": len(kept), "groups": len(groups), "source words": words}
    return {"digest": hashlib.sha256(blob).hexdigest(), "counts": counts}


def read_pairs(path: Path) -> list[Row]:
    """The (group, source, target) of a file that `write_pairs` wrote."""
    rows = []
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            group, source, target = line.rstrip("\n").split("\t")
            rows.append((group, source, target))
    return rows


# ------------------------------------------------------------------------------------------------ TypeScript messages
_MESSAGE = re.compile(r'diag\(\s*\d+,\s*\d+ /\* \w+ \*/,\s*"((?:[^"\\]|\\.)+)",\s*("(?:[^"\\]|\\.)*")')


def typescript(archives: list[Path], folder: Path, **settings: Any) -> dict[str, Any]:
    """The compiler's messages: English from the compiler itself, the other language from its table, joined by key.

    A group is a message without its placeholders, quoted words and case.
    """
    (archive,) = archives
    with tarfile.open(archive) as tar:
        compiler = _member(tar, "package/lib/typescript.js").decode()
        table = json.loads(_member(tar, f"package/lib/{settings['to']}/diagnosticMessages.generated.json"))
    english = {key: json.loads(text) for key, text in _MESSAGE.findall(compiler)}
    joined = ((english[key], text) for key, text in sorted(table.items()) if key in english)
    return write_pairs(((_skeleton(source), source, target) for source, target in joined), folder)


def _skeleton(message: str) -> str:
    bare = re.sub(r"'[^']*'|\{\d\}|[^a-z ]", " ", message.lower())
    return " ".join(bare.split()) or message


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise FileError(f"the archive holds no {name}.")
    return file.read()


# ------------------------------------------------------------------------------------------------ Debian descriptions
def debian(archives: list[Path], folder: Path, **settings: Any) -> dict[str, Any]:
    """Package descriptions and their translations, joined on Description-md5, cut into sentences where both agree.

    The short line gives one pair. A paragraph gives its sentences when both languages have equally many paragraphs, and
    equally many sentences in this one. Indented blocks and lists are left out. A group is a family of packages.
    """
    texts: dict[str, dict[str, tuple[str, str]]] = {}
    for path in archives:
        language = list_language(path)
        for package, md5, text in _entries(path, language):
            texts.setdefault(language, {}).setdefault(md5, (package, text))
    english, other = texts.get("en", {}), texts.get(settings["to"], {})
    return write_pairs(
        (
            (family(english[md5][0]), source, target)
            for md5, (_, translated) in sorted(other.items(), key=lambda entry: (entry[1][0], entry[0]))
            if md5 in english
            for source, target in aligned(english[md5][1], translated)
        ),
        folder,
    )


def _entries(path: Path, language: str) -> Iterator[tuple[str, str, str]]:
    """(package, md5, description) of a list: paragraphs of `Field: value` lines, values go on in indented lines."""
    field = f"Description-{language}:"
    package = md5 = ""
    lines: list[str] | None = None
    opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8", errors="replace") as file:
        for line in [*file, "\n"]:
            line = line.rstrip("\n")
            if lines is not None and line.startswith(" "):
                lines.append(line)
                continue
            if lines is not None:
                yield package, md5, "\n".join(lines)
                lines = None
            if line.startswith("Package: "):
                package = line[9:]
            elif line.startswith("Description-md5: "):
                md5 = line[17:]
            elif line.startswith(field):
                lines = [line[len(field) :].strip()]


def aligned(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Pairs of sentences of a description (short line, then lines with one leading blank) and its translation."""
    (short, *long), (short_too, *long_too) = source.split("\n"), target.split("\n")
    yield short, short_too
    blocks, blocks_too = _paragraphs(long), _paragraphs(long_too)
    if len(blocks) != len(blocks_too):
        return
    for block, block_too in zip(blocks, blocks_too, strict=True):
        if block is None or block_too is None:
            continue
        sentences, sentences_too = split_sentences(block), split_sentences(block_too)
        if len(sentences) == len(sentences_too):
            yield from zip(sentences, sentences_too, strict=True)


def _paragraphs(lines: list[str]) -> list[str | None]:
    """The paragraphs between ` .` lines; None for one with indented lines or bullets, which is no running text."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == ".":
            blocks.append([])
        else:
            blocks[-1].append(line)
    return [
        None if any(line.startswith("  ") or _BULLET.match(line) for line in block) else " ".join(block).strip()
        for block in blocks
        if block
    ]


_BULLET = re.compile(r" ([-*+o•·]|\d+[.)]) ")
#: A full stop and what follows: a capital or another script's letter, maybe quoted; not after a short abbreviation.
_END = re.compile(
    r"(?<=[.!?。])(?<!\b[A-Za-z]\.)(?<!e\.g\.)(?<!i\.e\.)(?<!\betc\.)(?<!\bvs\.)\s+(?=[\"'(«„“]?[^\Wa-z\d_])"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, cut after . ! ? before a capital (or a letter of a script without case)."""
    return _END.split(text)


def family(package: str) -> str:
    """The name of a package without lib, python, golang and the like, up to the first digit or hyphen."""
    bare = re.sub(
        r"^(lib|(python|golang|node|ruby|r|elpa|haskell|ghc|fonts|php|task|rust|librust|texlive)\d*-)+", "", package
    )
    bare = re.sub(r"^(github-com|google-golang-org|cran|bioc|github|gitlab|x)-", "", bare)
    return re.match(r"[^\d-]*", bare)[0] or package  # type: ignore[index]  # matches any text
