"""Refusals in one line: tyro explains a bad flag in a box of many lines; people get the nearest name that exists."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.question import LARGEST, options

_WORDS = {int: "a whole number", float: "a number", str: "a word"}
#: Values people ask for with good reason, and why they are refused.
_REASONS = {
    "float16": "second derivatives underflow in float16",
    "bfloat16": "second derivatives in bfloat16 are good to about 1 % only",
}


def check_words(verb: str, config: type, words: Sequence[str]) -> None:
    """Refuse what tyro would refuse, in one line: unknown flags, flags without a value, values of the wrong kind."""
    flags = _flags(config)
    named = {name: _bare(hint) for name, hint in _hints(config).items() if _is_positional(hint)}
    places = list(named.values())
    help_line = f"See `quadform {verb} --help`."
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        if flag in ("--help", "-h"):
            return
        if not word.startswith("-") or _is_number(word):
            if not places:
                many = (
                    "takes flags only"
                    if not any(map(_is_positional, _hints(config).values()))
                    else "takes no more words"
                )
                raise InputError(f"`{word}` is not understood: `quadform {verb}` {many}. {help_line}")
            place = places[0] if typing.get_origin(places[0]) is tuple else places.pop(0)
            _check_value("", word, place, help_line)
        elif flag not in flags:
            near = did_you_mean(flag, flags)
            raise UnknownName(f"`{name}` is not a flag of `quadform {verb}`.{near} {help_line}")
        elif flags[flag] is bool:
            if equals:
                raise InputError(f"`{flag}` is a switch and takes no value; got `{word}`. {help_line}")
        else:
            if not equals:
                if not queue or (queue[0].startswith("--") and not _is_number(queue[0])):
                    raise InputError(f"`{flag}` needs a value: {_wanted(flags[flag])}. {help_line}")
                value = queue.pop(0)
            _check_value(f"{flag} ", value, flags[flag], help_line)
    for name in list(named)[len(named) - len(places) :]:
        if _needed(config, name):
            what = options(config)[name].help
            raise InputError(f"`quadform {verb}` needs a {name.upper()}: {what[0].lower()}{what[1:]} {help_line}")


def _check_value(flag: str, value: str, hint: Any, help_line: str) -> None:
    if typing.get_origin(hint) is Literal:
        choices = [str(c) for c in typing.get_args(hint)]
        if value not in choices:
            if value in _REASONS:
                good = " or ".join(f"`{flag}{c}`" for c in choices)
                stored = f"models stored in {value} are read into these."
                raise InputError(f"`{flag}{value}` is refused: {_REASONS[value]}. Use {good}; {stored}")
            listed = ", ".join(f"`{c}`" for c in choices)
            raise UnknownName(f"`{flag}{value}` is not one of {listed}.{did_you_mean(value, choices)} {help_line}")
    elif hint in (int, float):
        try:
            number = hint(value)
        except ValueError:
            raise InputError(f"`{flag}{value}`: `{flag.strip()}` takes {_WORDS[hint]}. {help_line}") from None
        if hint is int and abs(number) > LARGEST:
            raise InputError(f"`{flag}{value}`: a whole number is at most {LARGEST:,}. {help_line}")


def _wanted(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " or ".join(f"`{c}`" for c in typing.get_args(hint))
    return _WORDS.get(hint, "a value")


def _hints(config: type) -> dict[str, Any]:
    return typing.get_type_hints(config, include_extras=True)


def _flags(config: type) -> dict[str, Any]:
    """`--flag` -> type, optional types without their None; positional words left out."""
    hints = {name: _bare(hint) for name, hint in _hints(config).items() if not _is_positional(hint)}
    return {f"--{name.replace('_', '-')}": hint for name, hint in hints.items()}


def _is_positional(hint: Any) -> bool:
    from tyro.conf import Positional

    (marker,) = typing.get_args(Positional[int])[1:]
    return typing.get_origin(hint) is typing.Annotated and marker in typing.get_args(hint)[1:]


def _bare(hint: Any) -> Any:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if isinstance(hint, types.UnionType):
        (hint,) = (h for h in typing.get_args(hint) if h is not type(None))
    return hint


def _needed(config: Any, name: str) -> bool:
    (field,) = (f for f in dataclasses.fields(config) if f.name == name)
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def one_line(box: str) -> str:
    """tyro's boxed text without frame, rulers and help footer."""
    lines = (re.sub(r"[\u2500-\u257f]+", " ", line).strip() for line in box.splitlines())
    kept = [line for line in lines if line and not line.startswith("For full helptext")]
    return " ".join(kept)
