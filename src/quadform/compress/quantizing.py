"""One model at a time: codes of all its linear maps, and the bits each gets under a budget.

Matrices are (out, in) in here; `LinearMap.matrix` turns them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from ..core.errors import InputError
from ..core.packed import BITS
from .grid import BESIDE
from .layerwise import Quantized, gptq, rtn
from .maps import LinearMap
from .surgeon import obq


def one_by_one(
    method: str,
    maps: Mapping[str, LinearMap],
    W: Mapping[str, Tensor],
    bits: Mapping[str, int],
    group: int,
    damp: float,
) -> dict[str, Quantized]:
    """Codes with each matrix by itself: `rtn`, `gptq` or `obq`."""
    if method == "rtn":
        return {n: rtn(w, bits[n], group) for n, w in W.items()}
    if method not in ("gptq", "obq"):
        raise InputError(f"unknown method {method!r}; choose from rtn, gptq, obq.")
    way = gptq if method == "gptq" else obq
    return {n: way(w, maps[n].S, bits[n], group, damping=damp) for n, w in W.items()}


def in_rounds(names: Sequence[str], rounds: int) -> list[list[str]]:
    """The names in order, cut into at most so many parts of nearly the same length."""
    parts = min(rounds, len(names))
    ends = [round(k * len(names) / parts) for k in range(parts + 1)]
    return [list(names[a:b]) for a, b in pairwise(ends)]


def sizes(shapes: Mapping[str, tuple[int, int]], group: int) -> dict[str, dict[int, float]]:
    """{matrix: {bits: bits in all}} of matrices (out, in), scales and zero points included."""
    return {
        n: {b: out * (b * width + BESIDE * -(-width // min(group, width))) for b in BITS}
        for n, (out, width) in shapes.items()
    }


def bits_a_weight(sizes: Mapping[str, Mapping[int, float]], bits: Mapping[str, int], weights: int) -> float:
    """Bits stored for each weight on average."""
    return sum(sizes[n][b] for n, b in bits.items()) / weights
