"""Layerwise methods against the published algorithms written out in numpy, and against the optimum."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.compress.grid import Grid
from quadform.compress.layerwise import compensate, error, gptq, least_squares, rtn, sparsegpt
from quadform.compress.masks import choose, magnitude, obd, wanda
from quadform.compress.surgeon import obq
from quadform.core.errors import InputError
from quadform.core.packed import pack, unpack


def layer(out=12, width=40, tokens=200, seed=0):
    r = np.random.default_rng(seed)
    X = r.normal(size=(tokens, width)) @ (r.normal(size=(width, width)) / width**0.5 + np.eye(width) * 0.3)
    return torch.tensor(r.normal(size=(out, width))), torch.tensor(X.T @ X / tokens)


def published(W, S, damping, block, decide):
    """SparseGPT and GPTQ share this loop (Algorithm 1 of both papers); `decide(j, rest, W)` gives the new column."""
    W, n = W.numpy().copy(), W.shape[1]
    H = S.numpy() + damping * np.mean(np.diag(S.numpy())) * np.eye(n)
    U = np.linalg.cholesky(np.linalg.inv(H)).T
    Q = np.zeros_like(W)
    for i in range(0, n, block):
        end = min(i + block, n)
        E = np.zeros((len(W), end - i))
        for j in range(i, end):
            Q[:, j] = decide(j, i, end, W, U)
            E[:, j - i] = (W[:, j] - Q[:, j]) / U[j, j]
            W[:, j:end] -= np.outer(E[:, j - i], U[j, j:end])
        W[:, end:] -= E @ U[i:end, end:]
    return Q


@pytest.mark.parametrize("structure", ["none", "2:4"])
def test_sparsegpt_is_the_published_algorithm(structure):
    W, S = layer()
    mask = np.ones(W.shape, dtype=bool)

    def decide(j, i, end, W, U):
        if structure == "none" and j == i:
            score = W[:, i:end] ** 2 / np.diag(U)[i:end] ** 2
            mask[:, i:end] = score > np.sort(score.ravel())[score.size // 2 - 1]
        if structure == "2:4" and j % 4 == 0:
            score = W[:, j : j + 4] ** 2 / np.diag(U)[j : j + 4] ** 2
            mask[:, j : j + 4] = score >= np.sort(score, 1)[:, 2:3]
        return np.where(mask[:, j], W[:, j], 0.0)

    expected = published(W, S, 0.01, 16, decide)
    found, keep = sparsegpt(W, S, 0.5, structure, block=16)
    assert (keep.numpy() == mask).all()
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    assert float((found == 0).double().mean()) == 0.5


@pytest.mark.parametrize("group", [None, 8])
def test_gptq_is_the_published_algorithm(group):
    W, S = layer()
    grids = {}

    def decide(j, i, end, W, U):
        width = group or W.shape[1]
        if j % width == 0:
            low, high = np.minimum(W[:, j : j + width].min(1), 0), np.maximum(W[:, j : j + width].max(1), 0)
            grids["scale"] = torch.tensor((high - low) / 7).bfloat16().double().numpy()  # as it is stored
            grids["zero"] = np.round(-low / grids["scale"])
        code = np.clip(np.round(W[:, j] / grids["scale"]) + grids["zero"], 0, 7)
        return grids["scale"] * (code - grids["zero"])

    expected = published(W, S, 0.01, group or 128, decide)
    np.testing.assert_allclose(gptq(W, S, 3, group).values.numpy(), expected, atol=1e-12)


def test_the_walk_does_not_depend_on_its_blocks():
    W, S = layer()
    keep = choose({"W": magnitude(W)}, 0.5)["W"]
    torch.testing.assert_close(compensate(W, S, keep, block=7), compensate(W, S, keep, block=128))


def test_better_methods_have_smaller_errors():
    W, S = layer(seed=1)
    keep = choose({"W": wanda(W, S)}, 0.5)["W"]
    plain, walked = error(W, W * keep, S), error(W, compensate(W, S, keep), S)
    best = error(W, least_squares(W, S, keep), S)
    assert best < walked < plain
    assert error(W, sparsegpt(W, S, 0.5)[0], S) < walked
    rounded = error(W, rtn(W, 3).values, S)
    assert error(W, gptq(W, S, 3).values, S) < rounded
    assert error(W, gptq(W, S, 3, order="activation").values, S) < rounded
    assert error(W, obq(W, S, 3).values, S) < rounded


def test_least_squares_is_the_minimum_on_its_mask():
    W, S = layer(out=3, width=9)
    keep = choose({"W": magnitude(W)}, 0.4)["W"]
    best = least_squares(W, S, keep)
    assert ((best == 0) | keep).all()
    gradient = ((best - W) @ S)[keep]
    assert gradient.abs().max() < 1e-12


def test_least_squares_with_inputs_that_are_never_seen():
    W, S = layer(out=3, width=9)
    S[:, 4] = S[4] = 0
    keep = choose({"W": magnitude(W)}, 0.4)["W"]
    for changed in (least_squares(W, S, keep), compensate(W, S, keep), gptq(W, S, 4).values):
        assert torch.isfinite(changed).all()


def test_obq_rounds_every_weight_in_the_cheapest_order():
    """One row, by hand: greedy over (w - q)^2 / P_qq, the rest moved, P shrunk to the weights that are left."""
    W, S = layer(out=1, width=6)
    grid = Grid.of(W, 2)
    scale, zero = float(grid.scale), float(grid.zero)
    w, left = W[0].numpy().copy(), list(range(6))
    H = S.numpy() + 0.01 * np.mean(np.diag(S.numpy())) * np.eye(6)
    final = np.zeros(6)
    while left:
        P = np.linalg.inv(H[np.ix_(left, left)])
        q = scale * (np.clip(np.round(w[left] / scale) + zero, 0, 3) - zero)
        i = int(np.argmin((w[left] - q) ** 2 / np.diag(P)))
        final[left[i]] = q[i]
        w[left] -= P[:, i] * (w[left][i] - q[i]) / P[i, i]
        left.pop(i)
    np.testing.assert_allclose(obq(W, S, 2).values[0].numpy(), final, atol=1e-12)


@given(st.integers(2, 8), st.integers(1, 5), st.integers(1, 33), st.integers(0, 9))
def test_packed_codes_come_back(bits, rows, columns, seed):
    codes = torch.randint(0, 2**bits, (rows, columns), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (rows, -(-columns * bits // 8))
    assert (unpack(packed, bits, columns) == codes).all()


@given(st.integers(2, 8), st.integers(1, 12), st.integers(0, 99))
def test_the_nearest_value_is_at_most_half_a_step_away(bits, group, seed):
    W = torch.randn(4, 12, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    grid = Grid.of(W, bits, group)
    scale, _ = grid.columns(0, 12)
    # Zero points are rounded too, and scales to 16 bits: the largest weight may lie outside by 2^bits / 2^9 steps.
    assert ((grid.nearest(W) - W).abs() <= scale * (1 + 2.0 ** (bits - 9) + 1e-9)).all()
    assert (grid.nearest(torch.zeros_like(W)) == 0).all()


def test_masks_have_the_share_and_structure_asked_for():
    scores = {"a": torch.rand(8, 16), "b": torch.rand(4, 32)}
    keep = choose(scores, 0.3)
    assert sum(int((~m).sum()) for m in keep.values()) == round(0.3 * 256)
    rows = choose(scores, 0.5, "rows")
    assert all((m.all(1) | ~m.any(1)).all() for m in rows.values())
    four = choose(scores, 0.5, "2:4")
    assert all((m.reshape(-1, 4).sum(1) == 2).all() for m in four.values())
    assert choose({"a": torch.zeros(2, 2)}, 0.5)["a"].tolist() == [[False, False], [True, True]]
    assert (obd(torch.tensor([[2.0]]), torch.tensor([[3.0]])) == 6).all()


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda W, S: choose({"W": W}, 1.0), "below 1"),
        (lambda W, S: choose({"W": W}, -0.1), "at least 0"),
        (lambda W, S: choose({"W": W}, 0.4, "2:4"), "one half"),
        (lambda W, S: choose({"W": W[:, :3]}, 0.5, "2:4"), "multiple of 4"),
        (lambda W, S: choose({"W": W * torch.nan}, 0.5), "finite"),
        (lambda W, S: gptq(W, S, 9), "from 2 to 8"),
        (lambda W, S: rtn(W, 4, 0), "at least 1"),
        (lambda W, S: compensate(W, S[:3], W > 0), "second moment"),
        (lambda W, S: sparsegpt(W, S, 0.5, "rows"), "single weights"),
        (lambda W, S: unpack(torch.zeros(1, 3, dtype=torch.uint8), 4, 9), "bytes a row"),
    ],
)
def test_refusals(call, word):
    with pytest.raises(InputError, match=word):
        call(*layer(width=8))
