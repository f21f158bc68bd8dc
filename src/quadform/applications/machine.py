"""This machine: the device a question runs on, free memory, and how large an exact Hessian fits."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.memory import free_bytes, in_words, require
from ..core.parameters import count_of_design

#: P x P matrices alive at the peak of `quadform attention`: H_o, H_f, H, the autodiff twin, and what eigvalsh copies.
MATRICES = 6

#: Entries from which the work with a vector is in proportion to its length.
_TIMED = 1 << 23

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def device_of(name: str) -> torch.device:
    """The device called `name`; an error that says what there is when it cannot be used."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"{name!r} is not a device. Use cpu, cuda or cuda:0.") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            there = f"{count} CUDA device{'s' if count != 1 else ''}" if count else "no CUDA device"
            raise InputError(f"device={name}: torch sees {there} here. Use cpu; `quadform doctor` tells more.")
    elif device.type != "cpu":
        raise InputError(f"device={name}: float64 and eigenvalues need cpu or cuda.")
    return device


def busy_seconds(device: torch.device) -> float:
    """A clock of work: on a CPU the processor time a thread, which other programs do not stretch; on a GPU the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time() / torch.get_num_threads()


def busy_since(began: float, device: torch.device) -> float:
    """Work since `began` on that clock; at least one tick of it, where short work leaves it standing."""
    return max(busy_seconds(device) - began, time.get_clock_info("process_time").resolution)


def least_seconds(work: Callable[[], Any], device: torch.device, most: int = 5, enough: float = 0.3) -> float:
    """Time of the fastest of `most` runs, fewer once they took `enough` seconds: other programs stretch single ones."""
    found: list[float] = []
    while len(found) < most and sum(found) < enough:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found)


def vector_seconds(size: int, dtype: torch.dtype, device: torch.device, rows: int) -> float:
    """Time to make a vector of `size` entries orthogonal to `rows` others, twice; timed on two of them, of very long
    vectors on a part."""
    size, whole = min(size, _TIMED), size
    others, v = torch.ones(2, size, dtype=dtype, device=device), torch.ones(size, dtype=dtype, device=device)
    start = 0.0
    for _ in range(2):
        start = time.perf_counter()
        for _ in range(2):
            v = v - (others @ v) @ others
        float(v[0])  # a GPU is waited for
    return (time.perf_counter() - start) * rows / 2 * whole / size


def vectors_in_words(need: float, device: torch.device) -> str:
    """`8 MB for vectors`; where that is more than estimators take (half of what is free), both numbers."""
    have = free_bytes(device)
    if need <= have / 2:
        return f"{in_words(need)} for vectors"
    return (
        f"{in_words(need)} wanted and {in_words(have)} free (the basis is kept to half of that and takes more products)"
        " for vectors"
    )


def largest_hessian(device: torch.device, dtype: torch.dtype) -> int:
    """How many parameters an exact Hessian with all its eigenvalues may have in the memory that is free now."""
    return math.isqrt(int(free_bytes(device) / (MATRICES * dtype.itemsize)))


def guard(parameters: int, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a Hessian that does not fit, before anything is computed."""
    require(
        MATRICES * dtype.itemsize * parameters**2,
        device,
        f"The exact Hessian of {parameters:,} parameters with its eigenvalues",
        f"At most {largest_hessian(device, dtype):,} parameters fit here:"
        " lower d_model, or measure it matrix-free with `quadform spectrum`.",
    )


def guard_tokens(batch: int, tokens: int, width: int, heads: int, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse sequences whose stream `(batch, tokens, width)` and scores `(batch, heads, tokens, tokens)` do not fit."""
    need = batch * tokens * (width + heads * tokens) * dtype.itemsize
    many = f"{batch:,} x {tokens:,}" if batch > 1 else f"{tokens:,}"
    require(need, device, f"attention of {many} tokens", "Ask for fewer or shorter sequences.")


def guard_design(name: str, depth: int, device: torch.device, dtype: torch.dtype, **settings: Any) -> None:
    """Refuse a design whose weights do not fit; no block is described for it."""
    try:
        size = count_of_design(name, depth, **settings)
    except InputError:  # told where it is built
        return
    what = f"`{name}` with {depth:,} blocks of width {settings['d_model']:,}, {size:,} parameters,"
    require(size * dtype.itemsize, device, what, "Ask for fewer or narrower blocks.")


def guard_kept(count: int, what: str) -> None:
    """Refuse more numbers than fit as a list of Python's: one for every training step, network, ..."""
    require(count * (sys.getsizeof(0.0) + 8), torch.device("cpu"), what, "Ask for fewer.")


def guard_probe(batches: int, batch: int, row: Mapping[str, Tensor]) -> None:
    """Refuse a probe that does not fit; `row` is a batch of one sequence."""
    need = batches * batch * sum(t.numel() * t.element_size() for t in row.values())
    what = f"a probe of {batches:,} x {batch:,} sequences"
    require(need, torch.device("cpu"), what, "Ask for fewer or smaller batches.")


def widened(stored: object, dtype: torch.dtype) -> list[str]:
    """What is said of weights that lie in halves on the disk."""
    was, now = (str(kind).removeprefix("torch.") for kind in (stored, dtype))
    return [f"stored in {was}, analysed in {now}"] if stored in (torch.bfloat16, torch.float16) else []
