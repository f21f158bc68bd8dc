"""K-FAC and EKFAC against another package, against H_o itself where they are exact, and on every kind of layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peer_models import CASES, LOSSES, problem, vector
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import quadform as qf
from quadform.core.errors import InputError
from quadform.preconditioners import ekfac, kfac
from quadform.preconditioners.factored import _gram
from quadform.preconditioners.operators import Packed
from quadform.testing import check_operator

PEERS = load_file(Path(__file__).with_name("peers.safetensors"))


def close(a: Tensor, b: Tensor, rtol: float = 1e-9) -> bool:
    return float((a - b).abs().max()) <= rtol * float(b.abs().max())


def risk_of(model: nn.Module, data: object, loss: str = "mse", **options: object) -> qf.Risk:
    return qf.Risk(model.double(), LOSSES[loss], data, quiet=True, **options)


@pytest.mark.parametrize("case", CASES, ids="/".join)
def test_equals_the_peer(case: tuple[str, ...]) -> None:
    """curvlinops' (E)KFAC, two unequal batches, to 1e-6: both losses, sharings, scores, biases as column and apart."""
    name, loss, which, sharing, scores, bias = case
    model, data = problem(name, loss)
    make = {"kfac": kfac, "ekfac": ekfac}[which]
    P = make(risk_of(model, data, loss), sharing=sharing, scores=scores, bias_column=bias == "column")
    assert close(P @ vector(P.shape[0]), PEERS["/".join(case)], 1e-6)


def test_exact_where_gradients_do_not_depend_on_inputs() -> None:
    """One linear layer and a squared loss: H_o = B kron A, bias included; K-FAC is H_o."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(8, 3).double(), torch.randn(8, 2).double()
    risk = risk_of(model, (x, y))
    assert close(kfac(risk, scores="exact").dense(), qf.gauss_newton(risk).dense())


class Head(nn.Module):
    """Causal attention with fused queries, keys and values, written as `F.linear` and `x @ W`."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Parameter(torch.randn(12, 4)), nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.linear(x, self.qkv).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) @ self.out


@pytest.mark.parametrize("loss", LOSSES)
def test_ekfac_has_the_diagonal_of_the_gauss_newton_matrix(loss: str) -> None:
    """diag(U^T H_o U) = s, exact where tokens see each other: each loss term is sent back alone."""
    torch.manual_seed(0)
    x = torch.randn(5, 4, 4).double()
    y = torch.randn(5, 4, 3).double() if loss == "mse" else torch.randint(0, 3, (5, 4))
    risk = risk_of(Head(), [(x[:3], y[:3]), (x[3:], y[3:])], loss)
    P, H_o = ekfac(risk, scores="exact"), qf.gauss_newton(risk)
    for block in P.blocks:
        U = block.base.bases
        (name,) = block.domain.names
        stored_in_out = block.pieces[0].transposed
        basis = torch.kron(U[1], U[0]) if stored_in_out else torch.kron(U[0], U[1])
        s = (block.base.s.T if stored_in_out else block.base.s).reshape(-1)
        assert close(s, (basis.T @ H_o.block(name).dense() @ basis).diagonal())


def test_sampled_scores_have_the_mean_of_exact_ones() -> None:
    """A cross-entropy by drawn labels and a squared loss by normal draws; 600 of them are within 10 %."""
    for loss in LOSSES:
        model, data = problem("pooled", loss)
        risk = risk_of(model, data, loss)
        exact = kfac(risk, scores="exact").dense()
        drawn = kfac(risk, samples=600).dense()
        assert float((drawn - exact).norm() / exact.norm()) < 0.1
        assert not torch.equal(kfac(risk, seed=1).dense(), kfac(risk, seed=2).dense())
        assert torch.equal(kfac(risk, seed=1).dense(), kfac(risk, seed=1).dense())


