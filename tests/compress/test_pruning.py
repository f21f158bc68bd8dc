"""Linear maps with the second moment of their inputs, and the step that prunes all of them together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform.compress.fisher import RowFisher, singles
from quadform.compress.heads import choose_heads, heads_of
from quadform.compress.maps import linear_maps, zeros_of
from quadform.compress.pruning import curvature_of_rows, one_by_one, partly, select
from quadform.compress.surgeon import Surgeon
from quadform.compress.together import Masked, damped_step, step
from quadform.core.errors import InputError
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.curvature import Risk
from quadform.nn.transformer import Transformer
from quadform.testing import check_operator


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Turned(nn.Module):
    """x W + b with W stored (in, out), as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(gaussian(4, 3)), nn.Parameter(gaussian(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def two_layers() -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.LayerNorm(4), Turned()).double()
    return model, [(gaussian(6, 5, seed=i), gaussian(6, 3, seed=10 + i)) for i in range(2)]


def test_second_moments_are_those_of_the_inputs() -> None:
    """S of each map is the mean of x x^T over all batches; the stored (in, out) one is known to be turned."""
    model, batches = two_layers()
    maps = linear_maps(Risk(model, lambda out, b: (out - b[1]).square().mean(), batches, quiet=True))
    x = torch.cat([b[0] for b in batches])
    hidden = model[2](model[1](model[0](x))).detach()
    assert list(maps) == ["0.weight", "3.weight"]  # no bias, no norm
    assert torch.allclose(maps["0.weight"].S, x.T @ x / 12)
    assert torch.allclose(maps["3.weight"].S, hidden.T @ hidden / 12)
    assert [m.transposed for m in maps.values()] == [False, True]
    assert maps["3.weight"].matrix(model[3].weight).shape == (3, 4)


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_of_our_models(tied: bool) -> None:
    """Raw matrices are maps; embeddings are none, also where they are the output."""
    model = Transformer("pre-ln", depth=1, d_model=4, heads=2, vocab=7, seq_len=5, tied=tied, dtype=torch.float64)
    tokens = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(0))
    maps = linear_maps(Risk(model, None, [{"tokens": tokens}], quiet=True))
    inner = ["attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O", "mlp.W_1", "mlp.W_2"]
    assert sorted(maps) == sorted([f"layers.0.{n}" for n in inner] + ["W_U"] * (not tied))


def test_a_model_without_maps_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to prune"):
        linear_maps(
            Risk(nn.LayerNorm(3).double(), lambda out, b: out.square().mean(), [(gaussian(2, 3), 0)], quiet=True)
        )


def quadratic(n: int = 12) -> tuple[Dense, Tensor, Tensor, Tensor]:
    """A positive definite operator over two tensors, a gradient, weights, and a mask."""
    A = gaussian(n, n)
    space = Space.of({"a": torch.zeros(2, 3), "b": torch.zeros(n - 6)})
    keep = torch.arange(n) % 3 != 0
    return Dense(A @ A.T, space, symmetric=True, psd=True), gaussian(n, seed=1), gaussian(n, seed=2), keep


def test_masked_is_the_part_between_kept_coordinates() -> None:
    A, _, _, keep = quadratic()
    M = Masked(A, A.domain.unflatten(keep))
    check_operator(M)
    assert torch.allclose(M.dense(), keep[:, None] * A.dense() * keep)


@pytest.mark.parametrize("preconditioned", [True, False])
def test_the_step_is_that_of_the_surgeon(preconditioned: bool) -> None:
    """Conjugate gradients give the closed form of OBS for a set of weights, with gradient and damping."""
    A, g, w, keep = quadratic()
    named = [A.domain.unflatten(t) for t in (g, w, keep)]
    diagonal = A.domain.unflatten(A.dense().diagonal()) if preconditioned else None
    exact = Surgeon.of(w, A.dense(), g, damping=0.3).step(torch.nonzero(~keep)[:, 0])
    for start in (None, A.domain.unflatten(gaussian(12, seed=3))):
        d, solved = step(A, *named, damping=0.3, diagonal=diagonal, start=start, method="cg", tol=1e-12)
        assert solved.converged
        assert torch.allclose(A.domain.flatten(d), exact)
        assert torch.equal(A.domain.flatten(d)[~keep], -w[~keep])


def test_negative_curvature_raises_the_damping_until_there_is_a_minimum() -> None:
    """The step is then that of the surgeon with the damping it took, which is that asked for where it is enough."""
    A, _, w, keep = quadratic()
    named = [A.domain.unflatten(t) for t in (w, keep)]
    for low, want in ((0.0, 0.3), (2.0, 3.0)):
        B = Dense(A.dense() - low * torch.eye(12).double(), A.domain, symmetric=True)
        d, solved, damping = damped_step(B, *named, damping=0.3, method="cg", tol=1e-12)
        exact = Surgeon.of(w, B.dense(), damping=damping).step(torch.nonzero(~keep)[:, 0])
        assert solved.converged
        assert damping == pytest.approx(want)
        assert torch.allclose(A.domain.flatten(d), exact)
    never = Dense(A.dense() - 1e6 * torch.eye(12).double(), A.domain, symmetric=True)
    assert damped_step(never, *named, damping=0.3, method="cg")[2] == pytest.approx(300.0)


