"""Finished pieces of a long measurement, kept in a folder until all are done, so that a killed run goes on."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import FileError, InputError
from ...core.record import Provenance, Record, strict_json, write_atomically
from ...propagation.profiler import Profiler

_FOLDER, _WEIGHTS = "unfinished", "weights.json"


class Parts:
    """Pieces by their identity (plain JSON: what was measured on what); `folder=None` keeps nothing."""

    def __init__(self, folder: Path | None, resume: bool) -> None:
        self.folder = None if folder is None else folder / _FOLDER
        self.found = 0
        if resume and self.folder is None:
            raise InputError("`--resume` goes on with what is in `--out DIR`; give that folder.")
        if self.folder is not None and self.folder.exists() and not resume:
            shutil.rmtree(self.folder)

    @property
    def keeps(self) -> bool:
        return self.folder is not None

    def same(self, label: str, weights: str) -> None:
        """Refuse to go on with other weights under the same name."""
        if self.folder is None:
            return
        path = self.folder / _WEIGHTS
        known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        if known.get(label, weights) != weights:
            raise InputError(
                f"This run was started with other weights (hash {known[label][:8]} / {weights[:8]})."
                " Start fresh with `--out` or name the old weights."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, strict_json(known | {label: weights}).encode())

    def add(self, whole: Profiler, identity: Mapping[str, Any], make: Callable[[], Profiler]) -> None:
        """Put one piece into `whole`: found in the folder, or made now and kept there."""
        name = hashlib.sha256(strict_json(identity).encode()).hexdigest()[:16]
        path = None if self.folder is None else self.folder / name
        if path is not None and path.exists():
            found = _intact(path)
            if found is not None:
                self.found += 1
                whole.load(found.inputs["profiles"], dict(found.tensors))
                return
            shutil.rmtree(path)
        made = make()
        numbers, tensors = made.state()
        if path is not None:
            inputs = {"profiles": numbers, "sum": _sum(numbers)}
            Record("signal-piece", inputs, {}, tensors, Provenance.collect()).save(path)
        whole.load(numbers, tensors)

    def finish(self, whole: bool) -> None:
        """All is done: nothing unfinished is left behind."""
        if whole and self.folder is not None and self.folder.exists():
            shutil.rmtree(self.folder)


def _intact(path: Path) -> Record | None:
    """The piece kept at `path`; None where a kill cut it off or its numbers are not those that were written."""
    try:
        record = Record.load(path)
        return record if record.inputs["sum"] == _sum(record.inputs["profiles"]) else None
    except (FileError, InputError, LookupError):
        return None


def _sum(numbers: Any) -> str:
    return hashlib.sha256(strict_json(numbers).encode()).hexdigest()