class Twin(nn.Module):
    """The attention of torch, with its projections as three linear layers of our own."""

    def __init__(self, of: nn.MultiheadAttention) -> None:
        super().__init__()
        d = of.embed_dim
        self.qkv, self.out, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), of.num_heads
        self.double().load_state_dict(
            {"qkv.weight": of.in_proj_weight, "qkv.bias": of.in_proj_bias, "out.weight": of.out_proj.weight,
             "out.bias": of.out_proj.bias}
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_attention_of_torch(sharing: str) -> None:
    """The fused projection and the output of nn.MultiheadAttention, whose tokens stand on the first axis inside."""
    torch.manual_seed(0)
    model, x, y = Attention().double(), torch.randn(3, 5, 4).double(), torch.randn(3, 5, 4).double()
    nn.init.normal_(model.inner.in_proj_bias)
    P = kfac(risk_of(model, (x, y)), sharing=sharing, scores="exact")
    Q = kfac(risk_of(Twin(model.inner), (x, y)), sharing=sharing, scores="exact")
    assert [n for n, _ in P.domain] == [
        "inner.in_proj_weight", "inner.in_proj_bias", "inner.out_proj.weight", "inner.out_proj.bias"
    ]  # fmt: skip
    assert len(P.blocks) == 2
    assert close(P.dense(), Q.dense())
    assert P.block("inner.W_Q").shape == (16, 16)
    check_operator(P.inverse(damping=0.1))


class Stored(nn.Module):
    """One map three ways: `F.linear(x, W, b)`, `addmm(b, x, W^T)` as in GPT-2's Conv1D, side by side with another."""

    def __init__(self, how: str) -> None:
        super().__init__()
        W, b, last = torch.randn(4, 3), torch.randn(4), torch.randn(2, 4)
        self.how = how
        self.W, self.b = nn.Parameter(W if how == "linear" else W.T.clone()), nn.Parameter(b)
        self.other, self.last = nn.Parameter(torch.randn(3, 2)), nn.Parameter(last)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "linear":
            out = F.linear(x, self.W, self.b)
        elif self.how == "addmm":
            out = torch.addmm(self.b, x.view(-1, 3), self.W).view(*x.shape[:-1], 4)
        else:
            joined, bias = torch.cat([self.other, self.W], 1), torch.cat([self.b.new_zeros(2), self.b])
            out = F.linear(x, joined.mT, bias)[..., 2:]
        return torch.tanh(out) @ self.last.mT


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("how", ["addmm", "joined"])
def test_storage_does_not_matter(how: str, sharing: str) -> None:
    """A weight stored (in, out), flattened tokens, several weights in one product: the same factors."""
    x, y = torch.randn(3, 5, 3).double(), torch.randn(3, 5, 2).double()
    torch.manual_seed(1)
    plain = kfac(risk_of(Stored("linear"), (x, y), params=["W", "b", "last"]), sharing=sharing, scores="exact")
    torch.manual_seed(1)
    other = kfac(risk_of(Stored(how), (x, y), params=["W", "b", "last"]), sharing=sharing, scores="exact")
    v = plain.domain.random(dtype=torch.float64)
    a, b = plain @ v, other @ (v | {"W": v["W"].T.contiguous()})
    assert close(b["W"].T, a["W"])
    assert close(b["b"], a["b"])
    assert close(b["last"], a["last"])


def test_activations_in_place_do_not_matter() -> None:
    """The gradient of an output is that before code writes into it, also for the first product of a model."""
    data, found = (torch.randn(6, 3).double(), torch.randn(6, 2).double()), []
    for inplace in (False, True):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace), nn.Linear(4, 4), nn.ReLU(inplace), nn.Linear(4, 2))
        found.append(kfac(risk_of(model, data), scores="exact").dense())
    assert close(*found)


