"""From words to questions: the flags of a verb are the fields of its questions.

tyro builds the values; `check_words` has refused what tyro would explain in a box of many lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import textwrap
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from ..applications.opening import Probe
from ..core.errors import InputError
from ..core.question import Option, Question, Task, options
from .options import LongWork, Output
from .parse import check_words, one_line

#: Columns of a line of help.
WIDTH = 80


@dataclasses.dataclass(frozen=True)
class Command:
    """The words of a command as values."""

    question: Question | Task
    opening: Probe | None
    limits: LongWork
    output: Output

    @property
    def device(self) -> str:
        return str(getattr(self.opening or self.question, "device", "cpu"))


def command_of(verb: str, question: str, opening: str, words: list[str], example: str = "") -> Command:
    """Read the words; `question` and `opening` are written `module:Class`, relative to `quadform.applications`."""
    found = read(verb, parts_of(question, opening), words, example)
    return Command(found[0], found[1] if opening else None, found[-2], found[-1])


def parts_of(question: str, opening: str) -> list[type]:
    """The parts of a command: what is asked, what opens its model, its limits, where its answer goes."""
    return [_class(question), *([_class(opening)] if opening else []), LongWork, Output]


def _class(where: str) -> type:
    module, _, name = where.partition(":")
    found: type = getattr(importlib.import_module(f".{module}", "quadform.applications"), name)
    return found


def read(verb: str, parts: Sequence[type], words: Sequence[str], example: str = "") -> list[Any]:
    """The parts of a command (question, opening, limits, output) from its words; `--help` prints and leaves with 0."""
    import tyro

    call = call_of(verb, parts)
    check_words(verb, call, words)
    if {"--help", "-h"} & set(words):  # tyro would join the lines
        print(_described(parts[0], example), end="\n\n")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            got: Any = tyro.cli(
                call,
                prog=f"quadform {verb}",
                description="",
                args=list(words),
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(f"{one_line(said.getvalue())} See `quadform {verb} --help`.") from None
    return [_part(part, got) for part in parts]


def _described(part: type, example: str) -> str:
    """What a verb does, in lines as wide as the box below it, and one command to try."""
    paragraphs = [" ".join(p.split()) for p in (inspect.getdoc(part) or "").split("\n\n")]
    if example:
        paragraphs.append(f"Example: {example}")
    filled = (textwrap.wrap(p, WIDTH, break_on_hyphens=False) for p in paragraphs)
    return "\n\n".join(map("\n".join, filled))


def call_of(verb: str, parts: Sequence[type]) -> type:
    """One dataclass of all fields, as tyro reads it; a field of several parts is one flag."""
    found: dict[str, Any] = {}
    left_out = Question.takes - getattr(parts[0], "takes", Question.takes)
    for part in parts:
        hints = typing.get_type_hints(part)
        defaults = {f.name: f.default for f in dataclasses.fields(part)}
        for name, known in options(part).items():
            if known.command_line and name not in found and (part is parts[0] or name not in left_out):
                found[name] = _flag(name, hints[name], defaults[name], known)
    ordered = sorted(found.values(), key=lambda flag: flag[2].default is not dataclasses.MISSING)  # MODEL comes first
    return dataclasses.make_dataclass(verb, ordered, frozen=True, kw_only=True)


def _flag(name: str, hint: Any, default: Any, known: Option) -> tuple[str, Any, Any]:
    from tyro.conf import Positional, arg

    shown: dict[str, Any] = {"help": known.help}
    if known.metavar:
        shown["metavar"] = known.metavar
    if known.choices and default is None:  # the field itself refuses other words
        shown["metavar"] = f"{{{','.join(known.choices)}}}"
    elif known.choices:
        hint = Literal[known.choices]
    if known.parse is not None and not known.positional:
        shown["help_behavior_hint"] = known.shown or (f"(default: {_text(default)})" if default is not None else "")
        hint, default = str | None, None
    elif known.shown or default is None or default is False or default == ():  # "(default: False)" says nothing
        shown["help_behavior_hint"] = known.shown
    if isinstance(hint, types.UnionType) and str in typing.get_args(hint):  # other values are for Python
        hint = str | None if type(None) in typing.get_args(hint) else str
    positional: Any = Positional
    hint = Annotated[positional[hint] if known.positional else hint, arg(**shown)]
    return (name, hint, dataclasses.field(default=default, metadata={"option": known}))


def _text(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


def _part(part: type, got: Any) -> Any:
    """A part of the command; text that was not given leaves its default."""
    found = {}
    for name, known in options(part).items():
        value = getattr(got, name, None)
        if hasattr(got, name) and not (known.parse is not None and value is None):
            found[name] = value
    return part(**found)
