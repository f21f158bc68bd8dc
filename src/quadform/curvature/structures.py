"""Tensors inside arguments and results of modules: in tuples, lists, mappings and objects with attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

#: How deep structures are looked into; a cache of keys has its tensors three levels below its arguments.
_DEPTH = 8
_PLAIN = (type, nn.Module, str, bytes, int, float, complex, torch.dtype, torch.device, torch.Size, torch.Generator)


@dataclass(frozen=True)
class Slot:
    """Stands for tensor number `i` of a structure."""

    i: int


def taken(value: Any) -> tuple[list[Tensor], Any]:
    """The tensors of a structure, and a copy of it with slots in their places."""
    tensors: list[Tensor] = []

    def take(t: Tensor) -> Slot:
        tensors.append(t)
        return Slot(len(tensors) - 1)

    return tensors, _mapped(value, Tensor, take, _DEPTH)


def filled(shape: Any, tensors: Sequence[Any]) -> Any:
    """A structure with slots, the tensors in their places again."""
    return _mapped(shape, Slot, lambda slot: tensors[slot.i], _DEPTH)


def _mapped(value: Any, kind: type, change: Callable[[Any], Any], depth: int) -> Any:
    """A copy of a structure with everything of a kind changed; parts without any are the same objects."""
    if isinstance(value, kind):
        return change(value)
    if not depth or value is None or isinstance(value, _PLAIN) or callable(value):
        return value
    if isinstance(value, tuple):
        entries = [_mapped(part, kind, change, depth - 1) for part in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    if isinstance(value, list):
        return [_mapped(part, kind, change, depth - 1) for part in value]
    mapping = isinstance(value, Mapping)
    items = dict(value) if mapping else getattr(value, "__dict__", {})
    mapped = {name: _mapped(part, kind, change, depth - 1) for name, part in items.items()}
    new = {name: part for name, part in mapped.items() if part is not items[name]}
    if not new:
        return value
    if type(value) is dict:
        return mapped
    own = copy.copy(value)
    for name, part in new.items():
        if mapping:
            own[name] = part
        else:
            object.__setattr__(own, name, part)
    return own


def signature(shape: Any, depth: int = _DEPTH) -> Hashable:
    """What tells a structure with slots from others; objects that cannot be looked into are told by themselves."""
    if isinstance(shape, str | int | float | bool | Slot | torch.dtype | torch.device | torch.Size | None):
        return type(shape), shape
    if not depth or isinstance(shape, _PLAIN) or callable(shape):
        return id(shape)
    if isinstance(shape, tuple | list):
        return type(shape), tuple(signature(part, depth - 1) for part in shape)
    items = dict(shape) if isinstance(shape, Mapping) else getattr(shape, "__dict__", None)
    if items is None:
        return id(shape)
    return type(shape), tuple((str(name), signature(part, depth - 1)) for name, part in items.items())
