"""The question of `quadform quantize` and `qf.quantize`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError
from ...core.question import option, words_of
from ..compressing.question import CompressQuestion, require_known

#: How weights are rounded; obq is slow and stands last.
METHODS = ("rtn", "gptq", "hessian", "obq")
#: Bits of every matrix where neither bits nor a budget are given.
USUAL = 4


@dataclass(frozen=True, kw_only=True)
class QuantizeQuestion(CompressQuestion):
    """How few bits do the weights need, and what does it cost?

    For each method it shows the predicted rise of the loss, g.d + d.Hd / 2 with d the change of the weights, and the
    measured rise. With a budget each matrix gets its own number of bits. The best model is written to `quantized/` in
    the results folder, as packed integers; every verb opens it. The model itself is not changed.
    """

    verb = "quantize"

    bits: int | None = option(None, "Bits of each weight, 2 to 8.", metavar="INT", shown=f"(default: {USUAL})")
    budget: float | None = option(
        None,
        "Average bits per weight, including scales and zero points; each matrix gets the number of bits that"
        " costs the loss least.",
        above=0,
        metavar="FLOAT",
        shown="(default: the same bits for all)",
    )
    group: int = option(64, "Number of weights in a row that share a scale and a zero point.", least=1)
    method: tuple[str, ...] = option(
        METHODS[:3],
        "How weights are rounded (comma-separated): rtn (to nearest), gptq, hessian (gptq, with the"
        " later matrices adjusted), obq.",
        parse=words_of,
        metavar="LIST",
        shown=f"(default: {','.join(METHODS[:3])})",
    )
    damping: float = option(0.01, "Damping of the curvature, as a share of the mean of its diagonal.", above=0)
    products: int = option(
        60, "Maximum number of products with H_o for its diagonal, and for the linear system of each round.", least=8
    )
    rounds: int = option(4, "Number of groups of matrices that `hessian` rounds one after the other.", least=1)
    each: bool = option(False, "Also round each matrix alone, to see which are sensitive (predicted and measured).")

    def check(self) -> None:
        require_known(self.method, METHODS)
        if self.bits is not None and not (isinstance(self.bits, int) and 2 <= self.bits <= 8):
            raise InputError(f"bits={self.bits:g}: give a whole number from 2 to 8.")
        if self.bits is not None and self.budget is not None:
            raise InputError(
                f"bits={self.bits} and budget={self.budget:g}: give one of them. A budget lets matrices differ."
            )

    @property
    def methods(self) -> tuple[str, ...]:
        return self.method

    def measurement(self, subject: Any = None) -> Any:
        from .measure import QuantizeMeasurement

        return QuantizeMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.quantize import QuantizedModel

        return QuantizedModel(record)
