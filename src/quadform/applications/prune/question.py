"""The question of `quadform prune` and `qf.prune`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError
from ...core.question import option, words_of
from ..compressing.question import CompressQuestion, require_known

#: How weights are chosen; each with how the others make up for them where nothing else is asked for.
METHODS = {"magnitude": "none", "wanda": "none", "obd": "none", "sparsegpt": "sweep", "hessian": "hessian"}
#: The same of those that are measured where they are named: one keeps gradients, the other a whole Hessian.
NAMED = {"woodfisher": "fisher", "obs": "obs"}
STRUCTURES = ("none", "2:4", "rows", "heads")
COMPENSATIONS = ("none", "sweep", "least-squares", "hessian", "fisher", "obs")


@dataclass(frozen=True, kw_only=True)
class PruneQuestion(CompressQuestion):
    """Which weights can be removed, and what does it cost?

    For each method it shows the predicted rise of the loss, g.d + d.Hd / 2 with d the change of the weights, and the
    measured rise. The best model is written to `pruned/` in the results folder; the model itself is not changed.
    """

    verb = "prune"

    sparsity: float = option(0.5, "Share of the weights of linear layers to remove.", least=0, below=1)
    method: tuple[str, ...] | None = option(
        None,
        "How weights are chosen (comma-separated): magnitude, wanda, obd, sparsegpt, hessian (the smallest,"
        " compensated together), woodfisher, obs (with the whole |H|, small models).",
        parse=words_of,
        metavar="LIST",
        shown=f"(default: {','.join(METHODS)}; without sparsegpt for rows and heads)",
    )
    structure: str = option(
        "none",
        "Single weights, two of each four, whole rows (outputs), or a share of the attention heads.",
        choices=STRUCTURES,
    )
    compensate: str = option(
        "auto",
        "How the remaining weights compensate: not at all, one matrix at a time (sweep, least-squares), one row at"
        " a time (fisher), or all together with H_o (hessian) or the whole |H| (obs); auto: as the method does.",
        choices=("auto", *COMPENSATIONS),
    )
    damping: float = option(0.1, "Damping of the curvature, as a share of the mean of its diagonal.", above=0)
    products: int = option(
        60, "Maximum number of products with H_o for its diagonal, and for the linear system of each round.", least=8
    )
    rounds: int = option(
        4,
        "Number of pruning rounds; the curvature is measured again before each.",
        least=1,
    )
    each: bool = option(
        False, "Take from one matrix at a time too, and one head: which are sensitive, predicted and measured."
    )

    def check(self) -> None:
        if self.methods or not self.each:
            require_known(self.methods, METHODS | NAMED)
        if self.structure == "2:4" and self.sparsity != 0.5:
            raise InputError(f"2:4 removes one half of the weights; got sparsity={self.sparsity:g}. Give 0.5.")
        if self.structure in ("rows", "heads") and "sparsegpt" in self.methods:
            raise InputError(
                f"sparsegpt chooses single weights or 2:4, not {self.structure}. Leave it out of method, or take"
                " structure none or 2:4."
            )
        if self.structure != "none" and "obs" in self.methods:
            raise InputError(
                f"obs chooses single weights, not {self.structure}. Leave it out of method, or take structure none."
            )

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that were named, else all of `METHODS` that fit the structure."""
        if self.method is not None:
            return self.method
        return tuple(m for m in METHODS if m != "sparsegpt" or self.structure in ("none", "2:4"))

    def compensation(self, method: str) -> str:
        """How the kept weights make up for the others."""
        return (METHODS | NAMED)[method] if self.compensate == "auto" else self.compensate

    def measurement(self, subject: Any = None) -> Any:
        from .measure import PruneMeasurement

        return PruneMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.prune import Pruned

        return Pruned(record)
