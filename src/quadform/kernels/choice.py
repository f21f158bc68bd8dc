"""Which twin computes an attention, and a record of what was chosen."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from quadform.core.errors import InputError, MissingExtra

BACKENDS = ("reference", "triton")
PRECISIONS = ("tf32", "tf32x3", "ieee")
MAX_WIDTH = 256
MAX_WIDTH_PRECISE = 64
"""Widest head whose float32 tiles (tf32x3, ieee) fit the shared memory of one multiprocessor."""


@dataclass(frozen=True)
class Choice:
    """The twin that computes, the precision of its float32 matrix products, and why."""

    backend: str
    precision: str
    reason: str


_forced: ContextVar[tuple[str | None, str | None]] = ContextVar("quadform_kernels_forced", default=(None, None))
#: Whether a second derivative will be asked for: its kernels are compiled before they are met.
second_order: ContextVar[bool] = ContextVar("quadform_second_order", default=False)
_last: ContextVar[Choice | None] = ContextVar("quadform_kernels_last", default=None)


def last_choice() -> Choice | None:
    """The choice made by the latest `attention` call of this thread; None before the first."""
    return _last.get()


@contextlib.contextmanager
def using(backend: str | None = None, precision: str | None = None) -> Iterator[None]:
    """Force the twin ("reference", "triton") or the float32 precision ("tf32", "tf32x3", "ieee") inside the scope.

    Without it the precision follows `torch.get_float32_matmul_precision()`: "highest" is tf32x3, the others tf32.
    """
    if backend is not None and backend not in BACKENDS:
        raise InputError(f"backend {backend!r} is unknown; use one of {', '.join(BACKENDS)}.")
    if precision is not None and precision not in PRECISIONS:
        raise InputError(f"precision {precision!r} is unknown; use one of {', '.join(PRECISIONS)}.")
    before = _forced.get()
    token = _forced.set((backend or before[0], precision or before[1]))
    try:
        yield
    finally:
        _forced.reset(token)


def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton was asked to run in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _differentiated(t: Tensor) -> bool:
    """Whether a gradient or a tangent of `t` is asked for, at any level of torch.func."""
    inside = torch._C._functorch
    while True:
        if t.requires_grad:
            return True
        if not inside.is_batchedtensor(t) and torch._unpack_dual(t, level=0)[1] is not None:
            return True
        if not inside.is_functorch_wrapped_tensor(t):
            return False
        t = inside.get_unwrapped(t)


def _widest(kind: torch.dtype, precision: str) -> int:
    return MAX_WIDTH_PRECISE if kind == torch.float32 and precision != "tf32" and not interpreted() else MAX_WIDTH


def _obstacle(q: Tensor, v: Tensor, bias: Tensor | None, precision: str) -> str | None:
    """Why the Triton twin cannot take these inputs, or None."""
    if not (q.is_cuda or interpreted()):
        return f"inputs are on {q.device.type}"
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"type {q.dtype}"
    if max(q.shape[-1], v.shape[-1]) > _widest(q.dtype, precision):
        return f"width over {_widest(q.dtype, precision)} in {q.dtype} at {precision}"
    if bias is not None and _differentiated(bias):
        return "the bias is differentiated"
    if q.numel() == 0 or v.numel() == 0:
        return "empty input"
    return None


def default_precision() -> str:
    """The precision of float32 products that torch's own setting allows: "tf32" (ten mantissa bits) or "tf32x3"."""
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the older and the newer setting were both used; torch then answers by back end only
        exact = torch.backends.cuda.matmul.fp32_precision != "tf32"
    return "tf32x3" if exact else "tf32"


@torch.compiler.assume_constant_result
def choose_traced(device: str, kind: torch.dtype, width: int, bias: bool, empty: bool) -> str:
    """The precision of the Triton twin, or "" for the reference: `choose` on plain values, for torch.compile."""
    backend, precision = _forced.get()
    precision = precision or default_precision()
    known = kind in (torch.float32, torch.bfloat16, torch.float16) and width <= _widest(kind, precision)
    if backend == "reference" or not (device == "cuda" and known and has_triton()) or bias or empty:
        return ""
    from . import ops, short  # noqa: F401  the operators exist once they are imported

    return precision


def choose(q: Tensor, v: Tensor, bias: Tensor | None) -> Choice:
    """The choice for these inputs, recorded for `last_choice`."""
    backend, precision = _forced.get()
    precision = precision or default_precision()
    obstacle = _obstacle(q, v, bias, precision)
    if backend == "triton":
        if not has_triton():
            raise MissingExtra("Triton attention", "triton")
        if obstacle is not None:
            raise InputError(f"Triton attention was asked for but cannot be used: {obstacle}. Use backend='auto'.")
        choice = Choice("triton", precision, "asked for")
    elif backend == "reference":
        choice = Choice("reference", precision, "asked for")
    elif obstacle is None and has_triton() and q.is_cuda:
        choice = Choice("triton", precision, "a GPU, and inputs the kernels take")
    else:
        why = obstacle or ("triton is not installed" if not has_triton() else "inputs are on cpu")
        choice = Choice("reference", precision, why)
    _last.set(choice)
    return choice
