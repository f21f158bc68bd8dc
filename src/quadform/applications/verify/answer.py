"""The answer of `quadform verify`.

Record "verify": one scalar a check, the largest relative error, converged where the check holds;
`inputs["checks"]` has the limit of each, how often it was tried, and the layer its error came from.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...answers.answer import Answer, Grid


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
        sizes = f"softmax, causal, linear, single W_QK; every size from 1 to {given['largest']}"
        yield f"{given['tried']} random layers ({sizes}), errors relative to max|H|"
        yield from str(self.table()).splitlines()
        if self.failed:
            count = f"{len(self.failed)} of {len(self.record.scalars)}"
            yield f"{count} checks FAILED: results on this machine are not to be trusted."
        else:
            yield f"all {len(self.record.scalars)} checks hold."
        if self.partial:
            yield f"PARTIAL: the time was up after {given['tried']} of {given['shapes']} layers"
