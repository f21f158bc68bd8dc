"""Work: a long question while it runs. Finished pieces are kept, the time is watched, progress is shown.

with Work("runs/x", seconds=600, resume=True) as work:
    work.begin({"verb": "spectrum", "top": 5, "weights": "ab12..."})
    with work.bar(45, "spectrum"), work.in_time():
        lam = work.piece("lambda_max", compute, expected=25)    # computed once; read again by the next run
    work.finish(record)

FOLDER/record.json          the answer
FOLDER/work/question.json   what was asked; another question in the same folder is refused by name
FOLDER/work/pieces.jsonl    one finished piece a line, with its checksum; a damaged line is computed again
FOLDER/work/state/          states of unfinished estimators and training runs

`work/` is removed once the answer is complete. Values of pieces are plain data, `Estimate`s and tensors, and come back
bit for bit. Of several processes the first reads and writes; the others hear from it what is finished.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from .errors import CheckFailed, FileError, InputError
from .files import alone
from .progress import Progress, Report
from .record import JSON_NAME, Estimate, Record, from_json, strict_json, to_json, write_atomically
from .steady import steady

WORK, QUESTION, PIECES, STATE = "work", "question.json", "pieces.jsonl", "state"
#: What tells a folder that holds a model, which is never written over.
MODEL_FILES = ("config.json", "model.json")
#: States above this many bytes are written only where the time is limited: writing costs more than it saves.
LARGE_STATE = 30e6


class TimeUp(CheckFailed):
    """The time a question was given is over; what is finished is kept."""


class Processes(Protocol):
    """What work asks of several processes; `distributed.Group` is one."""

    @property
    def first(self) -> bool: ...
    def by_first(self, work: Callable[[], Any]) -> Any: ...
    def any(self, flag: bool) -> bool: ...


class OneProcess:
    """A process by itself."""

    first = True

    def by_first(self, work: Callable[[], Any]) -> Any:
        return work()

    def any(self, flag: bool) -> bool:
        return flag


class Deadline:
    """Raises TimeUp when the time is over; `None` never does.

    However short the time is, it passes until something has `advanced`, so a run that is resumed again and again ends.
    """

    def __init__(self, seconds: float | None, group: Processes | None = None) -> None:
        self.until = None if seconds is None else time.monotonic() + seconds
        self.group = group or OneProcess()
        self.advanced = False

    @property
    def left(self) -> float:
        return float("inf") if self.until is None else self.until - time.monotonic()

    def check(self, *, advanced: bool = True) -> None:
        """`advanced`: something is done now that was not done before this run."""
        self.advanced |= advanced
        if self.until is not None and self.group.any(self.left <= 0 and self.advanced):
            raise TimeUp("the time is up; what is finished is kept.")


class Work:
    """One question under way in a folder, or in this process alone (`folder=None`). A context manager.

    `seconds` limits the time, `resume` takes up what an earlier run left, `progress` is True, False or a callable.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        seconds: float | None = None,
        resume: bool = False,
        progress: bool | Report = True,
        group: Processes | None = None,
    ) -> None:
        if resume and folder is None:
            raise InputError("nothing can be resumed without a folder; name the one that holds the unfinished run.")
        self.group = group or OneProcess()
        self.folder = Path(folder) if folder is not None and self.group.first else None
        self.resume, self.progress = resume, progress
        self.deadline = Deadline(seconds, self.group)
        self.question: dict[str, Any] = {}
        self.partial = False
        self.seconds = 0.0  # processor time of all pieces, earlier runs included
        self._done: dict[str, Any] = {}
        self._bar: Progress | None = None
        self._each = 0.0
        self._piece = _Piece()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def part(self, name: str) -> Work:
        """The work on one of several questions: a folder inside this one, the same clock."""
        inner = Work(
            None if self.folder is None else self.folder / name,
            resume=self.resume and self.folder is not None,
            progress=self.progress,
            group=self.group,
        )
        inner.deadline = self.deadline
        return inner

    def __enter__(self) -> Work:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    # --- beginning and ending ---------------------------------------------------------------------------------------
    def finished(self, question: Mapping[str, Any], complete: Callable[[Record], bool] | None = None) -> Record | None:
        """The complete answer to this very question, where a resumed folder holds one; another's is refused."""
        if not self.resume or self.folder is None or type(self.group) is not OneProcess:
            return None
        if not (self.folder / JSON_NAME).exists():
            return None
        record = Record.load(self.folder)
        if "question" not in record.inputs or not (complete or is_complete)(record):
            return None
        refuse_other(json.loads(strict_json(record.inputs["question"])), json.loads(strict_json(question)))
        return record

    def begin(self, question: Mapping[str, Any]) -> None:
        """Write the question down, or take up what an earlier run of the same question has finished."""
        self.question = json.loads(strict_json(question))
        self._done = self.group.by_first(self._open)
        self.seconds = sum(float(event["seconds"]) for event in self._done.values())

    def finish(self, record: Record, complete: bool | None = None) -> Record:
        """Save the answer with its question; what is unfinished is removed once the answer is complete."""
        inputs = {**record.inputs, "question": self.question, "partial": self.partial}
        record = dataclasses.replace(record, inputs=inputs)
        if self.folder is not None:
            record.save(self.folder)
            if is_complete(record) if complete is None else complete:
                shutil.rmtree(self.folder / WORK, ignore_errors=True)
        return record

    def _open(self) -> dict[str, Any]:
        if self.folder is None:
            return {}
        inside = self.folder / WORK
        try:
            if self.resume and (inside / QUESTION).exists():
                return self._take_up(inside)
            if any((self.folder / name).exists() for name in MODEL_FILES):
                raise InputError(f"`{self.folder}` holds a model. Choose another folder for the results.")
            shutil.rmtree(inside, ignore_errors=True)
            inside.mkdir(parents=True, exist_ok=True)
            write_atomically(inside / PIECES, b"")
            write_atomically(inside / QUESTION, strict_json(self.question).encode())
        except OSError as error:
            raise FileError(f"{self.folder} cannot hold a run: {error.strerror}. Choose another folder.") from error
        return {}

    def _take_up(self, inside: Path) -> dict[str, Any]:
        try:
            before = {**json.loads((inside / QUESTION).read_text(encoding="utf-8"))}
        except (ValueError, TypeError) as error:
            raise FileError(f"{inside / QUESTION} is damaged ({error}). Choose another folder.") from error
        refuse_other(before, self.question)
        found, path = {}, inside / PIECES
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # a line cut off by a kill
                event = json.loads(line)
                if event["sum"] == _sum(event["piece"], event["value"]):  # else damaged
                    found[str(event["piece"])] = {"value": event["value"], "seconds": event["seconds"]}
        return found

    # --- pieces -----------------------------------------------------------------------------------------------------
    def __contains__(self, name: str) -> bool:
        return name in self._done

    @property
    def pieces(self) -> tuple[str, ...]:
        """The names of the finished pieces."""
        return tuple(self._done)

    def __getitem__(self, name: str) -> Any:
        return _unpacked(self._done[name]["value"])

    def piece(self, name: str, compute: Callable[[], Any], expected: float | None = None, weight: float = 1.0) -> Any:
        """The value of a piece: kept from before, or computed now and kept. `expected` products move the bar.

        TimeUp is raised before a piece that the time does not allow, and inside it after any product.
        """
        expected = self._each if expected is None else expected
        if name in self:
            self.skip(expected)
        else:
            self.deadline.check(advanced=False)
            began = time.process_time()
            with self.counting(name, expected, weight), steady():
                value = compute()
            self.keep(name, value, time.process_time() - began)
            self.deadline.advanced = True
        return self[name]

    def keep(self, name: str, value: Any, seconds: float = 0.0) -> None:
        """Write a finished piece down."""
        packed = json.loads(json.dumps(_packed(value)))
        self._done[name] = {"value": packed, "seconds": seconds}
        self.seconds += seconds
        if self.folder is None:
            return
        line = {"piece": name, "value": packed, "seconds": seconds, "sum": _sum(name, packed)}
        path = self.folder / WORK / PIECES
        with alone(path.parent), open(path, "a+b") as f:  # pieces of one run may be computed by several processes
            if f.tell() and not path.read_bytes().endswith(b"\n"):  # after a line cut off by a kill
                f.write(b"\n")
            f.write(json.dumps(line).encode() + b"\n")
            f.flush()
            os.fsync(f.fileno())

    def state(self, name: str, size: float = 0.0) -> Path | None:
        """A folder for the checkpoints of an estimator or a training run; None where keeping them does not pay.

        `size` is about how many bytes it will hold. With a time limit there is always one: the best so far is read
        from it when the time is up.
        """
        limited = self.deadline.until is not None
        if size > LARGE_STATE and not limited:
            return None
        place = re.sub(r"[^\w.-]+", "-", name)
        if self.folder is not None:
            return self.folder / WORK / STATE / place
        if not limited:
            return None
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory()
        return Path(self._scratch.name) / place

    # --- time and progress ------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def in_time(self) -> Iterator[None]:
        """The end of the time ends the block; `partial` then tells so."""
        try:
            yield
        except TimeUp:
            self.partial = True

    @contextlib.contextmanager
    def bar(self, total: float, what: str, each: float = 0.0) -> Iterator[None]:
        """One bar over all pieces; its unit is the product, or whatever `each` piece has so many of."""
        with Progress(round(total), what, show=self.progress) as self._bar:
            self._each = each
            yield
        self._bar, self._each = None, 0.0

    @contextlib.contextmanager
    def counting(self, label: str, expected: float, weight: float = 1.0) -> Iterator[None]:
        """A stretch of `expected` products. One that takes fewer or more ends at that number: the bar never stalls."""
        start = 0 if self._bar is None else self._bar.done
        before, self._piece = self._piece, _Piece(label, start, expected, weight)
        try:
            yield
        finally:
            self._piece = before
        if self._bar is not None:
            self._bar.step(max(start + round(expected) - self._bar.done, 0), label)

    def skip(self, expected: float) -> None:
        """So many products were done by an earlier run."""
        if self._bar is not None:
            self._bar.skip(round(expected))

    def spend(self, products: float, text: str = "", *, advanced: bool = True) -> None:
        """So many products more; TimeUp after the time."""
        p = self._piece
        p.spent += p.weight * products
        if self._bar is not None:
            reached = p.start + int(min(p.spent, p.expected))
            self._bar.step(max(reached - self._bar.done, 0), f"{p.label} {text}".rstrip())
        self.deadline.check(advanced=advanced)

    def report(self) -> Report:
        """The `progress=` of one estimator inside a piece. Its first step may be what it found on disk."""
        last: list[int] = []

        def told(done: int, total: int, left: float, text: str) -> None:
            new, first = done - sum(last), not last
            last.append(new)
            self.spend(new, text, advanced=not first)

        return told


