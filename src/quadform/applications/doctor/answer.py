"""The answer of `quadform doctor`. Record "doctor": `inputs["findings"]`, a `Line` each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...answers.answer import Answer, Grid

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
        return tuple(Line(**line) for line in self.record.inputs["findings"])

    @property
    def ok(self) -> bool:
        """Whether nothing is missing that quadform needs."""
        return all(line.ok is not False for line in self.findings)

    def table(self) -> Grid:
        """One row a finding."""
        rows, group = [], ""
        for line in self.findings:
            found = f"{line.found}; {line.advice}" if line.advice else line.found
            rows.append((line.group if line.group != group else "", line.name, _MARKS[line.ok], found))
            group = line.group
        return Grid(("group", "name", "", "found"), tuple(rows))

    def lines(self) -> Iterator[str]:
        yield from str(self.table()).splitlines()[1:]
        broken = ", ".join(line.name for line in self.findings if line.ok is False)
        yield f"not ready: {broken} missing." if broken else "ready; next: `quadform verify`, `quadform report`."
