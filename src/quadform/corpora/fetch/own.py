"""Own text as a data set: files of pairs or of running text, packed as a fetched corpus is. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from quadform.core.errors import FileError, InputError
from quadform.core.files import is_dir, is_file

from .pairs import write_pairs
from .store import Fetched, fetched, finish, packing
from .text import write_documents


def build(files: Sequence[str | Path], out: str | Path, *, held: int = 20, pieces: int = 0) -> Fetched:
    """Pack own files into the folder `out`, which `dataset(out)` then opens.

    Files that end in .tsv are pairs, one a line: source TAB target, or group TAB source TAB target (near-copies that
    belong to one side of the split share a group). All others are running text, each file a document. A folder stands
    for the files in it. A document's name is its path below the folder that holds them all. One group in `held` is held
    out for "valid", one for "test".
    """
    if held < 3:
        raise InputError(f"one group in `held` goes to each of valid and test, so held is at least 3; got {held}.")
    out = Path(out)
    paths = sorted({path for file in files for path in _files(Path(file))})
    if not paths:
        raise InputError(f"there is no file in {', '.join(map(str, files)) or 'nothing'}; give text files or pairs.")
    pairs = [path for path in paths if path.suffix == ".tsv"]
    if pairs and len(pairs) < len(paths):
        odd = next(path for path in paths if path.suffix != ".tsv")
        raise InputError(f"pairs (.tsv) and running text do not go into one data set; got {pairs[0]} and {odd}.")
    described = {
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
            told = write_documents(((name, _text(path)) for name, path in _named(paths)), part)
        finish(part, described, told)
    made = fetched(out)
    assert made is not None
    return made


def _named(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """(name, path) of every document: its path below the folder that holds all, or the whole one on several drives."""
    whole = [path.resolve() for path in paths]
    try:
        above = os.path.commonpath([path.parent for path in whole])
    except ValueError:
        return [(full.as_posix(), path) for full, path in zip(whole, paths, strict=True)]
    return [(full.relative_to(above).as_posix(), path) for full, path in zip(whole, paths, strict=True)]


def _files(path: Path) -> list[Path]:
    if is_dir(path):
        return [p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")]
    if not is_file(path):
        raise FileError(f"there is no file {path}.")
    return [path]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as UTF-8 text: {error}.") from error


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) not in (2, 3):
            raise FileError(
                f"{path}, line {number}: a pair is two or three columns with TABs between; got {len(cells)}."
            )
        source, target = cells[-2:]
        yield cells[0], source, target
