"""Why one step of a training run went as it did.

Record "why-step": scalars `loss`, `loss_others`, `norm`, `norm_others` (medians over the batches after it), `ceiling`,
`ceiling_others`, `change` of the loss on its own batch; tensors `slope` and `curve`, the parts <g, d> and <d, H d> / 2
of each layer; inputs `step`, `begun`, `lr`, `rule`, `layers`, `logged`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.record import Estimate, Provenance
from .answer import Answer, Draft, Grid
from .numbers import number, times
from .verdict import Limits, Said, Verdict, judged, say

#: The learning rate over the ceiling on other batches; the gradient norm of the batch over that of others.
RATE, BATCH = Limits(1.0, 2.0), Limits(2.0, 4.0)


class WhyStep(Answer):
    """One step: its batch, its rate, its update."""

    kind = "why-step"

    @property
    def step(self) -> int:
        return int(self.record.inputs["step"])

    @property
    def lr(self) -> float:
        return float(self.record.inputs["lr"])

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self.record.inputs["layers"])

    @property
    def rate(self) -> Estimate:
        """The learning rate over the ceiling on the other batches."""
        c = self.record.scalars["ceiling_others"]
        value = self.lr / c.value
        return Estimate(value, value * (c.error or 0.0) / c.value, "estimate", c.matvecs, c.converged,
                        error_kind="residual")  # fmt: skip

    @property
    def batch(self) -> float:
        """The gradient norm of the batch over the median of others."""
        s = self.record.scalars
        return s["norm"].value / s["norm_others"].value

    @property
    def cause(self) -> str:
        """`ceiling`, `data`, `both` or `neither`."""
        high, odd = self.rate.value > RATE.green, self.batch > BATCH.green
        return {(True, True): "both", (True, False): "ceiling", (False, True): "data"}.get((high, odd), "neither")

    @property
    def bent(self) -> str:
        """The layer with the largest part of the curvature along the update."""
        return self.layers[int(self.record.tensors["curve"].argmax())]

    @property
    def same(self) -> bool:
        """Whether the loss is that of the log, to 1 %; true where the log has none for this step."""
        logged = self.record.inputs["logged"]
        return logged is None or abs(self.record.scalars["loss"].value - logged) <= 0.01 * abs(logged)

    def verdicts(self) -> tuple[Verdict, ...]:
        s = self.record.scalars
        told = say("why_step_rate", step=f"{self.step:,}", rate=number(self.lr), ratio=times(self.rate.value))
        odd = say("why_step_batch", loss=number(s["loss"].value), usual=number(s["loss_others"].value),
                  ratio=times(self.batch))  # fmt: skip
        return (
            judged("why_step_rate", self.rate, RATE, times(self.rate.value), told),
            judged("why_step_batch", Estimate(self.batch), BATCH, times(self.batch), odd),
        )

    @property
    def said(self) -> Said:
        t, change = self.record.tensors, self.record.scalars["change"].value
        slope, curve = float(t["slope"].sum()), float(t["curve"].sum())
        key = "why_step_curved" if abs(curve) > abs(slope) else "why_step_sloped"
        parts = {"slope": number(slope), "curve": number(curve), "change": number(change), "layer": self.bent}
        found = say(f"why_step_{self.cause}", step=f"{self.step:,}") + say(key, **parts)
        return found if self.same else found + say("why_step_other", logged=number(self.record.inputs["logged"]))

    def table(self) -> Grid:
        """One row a layer."""
        t = self.record.tensors
        rows = zip(self.layers, t["slope"].tolist(), t["curve"].tolist(), strict=True)
        return Grid(("layer", "<g, d>", "<d, H d> / 2"), tuple(rows))

    def lines(self) -> Sequence[str]:
        given = self.record.inputs
        head = f"step {self.step:,}, trained again from step {given['begun']:,}; {given['rule']}, {given['coverage']}"
        return [head, *str(self.table()).splitlines(), self.said(), *self.verdict_lines()]


class WhyStepDraft(Draft):
    """The answer while it is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.about: dict[str, Any] = {}

    def take_batch(self, loss: float, others: Sequence[float], norm: float, norms: Sequence[float]) -> None:
        """Loss and gradient norm on the batch of the step, and on others."""
        values = {"loss": loss, "loss_others": statistics.median(others), "norm": norm,
                  "norm_others": statistics.median(norms)}  # fmt: skip
        self.scalars |= {n: Estimate(v) for n, v in values.items()}

    def take_rate(self, lr: float, own: Estimate, others: Estimate) -> None:
        """The learning rate, and its ceiling on the batch and on others."""
        self.about["lr"] = lr
        self.scalars |= {"ceiling": own, "ceiling_others": others}

    def take_update(self, slope: Mapping[str, float], curve: Mapping[str, float], change: float) -> None:
        """<g, d> and <d, H d> / 2 by layer, and what became of the loss."""
        self.about["layers"] = list(slope)
        self.tensors["slope"], self.tensors["curve"] = (
            torch.tensor([v[n] for n in slope], dtype=torch.float64) for v in (slope, curve)
        )
        self.scalars["change"] = Estimate(change)

    def answer(self, made: Provenance, **inputs: Any) -> WhyStep:
        return WhyStep(self.record(WhyStep.kind, inputs | self.about, made))
