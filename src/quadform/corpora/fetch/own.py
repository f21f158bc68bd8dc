"""Own text as a data set: files of pairs or of running text, packed as a fetched corpus is. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from quadform.core.errors import FileError, InputError
from quadform.core.files import is_dir

from ..text_files import read_text, read_text_file, text_file
from .pairs import write_pairs
from .store import Fetched, fetched, finish, packing
from .text import write_documents


def build(files: Sequence[str | Path], out: str | Path, *, held: int = 20, pieces: int = 0) -> Fetched:
    """Pack own files into the folder `out`, which `dataset(out)` then opens.

    Files that end in .tsv are pairs, one a line: source TAB target, or group TAB source TAB target (near-copies that
    belong to one side of the split share a group). All others are running text: each row of a table (.csv, .json,
    .jsonl) is a document, the text of its text field; `rows.csv:body` names the field, also of a .tsv table. Any other
    file is one document. A folder stands for the files in it. A document's name is its path below the folder that holds
    them all, and its row. One group in `held` is held out for "valid", one for "test".
    """
    if held < 3:
        raise InputError(f"one group in `held` goes to each of valid and test, so held is at least 3; got {held}.")
    out = Path(out)
    paths = sorted({found for file in files for found in _files(file)})
    if not paths:
        raise InputError(f"there is no file in {', '.join(map(str, files)) or 'nothing'}; give text files or pairs.")
    pairs = [path for path, field in paths if path.suffix == ".tsv" and not field]
    if pairs and len(pairs) < len(paths):
        odd = next(path for path, field in paths if path.suffix != ".tsv" or field)
        raise InputError(f"pairs (.tsv) and running text do not go into one data set; got {pairs[0]} and {odd}.")
    described: dict[str, Any] = {
        "name": out.resolve().name,
        "kind": "pairs" if pairs else "text",
        "title": f"own text from {len(paths)} file{'s' * (len(paths) != 1)}",
        "licence": "your own",
        "source": "built here",
        "settings": {},
        "held": held,
        "pieces": pieces,
    }
    with packing(out) as part:
        if pairs:
            told = write_pairs((row for path in pairs for row in _rows(path)), part)
        else:
            told = write_documents(_documents(paths), part)
        finish(part, described, told)
    made = fetched(out)
    assert made is not None
    return made


def _documents(paths: Sequence[tuple[Path, str]]) -> Iterator[tuple[str, str]]:
    """(name, text) of every document of the (path, field) of files."""
    for name, (path, field) in zip(_names([path for path, _ in paths]), paths, strict=True):
        found = read_text_file(f"{path}:{field}" if field else str(path))
        if not found.table:
            yield name, found.text
            continue
        of = f"{name}:{field}" if field else name
        digits = len(str(len(found.texts)))
        yield from ((f"{of}/{row:0{digits}d}", text) for row, text in enumerate(found.texts, start=1))


def _names(paths: Sequence[Path]) -> list[str]:
    """The paths of files below the folder that holds them all, or the whole ones on several drives."""
    whole = [path.resolve() for path in paths]
    try:
        above = os.path.commonpath([path.parent for path in whole])
    except ValueError:
        return [full.as_posix() for full in whole]
    return [full.relative_to(above).as_posix() for full in whole]


def _files(named: str | Path) -> list[tuple[Path, str]]:
    """(path, field asked for) of every file that is named."""
    path = Path(named)
    if is_dir(path):
        return [(p, "") for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")]
    found = text_file(str(named))
    if found is None:
        raise FileError(f"there is no file {named}.")
    return [(found[0], found[1] or "")]


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) not in (2, 3):
            raise FileError(
                f"{path}, line {number}: a pair is two or three columns with TABs between; got {len(cells)}."
            )
        source, target = cells[-2:]
        yield cells[0], source, target
