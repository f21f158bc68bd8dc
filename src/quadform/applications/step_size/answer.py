"""The answer of `quadform lr` and `qf.lr`: a ceiling from curvature with its evidence, the table, the trials.

Record "step-size": scalars `loss`, `gradient_norm`, `lambda_max`, `lambda_max_P`, `ceiling/yours` and those of the rows
`inputs["rows"]`, `decay_share`, for Adam `floor_share`, of a training run `first_ceiling`; tensors `ceilings` (one for
each probe batch) and `verify/fractions, measured, predicted, tolerance, fine, losses` (the trial on a copy).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...answers.answer import Answer, Grid
from ...core.errors import InputError
from ...core.record import Estimate
from .trial import HOLDS, Trial

KIND = "step-size"


class StepSize(Answer):
    """The ceiling of one optimiser at one point of one loss. `ceiling` is a number, `estimate` it with its error."""

    kind = KIND

    @property
    def estimate(self) -> Estimate:
        return self.record.scalars["ceiling/yours"]

    @property
    def ceiling(self) -> float:
        return self.estimate.value

    @property
    def rule(self) -> str:
        """`38 / lambda_max(P^-1 H)`."""
        return str(self.record.inputs["formula"])

    @property
    def interval(self) -> tuple[float, float] | None:
        """The smallest and largest ceiling on single probe batches; None for one batch."""
        each = self.record.tensors.get("ceilings")
        return None if each is None or len(each) < 2 else (float(each.min()), float(each.max()))

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What the trial on a copy found; empty without one."""
        t = self.record.tensors
        if "verify/fractions" not in t:
            return ()
        allowed = t.get("verify/tolerance", torch.full_like(t["verify/measured"], HOLDS))
        columns = [t[f"verify/{n}"].tolist() for n in ("fractions", "measured", "predicted", "losses")]
        rows = zip(*columns, allowed.tolist(), strict=True)
        return tuple(Trial(f, m, p, tuple(x for x in losses if not math.isnan(x)), a) for f, m, p, losses, a in rows)

    @property
    def ok(self) -> bool:
        """Whether every eigenvalue converged, nothing was cut short, and the trial went as theory says."""
        done = all(e.converged for e in self.record.scalars.values()) and not self.record.inputs["partial"]
        return done and all(t.as_expected for t in self.trials)

    def suggest(self, fraction: float = 0.2) -> float:
        """That fraction of the ceiling. A ceiling is no recommendation; the fraction is your judgement."""
        if not 0 < fraction <= 1:
            raise InputError(f"a suggestion is a fraction of the ceiling between 0 and 1; got {fraction}.")
        return fraction * self.ceiling

    def table(self) -> Grid:
        """One row for each optimiser: ceiling, rule, yours or not."""
        s, rows = self.record.scalars, []
        for key, name, formula in self.record.inputs["rows"]:
            e = s[f"ceiling/{key}"]
            rows.append((name, e.value, formula, e.kind, "<- yours" if key == "yours" else ""))
        return Grid(("optimizer", "ceiling", "rule", "tag", ""), tuple(rows))

    def lines(self) -> Sequence[str]:
        from .words import lines

        return lines(self)
