"""Lazy package namespaces: `from quadform import Space` works, `import quadform` costs nothing.

Every package `__init__` is one table, name -> module that holds it. The module is imported when the name is first used
(PEP 562), so `quadform --help` never loads torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attach(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__`, `__all__` for a package whose public `names` live in the given modules.

    A module is written relative to the package (`".space"`). A name whose entry ends in a colon
    (`{"theory": ".theory:"}`) is the module itself. No other name may equal that of a module in the table: Python puts
    a module that is imported into its package under that very name, so `moments` would be a function today and a module
    tomorrow.
    """
    for name, where in names.items():
        if f".{name}" in names.values() and where != f".{name}:":
            raise ValueError(f"{package}.{name} would be hidden by the module .{name}; rename one of them.")

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        where = names[name]
        if where.endswith(":"):
            return importlib.import_module(where[:-1], package)
        return getattr(importlib.import_module(where, package), name)

    def __dir__() -> list[str]:
        return sorted(names)

    return __getattr__, __dir__, sorted(names)


def public(name: str) -> Any:
    """A public name of the project, looked up when it is used: how a low room calls what a high one gives.

    The table is that of `quadform/__init__.py`, so that no name is written twice and no room imports upwards.
    """
    return getattr(importlib.import_module("quadform"), name)
