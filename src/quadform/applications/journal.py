"""The journal of a long question: what was asked and every finished piece, so that a killed run goes on where it was.

FOLDER/config.json    the question and a hash of the weights, written first
FOLDER/events.jsonl   one finished piece a line with its checksum; a line cut off by a kill, or damaged, is left out
FOLDER/state/         states of unfinished estimators (basis vectors); gone when all is done

A piece is plain JSON; numbers come back bit for bit. Another question in the same folder is refused by name. Of several
processes the first keeps the folder; the others hear from it what is finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..core.errors import FileError, InputError
from ..core.record import strict_json, write_atomically
from ..core.work import TimeUp
from ..distributed.processes import ALONE, Group

CONFIG, EVENTS, STATE = "config.json", "events.jsonl", "state"


class Journal:
    """`journal.piece("batch/1", compute)` computes once and remembers; with `folder=None` in this process only."""

    def __init__(
        self, folder: str | Path | None, question: Mapping[str, Any], *, resume: bool = True, group: Group = ALONE
    ) -> None:
        self.folder = None if folder is None or not group.first else Path(folder)
        self.done: dict[str, Any] = {}
        self.done = group.by_first(lambda: self._open(question, resume))
        self.found = len(self.done)

    def _open(self, question: Mapping[str, Any], resume: bool) -> dict[str, Any]:
        folder = self.folder
        if folder is None:
            return {}
        asked = json.loads(strict_json(question))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if resume and (folder / CONFIG).exists():
                self._take_up(asked)
            elif (folder / CONFIG).exists() and not (folder / EVENTS).exists():
                raise InputError(
                    f"`{folder}` holds a {CONFIG} that no run of quadform wrote: a model's, perhaps."
                    " Choose another folder for the results."
                )
            else:
                self.forget_state()
                write_atomically(folder / EVENTS, b"")
                write_atomically(folder / CONFIG, strict_json(asked).encode())
        except OSError as error:
            raise FileError(f"{folder} cannot hold a run: {error.strerror}. Choose another folder.") from error
        return self.done

    def _take_up(self, asked: dict[str, Any]) -> None:
        assert self.folder is not None
        try:
            before = {**json.loads((self.folder / CONFIG).read_text(encoding="utf-8"))}
        except (ValueError, TypeError) as error:
            raise FileError(f"{self.folder / CONFIG} is damaged ({error}). Choose another folder.") from error
        refuse_other(before, asked)
        path = self.folder / EVENTS
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            try:
                event = json.loads(line)
                piece, value = str(event["piece"]), event["value"]
            except (ValueError, TypeError, KeyError):  # a line cut off by a kill
                continue
            if event.get("sum") == _sum(piece, value):  # else damaged: measured again
                self.done[piece] = value

    def __contains__(self, piece: str) -> bool:
        return piece in self.done

    def piece(self, name: str, compute: Callable[[], Any]) -> Any:
        """The value of a piece: remembered, or computed now and written down. Values are plain JSON."""
        if name not in self.done:
            self.write(name, compute())
        return self.done[name]

    def write(self, name: str, value: Any) -> None:
        """Write a finished piece down."""
        value = json.loads(json.dumps(value))
        line = json.dumps({"piece": name, "value": value, "at": round(time.time(), 3), "sum": _sum(name, value)})
        self.done[name] = value
        if self.folder is None:
            return
        path = self.folder / EVENTS
        with open(path, "a+b") as f:
            if f.tell() and not path.read_bytes().endswith(b"\n"):  # after a line cut off by a kill
                f.write(b"\n")
            f.write(line.encode() + b"\n")
            f.flush()
            os.fsync(f.fileno())

    def state(self, name: str) -> Path | None:
        """A folder for the state of one estimator of this run."""
        return None if self.folder is None else self.folder / STATE / name

    def forget_state(self) -> None:
        """Remove the states of estimators: they are large, and finished pieces do not need them."""
        if self.folder is not None:
            shutil.rmtree(self.folder / STATE, ignore_errors=True)


class Deadline:
    """Raises TimeUp when the time is over; `None` never does.

    However short the time is, it passes until something has `advanced`: a run that is resumed again and again ends.
    Processes of a group stop together.
    """

    def __init__(self, seconds: float | None, group: Group = ALONE) -> None:
        self.until = None if seconds is None else time.monotonic() + seconds
        self.group = group
        self.advanced = False

    @property
    def left(self) -> float:
        return float("inf") if self.until is None else self.until - time.monotonic()

    def check(self, *, advanced: bool = True) -> None:
        """`advanced`: something is now done that was not done before this run."""
        self.advanced |= advanced
        if self.until is not None and self.group.any(self.left <= 0 and self.advanced):
            raise TimeUp("the time given with `--max-time` is over; go on with `--resume`.")


#: Vectors an estimator keeps on disk, about; and the bytes from which writing them costs more than it saves.
_VECTORS, _LARGE = 40, 30e6


def kept_state(journal: Journal, name: str, model: nn.Module, deadline: Deadline) -> Path | None:
    """Where the estimators of a short piece keep their state: nowhere for a large model, unless its time is limited.

    Writing 30 vectors of 9 million entries takes a quarter of the time it takes to find them again.
    """
    size = _VECTORS * sum(p.numel() * p.element_size() for p in model.parameters())
    return journal.state(name) if size < _LARGE or deadline.until is not None else None


def refuse_other(before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """A folder that was begun with another question is not gone on with: an error that names what differs."""
    changed = [k for k in {**before, **asked} if before.get(k) != asked.get(k)]
    if "weights" in changed:
        old, new = (str(q.get("weights"))[:8] for q in (before, asked))
        raise InputError(
            f"This run was started with other weights (hash {old} / {new})."
            " Start fresh with `--out` or name the old weights."
        )
    if changed:
        told = ", ".join(f"{k} {_short(before.get(k))} / {_short(asked.get(k))}" for k in changed[:4])
        raise InputError(
            f"This run was started with other settings ({told}). Start fresh with `--out` or name the old settings."
        )


def _sum(piece: str, value: Any) -> str:
    return hashlib.sha256(json.dumps([piece, value]).encode()).hexdigest()[:16]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
