"""Fetched models with their own task: batches that were seen and others held out, the loss, and the score.

rxnfp    names hidden tokens of reactions (made from textbook kinds); score: the share it names
minilm   finds the docstring that belongs to a function's name; score: the share found first among all held out
anarcii  numbers an antibody domain; targets are its own answers, score: the share numbered exactly as before
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.rng import stream
from ..corpora.reactions import reactions
from ..corpora.zoo import docstrings, hidden, load, of_partners, pooled
from ..nn.transformer import IGNORE

Batch = dict[str, Tensor]
NAMES = ("rxnfp", "minilm", "anarcii")


@dataclass(frozen=True)
class Task:
    """A model, the batches the methods see, those they do not, and how both are judged."""

    model: nn.Module
    seen: list[Batch]
    held: list[Batch]
    loss: Callable[..., Tensor] | None
    value: Callable[[Any, Batch], Tensor]
    score: Callable[[Any, Sequence[Batch]], Tensor]

    def changed(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A copy with other weights."""
        other = copy.deepcopy(self.model)
        with torch.no_grad():
            for name, t in weights.items():
                other.get_parameter(name).copy_(t)
        return other

    def judged(self, model: nn.Module) -> dict[str, Tensor]:
        """The loss of each batch held out, (batches,), and the score."""
        with torch.no_grad():
            losses = torch.stack([self.value(model, b) for b in self.held]).double()
            return {"held": losses.cpu(), "score": self.score(model, self.held).cpu()}


@functools.lru_cache(maxsize=1)
def task(name: str, size: int, seen: int, held: int, *, dtype: torch.dtype, seed: int = 0) -> Task:
    """A model by name with `seen` and `held` batches of `size` sequences, on a GPU where there is one; no sequence is
    in two of them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = {"rxnfp": _rxnfp, "minilm": _minilm, "anarcii": _anarcii}[name.partition(":")[0]]
    found: Task = make(name.partition(":")[2], size, seen + held, dtype, seed)
    both = [{k: t.to(device) for k, t in batch.items()} for batch in found.seen]
    return Task(found.model.to(device), both[:seen], both[seen:], found.loss, found.value, found.score)


def _drawn(count: int, of: Sequence[Any], seed: int) -> list[Any]:
    order = torch.randperm(len(of), generator=stream(seed, "fetched-models"))[:count].tolist()
    return [of[i] for i in order]


def _rxnfp(variant: str, size: int, count: int, dtype: torch.dtype, seed: int) -> Task:
    found = load("rxnfp", variant, dtype=dtype)
    texts = _drawn(size * count, reactions(), seed)
    tokens: Any = found.tokenizer
    made = [dict(tokens(texts[i * size : (i + 1) * size], padding=True, return_tensors="pt")) for i in range(count)]
    batches = [hidden(tokens, batch, stream(seed, f"mask {i}")) for i, batch in enumerate(made)]

    def score(model: Any, held: Sequence[Batch]) -> Tensor:
        right = [(model(**b).logits.argmax(-1) == b["labels"])[b["labels"] != IGNORE] for b in held]
        return torch.cat(right).double().mean()

    return Task(found.model, batches, [], None, lambda model, b: model(**b).loss, score)


class Sentences(nn.Module):
    """A sentence encoder whose output is one tensor: the mean over tokens, of length 1."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, **batch: Tensor) -> Tensor:
        return pooled(self.net(**batch), batch)


def _minilm(variant: str, size: int, count: int, dtype: torch.dtype, seed: int) -> Task:
    found = load("minilm", dtype=dtype)
    tokens: Any = found.tokenizer
    pairs = _drawn(size * count, docstrings(), seed)

    def batch(part: list[tuple[str, str]]) -> Batch:
        texts = [name for name, _ in part] + [line for _, line in part]
        return dict(tokens(texts, padding=True, truncation=True, max_length=64, return_tensors="pt"))

    def score(model: Any, held: Sequence[Batch]) -> Tensor:
        halves = [model(**b).chunk(2) for b in held]
        first, second = (torch.cat(side) for side in zip(*halves, strict=True))
        return ((first @ second.mT).argmax(1) == torch.arange(len(first), device=first.device)).double().mean()

    batches = [batch(pairs[i * size : (i + 1) * size]) for i in range(count)]
    value: Callable[[Any, Batch], Tensor] = lambda model, b: of_partners(model(**b))  # noqa: E731
    return Task(Sentences(found.model).eval(), batches, [], lambda out, b: of_partners(out), value, score)


def _anarcii(variant: str, size: int, count: int, dtype: torch.dtype, seed: int) -> Task:
    from ..corpora.proteins import exactly

    found = load("anarcii", variant, dtype=dtype)
    batches = [found.probe(batch=size, seed=seed + i) for i in range(count)]

    def score(model: Any, held: Sequence[Batch]) -> Tensor:
        return torch.tensor([same for batch in held for same in exactly(model, batch)]).double().mean()

    return Task(found.model, batches, [], None, lambda model, b: model.loss(b), score)


def rise_ratio(after: Tensor, other: Tensor, before: Tensor) -> tuple[float, float]:
    """Rise over rise from losses of batches held out, and its standard error by the jackknife."""
    a, b = after - before, other - before
    n, whole = len(a), float(a.sum() / b.sum())
    left = (a.sum() - a) / (b.sum() - b)
    return whole, float(((n - 1) / n * (left - left.mean()).square().sum()).sqrt())
