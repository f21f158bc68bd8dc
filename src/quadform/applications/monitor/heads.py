"""Attention by head: the largest logit and the mean entropy of a run of the model, and |W_Q W_K^T|_F of the weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import InputError
from ...core.space import View
from ..signal.observe import Stack, find_stacks, watching

Heads = tuple[int, int, int]  # stack, layer, number of the attention inside the block


class AttentionSeen:
    """An observer that keeps, for each attention, the largest logit and the mean entropy of every head."""

    def __init__(self) -> None:
        self.most: dict[Heads, Tensor] = {}
        self.sums: dict[Heads, tuple[Tensor, int]] = {}

    def tokens(self, stack: int, layer: int, X: Tensor) -> None:
        pass

    def attention(self, stack: int, layer: int, number: int, A: Tensor, visible: Tensor, rows: slice) -> None:
        entropy = torch.special.entr(A.float()).sum(-1).sum((0, 2))
        total, count = self.sums.get((stack, layer, number), (0.0, 0))
        self.sums[stack, layer, number] = (total + entropy, count + A.shape[0] * A.shape[2])

    def logits(self, stack: int, layer: int, number: int, S: Tensor, visible: Tensor) -> None:
        largest = S.masked_fill(~visible, -torch.inf).amax((0, 2, 3)).float()
        key = (stack, layer, number)
        self.most[key] = torch.maximum(self.most[key], largest) if key in self.most else largest

    def found(self) -> tuple[Tensor | None, Tensor | None]:
        """(layers, heads) largest logits, and mean entropies."""
        entropies = {key: total / count for key, (total, count) in self.sums.items()}
        return table(self.most), table(entropies)


def table(rows: Mapping[Any, Tensor]) -> Tensor | None:
    """Rows in the order of their keys, filled with NaN to the longest; None where there are none."""
    if not rows:
        return None
    return nn.utils.rnn.pad_sequence([rows[k].cpu() for k in sorted(rows)], True, torch.nan)


def stacks_of(model: nn.Module, call: Callable[[], Any]) -> tuple[Stack, ...]:
    """The blocks of a model; none where it has no list of them."""
    try:
        return find_stacks(model, call)
    except InputError:
        return ()


@torch.no_grad()
def observed(
    model: nn.Module, stacks: tuple[Stack, ...], call: Callable[[], Any]
) -> tuple[float, Tensor | None, Tensor | None]:
    """What one run gives, and (layers, heads) largest logits and mean entropies; None where no attention was seen."""
    seen = AttentionSeen()
    with watching(model, stacks, seen, attention=True):
        given = float(call())
    return given, *seen.found()


_HEAD = re.compile(r"(.*)W_([QK])\[(\d+)\]$")


def qk_norms(model: nn.Module, views: tuple[View, ...], params: Mapping[str, Tensor]) -> Tensor | None:
    """(layers, heads) |W_Q W_K^T|_F by two small Gram matrices: tr(W_Q^T W_Q W_K^T W_K)^1/2; None without heads.

    Of fewer key heads than query heads each serves a run of neighbours.
    """
    grams: dict[str, dict[str, dict[int, Tensor]]] = {}
    for view in views:
        match = _HEAD.match(view.name)
        if match and view.of in params:
            W = view.read(params[view.of].detach(), 0)
            W = W if _outputs_last(model, view.of) else W.T
            W = W.to(torch.promote_types(W.dtype, torch.float32))
            path, which, head = match[1], match[2], int(match[3])
            grams.setdefault(path, {}).setdefault(which, {})[head] = W.T @ W
    rows = {}
    for i, found in enumerate(grams.values()):
        if set(found) != {"Q", "K"} or len(found["Q"]) % len(found["K"]):
            continue
        Q, K = (torch.stack([found[w][h] for h in sorted(found[w])]) for w in "QK")
        K = K.repeat_interleave(len(Q) // len(K), 0)
        rows[i] = (Q * K).sum((1, 2)).clamp(min=0).sqrt()
    return table(rows)


def _outputs_last(model: nn.Module, name: str) -> bool:
    """Whether a weight is stored (in, out): under the paper's own name, or in a Conv1D."""
    path, _, leaf = name.rpartition(".")
    return leaf.startswith("W_") or (leaf == "weight" and type(model.get_submodule(path)).__name__ == "Conv1D")