@pytest.mark.parametrize("method", ["magnitude", "wanda", "obd", "sparsegpt", "hessian"])
@pytest.mark.parametrize("how", ["none", "sweep", "least-squares"])
def test_masks_and_weights_agree(method: str, how: str) -> None:
    """Weights are zero where the mask says so; `wanda` takes the same share of every row."""
    model, batches = two_layers()
    risk = Risk(model, lambda out, b: (out - b[1]).square().mean(), batches, quiet=True)
    maps = linear_maps(risk)
    W = {n: m.matrix(risk.params[n]) for n, m in maps.items()}
    diagonal = {n: w.square() for n, w in W.items()}
    chosen = select(method, maps, W, 0.5, "none", diagonal=diagonal, damping=0.01)
    left = one_by_one(how, maps, W, chosen, 0.01)
    assert zeros_of(left) == pytest.approx(0.5, abs=1 / 16)
    for n, keep in chosen.keep.items():
        assert bool((left[n][~keep] == 0).all())
    if method == "wanda":  # each row loses the same share
        assert chosen.keep["3.weight"].sum(1).tolist() == [2, 2, 2]
    if how == "none":
        assert all(torch.equal(left[n], W[n] * keep) for n, keep in chosen.keep.items())


def test_the_diagonal_of_a_kronecker_product_is_kept() -> None:
    """b_i S_jj is found again; noise of mean zero inside a row is not."""
    S = gaussian(4, 4) @ gaussian(4, 4).T
    b = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    noise = torch.tensor([1.0, -1.0, 2.0, -2.0], dtype=torch.float64)
    assert torch.allclose(curvature_of_rows(b[:, None] * S.diagonal() + noise, S), b[:, None] * S.diagonal())


def test_a_part_of_a_mask_drops_the_smallest_first() -> None:
    W = {"a": torch.tensor([[1.0, -2.0, 3.0, 0.5]]), "b": torch.tensor([[4.0, 0.1]])}
    keep = {"a": torch.tensor([[False, False, True, True]]), "b": torch.tensor([[False, True]])}
    found = partly(keep, W, 2 / 3)
    assert found["a"].tolist() == [[False, False, True, True]]
    assert found["b"].tolist() == [[True, True]]
    assert all(torch.equal(t, keep[n]) for n, t in partly(keep, W, 1.0).items())


def test_the_names_are_public() -> None:
    assert qf.compress.linear_maps is linear_maps


def test_fisher_of_rows() -> None:
    """Woodbury's inverse is the inverse; the compensation is the surgeon's step of each row."""
    G, W = gaussian(5, 3, 6), gaussian(3, 6, seed=1)
    fisher = RowFisher(G, 0.2)
    keep = gaussian(3, 6, seed=2) > -0.2
    left = fisher.compensate(W, keep, rows=2)
    for i in range(3):
        F = G[:, i].T @ G[:, i] / 5 + 0.2 * torch.eye(6, dtype=torch.float64)
        assert torch.allclose(fisher.matrices(0, 3)[i], F)
        assert torch.allclose(fisher.inverse_diagonal()[i], torch.linalg.inv(F).diagonal())
        assert torch.allclose(left[i], W[i] + Surgeon.of(W[i], F).step(torch.nonzero(~keep[i])[:, 0]))


def test_batches_are_cut_into_sequences() -> None:
    x, mask = gaussian(3, 2), gaussian(2, 2)
    one, *_ = found = singles({"x": x, "more": (x, mask), "name": "a"})
    assert len(found) == 3
    assert torch.equal(one["x"], x[:1])
    assert torch.equal(one["more"][0], x[:1])
    assert torch.equal(one["more"][1], mask)  # another length: no part of a sequence
    assert one["name"] == "a"


def test_the_surgeon_of_an_indefinite_hessian() -> None:
    """|H| + damping has the eigenvectors of H and the sizes of its eigenvalues."""
    A, w = gaussian(5, 5), gaussian(5, seed=1)
    H = A + A.T
    S = Surgeon.of_absolute(w, H, damping=0.1)
    expected = torch.linalg.matrix_power(H, 2)
    rest = S.H - 0.1 * torch.linalg.eigvalsh(H).abs().mean() * torch.eye(5, dtype=torch.float64)
    assert torch.allclose(rest @ rest, expected)


def test_heads_go_as_a_whole() -> None:
    """One of two heads: its columns of W_Q, W_K, W_V and its rows of W_O, and nothing else."""
    model = Transformer("pre-ln", depth=1, d_model=4, heads=2, vocab=7, seq_len=5, dtype=torch.float64)
    tokens = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(0))
    risk = Risk(model, None, [{"tokens": tokens}], quiet=True)
    maps = linear_maps(risk)
    heads = heads_of(risk.space.views, maps, risk.params)
    assert sorted(heads) == ["layers.0.attn[0]", "layers.0.attn[1]"]
    W = {n: m.matrix(risk.params[n]) for n, m in maps.items()}
    scores = {n: torch.ones_like(w) for n, w in W.items()}
    scores["layers.0.attn.W_V"][:2] = 0  # (out, in): the first head
    keep = choose_heads(scores, 0.5, heads)
    gone = {n: (~m).nonzero().tolist() for n, m in keep.items() if not bool(m.all())}
    assert sorted(gone) == [f"layers.0.attn.W_{x}" for x in "KOQV"]
    assert {i for i, _ in gone["layers.0.attn.W_V"]} == {0, 1}
    assert {j for _, j in gone["layers.0.attn.W_O"]} == {0, 1}
    assert heads_of((), maps, risk.params) == {}
    outputs = heads_of(risk.space.views, maps, risk.params, "O")
    assert {h: list(parts) for h, parts in outputs.items()} == {h: ["layers.0.attn.W_O"] for h in heads}
