"""Tile sizes, operands and grids of the kernels of `fused`."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from . import fused
from .choice import interpreted

SHORT = 128
"""Up to so many tokens small tiles win in the gradient: 111 against 144 us for 1,536 heads of 128 tokens."""


def tiles(kernel: str, dtype: torch.dtype, width: int, precision: str, tokens: int) -> tuple[int, int, int, int]:
    """Rows, columns per tile, warps, pipeline stages; measured on an H200 (benchmarks/kernels.py short)."""
    if interpreted():
        return 16, 32, 4, 1
    narrow, half = width <= 64, dtype != torch.float32
    if not half and precision == "ieee":
        return 16, 16, 4, 1
    if width > 128:
        return (32, 64, 8, 1) if kernel.endswith("columns") else (64, 32, 8, 1)
    if not half:
        return (32, 64, 4, 1) if kernel.endswith("columns") else (64, 32, 4, 1)
    if narrow and tokens <= SHORT and kernel.startswith("grad"):
        return 64, 64, 4, 2
    table = {
        "forward": ((64, 64, 4, 3), (128, 64, 8, 3)),
        "forward_tangent": ((64, 64, 4, 3), (64, 64, 4, 2)),
        "grad_rows": ((128, 64, 8, 3), (64, 64, 4, 2)),
        "grad_columns": ((64, 128, 8, 3), (64, 64, 4, 2)),
        "tangent_rows": ((64, 64, 4, 2), (64, 32, 4, 1)),
        "tangent_columns": ((64, 128, 8, 3), (32, 64, 4, 1)),
    }
    return table[kernel][0 if narrow else 1]


def _dense(*tensors: Tensor) -> list[Tensor]:
    """Unit stride along the width, which the kernels assume."""
    return [t if t.stride(-1) == 1 else t.contiguous() for t in tensors]


def _in_halves(q: Tensor, precision: str) -> bool:
    """Whether the products are taken in scaled float16."""
    return q.dtype == torch.float32 and precision == "tf32"


def _rows_first(lead: tuple[int, ...], heads: int, tokens: int, width: int, like: Tensor) -> Tensor:
    """An uninitialised (*lead, heads, tokens, width) laid out token by token, as the next linear layer reads it."""
    return torch.empty(*lead, tokens, heads, width, dtype=like.dtype, device=like.device).transpose(-2, -3)


def _extras(q: Tensor, k: Tensor, bias: Tensor | None, mask: Tensor | None, mix: Tensor | None) -> tuple:
    """Pointers and strides of bias, mask and mix, broadcast without a copy; q stands in for what is absent."""
    shape = (*q.shape[:3], k.shape[2])
    none = (0, 0, 0, 0)
    b = (q, none) if bias is None else (bias, bias.expand(shape).stride())
    m = (q, none) if mask is None else (mask.view(torch.uint8), mask.expand(shape).stride())
    return (*b, *m, *_weights(q, mix, (*q.shape[:2], 3)))


def _weights(q: Tensor, mix: Tensor | None, shape: tuple[int, ...]) -> tuple:
    """Pointer and strides of (α, β, γ), (..., heads, 3) in float32, or of their tangents."""
    return (q, (0, 0, 0, 0)) if mix is None else (mix, mix.expand(shape).stride())


def _launch(
    kernel: str, args: tuple, q, k, v, bias, mask, mix, causal, scale, precision,
    tangents: int | None = None, units: Tensor | None = None,
) -> None:  # fmt: skip
    """Run one kernel over its grid; `tangents` is None for the functions of the primal, `units` those of `scaling`."""
    heads, rows, columns = q.shape[1], q.shape[2], k.shape[2]
    group = heads // k.shape[1]
    BM, BN, warps, stages = tiles(kernel, q.dtype, max(q.shape[3], v.shape[3]), precision, max(rows, columns))
    BD, BDV = (max(16, triton.next_power_of_2(x.shape[3])) for x in (q, v))
    constants = {
        "GROUP": group,
        "CAUSAL": causal,
        "HAS_BIAS": bias is not None,
        "HAS_MASK": mask is not None,
        "SHAPED": mix is not None,
        "EVEN_M": rows % BM == 0,
        "EVEN_D": q.shape[3] == BD and v.shape[3] == BDV,
        "PRECISION": precision,
    }
    columnwise = kernel.endswith("columns")
    grid = (triton.cdiv(rows, BM), q.shape[0] * heads, tangents or 1)
    if columnwise:
        constants["EVEN_N"] = columns % BN == 0
        grid = (triton.cdiv(columns, BN), q.shape[0] * k.shape[1], tangents or 1)
    if kernel.startswith("forward"):
        program = fused._forward if kernel == "forward" else fused._forward_tangent
    else:
        constants["TANGENT"] = kernel.startswith("tangent")
        program = fused._grad_columns if columnwise else fused._grad_rows
    if kernel != "forward":
        constants["SCALED"] = units is not None
        args = (*args, q if units is None else units)
    sizes = (float(scale), rows, columns, heads, q.shape[3], v.shape[3])
    program[grid](*args, *sizes, **constants, BM=BM, BN=BN, BD=BD, BDV=BDV, num_warps=warps, num_stages=stages)
