"""Tile sizes, operands and grids of the kernels of `fused`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from . import fused, upright
from .choice import interpreted
from .direct import start

UPRIGHT = (torch.bfloat16,)
"""Types for which the column kernel with upright score tiles was measured."""

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


@functools.lru_cache(maxsize=512)
def _plan(
    kernel: str, dtype: torch.dtype, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...],
    HAS_BIAS: bool, HAS_MASK: bool, SHAPED: bool, CAUSAL: bool, PRECISION: str, tangents: int | None, SCALED: bool,
) -> tuple:  # fmt: skip
    """(the program, its grid, the sizes it is given, its constants) for operands of these shapes.

    Remembered: worked out anew, it takes the host as long as the launch itself.
    """
    (batch, heads, rows, width), (_, key_heads, columns, _) = q, k
    extras = HAS_BIAS or HAS_MASK or SHAPED or SCALED
    if kernel == "tangent_columns" and dtype in UPRIGHT and CAUSAL and q == k == v and not extras:
        BM, BN, warps, stages = (64, 64, 4, 2)
        if width == 64 and rows % BM == 0:
            whole = {"BM": BM, "BN": BN, "BD": 64, "BDV": 64, "num_warps": warps, "num_stages": stages}
            grid = (columns // BN, batch * heads, tangents or 1)
            return upright._tangent_columns, grid, (rows, columns, heads, 64, 64), whole
    BM, BN, warps, stages = tiles(kernel, dtype, max(width, v[3]), PRECISION, max(rows, columns))
    BD, BDV = (max(16, 1 << (n - 1).bit_length()) for n in (width, v[3]))
    constants: dict[str, int | str] = {
        "GROUP": heads // key_heads,
        "CAUSAL": CAUSAL,
        "HAS_BIAS": HAS_BIAS,
        "HAS_MASK": HAS_MASK,
        "SHAPED": SHAPED,
        "EVEN_M": rows % BM == 0,
        "EVEN_D": width == BD and v[3] == BDV,
        "PRECISION": PRECISION,
    }
    columnwise = kernel.endswith("columns")
    grid = (-(-rows // BM), batch * heads, tangents or 1)
    if columnwise:
        constants["EVEN_N"] = columns % BN == 0
        grid = (-(-columns // BN), batch * key_heads, tangents or 1)
    if kernel.startswith("forward"):
        program = fused._forward if kernel == "forward" else fused._forward_tangent
    else:
        constants["TANGENT"] = kernel.startswith("tangent")
        program = fused._grad_columns if columnwise else fused._grad_rows
    if kernel != "forward":
        constants["SCALED"] = SCALED
    constants |= {"BM": BM, "BN": BN, "BD": BD, "BDV": BDV, "num_warps": warps, "num_stages": stages}
    return program, grid, (rows, columns, heads, width, v[3]), constants


def _launch(
    kernel: str, args: tuple, q, k, v, bias, mask, mix, causal, scale, precision,
    tangents: int | None = None, units: Tensor | None = None,
) -> None:  # fmt: skip
    """Run one kernel over its grid; `tangents` is None for the functions of the primal, `units` those of `scaling`."""
    has = (bias is not None, mask is not None, mix is not None)
    options = (*has, causal, precision, tangents, units is not None)
    program, grid, sizes, constants = _plan(kernel, q.dtype, tuple(q.shape), tuple(k.shape), tuple(v.shape), *options)
    if kernel != "forward":
        args = (*args, q if units is None else units)
    start(program, grid, (*args, float(scale), *sizes), constants)
