"""Docstrings are plain text with code in backticks: what Markdown would take for markup outside of code is escaped."""

from __future__ import annotations

import re
from typing import Any

import griffe


def escaped(doc: str) -> str:
    """`a < b`, `x*y` and `[ODS25]` stay what they are; lists and indented formulas stay lists and formulas."""
    parts = re.split(r"(``.*?``|`[^`]*`|^ {4,}[^\n]*$)", doc, flags=re.S | re.M)
    plain = (re.sub(r"(?<!^)(?<!\n)(?<!\\)\*|_", r"\\\g<0>", p.replace("<", "&lt;")) for p in parts[::2])
    parts[::2] = plain
    return "".join(parts)


class Docstrings(griffe.Extension):
    """Run by mkdocstrings over every object it reads."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = escaped(obj.docstring.value)
