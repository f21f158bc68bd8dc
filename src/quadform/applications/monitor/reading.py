"""One measurement of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ...core.number import Estimate
from ...core.showing import fields_in_brief


@dataclass(frozen=True)
class Reading:
    """What was measured after one step. `ceiling` and `ratio` are None where no ceiling is known.

    `ratio` is the learning rate of the next step over the ceiling. `logits`, `entropy` and `qk` are (layers, heads):
    the largest logit, the mean entropy of a row in nats, and |W_Q W_K^T|_F; None where attention could not be seen.
    `traces` are shares of the trace of H by layer, `direction` those of the squared length of the optimizer's top
    eigenvector. `functional` is 1 - <v, H_o v> / <v, H v> along the top eigenvector v of H, the share of the functional
    part H_f = H - H_o; None but in full searches, and where H_o is not known. `seconds` is what the measurement took;
    `full`: the eigenvalues are from a full search, not followed.
    """

    step: int
    seconds: float
    full: bool
    loss: float
    lr: float | None
    lambda_max: Estimate
    lambda_P: Estimate | None
    ceiling: float | None
    logits: Tensor | None = None
    entropy: Tensor | None = None
    qk: Tensor | None = None
    traces: dict[str, float] = field(default_factory=dict)
    direction: dict[str, float] = field(default_factory=dict)
    functional: float | None = None

    __repr__ = fields_in_brief

    @property
    def ratio(self) -> float | None:
        return None if self.ceiling is None or self.lr is None else self.lr / self.ceiling

    def numbers(self) -> dict[str, float]:
        """The plain numbers, for a logger or a line of a file; those that are not known are left out."""
        known = {
            "loss": self.loss,
            "lr": self.lr,
            "lambda_max": self.lambda_max.value,
            "residual": self.lambda_max.error,
            "lambda_P": self.lambda_P and self.lambda_P.value,
            "residual_P": self.lambda_P and self.lambda_P.error,
            "ceiling": self.ceiling,
            "ratio": self.ratio,
            "largest_logit": _most(self.logits),
            "smallest_entropy": _least(self.entropy),
            "largest_qk": _most(self.qk),
            "functional_share": self.functional,
            **{f"trace_share/{n}": s for n, s in self.traces.items()},
            "seconds": self.seconds,
        }
        return {n: float(v) for n, v in known.items() if v is not None}


def _most(values: Tensor | None) -> float | None:
    return None if values is None else float(values[~values.isnan()].max())


def _least(values: Tensor | None) -> float | None:
    return None if values is None else float(values[~values.isnan()].min())
