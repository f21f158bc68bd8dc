"""Why one step of a training run went as it did.

Record "why-step": scalars `loss`, `loss_others`, `norm`, `norm_others` (medians over the batches after it), `ceiling`,
`ceiling_others`, `change` of the loss on its own batch; tensors `slope` and `curve`, the parts <g, d> and <d, H d> / 2
of each layer; inputs `step`, `begun`, `lr`, `rule`, `layers`, `logged`. Of another trainer's run, whose batches are not
known, `until` is the step of the checkpoint after it; loss and norm are those of its log, others those of the lines
around, as far as there are any; the ceiling and the change are of a probe, the change from checkpoint to checkpoint.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.record import Estimate, Provenance
from .answer import Answer, Draft, Grid
from .numbers import number, times
from .texts import line
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
        """The gradient norm of the batch over the median of others; NaN where it is not known."""
        s = self.record.scalars
        return s["norm"].value / s["norm_others"].value if "norm" in s else math.nan

    @property
    def until(self) -> int | None:
        """The checkpoint after the step, where it is explained by those around it."""
        return self.record.inputs.get("until")

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
        s, end = self.record.scalars, "" if self.until is None else "_between"
        told = say(f"why_step_rate{end}", step=f"{self.step:,}", rate=number(self.lr), ratio=times(self.rate.value),
                   begun=f"{self.record.inputs['begun']:,}")  # fmt: skip
        found = judged("why_step_rate", self.rate, RATE, times(self.rate.value), told)
        if math.isnan(self.batch):
            return (found,)
        odd = say(f"why_step_batch{end}", loss=number(s["loss"].value), usual=number(s["loss_others"].value),
                  ratio=times(self.batch))  # fmt: skip
        return found, judged("why_step_batch", Estimate(self.batch), BATCH, times(self.batch), odd)

    @property
    def said(self) -> Said:
        t, change = self.record.tensors, self.record.scalars["change"].value
        slope, curve = float(t["slope"].sum()), float(t["curve"].sum())
        bent = abs(curve) > abs(slope)
        parts = {"slope": number(slope), "curve": number(curve), "change": number(change), "layer": self.bent}
        cause = "unknown" if self.cause == "neither" and math.isnan(self.batch) else self.cause
        found = say(f"why_step_{cause}", step=f"{self.step:,}")
        if self.until is not None:
            steps = {"begun": f"{self.record.inputs['begun']:,}", "until": f"{self.until:,}"}
            return found + say(f"why_step_{'curved' if bent else 'sloped'}_between", **parts, **steps)
        found += say("why_step_curved" if bent else "why_step_sloped", **parts)
        return found if self.same else found + say("why_step_other", logged=number(self.record.inputs["logged"]))

    def table(self) -> Grid:
        """One row a layer."""
        t = self.record.tensors
        rows = zip(self.layers, t["slope"].tolist(), t["curve"].tolist(), strict=True)
        return Grid(("layer", "<g, d>", "<d, H d> / 2"), tuple(rows))

    def lines(self) -> Sequence[str]:
        given = self.record.inputs
        about = {"step": f"{self.step:,}", "begun": f"{given['begun']:,}", "rule": given["rule"]}
        about |= {} if self.until is None else {"until": f"{self.until:,}"}
        key = "line_why_step" if self.until is None else "line_why_between"
        head = line(key, **about, coverage=given["coverage"])
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

    def take_log(self, *beside: tuple[float, Sequence[float]] | None) -> None:
        """Loss and gradient norm in the log, each with those of the lines around; both or nothing."""
        if None not in beside:
            (loss, losses), (norm, norms) = beside  # type: ignore[misc]  # none is None
            self.take_batch(loss, losses, norm, norms)

    def take_rate(self, lr: float, own: Estimate | None, others: Estimate) -> None:
        """The learning rate, and its ceiling on the batch, where that is known, and on others."""
        self.about["lr"] = lr
        self.scalars |= ({} if own is None else {"ceiling": own}) | {"ceiling_others": others}

    def take_update(self, slope: Mapping[str, float], curve: Mapping[str, float], change: float) -> None:
        """<g, d> and <d, H d> / 2 by layer, and what became of the loss."""
        self.about["layers"] = list(slope)
        self.tensors["slope"], self.tensors["curve"] = (
            torch.tensor([v[n] for n in slope], dtype=torch.float64) for v in (slope, curve)
        )
        self.scalars["change"] = Estimate(change)

    def answer(self, made: Provenance, **inputs: Any) -> WhyStep:
        return WhyStep(self.record(WhyStep.kind, inputs | self.about, made))
