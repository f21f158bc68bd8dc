"""The answer of `quadform doctor`. Record "doctor": `inputs["findings"]`, a `Line` each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...answers.answer import Answer, Grid
from ...answers.texts import line

_MARKS = {True: "ok", False: "MISSING", None: "-"}


@dataclass(frozen=True)
class Line:
    """One thing looked at: its group, name, what was found, whether that is ok (None: optional and absent), advice."""

    group: str
    name: str
    found: str
    ok: bool | None = True
    advice: str = ""


class Diagnosis(Answer):
    """What was found on this machine."""

    kind = "doctor"

    @property
    def findings(self) -> tuple[Line, ...]:
        return tuple(Line(**given) for given in self.record.inputs["findings"])

    @property
    def ok(self) -> bool:
        """Whether nothing is missing that quadform needs."""
        return all(f.ok is not False for f in self.findings)

    def table(self) -> Grid:
        """One row a finding."""
        rows, group = [], ""
        for f in self.findings:
            found = f"{f.found}; {f.advice}" if f.advice else f.found
            rows.append((f.group if f.group != group else "", f.name, _MARKS[f.ok], found))
            group = f.group
        return Grid(("group", "name", "", "found"), tuple(rows))

    def lines(self) -> Iterator[str]:
        yield from str(self.table()).splitlines()[1:]
        broken = ", ".join(f.name for f in self.findings if f.ok is False)
        commands = "`quadform verify`, `quadform report`"
        yield line("line_not_ready", names=broken) if broken else line("line_ready", next=commands)