@dataclasses.dataclass
class _Piece:
    label: str = ""
    start: int = 0
    expected: float = 0.0
    weight: float = 1.0
    spent: float = 0.0


def begun(folder: str | Path) -> dict[str, Any] | None:
    """The question of the unfinished run in a folder; None where there is none that can be read."""
    try:
        return {**json.loads((Path(folder) / WORK / QUESTION).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):
        return None


def is_complete(record: Record) -> bool:
    """Whether a record lacks nothing: not cut short, every number converged."""
    return not record.inputs.get("partial") and all(e.converged for e in record.scalars.values())


def refuse_other(before: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """A folder that was begun with another question is not resumed: the error names what differs."""
    changed = [k for k in {**before, **asked} if before.get(k) != asked.get(k)]
    if "weights" in changed:
        old, new = (str(q.get("weights"))[:8] for q in (before, asked))
        raise InputError(
            f"This run was started with other weights (hash {old} / {new}). Use the old weights or another folder."
        )
    if changed:
        told = ", ".join(f"{k} {_short(before.get(k))} / {_short(asked.get(k))}" for k in changed[:4])
        raise InputError(f"This run was started with other settings ({told}). Use the old settings or another folder.")


# --- values as JSON ---------------------------------------------------------------------------------------------------
_ESTIMATE, _TENSOR = "__estimate__", "__tensor__"


def _packed(value: Any) -> Any:
    if isinstance(value, Estimate):
        return {_ESTIMATE: to_json(dataclasses.asdict(value))}
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        blob = base64.b64encode(flat.view(torch.uint8).numpy().tobytes()).decode()
        return {_TENSOR: {"dtype": str(flat.dtype).removeprefix("torch."), "shape": list(value.shape), "data": blob}}
    if isinstance(value, Mapping):
        return {str(k): _packed(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(v) for v in value]
    return to_json(value)


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ESTIMATE}:
            return Estimate.read(from_json(value[_ESTIMATE]))
        if set(value) == {_TENSOR}:
            body = value[_TENSOR]
            kind, blob = getattr(torch, body["dtype"]), bytearray(base64.b64decode(body["data"]))
            flat = torch.frombuffer(blob, dtype=kind) if blob else torch.empty(0, dtype=kind)
            return flat.reshape(body["shape"])
        plain = from_json(value)
        return {k: _unpacked(v) for k, v in value.items()} if isinstance(plain, dict) else plain
    return [_unpacked(v) for v in value] if isinstance(value, list) else value


def _sum(piece: str, value: Any) -> str:
    return hashlib.sha256(json.dumps([piece, value]).encode()).hexdigest()[:16]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
