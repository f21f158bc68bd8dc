"""The answer of `quadform quantize`: what each method costs the loss, predicted and measured, and the bits it used.

Record "quantize": what `compressed` says; scalar `bits`, stored bits a weight with scales and zero points; tensors
`bits` of each matrix, and where each matrix was rounded alone `each/predicted` and `each/measured`, in the order of the
input `matrices`. Inputs `bits` or `budget`, `group`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.record import Estimate
from .compressed import CompressDraft, Compressed, Method
from .numbers import number
from .texts import line
from .verdict import Said, say


class QuantizeDraft(CompressDraft):
    """The answer while it is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.each: dict[str, tuple[float, float]] = {}

    def take_bits(self, bits: Mapping[str, int], average: float) -> None:
        self.tensors["bits"] = torch.tensor(list(bits.values()))
        self.scalars["bits"] = Estimate(average)

    def take_each(self, name: str, found: Mapping[str, Any]) -> None:
        """One matrix rounded alone."""
        self.each[name] = found["predicted"], found["loss"] - self.scalars["loss"].value
        predicted, measured = zip(*self.each.values(), strict=True)
        self.tensors["each/predicted"] = torch.tensor(predicted, dtype=torch.float64)
        self.tensors["each/measured"] = torch.tensor(measured, dtype=torch.float64)


class QuantizedModel(Compressed):
    """One model with few bits a weight."""

    kind = "quantize"
    draft = QuantizeDraft
    columns = ("bits", "bits", "rounding")

    @property
    def bits(self) -> dict[str, int]:
        """The bits of each matrix."""
        return dict(zip(self.matrices, self.record.tensors["bits"].tolist(), strict=True))

    @property
    def budget(self) -> float | None:
        return self.record.inputs["budget"]

    @property
    def group(self) -> int:
        """Weights that share a scale."""
        return int(self.record.inputs["group"])

    @property
    def each(self) -> dict[str, tuple[float, float]]:
        """What the loss rises by with one matrix rounded alone, (predicted, measured); empty where it was not asked."""
        t = self.record.tensors
        if "each/predicted" not in t:
            return {}
        pairs = zip(t["each/predicted"].tolist(), t["each/measured"].tolist(), strict=True)
        return dict(zip(self.matrices, pairs, strict=False))  # fewer where the time was up

    def size_of(self, method: str) -> float:
        return self.record.scalars["bits"].value

    def told(self, best: Method) -> Said:
        told = {"method": best.name, "bits": f"{best.size:.3g}", "loss": number(self.loss)}
        said = say("quantize_best", **told, measured=number(best.measured), predicted=number(best.predicted))
        if self.each:
            name, (_, most) = max(self.each.items(), key=lambda item: item[1][1])
            said = said + say("quantize_each", name=name, most=number(most))
        return said

    def more_lines(self) -> Sequence[str]:
        out = []
        if self.budget is not None and self.methods:
            out.append(line("line_bits", bits=", ".join(f"{n} {b}" for n, b in self.bits.items())))
        if self.each:
            out.append(f"{'one matrix alone':<40}{'bits':>6}{'predicted dL':>14}{'measured dL':>13}")
            ranked = sorted(self.each.items(), key=lambda item: -item[1][1])
            out += [f"{n:<40}{self.bits[n]:>6}{number(p):>14}{number(m):>13}" for n, (p, m) in ranked]
        return out
