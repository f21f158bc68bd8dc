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

    For each method the loss is predicted to rise by g.d + d.Hd / 2, d the change of the weights, beside what it rises
    by. With a budget each matrix gets its own bits. The best model is written to `quantized/` in the folder that keeps
    the results, as packed whole numbers; every verb opens it. The model itself is not touched.
    """

    verb = "quantize"

    bits: int | None = option(None, "Bits of each weight, 2 to 8.", metavar="INT", shown=f"(default: {USUAL})")
    budget: float | None = option(
        None,
        "Bits a weight on average, scales and zero points included; matrices get those that cost the loss least.",
        above=0,
        metavar="FLOAT",
        shown="(default: the same bits for all)",
    )
    group: int = option(64, "Weights of a row that share a scale and a zero point.", least=1)
    method: tuple[str, ...] = option(
        METHODS[:3],
        "How weights are rounded: rtn (to nearest), gptq, hessian (gptq; the matrices behind make up for it), obq.",
        parse=words_of,
        metavar="LIST",
        shown=f"(default: {','.join(METHODS[:3])})",
    )
    damping: float = option(0.01, "Damping of the curvature, as a share of the mean of its diagonal.", above=0)
    products: int = option(60, "Most products with H_o for its diagonal, and for the solution of a round.", least=8)
    rounds: int = option(4, "Parts of the matrices that `hessian` rounds one after the other.", least=1)
    each: bool = option(False, "Round each matrix alone too: which are sensitive, predicted and measured.")

    def check(self) -> None:
        require_known(self.method, METHODS)
        if self.bits is not None and not (isinstance(self.bits, int) and 2 <= self.bits <= 8):
            raise InputError(f"bits={self.bits:g}: give a whole number from 2 to 8.")
        if self.bits is not None and self.budget is not None:
            raise InputError(
                f"bits={self.bits} and budget={self.budget:g}: give one of them. A budget lets matrices differ."
            )

    def measurement(self, subject: Any = None) -> Any:
        from .measure import QuantizeMeasurement

        return QuantizeMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.quantize import QuantizedModel

        return QuantizedModel(record)
