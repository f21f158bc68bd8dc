"""This machine: the device a question runs on, free memory, and how large an exact Hessian fits."""

from __future__ import annotations

import math
import os

import torch

from ..core.errors import InputError, TooLarge

#: P x P matrices alive at the peak of `quadform attention`: H_o, H_f, H, the autodiff twin, and what eigvalsh copies.
MATRICES = 6

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def device_of(name: str) -> torch.device:
    """The device called `name`; an error that says what there is when it cannot be used."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"`--device {name}` is not a device. Use `cpu`, `cuda` or `cuda:0`.") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            there = f"{count} CUDA device{'s' if count != 1 else ''}" if count else "no CUDA device"
            raise InputError(f"`--device {name}`: torch sees {there} here. Use `--device cpu`; see `quadform doctor`.")
    elif device.type != "cpu":
        raise InputError(f"`--device {name}`: float64 and eigenvalues need `cpu` or `cuda`.")
    return device


def free_bytes(device: torch.device) -> float:
    """Memory that can be taken now."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as f:
            rows = dict(line.split(":", 1) for line in f)
        return float(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")


def largest_hessian(device: torch.device, dtype: torch.dtype) -> int:
    """How many parameters an exact Hessian with all its eigenvalues may have in the memory that is free now."""
    return math.isqrt(int(free_bytes(device) / (MATRICES * dtype.itemsize)))


def guard(parameters: int, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a Hessian that does not fit, before anything is computed."""
    need, have = MATRICES * dtype.itemsize * parameters**2, free_bytes(device)
    if need > have:
        raise TooLarge(
            f"The exact Hessian of {parameters:,} parameters with its eigenvalues needs {size(need)}; {size(have)} are"
            f" free. At most {largest_hessian(device, dtype):,} parameters fit here: lower `--dim` (parameters ="
            " dim (2 d_k + d_v))."
        )


def size(count: float) -> str:
    """`62 PB`."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = min(int(math.log10(max(count, 1)) / 3), len(units) - 1)
    return f"{count / 1000**power:.3g} {units[power]}"
