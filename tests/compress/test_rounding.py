"""Codes of all matrices together: the quadratic model falls until no single step helps; files come back bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quadform.compress.layerwise import Quantized, rtn
from quadform.compress.maps import LinearMap
from quadform.compress.quantizing import bits_a_weight, sizes
from quadform.compress.rounding import descend
from quadform.core.operator import Dense
from quadform.core.packed import PACKED, Layout, dequantized, to_bytes
from quadform.core.space import Space

DAMPING = 0.05


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_no_single_step_helps_any_more() -> None:
    """Two matrices, one stored (in, out), with terms between them and a gradient: every other code is tried."""
    w = {"a": gaussian(3, 4, seed=1), "b": gaussian(4, 2, seed=2)}
    space, A = Space.of(w), gaussian(20, 20)
    B = Dense(A @ A.T, space, symmetric=True, psd=True)
    g = space.unflatten(gaussian(20, seed=3))
    maps = {"a": LinearMap(False, torch.eye(4)), "b": LinearMap(True, torch.eye(4))}
    start = {n: rtn(maps[n].matrix(t), 3) for n, t in w.items()}

    def q(codes: dict[str, Quantized]) -> float:
        d = space.flatten({n: maps[n].matrix(c.values) - w[n] for n, c in codes.items()})
        return float(space.flatten(g) @ d + d @ (A @ A.T @ d + DAMPING * d) / 2)

    diagonal = space.unflatten((A @ A.T).diagonal())
    done = descend(B, g, w, maps, start, damping=DAMPING, diagonal=diagonal, products=200)
    assert done.before == pytest.approx(q(start))
    assert done.after == pytest.approx(q(done.found))
    assert done.after < done.before
    for n, c in done.found.items():
        for index in torch.cartesian_prod(*map(torch.arange, c.codes.shape)).tolist():
            for step in (-1, 1):
                codes = c.codes.long()
                codes[tuple(index)] += step
                if 0 <= int(codes[tuple(index)]) < 8:
                    other = replace(c, codes=codes.to(torch.uint8))
                    assert q({**done.found, n: other}) >= done.after - 1e-9


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
