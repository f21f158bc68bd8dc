"""Asking: how a question becomes an answer, from Python (`qf.spectrum(...)`), command line and report alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.progress import Report, say
from ..core.question import Plan, Question, Task, options, seconds_of
from ..core.work import Work
from .opening import Opening, Probe

if TYPE_CHECKING:
    from ..answers.answer import Answer
    from ..core.question import Done
    from .subject import Subject

A = TypeVar("A", bound="Answer | Done", covariant=True)

#: Fields whose value in Python may be an object of the subject's: tensors of a function, an optimizer, other models.
OWNED = ("params", "optimizer", "through")


class Measurement(Protocol[A]):
    """A question that is ready to be measured: the model is open, the operators are made."""

    def plan(self) -> Plan:
        """What it will cost."""

    def measure(self, work: Work) -> A:
        """The answer, or as much of it as the time allows."""


def planned(question: Question | Task, subject: Any = None) -> Plan:
    """What a question will cost."""
    plan: Plan = question.plan() if isinstance(question, Task) else question.measurement(subject).plan()
    return plan


def ask(question: Question | Task, work: Work, subject: Any = None) -> Any:
    """The answer to a question: found finished in the folder of a resumed run, or measured now and saved there."""
    if isinstance(question, Task):
        return question.run(work)
    from ..core.precision import own_precision
    from ..core.steady import steady
    from .room import counted

    identity = question.identity(subject)
    found = work.finished(identity, lambda record: question.answer(record).complete)
    if found is not None:
        return question.answer(found)
    measurement: Measurement[Any] = question.measurement(subject)
    work.begin(identity)
    if not work.pieces and "dry_run" in question.takes and (work.progress or counted(subject)):
        told = measurement.plan().text  # what does not fit is refused here
        if work.progress:
            say(told)
    with own_precision(), steady():
        answer = measurement.measure(work)
    answer.record = work.finish(answer.record, complete=answer.complete)
    if work.folder is not None:
        answer.save_beside(work.folder)
    return answer


class Door(Generic[A]):
    """The Python function of a question: `qf.spectrum(model, batches, top=3)`, `qf.spectrum("runs/x", top=3)`.

    Fields are those of the question, and of its opening where the model is named by a text. `out` is the folder that
    keeps the results, `resume` takes up an unfinished run there, `max_time` (`"10m"` or seconds) limits the time.
    """

    def __init__(self, question: type[Question | Task], opening: type[Probe] | None = Opening, name: str = "") -> None:
        self.question, self.opening = question, opening
        self.__name__ = self.__qualname__ = name or question.verb
        self.__doc__ = _described(question, opening)
        self.__signature__ = _signature(question, opening)

    def __repr__(self) -> str:
        return f"<quadform.{self.__name__}{self.__signature__}>"

    def __call__(
        self,
        model: Any = None,
        batches: Any = None,
        loss: Any = None,
        *,
        out: str | Path | None = None,
        resume: bool = False,
        max_time: str | float | None = None,
        progress: bool | Report = True,
        **fields: Any,
    ) -> A:
        from ..distributed import processes_with

        given = {"out": out is not None, "resume": resume, "max_time": max_time is not None}
        fields |= {name: True for name in given if given[name] and name not in self.question.takes}  # refused by name
        seconds = seconds_of(max_time) if isinstance(max_time, str) else max_time
        with processes_with(model) as processes:
            question, subject = self._asked(model, batches, loss, fields, shared={"out": out, "resume": resume})
            group = processes if processes.world > 1 else None
            with Work(out, seconds=seconds, resume=resume, progress=progress, group=group) as work:
                found: A = ask(question, work, subject)
        return found

    def plan(self, model: Any = None, batches: Any = None, loss: Any = None, **fields: Any) -> Plan:
        """What the same call would cost; nothing is measured."""
        from ..distributed import processes_with

        light: Callable[[Any, Probe], Any] = lambda question, opening: question.light(opening)  # noqa: E731
        with processes_with(model):
            return planned(*self._asked(model, batches, loss, fields, light))

    def _asked(
        self,
        model: Any,
        batches: Any,
        loss: Any,
        fields: dict[str, Any],
        opened: Callable[[Any, Probe], Any] = lambda question, opening: opening.open(),
        shared: Mapping[str, Any] | None = None,
    ) -> tuple[Question | Task, Subject | None]:
        from .subject import Subject

        first = getattr(self.question, "first", "")
        if first and model is not None:
            model, fields = None, {first: model} | fields
        if self.opening is None and not (model is batches is loss is None):
            raise InputError(f"{self.__name__}() takes its fields by name: {', '.join(options(self.question))}.")
        named = None if self.opening is None else self.opening.naming(model)
        if named is not None and loss is not None:
            raise InputError("a model given by name has its own loss; pass loss= with a module or a function.")
        if named is not None and batches is not None:
            if not isinstance(batches, int):
                raise InputError("a model given by name draws its own batches; batches= is their number.")
            fields = fields | {"batches": batches}
        parts = [self.question, *([self.opening] if named is not None and self.opening is not None else [])]
        known = [name for part in parts for name in options(part)]
        for name in fields:
            if name not in known:
                raise UnknownName(f"{self.__name__}() has no field {name!r}.{did_you_mean(name, known)}")
        own = {n: fields[n] for n in OWNED if n in fields and not _in_words(fields[n])}
        given = [{n: v for n, v in fields.items() if n in options(part) and n not in own} for part in parts]
        question = self.question(**given[0])
        if self.opening is None:
            return question, None
        if named is not None:
            more = {n: v for n, v in (shared or {}).items() if n in options(self.opening)}
            return question, replace(opened(question, self.opening(**named, **given[1], **more)), **own)
        return question, Subject.of(model, batches, loss, **own)


def _in_words(value: Any) -> bool:
    """Whether a value is a text or a list of texts, as on the command line."""
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value))


def _fields(question: type[Question | Task], opening: type[Probe] | None) -> dict[str, Any]:
    found = dict(options(question))
    return found | {n: o for n, o in options(opening).items() if n not in found} if opening is not None else found


def _signature(question: type[Question | Task], opening: type[Probe] | None) -> inspect.Signature:
    """What `help` and editors show: the arguments of the call, then the fields of the question."""
    own = list(inspect.signature(Door.__call__).parameters.values())[1:-1]
    own = [p for p in own if opening is not None or p.kind is p.KEYWORD_ONLY]
    own = [p for p in own if p.name in question.takes or p.name not in Question.takes]
    defaults = {f.name: f.default for f in question.__dataclass_fields__.values()}
    names = [n for n in options(question) if n not in {p.name for p in own}]
    by_name, by_place = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = getattr(question, "first", "")
    shown = [inspect.Parameter(n, by_place if n == first else by_name, default=defaults[n]) for n in names]
    return inspect.Signature(sorted(own + shown, key=lambda p: p.kind))


def _described(question: type[Question | Task], opening: type[Probe] | None) -> str:
    head = inspect.getdoc(question) or ""
    rows = [f"    {name}: {known.help}" for name, known in _fields(question, opening).items() if name != "model"]
    return "\n".join([head, "", "Fields:", *rows])
