"""How good a model is on its data: held-out loss, and the share of questions it answers exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from quadform.core.record import Estimate
from quadform.corpora.datasets import Batch, Dataset
from quadform.nn.decode import Search, generate
from quadform.nn.transformer import IGNORE, Transformer


def targets(model: Transformer, batch: Batch) -> Tensor:
    """Which positions carry loss in `Transformer.loss`: (batch, n), or (batch,) of a classifier."""
    if "labels" in batch:
        labels = batch["labels"]
    elif model.config.kind == "encoder-decoder":
        labels = batch["target"][:, 1:]
    else:
        labels = batch["tokens"][:, 1:]
    counted = labels != IGNORE
    if model.config.pad is not None and not model.config.classes:
        counted &= labels != model.config.pad
    if model.config.kind == "decoder" and "labels" not in batch and "mask" in batch:
        counted &= batch["mask"][:, :-1] & batch["mask"][:, 1:]
    return counted


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on another device."""
    return {name: t.to(device, non_blocking=True) for name, t in batch.items()}


@torch.no_grad()
def by_sequence(
    model: Transformer, batches: Iterable[Batch], score: Callable[[Batch], Tensor]
) -> tuple[Tensor, Tensor]:
    """(sums of `score` over the targets of each sequence, how many targets it has), without dropout."""
    training, device = model.training, model.embed.W_E.device
    model.eval()
    sums, counts = [], []
    try:
        for batch in batches:
            batch = to_device(batch, device)
            counted = targets(model, batch)
            each = score(batch) * counted
            sums.append(each.flatten(1).sum(1) if each.ndim > 1 else each)
            counts.append(counted.flatten(1).sum(1) if each.ndim > 1 else counted.long())
    finally:
        model.train(training)
    return torch.cat(sums), torch.cat(counts)


@torch.no_grad()
def evaluate(
    model: Transformer, data: Dataset, *, split: str = "valid", batches: int = 8, batch_size: int = 64, seed: int = 0
) -> Estimate:
    """Mean loss over the targets of so many batches, in nats, without label smoothing or dropout.

    With losses l_s and target counts n_s of the sequences: sum l_s / sum n_s, and its standard error as a ratio,
    sqrt(sum (l_s - mean n_s)^2) / sum n_s.
    """
    some = itertools.islice(data.batches(split, batch_size, seed), batches)
    l, n = by_sequence(model, some, lambda batch: model.loss(batch, reduction="none").double())
    mean, total = l.sum() / n.sum(), float(n.sum())
    return Estimate(float(mean), float((l - mean * n).square().sum().sqrt()) / total, "estimate")


def exact_match(
    model: Transformer,
    data: Dataset,
    *,
    count: int = 200,
    split: str = "valid",
    seed: int = 0,
    how: Search | None = None,
    batch_size: int = 256,
) -> Estimate:
    """The share of `count` questions whose decoded answer is exactly right, the end token included where there is one.

    Standard error sqrt(q (1 - q) / n) with q = (right + 1) / (n + 2), so that it is not zero at 0 % and 100 %.
    """
    asked = data.questions(split, count, seed)
    ends = model.config.eos is not None
    how = Search(max_length=max(len(answer) for _, answer in asked) + ends) if how is None else how
    found = generate(model, [question for question, _ in asked], how, batch_size=batch_size)
    right = sum(
        list(best[0].tokens) == answer and (best[0].finished or not ends)
        for best, (_, answer) in zip(found, asked, strict=True)
    )
    q = (right + 1) / (count + 2)
    return Estimate(right / count, math.sqrt(q * (1 - q) / count), "estimate")


@torch.no_grad()
def accuracy(
    model: Transformer, data: Dataset, *, split: str = "valid", batches: int = 8, batch_size: int = 64, seed: int = 0
) -> Estimate:
    """The share of labels of so many batches that the largest logit names.

    With right r_s of the n_s labels of sequence s: sum r_s / sum n_s, standard error as a ratio (see `evaluate`); a
    quarter of a label is added to it, so that it is not zero at 0 % and 100 %.
    """

    def right(batch: Batch) -> Tensor:
        return (model(batch["tokens"], batch.get("mask")).argmax(-1) == batch["labels"]).double()

    some = itertools.islice(data.batches(split, batch_size, seed), batches)
    r, n = (t.double() for t in by_sequence(model, some, right))
    mean, total = float(r.sum() / n.sum()), float(n.sum())
    return Estimate(mean, math.sqrt(float((r - mean * n).square().sum()) + 0.25) / total, "estimate")
