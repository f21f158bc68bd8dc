"""The engine behind the page: a message in, an answer out; the size guard, what was measured before, one thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..answers.attention import PARTS
from ..answers.numbers import number
from ..core.record import Record
from .cost import ASK, Cost, Size
from .data import Uploads
from .heat import DETAILS
from .measurement import measure, with_spectrum
from .message import answered
from .python import snippet
from .state import ControlError, State
from .telling import tell
from .texts import LANGUAGES
from .tour import STEPS
from .view import Shown, view

#: Bytes of records kept for undo, ghosts and pins; at least LEAST_KEPT of them, however large. A small record is made
#: again in a few hundredths of a second, and a large one is kept as long as the page compares with it.
KEPT_BYTES, LEAST_KEPT = 8e6, 2
#: Below this many parameters one thread is the fastest.
_SHARED_FROM = 1000
_FLAGS = ("pinned", "final", "confirmed")
_SHOWN = {"part": PARTS, "detail": DETAILS, "step": ("", *STEPS)}


@dataclass(frozen=True)
class Message:
    """One event of the page: its number, the state asked for, the state to compare with, and how it was asked.

    `final`: the control was let go. `confirmed`: the user wants it although it takes long. `part` and `detail` say what
    of it is drawn, `step` which step of the tour is told.
    """

    seq: int
    state: State
    against: State | None = None
    lang: str = "en"
    pinned: bool = False
    final: bool = True
    confirmed: bool = False
    part: str = "total"
    detail: str = "blocks"
    step: str = ""

    @classmethod
    def of(cls, body: dict[str, Any]) -> Message:
        seq, lang = body.get("seq"), body.get("lang", "en")
        if not isinstance(seq, int) or isinstance(seq, bool) or lang not in LANGUAGES or "state" not in body:
            raise ControlError("", "message")
        against = body.get("against")
        more: dict[str, Any] = {name: bool(body.get(name, getattr(cls, name))) for name in _FLAGS}
        for name, known in _SHOWN.items():
            more[name] = body.get(name, known[0])
            if more[name] not in list(known):
                raise ControlError("", "message")
        return cls(seq, State.of(body["state"]), None if against is None else State.of(against), lang, **more)

    @property
    def shown(self) -> Shown:
        return Shown(self.part, self.detail, self.lang, self.pinned)


@dataclass
class Engine:
    """Answers messages one after the other. What was measured last is kept: `KEPT_BYTES` of it."""

    uploads: Uploads = field(default_factory=Uploads)
    cost: Cost = field(default_factory=Cost)
    kept: OrderedDict[State, Record] = field(default_factory=OrderedDict)
    busy: bool = False

    def answer(self, text: str | bytes) -> dict[str, Any]:
        """The answer to a message as it came: an `answer`, a `wait`, a question (`ask`), or an `error` at a control."""
        return answered(text, LANGUAGES, lambda body, _: self._answer(Message.of(body)))

    def _answer(self, asked: Message) -> dict[str, Any]:
        texts, size = LANGUAGES[asked.lang], Size.of(asked.state, self.uploads)
        if asked.state not in self.kept:
            verdict = self.cost.verdict(asked.state, size, asked.final, asked.confirmed)
            if verdict != "now":
                seconds = number(self.cost.predict(asked.state, size), 1)
                kind = "wait" if verdict == "release" else "ask"
                return {"kind": kind, "seq": asked.seq, "text": texts(f"guard_{verdict}", seconds=seconds)}
        against = self._compared(asked.against, asked.part)  # first: what is asked for now stays the longest
        record = self.record(asked.state, asked.part)
        given = tuple(self.uploads.get(asked.state.upload).tensors) if asked.state.data == "upload" else ()
        found = view(record, asked.state, against, asked.shown, snippet(asked.state, given))
        if asked.step:
            start = self.record(STEPS[asked.step].start)
            found["told"] = tell(asked.step, record, start, LANGUAGES[asked.lang])
        return {"kind": "answer", "seq": asked.seq, **found}

    def _compared(self, state: State | None, part: str) -> tuple[Record, State] | None:
        """The record to compare with; None where there is none, it was refused, or making it again would take long."""
        if state is None:
            return None
        try:
            if state not in self.kept and self.cost.predict(state, Size.of(state, self.uploads)) > ASK:
                return None
            return self.record(state, part), state
        except ControlError:
            return None

    def record(self, state: State, part: str = "total") -> Record:
        """The record of a state with the eigenvalues of a part, measured unless it is still there."""
        if state not in self.kept:
            self._measure(state)
        self.kept.move_to_end(state)
        self.kept[state] = with_spectrum(self.kept[state], part)
        return self.kept[state]

    def _measure(self, state: State) -> None:
        size = Size.of(state, self.uploads)
        started = time.perf_counter()
        with _threads(size.parameters):
            record = measure(state, self.uploads)
        self.cost.learn(state, size, time.perf_counter() - started)
        self.kept[state] = record
        while len(self.kept) > LEAST_KEPT and sum(map(_bytes, self.kept.values())) > KEPT_BYTES:
            self.kept.popitem(last=False)


def _bytes(record: Record) -> int:
    """The memory its tensors hold; a view holds all of what it looks at."""
    return sum(t.untyped_storage().nbytes() for t in record.tensors.values())


@contextlib.contextmanager
def _threads(parameters: int) -> Iterator[None]:
    """One thread for small matrices; as many as before afterwards."""
    before = torch.get_num_threads()
    if parameters < _SHARED_FROM and before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


class Worker:
    """One daemon thread that runs functions in the order they come; it never keeps the program from ending."""

    def __init__(self) -> None:
        self.busy = False
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="quadform-explore", daemon=True).start()

    async def run(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._tasks.put((function, loop, future))
        return await future

    def _work(self) -> None:
        while True:
            function, loop, future = self._tasks.get()
            if future.cancelled():  # nobody waits any more
                continue
            self.busy = True
            try:
                found, error = function(), None
            except BaseException as caught:
                found, error = None, caught
            self.busy = False
            with contextlib.suppress(RuntimeError):  # the server has ended in the meantime
                loop.call_soon_threadsafe(_settle, future, found, error)


def _settle(future: asyncio.Future[Any], found: Any, error: BaseException | None) -> None:
    if not future.done():
        future.set_exception(error) if error else future.set_result(found)
