"""Curvature along a training run, as `qf.Monitor` measured it.

Record "monitor": tensors `step` and one value a reading of `loss`, `lr`, `lambda_max`, `lambda_P`, `ceiling`, `ratio`,
... (NaN where it was not known), `logits`, `entropy` and `qk` (readings, layers, heads); scalars `lambda_max` and
`lambda_P` of the last reading; inputs `rule`, `warnings`, `steps`, `share`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Provenance
from .answer import Answer, Draft, Grid
from .numbers import number, percent
from .verdict import Limits, Said, Verdict, judged, say

#: The learning rate over the ceiling, at its largest along the run.
RATIO = Limits(1.0, 2.0)
#: Relative residual up to which an eigenvalue that was followed is an estimate; above it is a lower bound.
NEAR = 0.05
_TABLE = ("step", "loss", "lr", "lambda_max", "lambda_P", "ceiling", "ratio", "largest_logit", "smallest_entropy")


class MonitorAnswer(Answer):
    """Readings along one training run."""

    kind = "monitor"

    def course(self, name: str) -> Tensor | None:
        """One value a reading, or None: `loss`, `lr`, `lambda_max`, `ceiling`, `ratio`, `largest_logit`, ..."""
        return self.record.tensors.get(name)

    @property
    def step(self) -> Tensor:
        return self.record.tensors["step"]

    def heads(self, name: str) -> Tensor | None:
        """(readings, layers, heads) of `logits`, `entropy` or `qk`."""
        return self.record.tensors.get(name)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self.record.inputs["warnings"])

    @property
    def rule(self) -> str:
        """The optimizer, as its ceiling knows it; empty where no ceiling is known for it."""
        return str(self.record.inputs["rule"])

    @property
    def steps(self) -> int:
        """Steps of the optimizer that were counted."""
        return int(self.record.inputs["steps"])

    @property
    def share(self) -> float:
        """The share of the time that went into measuring."""
        return float(self.record.inputs["share"])

    @property
    def coverage(self) -> str:
        return str(self.record.inputs["coverage"])

    @property
    def numbers(self) -> dict[str, Estimate]:
        """The eigenvalues of the last reading."""
        return dict(self.record.scalars)

    @property
    def worst(self) -> tuple[int, float] | None:
        """(step, ratio) where the rate came nearest to the ceiling, or farthest above; None without a ceiling."""
        ratio = self.course("ratio")
        if ratio is None or not bool(ratio.isfinite().any()):
            return None
        i = int(torch.nan_to_num(ratio, nan=-math.inf).argmax())
        return int(self.step[i]), float(ratio[i])

    def verdicts(self) -> tuple[Verdict, ...]:
        """The largest ratio of the rate to the ceiling along the run."""
        if self.worst is None:
            return ()
        step, ratio = self.worst
        said = say("card_live_rate", step=f"{step:,}", ratio=number(ratio))
        return (judged("live_rate", self._ratio_at(step, ratio), RATIO, number(ratio), said),)

    def _ratio_at(self, step: int, ratio: float) -> Estimate:
        """The ratio with the error of its eigenvalue; a lower bound where the eigenvalue is one."""
        i = int((self.step == step).nonzero()[0])
        lam, residual = (float(self.record.tensors[n][i]) for n in ("lambda_P", "residual_P"))
        near = residual <= NEAR * abs(lam)
        return Estimate(ratio, ratio * residual / abs(lam), "estimate" if near else "bound", error_kind="residual")

    @property
    def said(self) -> Said:
        lam = self.record.tensors["lambda_max"]
        told = say("monitor_summary", count=len(lam), first=number(float(lam[0])), last=number(float(lam[-1])),
                   steps=f"{self.steps:,}", share=percent(self.share))  # fmt: skip
        return sum((v.both for v in self.verdicts()), told)

    def table(self) -> Grid:
        """One row a reading."""
        names = [n for n in _TABLE if n in self.record.tensors]
        columns = [self.record.tensors[n].tolist() for n in names]
        rows = [(int(first), *rest) for first, *rest in zip(*columns, strict=True)]
        return Grid(tuple(names), tuple(rows))

    def lines(self) -> list[str]:
        return [self.said(), *self.warnings]


class MonitorDraft(Draft):
    """The answer while its readings are put together."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Mapping[str, float]] = []

    def take(self, numbers: Mapping[str, float]) -> None:
        """The numbers of one reading."""
        self.rows.append(numbers)

    def take_last(self, lam: Estimate, lam_P: Estimate | None) -> None:
        """The eigenvalues of the last reading."""
        self.scalars["lambda_max"] = lam
        if lam_P is not None:
            self.scalars["lambda_P"] = lam_P

    def take_heads(self, name: str, tables: Sequence[Tensor | None]) -> None:
        """(layers, heads) of each reading; kept where all readings have them."""
        found = [t for t in tables if t is not None]
        if len(found) == len(tables) and len({t.shape for t in found}) == 1:
            self.tensors[name] = torch.stack(found).double()

    def answer(self, inputs: Mapping[str, Any], made: Provenance) -> MonitorAnswer:
        names = dict.fromkeys(n for row in self.rows for n in row)
        self.tensors |= {n: torch.tensor([r.get(n, math.nan) for r in self.rows], dtype=torch.float64) for n in names}
        return MonitorAnswer(self.record(MonitorAnswer.kind, inputs, made))
