"""What the shards of a vector are: where their entries stand in the whole, and what is drawn there."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.rng import by_place
from quadform.distributed.shards import Cut, Shards
from quadform.estimate.vectors import _at_places

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(SHAPES, st.integers(1, 6), st.data())
def test_places(shape: list[int], pieces: int, data: st.DataObject) -> None:
    """Entry i of a piece is entry `places(i)` of the whole tensor; the pieces are those of `torch.chunk`."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = Cut.of(tuple(shape), pieces, axis)
    whole = torch.arange(math.prod(shape)).view(shape)
    for r, piece in enumerate(whole.split(cut.lengths, dim=axis)):
        assert torch.equal(cut.places(r, torch.arange(piece.numel())), piece.flatten())


def test_what_is_drawn_by_place() -> None:
    """Uniform numbers: means of 1, u, u^2 in tenths of the places; other names and seeds give others. Gaussians and
    signs have mean 0 and variance 1, within five standard errors."""
    at, n = torch.arange(100_000), 100_000
    u = by_place(0, "a", at)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    for part in u.split(n // 10):
        assert abs(float(part.mean()) - 1 / 2) < 5 * (1 / 12 / len(part)) ** 0.5
        assert abs(float(part.square().mean()) - 1 / 3) < 5 * (4 / 45 / len(part)) ** 0.5
    for other in (by_place(0, "b", at), by_place(1, "a", at), u.roll(1)):
        assert abs(float(torch.corrcoef(torch.stack([u, other]))[0, 1])) < 5 / n**0.5
    for kind, fourth in (("gaussian", 3), ("rademacher", 1)):
        z = _at_places(0, "a", kind, "w", at)  # type: ignore[arg-type]  # both are kinds
        assert abs(float(z.mean())) < 5 / n**0.5
        assert abs(float(z.square().mean()) - 1) <= 5 * ((fourth - 1) / n) ** 0.5


@given(SHAPES, st.integers(1, 6), st.data())
def test_rows_of_a_message(shape: list[int], pieces: int, data: st.DataObject) -> None:
    """A row has a piece, padded to the longest; joined they are the tensor again."""
    cut = Cut.of(tuple(shape), pieces, data.draw(st.integers(0, len(shape) - 1)))
    t, rows = torch.randn(shape), torch.zeros(pieces, cut.room)
    Shards._split(cut, t, 2.0, rows)
    for row, piece in zip(rows, t.split(cut.lengths, dim=cut.axis), strict=True):
        assert torch.equal(row[: piece.numel()], 2 * piece.flatten())
        assert not row[piece.numel() :].any()
    assert torch.equal(Shards._joined(cut, rows), 2 * t)
