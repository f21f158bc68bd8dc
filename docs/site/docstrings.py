"""Docstrings are plain text with code in backticks: what Markdown would take for markup outside of code is escaped."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(Args|Returns|Fields):\n((?: {4}.*(?:\n|$))+)", re.M)


def listed(doc: str) -> str:
    """`Args:` and `Returns:` as a list: a line at four spaces begins an item, deeper ones go on with it."""

    def items(section: re.Match[str]) -> str:
        lines = re.sub(r"\n {8,}", " ", section[2].rstrip()).splitlines()
        if section[1] == "Returns":
            return f"**Returns**: {' '.join(line.strip() for line in lines)}\n"
        pairs = (line.strip().partition(": ") for line in lines)
        told = [f"- {', '.join(f'`{n}`' for n in names.split(', '))}: {text}" for names, _, text in pairs]
        return "\n".join([f"**{section[1]}**\n", *told, ""])

    return _SECTION.sub(items, doc)


def escaped(doc: str) -> str:
    """`a < b`, `x*y` and `[ODS25]` stay what they are; lists and indented formulas stay lists and formulas."""
    parts = re.split(r"(``.*?``|`[^`]*`|\*\*\w+\*\*|^ {4,}[^\n]*$)", listed(doc), flags=re.S | re.M)
    plain = (re.sub(r"(?<!^)(?<!\n)(?<!\\)\*|_", r"\\\g<0>", p.replace("<", "&lt;")) for p in parts[::2])
    parts[::2] = plain
    return "".join(parts)


class Docstrings(griffe.Extension):
    """Run by mkdocstrings over every object it reads."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = escaped(obj.docstring.value)
