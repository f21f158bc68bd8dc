"""What every layer of this room refuses: no tensors, tensors of different kinds, numbers that are none."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.errors import InputError


def one_kind(named: Mapping[str, Tensor]) -> None:
    """Refuse what is no tensor, is empty, is half precision, is of another dtype or device than the first, or holds NaN
    or infinity; and float32 inside autocast, which would multiply in half precision."""
    first = next(iter(named.values()))
    for name, t in named.items():
        finite(name, t)
        if t.numel() == 0:
            raise InputError(f"{name} has shape {tuple(t.shape)}; all sizes are at least 1.")
        if t.dtype in (torch.float16, torch.bfloat16):
            raise InputError(f"{name} is {t.dtype}; closed forms work in float32 or float64. Convert with `.float()`.")
        if not t.is_floating_point() or t.dtype != first.dtype or t.device != first.device:
            raise InputError(f"{name} is {t.dtype} on {t.device}; all inputs need one floating dtype and one device.")
    if first.dtype == torch.float32 and torch.is_autocast_enabled(first.device.type):
        raise InputError(
            "autocast is on, and closed forms in float32 would lose most of their digits. Compute them outside it, or"
            f" inside `with torch.autocast({first.device.type!r}, enabled=False):`."
        )


def finite(name: str, tensor: Tensor) -> None:
    """Refuse what is no tensor, and NaN and infinity with the place of the first one."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}; give a tensor.")
    if math.isfinite(float(tensor.detach().sum())):
        return  # the quick way; a sum may overflow where no entry does
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise InputError(f"{name} is not finite: {float(tensor[where])} at index {where}. Nothing was computed.")


def score_scale(temperature: float, d_K: int, dtype: torch.dtype) -> float:
    """`sc = 1 / (t sqrt(d_K))` of a positive temperature; its square, as second derivatives have it, fits the dtype."""
    if not temperature > 0:
        raise InputError(f"temperature must be above 0; got {temperature}.")
    sc = 1.0 / (temperature * math.sqrt(d_K)) if temperature > 1 / sys.float_info.max else math.inf
    if not sc * sc <= torch.finfo(dtype).max:
        raise InputError(f"temperature {temperature} is too small: 1 / temperature^2 exceeds the range of {dtype}.")
    return sc
