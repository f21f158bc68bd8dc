"""Where a vector lives: the share of its squared length in each layer, matrix, head, and row of an embedding."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.showing import fields_in_brief
from ..core.space import Space, Vector, part_of
from ..distributed.processes import holders
from .groups import groups

#: Rows of an embedding that are told for each vector: those with the largest shares.
ROWS = 5


@dataclass(frozen=True)
class Masses:
    """Shares (k, labels) of k vectors. Layers and matrices share out the whole; heads and rows are parts of it."""

    labels: tuple[str, ...]
    share: Tensor

    __repr__ = fields_in_brief


def masses(space: Space, vectors: Vector) -> dict[str, Masses]:
    """Shares of k vectors by `layer`, `matrix` and, where the model has them, `head`."""
    if not space.lead(vectors):
        raise InputError("masses are of a stack of vectors, {name: (k, *shape)}; add an axis of length 1 for one.")
    held = holders(space)
    total: Any = held.sum(sum(_squares(t) for t in vectors.values()))  # type: ignore[arg-type]  # vectors has some
    found = {"layer": groups(space, "layer"), "matrix": _matrices(space)}
    with contextlib.suppress(InputError):  # no attention
        found["head"] = groups(space, "heads")
    out = {}
    for kind, members in found.items():
        parts = [space.restrict(space.select(*names), vectors) for names in members.values()]
        sums: list[Any] = [sum(_squares(t) for t in part.values()) for part in parts]
        out[kind] = Masses(tuple(members), held.sum(torch.stack(sums, 1)) / total[:, None])
    return out


def _matrices(space: Space) -> dict[str, tuple[str, ...]]:
    """Every tensor by itself, fused ones by their query, key and value matrices where these fill them."""
    whole = [v for v in space.views if not v.name.endswith("]")]
    found: dict[str, tuple[str, ...]] = {}
    for name, shape in space:
        parts = [v.name for v in whole if v.of == name]
        sizes = sum(math.prod(space.shape(p)) for p in parts)
        found |= {p: (p,) for p in parts} if parts and sizes == math.prod(shape) else {name: (name,)}
    return found


def rows_of_embeddings(model: object, vectors: Vector, most: int = ROWS) -> dict[str, tuple[Tensor, Tensor]]:
    """For each embedding its rows (k, most) with the largest shares of the vectors, and these shares."""
    if not isinstance(model, nn.Module):
        return {}
    tables = {f"{path}.weight".lstrip(".") for path, m in model.named_modules() if isinstance(m, nn.Embedding)}
    total: Any = sum(_squares(t) for t in vectors.values())
    out = {}
    for name in vectors:
        if name in tables or part_of(name) == "W_E":
            share = vectors[name].double().square().sum(-1).cpu() / total[:, None]
            top = share.topk(min(most, share.shape[1]), dim=1)
            out[name] = (top.indices, top.values)
    return out


def _squares(t: Tensor) -> Tensor:
    return t.double().square().reshape(len(t), -1).sum(1).cpu()
