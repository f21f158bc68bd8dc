"""The keys that an answer of `quadform attention` is written with; `answers.attention` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Provenance, Record
from .answer import Draft
from .attention import MOMENTS, AttentionAnswer, spectrum_key


class AttentionDraft(Draft):
    """The numbers of one layer while they are measured."""

    def layer(self, loss: float, H_o: Tensor, H_f: Tensor, A: Tensor) -> None:
        """Its loss, both parts of its Hessian (P, P) and its attention pattern."""
        self.scalars["loss"] = Estimate(loss)
        self.tensors |= {"H_o": H_o, "H_f": H_f, "A": A}

    def eigenvalues(self, part: str, values: Tensor) -> None:
        """All eigenvalues of `total`, `outer` or `functional`, ascending."""
        self.tensors[spectrum_key(part)] = values

    def numbers(self, found: Mapping[str, Estimate]) -> None:
        """Numbers of the whole layer, by name."""
        self.scalars |= found

    def norms(self, found: Mapping[str, float]) -> None:
        """`"outer/W_Q,W_K"` -> the Frobenius norm of that block."""
        self.scalars |= {f"norm/{block}": Estimate(value) for block, value in found.items()}

    def kronecker(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """Matrix -> kind -> |K - H_o(W, W)| / |H_o(W, W)|."""
        self.scalars |= {f"kronecker/{W}/{kind}": Estimate(e) for W, of in found.items() for kind, e in of.items()}

    def slopes(self, part: str, fits: Mapping[str, Estimate]) -> None:
        """Block -> its fitted exponent in the input scale."""
        self.scalars |= {f"slope/{part}/{block}": e for block, e in fits.items()}

    def exponents(self, paper: Mapping[str, Estimate]) -> None:
        """`"outer/W_Q,W_K"` -> the paper's exponent."""
        self.scalars |= {f"paper/{block}": e for block, e in paper.items()}

    def growth(self, scales: Tensor, norms: Mapping[str, Tensor]) -> None:
        """The scales of a sweep, and part -> norms (points, blocks)."""
        self.tensors |= {"scales": scales} | {f"growth_{part}": of for part, of in norms.items()}

    def softened(self, found: Mapping[str, list[Any]]) -> None:
        """Of a softmax along the sweep: `entropy`, `undecided` and `moments`, one entry a point."""
        for name, points in found.items():
            self.tensors[f"growth_{name}"] = torch.stack([torch.as_tensor(at, dtype=torch.float64) for at in points])

    def unread(self, inputs: Mapping[str, Any], made: Provenance) -> Record:
        """The record; its tensors are on the CPU in float64."""
        self.tensors = {name: t.detach().to("cpu", torch.float64) for name, t in self.tensors.items()}
        return self.record(AttentionAnswer.kind, inputs, made)

    def answer(self, inputs: Mapping[str, Any], made: Provenance) -> AttentionAnswer:
        return AttentionAnswer(self.unread(inputs, made))


class ExploredDraft(AttentionDraft):
    """What the live page shows besides."""

    def pattern(self, first_key: float, moments: Sequence[float]) -> None:
        """Mean attention on the first token, and the norms of the three moments."""
        self.scalars["first_key"] = Estimate(first_key, note="mean attention on the first token")
        for name, norm in zip(MOMENTS, moments, strict=True):
            self.scalars[f"moment/{name}"] = Estimate(norm, note="Frobenius norm, mean over tokens")

    def ingredients(self, found: Mapping[str, float]) -> None:
        """What stands in the formulas of the blocks, by symbol."""
        self.scalars |= {f"ingredient/{name}": Estimate(value) for name, value in found.items()}

    def depth(self, *, cosine: Tensor, effective_rank: Tensor) -> None:
        """Token cosine and effective rank after every block."""
        self.tensors |= {"cosine": cosine, "effective_rank": effective_rank}


def with_eigenvalues(record: Record, part: str, values: Tensor) -> Record:
    """The same record with the eigenvalues of one more part."""
    return replace(record, tensors={**record.tensors, spectrum_key(part): values})
