"""Second moments of Adam that are kept in few bits, as the plain tensors that torch's own Adam keeps.

bitsandbytes   state2 (codes, or float32 for small tensors), qmap2 (their values), absmax2 (a scale for each run of
               256 entries, 2,048 in old versions), in files inside `__bnb_optimizer_quant_state__`
torchao        exp_avg_sq, a tensor class with `codes` and `dequantize()` (8 bits, 4 bits, float8)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_PACKED = "__bnb_optimizer_quant_state__"
#: Entries with one scale, in versions of bitsandbytes.
_BLOCKS = (256, 2048)


def as_of_torch(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of one parameter with `exp_avg_sq` as torch has it; a state of another kind as it is."""
    found = {k: v for k, v in state.items() if k != _PACKED} | dict(state.get(_PACKED, {}))
    v = found.get("exp_avg_sq")
    if v is not None and hasattr(v, "codes"):
        return found | {"exp_avg_sq": v.dequantize().float()}
    second = _of_bitsandbytes(found)
    return found if second is None else found | {"exp_avg_sq": second}


def _of_bitsandbytes(state: Mapping[str, Any]) -> Tensor | None:
    codes = state.get("state2")
    if not isinstance(codes, Tensor):
        return None
    if codes.is_floating_point():
        return codes
    if "absmax2" not in state:  # one scale for the whole tensor
        return state["qmap2"][codes.long()] * state["max2"] if "max2" in state else None
    scales, n = state["absmax2"], codes.numel()
    block = next((b for b in _BLOCKS if -(-n // b) == len(scales)), None)
    if block is None:
        return None
    spread: Tensor = scales.repeat_interleave(block)[:n]
    return torch.as_tensor(state["qmap2"])[codes.long()] * spread.reshape(codes.shape)
