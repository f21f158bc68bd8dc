"""The answer of `quadform quantize`: what each method costs the loss, predicted and measured, and the bits it used.

Record "quantize": what `compressed` says; scalar `bits`, stored bits a weight with scales and zero points; tensor
`bits` of each matrix. Inputs `bits` or `budget`, `group`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..core.record import Estimate
from .compressed import CompressDraft, Compressed, Method
from .numbers import number
from .texts import line
from .verdict import Said, say


class QuantizeDraft(CompressDraft):
    """The answer while it is measured."""

    def take_bits(self, bits: Mapping[str, int], average: float) -> None:
        self.tensors["bits"] = torch.tensor(list(bits.values()))
        self.scalars["bits"] = Estimate(average)


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
    def share(self) -> str:
        return f"{self.size_of(''):.3g}"

    def named_alone(self, name: str) -> str:
        return f"{name} ({self.bits[name]})"

    def size_of(self, method: str) -> float:
        return self.record.scalars["bits"].value

    def told(self, best: Method) -> Said:
        told = {"method": best.name, "bits": f"{best.size:.3g}", "loss": number(self.loss)}
        return say("quantize_best", **told, measured=number(best.measured), predicted=number(best.predicted))

    def more_lines(self) -> Sequence[str]:
        given = ", ".join(f"{n} {b}" for n, b in self.bits.items())
        bits = [line("line_bits", bits=given)] if self.budget is not None and self.methods else []
        return [*bits, *super().more_lines()]
