"""Other checkpoints of a model: named by a text, or modules and tensors of Python's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from .machine import DTYPES
from .opening import Opening


def others_of(through: Any) -> list[Any]:
    """One other or several, as a list."""
    return list(through) if isinstance(through, list | tuple) else [through]


def tensors_of(other: Any, dtype: torch.dtype = torch.float32) -> Mapping[str, Tensor]:
    """The parameters by name; a model that is named by a text is opened in `dtype`."""
    if isinstance(other, str):
        word = next((word for word, known in DTYPES.items() if known == dtype), "float32")
        other = Opening(model=other, dtype=word).open().model
    if isinstance(other, nn.Module):
        return dict(other.named_parameters())
    if isinstance(other, Mapping) and all(isinstance(t, Tensor) for t in other.values()):
        return other
    raise InputError(f"another checkpoint is a name, a module or its tensors by name; got {type(other).__name__}.")


def weights_at(other: Any, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of another checkpoint of the same model, as those of `like`."""
    found = tensors_of(other, next(iter(like.values())).dtype)
    for n, t in like.items():
        if n not in found or found[n].shape != t.shape:
            raise InputError(f"`{called(other)}` is another model: it has no {n} of shape {tuple(t.shape)}.")
    return {n: found[n].detach().to(t) for n, t in like.items()}


def called(other: Any) -> str:
    """The name it was given by."""
    return other if isinstance(other, str) else type(other).__name__