def test_embedding_is_a_linear_layer_of_one_hot_inputs() -> None:
    """Factors and EKFAC of an embedding equal those of a linear layer that is given one-hot vectors."""

    class Looked(nn.Module):
        def __init__(self, one_hot: bool) -> None:
            super().__init__()
            self.E, self.last, self.one_hot = nn.Parameter(torch.randn(5, 3)), nn.Linear(3, 2), one_hot

        def forward(self, ids: Tensor) -> Tensor:
            x = F.one_hot(ids, 5).to(self.E) @ self.E if self.one_hot else F.embedding(ids, self.E)
            return self.last(torch.tanh(x))

    ids, y = torch.randint(0, 5, (4, 6)), torch.randn(4, 6, 2).double()
    for make in (kfac, ekfac):
        for sharing in ("expand", "reduce"):
            found = []
            for one_hot in (False, True):
                torch.manual_seed(2)
                found.append(make(risk_of(Looked(one_hot), (ids, y)), sharing=sharing, scores="exact").dense())
            assert close(*found)


def test_a_layer_used_twice_is_shared_like_tokens() -> None:
    """One weight at two places of a model: the same factors as one call on both inputs together."""

    class Twice(nn.Module):
        def __init__(self, together: bool) -> None:
            super().__init__()
            self.layer, self.together = nn.Linear(3, 2), together

        def forward(self, x: Tensor) -> Tensor:
            if self.together:
                return self.layer(x).sum(1)
            return self.layer(x[:, 0]) + self.layer(x[:, 1])

    x, y = torch.randn(4, 2, 3).double(), torch.randn(4, 2).double()
    found = []
    for together in (False, True):
        torch.manual_seed(3)
        found.append(kfac(risk_of(Twice(together), (x, y)), sharing="reduce", scores="exact").dense())
    assert close(*found)


class Odd(nn.Module):
    """A norm, a tied embedding, a grouped convolution: parameters without Kronecker factors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.conv, self.map = nn.Conv1d(4, 4, 3, padding="same", groups=2), nn.Conv1d(4, 4, 3, padding="same")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.map(self.conv(self.embed(ids).mT)).mT
        return self.norm(x) @ self.embed.weight.T


def test_what_has_no_factors_gets_the_diagonal() -> None:
    """Their blocks are diag H_o, exact where products suffice; the result says which they are."""
    torch.manual_seed(0)
    ids = torch.randint(0, 5, (3, 6))
    risk = risk_of(Odd(), (ids, ids), "cross-entropy")
    P = kfac(risk, scores="exact", products=1000)
    names = ("embed.weight", "norm.weight", "norm.bias", "conv.weight", "conv.bias")
    assert P.notes[0] == "K-FAC expand, exact scores: 2 of 7 tensors"
    assert P.notes[1] == f"diagonal of H_o (exact by 56 unit vectors): {', '.join(names)}"
    H_o = qf.gauss_newton(risk).block(names).dense()
    assert close(P.block(names).dense(), torch.diag(H_o.diagonal()))
    assert P.stderr == {}
    few = kfac(risk, scores="exact", products=20)
    assert set(few.stderr) == set(names)
    check_operator(few)


def test_second_moments_by_tiles() -> None:
    """A wide second moment from its lower half is the whole one; the width is no multiple of a tile."""
    rows = torch.randn((7, 1100), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert close(_gram(rows, 8192), rows.T @ rows)
    assert close(_gram(rows, 1000), rows.square().sum(0))


def test_a_long_factor_keeps_its_diagonal() -> None:
    """Factors above `longest` are the diagonals of the full ones."""
    model, data = problem("pooled", "mse")
    full = kfac(risk_of(model, data), scores="exact").blocks[0].base.factors
    short = kfac(risk_of(model, data), scores="exact", longest=5).blocks[0].base.factors
    assert close(short[0], full[0])
    assert close(short[1], full[1].diagonal())


@pytest.mark.parametrize("make", [kfac, ekfac])
def test_designs_of_this_project(make: object) -> None:
    """Queries, keys and values in one product while training, `x @ W`, positions and a tied output."""
    blocks = (qf.DESIGNS["pre-ln"].block,)
    model = qf.Transformer(qf.ModelConfig(vocab=7, blocks=blocks, d_model=4, heads=2, d_ff=8, seq_len=5))
    ids = torch.randint(0, 7, (3, 5))
    risk = risk_of(model, (ids, ids), "cross-entropy")
    P = make(risk, scores="empirical")
    matrices = {n for n, s in risk.space if (len(s) == 2 and "attn" in n) or "mlp.W" in n}
    covered = {n for b in P.blocks if isinstance(b, Packed) for n in b.domain.names}
    assert matrices
    assert matrices <= covered
    check_operator(P.sqrt_inverse(damping=1e-3))


def test_gpt2_of_hugging_face() -> None:
    """Conv1D with fused queries, keys and values; tied embedding and positions by the diagonal; nothing changes."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=6)
    model = transformers.GPT2LMHeadModel(config).double()
    ids = torch.randint(0, 11, (2, 6))
    risk = qf.Risk(model, None, {"input_ids": ids, "labels": ids}, quiet=True)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    P = kfac(risk, products=8)
    assert P.notes[0] == "K-FAC expand, sampled scores: 8 of 16 tensors"
    rest = P.notes[1].split(": ")[1].split(", ")
    assert {n.removeprefix("transformer.").removesuffix(".weight") for n in rest if n.endswith("weight")} == {
        "wte", "wpe", "h.0.ln_1", "h.0.ln_2", "ln_f"
    }  # fmt: skip
    assert all(torch.equal(before[n], p) and p.grad is None for n, p in model.named_parameters())
    H_o = qf.gauss_newton(risk).block("*mlp.c_proj*").dense()
    exact = kfac(risk, scores="exact", products=8).block("*mlp.c_proj*").dense()
    assert float((exact - H_o).norm() / H_o.norm()) < 0.5
    assert torch.linalg.eigvalsh(exact).min() > -1e-12
    check_operator(P.inverse(damping=1e-3))


