"""Quantized matrices on disk, bit for bit, and how many bits they take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from quadform.compress.layerwise import rtn
from quadform.compress.quantizing import bits_a_weight, in_rounds, sizes
from quadform.core.packed import PACKED, Layout, dequantized, to_bytes


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rounds_take_every_matrix_once() -> None:
    assert in_rounds("abcde", 2) == [["a", "b"], ["c", "d", "e"]]
    assert in_rounds("ab", 4) == [["a"], ["b"]]
    assert in_rounds("abc", 1) == [["a", "b", "c"]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_file_holds_what_was_measured(dtype: torch.dtype, tmp_path: Path) -> None:
    """Values from the file are those of the grid in both number formats, turned where the model is; others as is."""
    W = gaussian(5, 12).to(dtype)
    found = rtn(W, 5, 4)
    parts, layout = found.grid.stored(found.codes, turned=True)
    tensors = {f"W.{name}": t for name, t in parts.items()} | {"bias": gaussian(5).to(dtype)}
    (tmp_path / PACKED).write_bytes(to_bytes(tensors, {"W": layout}, dtype))
    state = dequantized(tmp_path)
    assert torch.equal(state["W"], found.values.mT)
    assert torch.equal(state["W"].double(), rtn(gaussian(5, 12).to(dtype).double(), 5, 4).values.mT)
    assert torch.equal(state["bias"], tensors["bias"])
    assert sorted(state) == ["W", "bias"]
    assert layout == Layout(5, 4, 12, True)


def test_sizes_are_those_of_the_grid() -> None:
    """Bits in all with scales and zero points, a last group that is not full included."""
    shape, bits = {"a": (3, 10), "b": (2, 2)}, {"a": 4, "b": 8}
    table = sizes(shape, 4)
    per = {n: rtn(gaussian(*s), bits[n], 4).grid.bits_per_weight(s[1]) * s[0] * s[1] for n, s in shape.items()}
    assert {n: table[n][b] for n, b in bits.items()} == pytest.approx(per)
    assert bits_a_weight(table, bits, 34) == pytest.approx(sum(per.values()) / 34)
