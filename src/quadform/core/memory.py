"""How much memory is free, and a refusal before the machine starts to swap."""

from __future__ import annotations

import contextlib
import math
import mmap
import os

import torch
from torch import Tensor

from .cgroup import memory_limit
from .errors import TooLarge

#: Bytes from which it is asked whether a matrix fits: asking takes a millisecond.
_ASKED_FROM = 1 << 20
#: Bytes from which a matrix is laid on huge pages.
_HUGE_FROM = 1 << 25


def require(need: float, device: torch.device, what: str, advice: str) -> None:
    """Refuse what needs more bytes than are free on the device, with both numbers, before it is begun."""
    have = free_bytes(device)
    if need > have:
        raise TooLarge(f"{what} needs {in_words(need)}; {in_words(have)} are free. {advice}")


def guard_memory(m: int, n: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse an `(m, n)` matrix that does not fit the free memory of the device."""
    size = m * n * dtype.itemsize
    if size >= _ASKED_FROM:
        advice = "Use products (`A @ v`, matrix-free) or a named block (`A.block(rows, cols).dense()`)."
        require(size, device, f"The full matrix of {m:,} x {n:,} entries", advice)


def empty_matrix(m: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An `(m, n)` matrix with no values yet; a large one on a Linux host lies on huge pages.

    Touching 1.2 GB for the first time costs 0.55 s in pages of 4 kB and 0.12 s in pages of 2 MB, where the closed form
    of an attention Hessian of that size takes 0.6 s.
    """
    guard_memory(m, n, dtype, device)
    size = m * n * dtype.itemsize
    if device.type != "cpu" or size < _HUGE_FROM or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty((m, n), dtype=dtype, device=device)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # freed with the last tensor that sees it
    with contextlib.suppress(OSError):  # a kernel without huge pages: small ones then
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(m, n)


def free_bytes(device: torch.device) -> float:
    """Bytes that can still be allocated on the device, as the driver or the kernel says; a container's limit counts.

    On a GPU also what torch holds and has given to no tensor.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    limit = memory_limit()
    return min(_free_of_host(), math.inf if limit is None else float(limit.free))


def _free_of_host() -> float:
    try:
        with open("/proc/meminfo") as f:
            rows = dict(line.split(":", 1) for line in f)
        return float(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf


def in_words(count: float) -> str:
    """`1.6e9` -> `1.6 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:  # what rounds to 1000 is one of the next unit
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"
