"""The answer of `quadform verify`.

Record "verify": one scalar a check, the largest relative error, converged where the check holds;
`inputs["checks"]` has the limit of each, how often it was tried, and the layer its error came from.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...answers.answer import Answer, Grid
from ...answers.texts import line


class Verification(Answer):
    """Which identities hold on this machine."""

    kind = "verify"

    @property
    def complete(self) -> bool:
        return not self.partial

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks that do not hold."""
        return tuple(name for name, e in self.record.scalars.items() if not e.converged)

    @property
    def ok(self) -> bool:
        """Whether every layer was tried and every check holds."""
        return self.complete and not self.failed

    def table(self) -> Grid:
        """Every check with its error, its limit and the number of layers tried."""
        rows = []
        for name, about in self.record.inputs["checks"].items():
            said = f"FAILED at {about['worst']}" if name in self.failed else "ok"
            error = f"{self.record.scalars[name].value:.0e}"
            rows.append((name, error, f"{about['limit']:.0e}", about["tries"], said))
        return Grid(("check", "error", "limit", "tries", ""), tuple(rows))

    def lines(self) -> Iterator[str]:
        given = self.record.inputs
        yield line("line_verify", count=given["tried"], largest=given["largest"])
        yield from str(self.table()).splitlines()
        if self.failed:
            yield line("line_failed", count=len(self.failed), all=len(self.record.scalars))
        else:
            yield line("line_verified", count=len(self.record.scalars))
        if self.partial:
            yield line("line_verify_partial", count=given["tried"], all=given["shapes"])
