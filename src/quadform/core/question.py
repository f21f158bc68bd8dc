"""Question: what can be asked, one frozen value for Python, command line, report and live page. Torch-free.

@dataclass(frozen=True, kw_only=True)
class SpectrumQuestion(Question):
    top: int = option(5, "Number of largest eigenvalues.", least=0)

A field holds its default, its help text and its check; there is no second list of them. The command line reads its
flags from here. A field that takes text on the command line and another value in Python names how to `parse` the text.
"""

from __future__ import annotations

import dataclasses
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .errors import InputError, UnknownName, did_you_mean

if TYPE_CHECKING:
    from .record import Record
    from .work import Work

T = TypeVar("T")

#: The largest whole number: torch counts in 64 bits.
LARGEST = 2**63 - 1
#: More seconds than this no clock of the system waits.
LONGEST = 1e12


@dataclass(frozen=True)
class Option:
    """What is known of a field besides its type and default."""

    help: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    below: float | None = None
    parse: Callable[[str], Any] | None = None
    metavar: str = ""
    shown: str = ""
    positional: bool = False
    command_line: bool = True


def option(
    default: T,
    help: str,
    *,
    choices: Sequence[str] = (),
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    parse: Callable[[str], Any] | None = None,
    metavar: str = "",
    shown: str = "",
    positional: bool = False,
    command_line: bool = True,
) -> T:
    """A field with its default and help.

    `choices`, `least` (value >= least), `above` (value > above) and `below` (value < below) are checked when the
    question is made; None passes. `shown` stands in the help in place of the default. A field with
    `command_line=False` is for Python alone.
    """
    known = Option(help, tuple(choices), least, above, below, parse, metavar, shown, positional, command_line)
    return field(default=default, metadata={"option": known})


def required(help: str, *, metavar: str) -> Any:
    """A positional field without a default."""
    return field(metadata={"option": Option(help, metavar=metavar, positional=True)})


@dataclass(frozen=True)
class Plan:
    """What the work on a question will take: Hessian products, seconds here, bytes beside the model, in words."""

    text: str
    products: int = 0
    seconds: float = 0.0
    bytes: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "products": self.products, "seconds": self.seconds, "bytes": self.bytes} | dict(
            self.details
        )


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Named values that check themselves when they are made."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            known: Option | None = f.metadata.get("option")
            if known is None:
                continue
            value = getattr(self, f.name)
            if known.parse is not None and isinstance(value, str):
                value = known.parse(value)
                object.__setattr__(self, f.name, value)
            _check(f.name, value, known)
        self.check()

    def check(self) -> None:
        """Checks of several fields together."""


@dataclass(frozen=True, kw_only=True)
class Question(Fields, ABC):
    """What is asked. `again` names the fields a resumed run may change: they say how the answer is found, not what."""

    verb: ClassVar[str]
    again: ClassVar[frozenset[str]] = frozenset()
    #: What its function and its verb take beside the fields; `dry_run` is the function's `plan`.
    takes: ClassVar[frozenset[str]] = frozenset({"out", "resume", "max_time", "dry_run"})

    @abstractmethod
    def measurement(self, subject: Any = None) -> Any:
        """The question ready to be measured (`plan()`, `measure(work)`): the model is open, its operators are made."""

    @classmethod
    @abstractmethod
    def answer(cls, record: Record) -> Any:
        """The answer in a saved record."""

    def light(self, opening: Any) -> Any:
        """The subject of a plan of this question: less than what is measured, where that tells the cost too."""
        return opening.light()

    def folder(self, opening: Any, out: str | None) -> str | None:
        """The folder that keeps the work of a command; `out` is the one that was named."""
        return out

    def identity(self, subject: Any = None) -> dict[str, Any]:
        """The question in plain values, and what it is about: what a resumed run must find again."""
        own = {f.name: vars(self)[f.name] for f in dataclasses.fields(self) if f.name not in self.again}
        about: dict[str, Any] = {} if subject is None else subject.identity()
        return {"verb": self.verb} | {name: plain(value) for name, value in own.items()} | about


@dataclass(frozen=True, kw_only=True)
class Task(Fields, ABC):
    """What is done rather than measured, so that its answer is no single record: experiments run, a page served."""

    verb: ClassVar[str]
    takes: ClassVar[frozenset[str]] = Question.takes
    #: The field that the first argument of its function is.
    first: ClassVar[str] = ""

    @abstractmethod
    def run(self, work: Work) -> Done:
        """Do it, and say what came of it."""

    def plan(self) -> Plan:
        """What it will cost."""
        return Plan(f"{self.verb}: nothing to plan")

    def folder(self, out: str | None) -> str | None:
        """Where its verb keeps the results when `out` was asked for."""
        return out


class Done(ABC):
    """What came of a task. `str` of it is what the terminal shows."""

    ok = True

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """The same in plain values, for JSON."""

    def beside(self) -> str:
        """A sentence beside the answer, for stderr; empty where the answer says everything."""
        return ""

    def stay(self) -> None:
        """What goes on once its verb has told the answer."""
        return None


@dataclass(frozen=True)
class Listing(Done):
    """What there is: a table with a title, and what is said below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    below: str

    def plain(self) -> dict[str, Any]:
        return {self.title: [dict(zip(self.columns, row, strict=True)) for row in self.rows]}

    def __str__(self) -> str:
        whole = (self.columns, *self.rows)
        widths = [max(len(row[i]) for row in whole) for i in range(len(self.columns))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in whole]
        return "\n".join([*lines, self.below])


def options(question: type) -> dict[str, Option]:
    """The fields of a question, in order."""
    return {f.name: f.metadata["option"] for f in dataclasses.fields(question) if "option" in f.metadata}


def plain(value: Any) -> Any:
    """A field as JSON has it: tuples are lists, dataclasses are mappings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def _check(name: str, value: Any, known: Option) -> None:
    if known.choices and isinstance(value, str) and value not in known.choices:
        raise UnknownName(
            f"{name}={value!r} is unknown; choose from {', '.join(known.choices)}.{did_you_mean(value, known.choices)}"
        )
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name}={value:g}: give a finite number.")
    if known.least is not None and value < known.least:
        raise InputError(f"{name}={value:g}: give at least {known.least:g}.")
    if known.above is not None and value <= known.above:
        raise InputError(f"{name}={value:g}: give a number above {known.above:g}.")
    if known.below is not None and value >= known.below:
        raise InputError(f"{name}={value:g}: give a number below {known.below:g}.")


# --- fields that are text on the command line -------------------------------------------------------------------------
def seconds_of(text: str) -> float:
    """`90s`, `10m`, `2h` or a plain number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    if not match or not 0 < float(match[1]) < LONGEST:
        raise InputError(f"{text!r} is not a length of time. Write 90s, 10m or 2h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def words_of(text: str) -> tuple[str, ...]:
    """`a,b` as ("a", "b"); each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def whole_numbers(text: str) -> tuple[int, ...]:
    """`0,100,1000` as rising whole numbers."""
    try:
        found = tuple(sorted({int(n) for n in text.split(",")}))
    except ValueError as error:
        raise InputError(f"{text!r}: give whole numbers with commas between, such as 0,100.") from error
    if found[-1] > LARGEST:
        raise InputError(f"{text!r}: a whole number is at most {LARGEST:,}.")
    return found