def test_positions_that_all_examples_share_have_no_factors() -> None:
    """Rows that look like examples times places but are places alone: an embedding of positions, a map of it."""

    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.map, self.last = nn.Embedding(6, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(x + self.map(self.places(torch.arange(6)))))

    risk = risk_of(Placed(), (torch.randn(3, 6, 3).double(), torch.randn(3, 6, 2).double()))
    P = kfac(risk, scores="exact", products=1000)
    assert P.notes[1] == "diagonal of H_o (exact by 30 unit vectors): places.weight, map.weight, map.bias"


def test_examples_that_see_each_other_are_refused() -> None:
    """Batch norm in training mode: scores of several examples cannot share a pass; sampled ones need not."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = (torch.randn(6, 3).double(), torch.randn(6, 2).double())
    risk = risk_of(model, data, train_mode=True)
    for options in ({"scores": "exact"}, {"sharing": "reduce"}):
        with pytest.raises(InputError, match=r"examples of a batch see each other \(at `0.weight`\)"):
            kfac(risk, **options)
    assert kfac(risk).psd


def test_refusals() -> None:
    model, data = problem("pooled", "mse")
    risk = risk_of(model, data)
    with pytest.raises(InputError, match="sharing 'both' is not 'expand' or 'reduce'"):
        kfac(risk, sharing="both")
    with pytest.raises(InputError, match="scores 'mc' are not 'exact', 'sampled' or 'empirical'"):
        kfac(risk, scores="mc")
    with pytest.raises(InputError, match="samples=2: at least 1, and more than 1 only where scores are sampled"):
        kfac(risk, scores="exact", samples=2)
    bent = qf.Risk(model, lambda out, batch: out.sin().mean(), data, quiet=True)
    with pytest.raises(InputError, match="not convex in the network's output"):
        kfac(bent, scores="exact")
    coupled = qf.Risk(model, lambda out, batch: out.mean(0).square().sum(), data, quiet=True)
    with pytest.raises(InputError, match="couples the examples"):
        kfac(coupled, scores="exact")
    norm = risk_of(nn.Sequential(nn.Flatten(), nn.LayerNorm(42)), (data[0][0], torch.randn(16, 42).double()))
    with pytest.raises(InputError, match="no parameter of this risk acts as a matrix"):
        kfac(norm)
