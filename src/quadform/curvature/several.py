"""k tensors of one shape as one: every operator on it runs for each of them.

As tangents they share what they are tangents of: forward mode runs an operator on the primal once and its derivative
for each of the k, and so does a reverse pass inside that mode. As cotangents they share the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core.space import Vector


class NotTogether(Exception):
    """An operator cannot take several tensors as one, and why."""


class Several(Tensor):
    """`parts` of one shape, type and layout, which are its own."""

    parts: list[Tensor]

    @staticmethod
    def __new__(cls, parts: Sequence[Tensor]) -> Several:
        like = parts[0]
        own: Several = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), storage_offset=like.storage_offset(), dtype=like.dtype,
            layout=like.layout, device=like.device, requires_grad=False,
        )  # fmt: skip
        own.parts = list(parts)
        return own

    def __init__(self, parts: Sequence[Tensor]) -> None:
        super().__init__()

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]  # as torch calls it
        return f"<{len(self.parts)} tensors of shape {tuple(self.shape)}>"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch has it

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # as torch calls it
        kwargs = kwargs or {}
        _require_own(func, args, kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        own = {id(leaf.parts[0]): leaf for leaf in leaves if isinstance(leaf, Several)}
        k = len(next(iter(own.values())).parts)
        found = []
        for j in range(k):
            each, options = tree_unflatten([t.parts[j] if isinstance(t, Several) else t for t in leaves], spec)
            found.append(func(*each, **options))
        flat, form = zip(*map(tree_flatten, found), strict=True)
        return tree_unflatten([_one(same, own) for same in zip(*flat, strict=True)], form[0])


def _require_own(func: Any, args: Any, kwargs: Any) -> None:
    """Refuse to write one tensor for several."""
    for i, given in enumerate(func._schema.arguments if func._schema.is_mutable else ()):
        value = args[i] if i < len(args) else kwargs.get(given.name)
        if given.is_write and isinstance(value, Tensor) and not isinstance(value, Several):
            raise NotTogether(f"`{func.__name__}` writes one tensor for all")


def _one(same: Sequence[Any], own: Mapping[int, Several]) -> Any:
    """What one operator gave for each, as one; `own` are its arguments, one of which it may have written into."""
    if isinstance(same[0], Tensor):
        return own[id(same[0])] if id(same[0]) in own else Several(same)
    if any(value != same[0] for value in same):
        raise NotTogether("a number is read that differs between them")
    return same[0]


def together(product: Callable[[Vector], Vector], V: Vector) -> dict[str, Tensor]:
    """The products with a stack of vectors {name: (k, *shape)}, all in one call of `product`."""
    k = next(iter(V.values())).shape[0]
    return {n: stacked(t, k) for n, t in product({n: Several(t.unbind(0)) for n, t in V.items()}).items()}


def parts_of(t: Any) -> list[Any]:
    """The tensors that one stands for; itself where it is one."""
    return t.parts if isinstance(t, Several) else [t]


def as_one(parts: Sequence[Tensor]) -> Tensor:
    """What stands for some tensors."""
    return parts[0] if len(parts) == 1 else Several(parts)


def stacked(t: Tensor, k: int) -> Tensor:
    """The k tensors (k, *shape) that one stands for; the same k times where they do not differ."""
    return torch.stack(t.parts) if isinstance(t, Several) else t.expand(k, *t.shape)
