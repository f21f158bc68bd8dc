"""A training run as the report shows it: losses along the run, held-out numbers, verdicts.

Record "training": scalars `loss`, `steps`, `valid_loss`, `valid_exact`, `cosine`, ...; tensors `steps`, `loss`, `lr`,
`valid_steps`, `valid_loss`, `valid_stderr`; inputs `design`, `depth`, `model`, `data`, `train`, `step`, `warmup_steps`.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..core.record import Estimate
from .answer import Answer, Grid
from .numbers import number, percent, with_error
from .verdict import Limits, Said, Verdict, judged, say

#: Share of held-out questions answered exactly.
EXACT = Limits(0.95, 0.5)
#: Validation over training loss.
GAP = Limits(1.2, 2.0)


class Training(Answer):
    """One training run."""

    kind = "training"

    @property
    def about(self) -> dict[str, Any]:
        """Design, depth, model, data, settings of the training, and the steps taken."""
        return dict(self.record.inputs)

    @property
    def step(self) -> int:
        return int(self.record.inputs["step"])

    @property
    def warmup_steps(self) -> int:
        return int(self.record.inputs["warmup_steps"])

    @property
    def numbers(self) -> dict[str, Estimate]:
        """Every number at the end of the run, by name."""
        return dict(self.record.scalars)

    @property
    def course(self) -> tuple[Tensor, Tensor, Tensor]:
        """Steps, training loss and learning rate, as they were written down."""
        t = self.record.tensors
        return t["steps"], t["loss"], t["lr"]

    @property
    def valid_course(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Steps, held-out loss and its standard error; None where none was taken."""
        t = self.record.tensors
        return (t["valid_steps"], t["valid_loss"], t["valid_stderr"]) if "valid_steps" in t else None

    @property
    def valid_loss(self) -> Estimate | None:
        return self.record.scalars.get("valid_loss")

    def verdicts(self) -> tuple[Verdict, ...]:
        """How many held-out questions are answered exactly; where none are asked, the gap of the validation loss."""
        exact, valid = self.record.scalars.get("valid_exact"), self.valid_loss
        if exact is not None:
            value = f"{percent(exact.value)} ± {percent(exact.stderr or 0.0)}"
            return (judged("exact", exact, EXACT, value, say("card_exact"), percent),)
        if valid is None:
            return ()
        train = self.record.scalars["loss"].value
        over = (
            Estimate(valid.value / train, (valid.error or 0.0) / train, "estimate") if train > 0 else Estimate(math.inf)
        )
        return (judged("fit", over, GAP, with_error(valid), say("card_fit", train=number(train))),)

    @property
    def said(self) -> Said:
        steps, loss, _ = self.course
        first, last = (number(float(v)) for v in (loss[0], loss[-1]))
        return say("training_summary", first=first, last=last, at=f"{int(steps[0]):,}", steps=f"{self.step:,}")

    def table(self) -> Grid:
        """The numbers at the end of the run."""
        rows = [(name, e.value, e.error, e.kind) for name, e in self.numbers.items()]
        return Grid(("what", "value", "+-", "tag"), tuple(rows))

    def lines(self) -> list[str]:
        return [self.said(), *self.verdict_lines()]
