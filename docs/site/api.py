"""The API reference: a page for each room, made from its `__all__`."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import quadform
from docstrings import escaped
from quadform.core.question import options


@dataclass(frozen=True)
class Name:
    """A public name: where people find it (`quadform.Space`), what it is, and where it is defined."""

    path: str
    value: Any

    @property
    def short(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def defined(self) -> str:
        """`quadform.core.space.Space`: what mkdocstrings is asked for."""
        if isinstance(self.value, ModuleType):
            return self.value.__name__
        if inspect.isclass(self.value) or inspect.isfunction(self.value):
            return f"{self.value.__module__}.{self.value.__qualname__}"
        return f"{self._module}.{self.short}"

    @property
    def question(self) -> type | None:
        """The question of a function such as `qf.spectrum`, whose arguments are the fields of that question."""
        return getattr(self.value, "question", None) if callable(self.value) else None

    @property
    def doc(self) -> str:
        """The docstring; of a value the string below its assignment. The text dataclasses make up is none."""
        plain = isinstance(self.value, ModuleType) or callable(self.value)
        found = inspect.getdoc(self.value) if plain else _below(self._module, self.short)
        return "" if not found or found.startswith(f"{self.short}(") else found

    @property
    def summary(self) -> str:
        return " ".join(self.doc.partition("\n\n")[0].split())

    @property
    def _module(self) -> str:
        assigned = re.compile(rf"^{self.short}\b[^\n=]*=", re.M)
        for name, module in list(sys.modules.items()):
            same = name.startswith("quadform") and vars(module).get(self.short) is self.value
            if same and assigned.search(Path(str(module.__file__)).read_text()):
                return name
        raise LookupError(f"no module of quadform assigns {self.path}")


def _below(module: str, name: str) -> str:
    body = ast.parse(Path(str(sys.modules[module].__file__)).read_text()).body
    for here, after in pairwise(body):
        targets = here.targets if isinstance(here, ast.Assign) else [getattr(here, "target", None)]
        named = any(isinstance(t, ast.Name) and t.id == name for t in targets)
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return inspect.cleandoc(str(after.value.value))
    return ""


def rooms() -> list[str]:
    """`quadform` and its packages."""
    return ["quadform", *(f"quadform.{m.name}" for m in pkgutil.iter_modules(quadform.__path__) if m.ispkg)]


def names(room: str) -> list[Name]:
    """The public names of a room; those of `quadform` without the rooms themselves."""
    module = importlib.import_module(room)
    found = [Name(f"{room}.{name}", getattr(module, name)) for name in module.__all__]
    return [n for n in found if not (isinstance(n.value, ModuleType) and n.value.__name__ in rooms())]


def pages() -> Iterator[tuple[str, str]]:
    """(path in the site, Markdown) of the whole reference. A thing with two names is described under the first."""
    described: dict[str, str] = {}
    table = []
    for room in rooms():
        path = f"reference/{room}.md"
        parts = [f"# `{room}`", escaped(inspect.getdoc(importlib.import_module(room)) or "")]
        for name in names(room):
            first = described.setdefault(name.defined, name.path)
            parts.append(_described(name) if first == name.path else f"## `{name.short}`\n\nThe same as [`{first}`][].")
        table.append(f"| [`{room}`]({room}.md) | {_cell(inspect.getdoc(importlib.import_module(room)) or '')} |")
        yield path, "\n\n".join(parts)
    top = [f"| [`qf.{n.short}`][{n.path}] | {_cell(n.doc)} |" for n in names("quadform")]
    yield "reference/index.md", "\n".join([_HEAD, *top, "", _ROOMS, *table])


_HEAD = """# API reference

Every public name. `import quadform as qf` loads nothing heavy; a name is imported when it is first used.

| name | what it is |
|---|---|"""

_ROOMS = """## Rooms

Each package below is an attribute of `qf` as well: `qf.estimate.trace`.

| package | what is in it |
|---|---|"""


def _cell(doc: str) -> str:
    return escaped(" ".join(doc.partition("\n\n")[0].split()).replace("|", "\\|"))


def _described(name: Name) -> str:
    if name.question is not None:
        return _call(name)
    anchor = f"[](){{#{name.path}}}\n\n" if name.path != name.defined else ""
    more = _options("members", _own(name.value)) or _options("inherited_members", _inherited(name.value))
    return f"{anchor}::: {name.defined}{more}"


def _options(option: str, members: list[str]) -> str:
    return f"\n    options:\n      {option}: [{', '.join(members)}]" if members else ""


def _own(value: Any) -> list[str]:
    """What a module defines, but for what is a public name by itself."""
    if not isinstance(value, ModuleType):
        return []
    found = {n: v for n, v in vars(value).items() if getattr(v, "__module__", "") == value.__name__}
    return [n for n, v in found.items() if not n.startswith("_") and _plain(v) and v not in _public()]


def _plain(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _inherited(value: Any) -> list[str]:
    """Members of a class that come from bases of ours which are not public, so that they are described nowhere else."""
    if not inspect.isclass(value):
        return []
    hidden = [b for b in value.__mro__[1:] if b.__module__.startswith("quadform.") and b not in _public()]
    own = {m for b in hidden for m in vars(b) if not m.startswith("_")}
    return sorted(own - set(vars(value)))


@cache
def _public() -> frozenset[Any]:
    return frozenset(n.value for room in rooms() for n in names(room) if _plain(n.value))


def _call(name: Name) -> str:
    """A function whose arguments are the fields of a question: signature, text, a table of the fields."""
    head = inspect.getdoc(name.question) or ""
    given = inspect.signature(name.value).parameters
    placed = [p.name for p in given.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    shared = [f"{n}={given[n].default!r}" for n in _SHARED if n in given]
    known = options(name.question) | (options(name.value.opening) if name.value.opening else {})
    rows = [f"| `{n}` | {_default(given, n)} | {_cell(o.help)} |" for n, o in known.items() if n != "model"]
    call = f"qf.{name.short}({', '.join([*placed, '*', *shared, '**fields'])})"
    table = ["| field | default | what it is |", "|---|---|---|", *rows]
    return "\n".join(
        [f"## `{name.short}` {{ #{name.path} }}", "", "```python", call, "```", "", escaped(head), "", *table]
    )


_SHARED = ("out", "resume", "max_time", "progress")


def _default(given: Any, name: str) -> str:
    return f"`{given[name].default!r}`" if name in given and given[name].default is not inspect.Parameter.empty else ""
