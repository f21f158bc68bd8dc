"""Launches of Triton programs that skip what was worked out before.

Triton binds, types and looks up every argument anew at each launch: 50 to 130 us of the host for these kernels, which
have many, where the device needs as little as 10. What it looks at (types, values of integers, whether addresses are
multiples of 16) is compared here as one key; the compiled kernel found at the first launch is then started at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from . import ahead

KNOWN = ("3.6.", "3.7.")
"""Versions of Triton whose compiled kernels take all arguments in the order of the program, constants included."""

MOST = 4096
"""Kernels remembered; then all are forgotten."""

_kernels: dict[Any, tuple[Any, list[Any]]] = {}


def start(program: Any, grid: tuple[int, int, int], args: tuple, constants: dict[str, Any]) -> None:
    """program[grid](*args, **constants); args come first in the program's order, all of its constants follow."""
    if ahead.noted((program, grid, args, constants)):
        return
    key = None
    if on():
        key = id(program), torch.cuda.current_device(), tuple([_key(x) for x in args]), tuple(constants.values())
    known = _kernels.get(key)
    if known is not None:
        known[0][grid](*args, *known[1])
        return
    ahead.wait(program, constants)
    kernel = program[grid](*args, **constants)
    if key is not None and hasattr(kernel, "packed_metadata"):
        if len(_kernels) >= MOST:
            _kernels.clear()
        _kernels[key] = kernel, [constants[name] for name in program.arg_names[len(args) :]]


def on() -> bool:
    """Whether kernels are started directly."""
    return triton.__version__.startswith(KNOWN) and torch.cuda.is_available()


def _key(x: Any) -> Any:
    """What Triton distinguishes an argument by, and more."""
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16
    if isinstance(x, tuple) and x and isinstance(x[0], Tensor):
        return tuple([_key(y) for y in x])
    return float if isinstance(x, float) else x
