"""Linear maps of a model with the second moment of their inputs: what pruning one matrix at a time looks at.

    S = mean of x x^T over all places of all batches, (in, in)

Which parameters are linear maps is seen as torch is called (`preconditioners.uses`): raw matrices, `nn.Linear` and
`Conv1D` alike. Batches are added up one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..curvature.risk import Risk
from ..curvature.settings import measured
from ..preconditioners.uses import Recorder, Use


@dataclass(frozen=True)
class LinearMap:
    """y = W x of one parameter: whether it is stored (in, out), and the second moment S (in, in) of its inputs."""

    transposed: bool
    S: Tensor

    def matrix(self, stored: Tensor) -> Tensor:
        """The parameter, or anything of its shape, as (out, in); its own inverse."""
        return stored.mT if self.transposed else stored


def linear_maps(risk: Risk) -> dict[str, LinearMap]:
    """The matrices among the parameters of a risk that do nothing but multiply inputs, in the order of the risk.

    Embeddings, also those that are output matrices, convolutions and norms are none.
    """
    sums: dict[str, Tensor] = {}
    sides: dict[str, set[bool]] = {}
    places: dict[str, int] = {}
    other: set[str] = set()
    for batch in risk.batches:
        uses, otherwise = _uses(risk, batch)
        other |= otherwise
        for use in uses:
            if use.role.kind != "linear":
                other.add(use.name)
                continue
            x = use.x.reshape(-1, use.x.shape[-1])
            sides.setdefault(use.name, set()).add(use.role.transposed)
            places[use.name] = places.get(use.name, 0) + len(x)
            sums[use.name] = sums[use.name] + x.mT @ x if use.name in sums else x.mT @ x
    found = {
        n: LinearMap(next(iter(sides[n])), sums[n] / places[n])
        for n in risk.params
        if n in sums and n not in other and len(sides[n]) == 1
    }
    if not found:
        raise InputError("no parameter of this model acts as a linear map alone, so there is nothing to prune.")
    return found


def _uses(risk: Risk, batch: object) -> tuple[list[Use], set[str]]:
    with (
        measured(risk.model, device=risk.device, train_mode=risk.train_mode),
        torch.enable_grad(),
        Recorder(risk.params) as recorder,
    ):
        risk.run({**risk.constants(), **recorder.params}, batch)
    return recorder.uses, recorder.otherwise


def zeros_of(weights: Mapping[str, Tensor]) -> float:
    """The share of zeros in all tensors together."""
    return sum(int((t == 0).sum()) for t in weights.values()) / sum(t.numel() for t in weights.values())
