"""The answer of `quadform prune`: what each method costs the loss, predicted and measured.

Record "prune": what `compressed` says; for each method NAME also `NAME/sparsity`, its share of zeros, and the tensor
`NAME/zeros`, that of each matrix. `ways`: how the other weights make up for those that go.
"""

from __future__ import annotations

from torch import Tensor

from .compressed import CompressDraft, Compressed, Method
from .numbers import number, percent
from .verdict import Said, say


class PruneDraft(CompressDraft):
    """The answer while it is measured."""

    scalar_keys = ("predicted", "sparsity")
    tensor_keys = ("parts", "zeros")


class Pruned(Compressed):
    """What can be taken away from one model."""

    kind = "prune"
    draft = PruneDraft
    columns = ("sparsity", "zeros", "compensate")

    @property
    def sparsity(self) -> float:
        """The share that was to be removed."""
        return float(self.record.inputs["sparsity"])

    @property
    def structure(self) -> str:
        return str(self.record.inputs["structure"])

    def zeros(self, method: str) -> Tensor:
        """The share of zeros in each matrix."""
        return self.record.tensors[f"{method}/zeros"]

    @property
    def share(self) -> str:
        return percent(self.sparsity)

    def size_of(self, method: str) -> float:
        return self.record.scalars[f"{method}/sparsity"].value

    def told(self, best: Method) -> Said:
        told = {"method": best.name, "sparsity": percent(best.size), "loss": number(self.loss)}
        return say("prune_best", **told, measured=number(best.measured), predicted=number(best.predicted))
