"""Adam before its first step: what it divides by once it has seen the probe, the weights held.

After the first step alone P is |g|. Some of its entries are near 0 by accident, and the largest eigenvalue of P^-1 H is
then the curvature along one of them. Several batches have no such entries. One batch is cut into k parts of the shares
w_i: the variance of its gradient is sum_i w_i (g_i - g)^2 / (k - 1), and Adam is shown g + s and g - s in turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...curvature.outline import Outline
from ...curvature.risk import Risk
from ...distributed import group_of, shared
from .rules import Stepper

#: Parts one batch is cut into at most, and batches Adam is then shown.
PARTS = 8
#: How far the mean gradient of the parts may be from that of the batch; a loss that sums over rows is further.
APART = 0.25


def held(stepper: Stepper, risk: Risk) -> Stepper:
    """This optimizer, if it has no state yet, as it is after the batches of the probe, the weights held.

    A batch that has no parts (one row, a loss that is no mean over rows) leaves it as it is: P is |g| + eps.
    """
    if stepper.second or not stepper.rule.adaptive or isinstance(risk, Outline):
        return stepper
    if risk.batch_count > 1:
        return stepper.after(each_gradient(risk))
    whole = risk.whole
    parts = in_parts(whole.batches[0]) if risk.shards is None else []
    found = _noise(whole, parts) if parts else None
    if found is None:
        return stepper
    g, s = found
    source = f"no optimizer state, so P is what Adam has on batches like this one, by its {len(parts)} parts"
    both = ({n: g[n] + sign * s[n] for n in g} for sign in (1, -1) * (PARTS // 2))
    return dataclasses.replace(stepper.after(both), source=source)


def in_parts(batch: Any) -> list[Any]:
    """A batch cut along its rows into parts; none where its tensors have not all the same number of rows, or one."""
    leaves, spec = tree_flatten(batch)
    rows = {t.shape[0] if t.dim() else 0 for t in leaves if isinstance(t, Tensor)}
    if len(rows) != 1 or min(rows) < 2:
        return []
    count = min(PARTS, *rows)
    cut = [t.tensor_split(count) if isinstance(t, Tensor) else (t,) * count for t in leaves]
    return [tree_unflatten(list(part), spec) for part in zip(*cut, strict=True)]


def _noise(risk: Risk, parts: list[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
    """The gradient of a batch and its standard deviation, by its parts; None where their mean is another gradient."""
    g = risk.gradient()
    try:
        cut = _like(risk, parts)
        each = list(each_gradient(cut))
    except (RuntimeError, ValueError, TypeError, IndexError):  # the model takes batches of this size alone
        return None
    away, square = ({n: torch.zeros_like(t) for n, t in g.items()} for _ in range(2))
    for w, part in zip(cut.weights, each, strict=True):
        for n in g:
            apart = part[n] - g[n]
            away[n] += w * apart
            square[n] += w / (len(parts) - 1) * apart.square()
    if not risk.space.norm(away) <= APART * risk.space.norm(g):
        return None
    return g, {n: t.sqrt() for n, t in square.items()}


def _like(risk: Risk, batches: list[Any]) -> Risk:
    """The same loss on other batches."""
    return Risk(
        risk.model,
        risk.loss,
        batches,
        list(risk.params) if isinstance(risk.model, nn.Module) else risk.params,
        include_frozen=True,
        train_mode=risk.train_mode,
        quiet=True,
    )


def one_batch(risk: Risk, i: int) -> Risk:
    """The same loss on one batch of the probe alone."""
    whole = risk.whole
    alone = _like(whole, [whole.batches[i]] if risk.shards is None else risk.shards.only(risk.batches, i))
    return shared(alone, group_of(risk.space))


def each_gradient(risk: Risk) -> Iterator[dict[str, Tensor]]:
    """The gradient on each batch of the probe alone."""
    return (one_batch(risk, i).gradient() for i in range(risk.batch_count))
