"""Text files: plain text, or the text field of JSONL, JSON, CSV and TSV, found or asked for by name. Torch-free.

`file.jsonl` reads the one field that holds text; `file.jsonl:body` reads the field `body`.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quadform.core.errors import FileError, InputError, UnknownName, did_you_mean

#: Names of fields that hold the text of a row.
TEXT_FIELDS = ("text", "content", "sentence", "document", "body", "passage", "article", "story", "code")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_TABLES = (".jsonl", ".ndjson", ".json", *_DELIMITERS)
_BINARY = (".parquet", ".arrow", ".feather", ".xlsx")


@dataclass(frozen=True)
class TextFile:
    """The texts of a file (one, or of a table one a row), and in words where they are from."""

    texts: tuple[str, ...]
    described: str
    table: bool = False

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def text_file(data: str) -> tuple[Path, str | None] | None:
    """The file and field that `data` names; None where it names no file."""
    head, _, field = data.rpartition(":")
    for path, wanted in ((data, None), (head, field or None)):
        try:
            if path and Path(path).is_file():
                return Path(path), wanted
        except (OSError, ValueError):  # no name a file can have
            continue
    return None


def read_text_file(data: str) -> TextFile:
    """The text `data` names; what cannot be read, or has no one text field, is an error that says what there is."""
    found = text_file(data)
    if found is None:
        raise FileError(f"`{data}`: there is no such text file.")
    path, field = found
    if path.suffix.lower() in _BINARY:
        raise FileError(f"`{path}`: tables are read from JSONL, JSON, CSV and TSV files. Save it as one of them.")
    raw = read_text(path)
    rows = _rows(raw, path) if path.suffix.lower() in _TABLES else None
    if rows is None:
        if field is not None:
            raise InputError(f"`{data}`: `{path}` is not a table, so it has no field `{field}`. Leave it out.")
        return TextFile((raw,), str(path))
    chosen = _field(rows, path, field)
    texts = tuple(t for row in rows if isinstance(t := row.get(chosen), str) and t.strip())
    if not texts:
        raise InputError(f"`{path}`: the field `{chosen}` holds no text.")
    return TextFile(texts, f"{path}, field `{chosen}` of {len(texts):,} rows", table=True)


def read_text(path: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"`{path}` cannot be read as UTF-8 text: {error}.") from error


def _rows(raw: str, path: Path) -> list[dict[str, Any]] | None:
    """The rows of a table; None for JSON that is no list of objects."""
    suffix = path.suffix.lower()
    if suffix in _DELIMITERS:
        return [dict(row) for row in csv.DictReader(io.StringIO(raw, newline=""), delimiter=_DELIMITERS[suffix])]
    if suffix == ".json":
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        fits = isinstance(body, list) and body and all(isinstance(row, dict) for row in body)
        return body if fits else None
    rows = []
    for i, line in enumerate(raw.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FileError(f"`{path}`: line {i} is not JSON ({error}).") from error
        rows.append(row if isinstance(row, dict) else {"text": row})
    return rows


def _field(rows: list[dict[str, Any]], path: Path, wanted: str | None) -> str:
    """The field to read: the one asked for, the one of a usual name, or the only one with text in it."""
    columns = list(dict.fromkeys(str(name) for row in rows for name in row if name is not None))
    if wanted is not None:
        if wanted not in columns:
            raise UnknownName(
                f"`{path}` has no field `{wanted}`; it has {', '.join(columns)}.{did_you_mean(wanted, columns)}"
            )
        return wanted
    with_text = [c for c in columns if any(_is_text(row.get(c)) for row in rows)]
    usual = [c for c in with_text if c.lower() in TEXT_FIELDS]
    candidates = usual or with_text
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise InputError(f"`{path}` has no field with text in it; it has {', '.join(columns) or 'no fields'}.")
    raise InputError(
        f"`{path}` has several fields with text: {', '.join(candidates)}. Name one: `{path}:{candidates[0]}`."
    )


def _is_text(value: Any) -> bool:
    """Whether a cell holds words: a string that is neither empty nor a number."""
    if not isinstance(value, str) or not value.strip():
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False
