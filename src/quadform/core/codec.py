"""Frozen dataclasses as TOML, JSON and plain dicts, driven by their type hints; torch-free."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from .errors import InputError, UnknownName, did_you_mean

#: Field name -> resolved type of a dataclass.
hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
_NOTHING = "none"  # how None is written where the field has another default (TOML has no null)


def encode(value: Any) -> Any:
    """A dataclass as plain data; equal neighbours in a tuple of dataclasses are written once, with `repeat`."""
    if dataclasses.is_dataclass(value):
        body = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        optional = {f.name for f in dataclasses.fields(value) if f.default is None}
        return {k: _NOTHING if v is None else encode(v) for k, v in body.items() if v is not None or k not in optional}
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        runs: list[dict[str, Any]] = []
        for entry in map(encode, value):
            if runs and {**runs[-1], "repeat": 1} == {"repeat": 1, **entry}:
                runs[-1]["repeat"] += 1
            else:
                runs.append({"repeat": 1, **entry})
        return runs
    return list(value) if isinstance(value, tuple) else value


def changed(value: Any) -> str:
    """A dataclass as Python, with the fields that differ from their defaults; for `__repr__`.

    Equal neighbours in a tuple of dataclasses are written once: `(BlockSpec(), *(BlockSpec(norm='rms'),) * 5)`.
    """
    shown = []
    for f in dataclasses.fields(value):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if getattr(value, f.name) != default:
            shown.append(f"{f.name}={_written(getattr(value, f.name))}")
    return f"{type(value).__name__}({', '.join(shown)})"


def _written(value: Any) -> str:
    if not (isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0])):
        return repr(value)
    runs = [(repr(entry), len(list(same))) for entry, same in itertools.groupby(value)]
    if len(runs) == 1:
        return f"({runs[0][0]},) * {runs[0][1]}"
    return f"({', '.join(text if n == 1 else f'*({text},) * {n}' for text, n in runs)})"


def decode(kind: Any, body: Any, where: str) -> Any:
    """The inverse: a value of type `kind` from plain data. `where` names the place in error texts."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = next(k for k in typing.get_args(kind) if k is not type(None))
        return None if body is None or body == _NOTHING else decode(inner, body, where)
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        if not isinstance(body, list | tuple):
            raise InputError(f"{where} is a list; got {body!r}.")
        if not dataclasses.is_dataclass(inner):
            return tuple(body)
        entries: list[Any] = []
        for i, entry in enumerate(body):
            entry = dict(entry) if isinstance(entry, Mapping) else entry
            repeat = entry.pop("repeat", 1) if isinstance(entry, dict) else 1
            if not isinstance(repeat, int) or repeat < 1:
                raise InputError(f"{where}[{i}].repeat is a whole number of at least 1; got {repeat!r}.")
            entries += [decode(inner, entry, f"{where}[{i}]")] * repeat
        return tuple(entries)
    if dataclasses.is_dataclass(kind):
        if not isinstance(body, Mapping):
            raise InputError(f"{where} is a table of settings; got {body!r}.")
        known = hints(kind)
        for key in body:
            if key not in known:
                raise UnknownName(
                    f"{where} has no setting {key!r}.{did_you_mean(key, known)} Known: {', '.join(known)}."
                )
        try:
            return kind(**{k: decode(known[k], v, f"{where}.{k}") for k, v in body.items()})  # type: ignore[operator]  # a dataclass
        except TypeError as error:
            raise InputError(f"{where} is incomplete: {error}.") from error
    if kind is float and isinstance(body, int) and not isinstance(body, bool):
        return float(body)
    if kind in (int, float, bool, str) and type(body) is not kind:
        raise InputError(f"{where} is {kind.__name__}; got {body!r}.")
    return body


def to_toml(body: Mapping[str, Any]) -> str:
    """TOML of an encoded dataclass: plain settings first, then one [[table]] for each entry of its lists of tables."""

    def literal(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{ " + ", ".join(f"{k} = {literal(v)}" for k, v in value.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(map(literal, value)) + "]"
        if isinstance(value, float):
            return repr(value)  # inf and nan are TOML
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    tables = {k: v for k, v in body.items() if isinstance(v, list) and v and isinstance(v[0], Mapping)}
    lines = [f"{k} = {literal(v)}" for k, v in body.items() if k not in tables]
    for name, runs in tables.items():
        for run in runs:
            lines += ["", f"[[{name}]]", *(f"{k} = {literal(v)}" for k, v in run.items())]
    return "\n".join(lines) + "\n"


def to_json(body: Mapping[str, Any]) -> str:
    """JSON of an encoded dataclass."""
    return json.dumps(body, indent=1)


def from_toml(text: str, what: str) -> dict[str, Any]:
    """Parsed TOML; a syntax error names `what` was being read."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{what} is not TOML: {error}.") from error


def from_json(text: str, what: str) -> Any:
    """Parsed JSON; a syntax error names `what` was being read."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{what} is not JSON: {error}.") from error
