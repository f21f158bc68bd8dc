"""Exact matrix-free operators of any model against closed forms, double backward and each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadform.core.errors import CheckFailed, InputError
from quadform.curvature import Risk, activation_hessian, fisher, functional, gauss_newton, hessian, soundness
from quadform.curvature.selfcheck import require_sound_derivatives
from quadform.testing import check_operator
from quadform.theory import AttentionLayer

F64 = torch.float64


def mse(out: Tensor, batch: Any) -> Tensor:
    return (out - batch[1]).square().mean()


def cross_entropy(out: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(out.flatten(0, -2), batch[1].flatten())


def attention_net(p: dict[str, Tensor], batch: Any) -> Tensor:
    X = batch[0]
    return ((X @ p["W_Q"]) @ (X @ p["W_K"]).mT / p["W_Q"].shape[1] ** 0.5).softmax(-1) @ X @ p["W_V"]


class Block(nn.Module):
    """Attention by torch (fused, without a second derivative), LayerNorm with weights, dropout, an MLP."""

    def __init__(self, d: int = 6, heads: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.drop = nn.Dropout(0.3)
        self.mlp = nn.Sequential(nn.Linear(d, 5), nn.GELU(), nn.Linear(5, classes))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return self.mlp(self.drop(x + self.attn(h, h, h, need_weights=False)[0]))


@pytest.fixture
def block() -> tuple[Block, tuple[Tensor, Tensor]]:
    model = Block().to(F64)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model, (torch.randn(3, 4, 6, dtype=F64), torch.randint(0, 3, (3, 4)))


def double_backward(model: nn.Module, scalar: Callable[[], Tensor], v: dict[str, Tensor]) -> dict[str, Tensor]:
    params = dict(model.named_parameters())
    model.eval()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        g = torch.autograd.grad(scalar(), list(params.values()), create_graph=True)
        return dict(zip(params, torch.autograd.grad(g, list(params.values()), [v[n] for n in params]), strict=True))


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a) / max(float(t.abs().max()) for t in b.values())


def test_theory_and_autograd_agree_through_operators() -> None:
    """`(layer.hessian() - hessian(risk)).dense()` is zero, and so for both parts."""
    X, Y = torch.randn(2, 5, 4, dtype=F64), torch.randn(2, 5, 3, dtype=F64)
    W = {name: torch.randn(4, n, dtype=F64) for name, n in (("W_Q", 2), ("W_K", 2), ("W_V", 3))}
    risk, layer = Risk(attention_net, mse, (X, Y), W), AttentionLayer(X, *W.values(), Y)
    size = layer.matrix().abs().max()
    assert float((layer.hessian() - hessian(risk)).dense().abs().max() / size) <= 1e-12
    assert float((layer.outer_operator() - gauss_newton(risk)).dense().abs().max() / size) <= 1e-12
    assert float((layer.functional_operator() - functional(risk)).dense().abs().max() / size) <= 1e-12


def test_the_hessian_of_a_module_equals_double_backward(block: Any) -> None:
    """Through LayerNorm with a weight and attention that torch cannot differentiate twice by default."""
    model, batch = block
    risk = Risk(model, cross_entropy, batch)
    v = risk.space.random(dtype=F64)
    assert gap(hessian(risk) @ v, double_backward(model, lambda: cross_entropy(model(batch[0]), batch), v)) <= 1e-12


def test_gauss_newton_plus_functional_is_the_hessian_at_every_split(block: Any) -> None:
    """H = H_o + H_f, split at the network's output, and at a module's output over the parameters inside it."""
    model, batch = block
    risk = Risk(model, cross_entropy, batch)
    for split, inside in ((None, "*"), ("attn", "attn.*"), ("mlp", "mlp.*"), ("mlp.0", "mlp.0.*")):
        H = hessian(risk, inside, inside)
        v = H.domain.random(dtype=F64)
        H_o, H_f = (make(risk, inside, inside, split=split) @ v for make in (gauss_newton, functional))
        assert gap({n: H_o[n] + H_f[n] for n in v}, H @ v) <= 1e-12, split


def test_every_operator_keeps_the_contract(block: Any) -> None:
    """k vectors at once, symmetry, named blocks, dense forms, scipy: on some of the parameters of a real module."""
    model, batch = block
    risk = Risk(model, cross_entropy, batch, params=["attn.in_proj_weight", "norm.*"])
    makers = (hessian, gauss_newton, functional, fisher, lambda r: fisher(r, kind="monte-carlo", samples=2))
    for make in makers:
        check_operator(make(risk))
    check_operator(activation_hessian(risk, "norm"))


def test_activation_hessian_is_what_lies_behind_the_module(block: Any) -> None:
    """d2 risk / dF2 at the MLP's hidden layer equals automatic differentiation of everything behind it."""
    model, batch = block
    model.eval()
    risk = Risk(model, cross_entropy, batch)
    seen: list[Tensor] = []
    handle = model.mlp[0].register_forward_hook(lambda m, a, out: seen.append(out.detach()))
    model(batch[0])
    handle.remove()
    behind = lambda h: cross_entropy(model.mlp[2](nn.functional.gelu(h)), batch)  # noqa: E731
    want = torch.func.jacfwd(torch.func.grad(behind))(seen[0]).reshape(seen[0].numel(), -1)
    assert torch.allclose(activation_hessian(risk, "mlp.0").dense(), want, atol=1e-13)


def test_monte_carlo_fisher_converges_to_gauss_newton(block: Any) -> None:
    """E[s s^T] = diag p - p p^T for labels drawn from the model: the sampled Fisher's mean is H_o."""
    model, batch = block
    risk = Risk(model, cross_entropy, batch)
    v = risk.space.random(dtype=F64)
    want = float(risk.space.inner(v, gauss_newton(risk) @ v))
    values = [float(risk.space.inner(v, fisher(risk, kind="monte-carlo", samples=50, seed=s) @ v)) for s in range(20)]
    mean, stderr = torch.tensor(values).mean(), torch.tensor(values).std() / 20**0.5
    assert abs(mean - want) <= 5 * stderr


def test_empirical_fisher_is_the_weighted_second_moment_of_the_gradients(block: Any) -> None:
    """F = sum_b w_b g_b g_b^T over unequal batches."""
    model, (x, y) = block
    batches = [(x[:1], y[:1]), (x[1:], y[1:])]
    risk = Risk(model, cross_entropy, batches, params="norm.*")
    model.eval()
    want = torch.zeros(risk.space.size, risk.space.size, dtype=F64)
    for weight, batch in zip((1 / 3, 2 / 3), batches, strict=True):
        found = torch.autograd.grad(cross_entropy(model(batch[0]), batch), list(model.norm.parameters()))
        g = torch.cat([t.flatten() for t in found])
        want += weight * torch.outer(g, g)
    assert torch.allclose(fisher(risk).dense(), want, atol=1e-14)


def test_random_numbers_drawn_while_measuring_are_given_back() -> None:
    """A model that draws (without using) random numbers leaves the random state as it was."""

    class Drawing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0 * torch.rand(())

    state = torch.get_rng_state()
    model = Drawing(2, 2)
    after_init = torch.get_rng_state()
    assert not torch.equal(state, after_init)
    risk = Risk(model, mse, XY)
    hessian(risk) @ torch.ones(6)
    assert torch.equal(torch.get_rng_state(), after_init)


def test_a_wrong_build_of_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where jvp(grad) is off by one part in a million, no operator is made."""
    right = torch.func.jvp

    def wrong(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        value, tangent = right(*args, **options)
        return value, tangent * (1 + 1e-6)

    risk = Risk(nn.Linear(2, 2), mse, XY)
    require_sound_derivatives.cache_clear()
    monkeypatch.setattr(torch.func, "jvp", wrong)
    try:
        with pytest.raises(CheckFailed, match="differentiates LayerNorm wrongly"):
            hessian(risk)
    finally:
        require_sound_derivatives.cache_clear()


def test_batches_are_averaged_by_their_number_of_loss_terms(block: Any) -> None:
    """Unequal batches, and labels that do not count, give the risk of the whole."""
    model, (x, y) = block
    y = y.clone()
    y[0, :2] = -100
    whole = Risk(model, cross_entropy, (x, y))
    parts = Risk(model, cross_entropy, [(x[:1], y[:1]), (x[1:], y[1:])])
    assert torch.allclose(whole.value(), parts.value(), atol=1e-14)
    v = whole.space.random(dtype=F64)
    assert gap(hessian(parts) @ v, hessian(whole) @ v) <= 1e-12


def test_fused_weights_have_the_papers_names(block: Any) -> None:
    """`attn.W_Q` and `attn.W_V[1]` are parts of in_proj_weight; a block between them is a slice of the dense one."""
    model, batch = block
    risk = Risk(model, cross_entropy, batch)
    whole = hessian(risk, "attn.in_proj_weight", "attn.in_proj_weight").dense().view(18, 6, 18, 6)
    got = hessian(risk, "attn.W_Q", "attn.W_V[1]").dense()
    assert torch.allclose(got, whole[:6, :, 15:18].reshape(36, 18), atol=1e-13)
    assert "in_proj_weight split into query/key/value" in risk.coverage


def test_the_model_is_left_as_it_was(block: Any) -> None:
    """Weights, gradients, mode, hooks, requires_grad, random state and attention backends are the same afterwards."""
    model, batch = block
    model.train()
    model.norm.weight.requires_grad_(False)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.mha.get_fastpath_enabled()
    state = torch.get_rng_state()
    risk = Risk(model, cross_entropy, batch)
    v = risk.space.random(3, dtype=F64, generator=torch.Generator().manual_seed(0))
    for make in (hessian, gauss_newton, functional):
        make(risk) @ v
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert all(m.training for m in model.modules())
    assert not any(m._forward_hooks for m in model.modules())
    assert torch.equal(state, torch.get_rng_state())
    assert flags == (torch.backends.cuda.flash_sdp_enabled(), torch.backends.mha.get_fastpath_enabled())
    assert "1 frozen" in risk.coverage
    assert any("dropout" in note for note in risk.notes)


def test_tied_weights_are_one_parameter() -> None:
    """An embedding used twice: one tensor in the space, and the product sees both uses."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(torch.tanh(self.embed(ids)))

    model, ids = Tied().to(F64), torch.randint(0, 7, (2, 5))
    batch = (ids, ids.roll(-1, 1))
    risk = Risk(model, cross_entropy, batch)
    assert risk.space.names == ("embed.weight",)
    v = risk.space.random(dtype=F64)
    assert gap(hessian(risk) @ v, double_backward(model, lambda: cross_entropy(model(ids), batch), v)) <= 1e-12


def test_hugging_face_gpt2() -> None:
    """Dict batches, the model's own loss, tied embeddings, c_attn as W_Q/W_K/W_V; equal to double backward."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).to(F64)
    ids = torch.randint(0, 11, (2, 6))
    batch = {"input_ids": ids, "labels": ids}
    risk = Risk(model, data=batch)
    assert "c_attn split into query/key/value" in risk.coverage
    v = risk.space.random(dtype=F64)
    Hv = hessian(risk) @ v
    # transformers computes the loss in float32 whatever the model's dtype
    assert gap(Hv, double_backward(model, lambda: model(**batch).loss, v)) <= 1e-5
    parts = [make(risk) @ v for make in (gauss_newton, functional)]
    assert gap({n: parts[0][n] + parts[1][n] for n in v}, Hv) <= 1e-5
    assert hessian(risk, "*.h.0.attn.W_Q[1]", "*.h.1.attn.W_V").shape == (32, 64)


def test_causal_losses_count_the_targets_they_really_have() -> None:
    """A row of n tokens has n - 1 next tokens: unequal batches of Hugging Face and of our own decoder average right."""
    transformers = pytest.importorskip("transformers")
    from quadform.nn import Transformer

    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    long, short = torch.randint(1, 11, (2, 6)), torch.randint(1, 11, (2, 3))
    theirs = Risk(transformers.GPT2LMHeadModel(config), data=[{"input_ids": t, "labels": t} for t in (long, short)])
    ours = Risk(
        Transformer("pre-ln", depth=1, d_model=8, heads=2, vocab=11, seed=0), data=[{"tokens": long}, {"tokens": short}]
    )
    for risk in (theirs, ours):
        assert risk.weights == pytest.approx([10 / 14, 4 / 14], rel=1e-5)


@pytest.mark.parametrize("k", [1, 3])
def test_a_traced_program_gives_the_same_products(block: Any, k: int) -> None:
    """One aten graph, traced once for each shape of batch: equal to the eager route on unequal batches."""
    model, (x, y) = block
    risk = Risk(model, cross_entropy, [(x[:1], y[:1]), (x[1:], y[1:])])
    V = risk.space.random(k, dtype=F64)
    for make in (hessian, gauss_newton, functional) if k == 1 else (hessian,):
        A = make(risk, route="traced")
        assert gap(A @ V, make(risk) @ V) <= 1e-13
        assert A.route == "traced"
        assert len(A.run.programs) == 2


@pytest.mark.slow
def test_a_compiled_program_gives_the_same_products() -> None:
    """Traced, compiled by torch's compiler, reused."""
    X, Y = torch.randn(2, 5, 4, dtype=F64), torch.randn(2, 5, 3, dtype=F64)
    W = {name: torch.randn(4, n, dtype=F64) for name, n in (("W_Q", 2), ("W_K", 2), ("W_V", 3))}
    risk = Risk(attention_net, mse, (X, Y), W)
    A, v = hessian(risk, route="compiled"), risk.space.random(dtype=F64)
    assert gap(A @ v, hessian(risk) @ v) <= 1e-12
    assert A.route == "compiled"


def test_a_model_that_cannot_be_traced_falls_back_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Control flow on values stops tracing; the product is right all the same."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) if bool(x.sum() > -1e9) else x

    model, batch = Branching().to(F64), tuple(t.to(F64) for t in XY)
    risk = Risk(model, mse, batch)
    v = risk.space.random(dtype=F64)
    assert gap(hessian(risk, route="traced") @ v, hessian(risk) @ v) <= 1e-13
    assert "step by step instead" in capsys.readouterr().err


def test_the_build_of_torch_is_checked() -> None:
    """The start-up probe through LayerNorm passes here, to rounding."""
    assert require_sound_derivatives() < 1e-12


class UsedUp(nn.Module):
    """A model that runs once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.left = nn.Linear(2, 2), 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.left:
            raise RuntimeError("it is used up")
        self.left -= 1
        return self.linear(x)


class Noisy(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(2, 2), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale + torch.rand(())


XY = (torch.randn(3, 2), torch.randn(3, 2))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Risk(nn.Linear(2, 2), mse, XY, params="q.*"), "match 0 of 2 tensors. Closest names"),
        (lambda: Risk(nn.Linear(2, 2), None, {"input": XY[0]}), "The model returned no loss"),
        (lambda: Risk(nn.Linear(2, 2).requires_grad_(False), mse, XY), "All parameters are frozen"),
        (lambda: Risk(nn.Linear(2, 2).half(), mse, XY), "float16 underflows"),
        (lambda: Risk(nn.Linear(2, 2), mse, (XY[0] * torch.nan, XY[1])), "Loss is nan on probe batch 1 of 1"),
        (lambda: Risk(nn.Linear(2, 2), lambda o, b: o - b[1], XY), "one number per batch"),
        (lambda: Risk(nn.Linear(2, 2), mse), "needs data"),
        (lambda: Risk(UsedUp(), mse, XY), r"ran once and failed when it was run again \(it is used up\)"),
        (lambda: Risk(nn.Linear(2, 2), mse, {"x": XY[0], "y": XY[1]}), r"keys 'x', 'y', but Linear.forward takes"),
        (lambda: Risk(nn.Linear(2, 2), mse, []), "no batches"),
        (lambda: Risk(attention_net, mse, XY), "needs params="),
        (lambda: gauss_newton(Risk(nn.Linear(2, 2), mse, XY), split="attn") @ torch.ones(6), "is not a module"),
        (lambda: fisher(Risk(nn.Linear(2, 2), mse, XY), kind="exact"), "not 'empirical' or 'monte-carlo'"),
        (lambda: fisher(Risk(nn.Linear(2, 2), mse, XY), kind="monte-carlo"), "needs a cross-entropy"),
    ],
)
def test_bad_input_says_what_to_do(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make()


def test_a_loss_that_changes_from_call_to_call_is_refused() -> None:
    """Randomness the context cannot pin (it re-seeds nothing) makes H another matrix at every product."""
    with pytest.raises(InputError, match="The loss is not deterministic"):
        Risk(Noisy(), mse, XY)


def test_a_risk_does_not_change() -> None:
    """Its fields are fixed; more remarks and a share of the data make another risk, which knows what was checked."""
    model, batch = nn.Linear(3, 2).to(F64), (torch.randn(4, 3, dtype=F64), torch.randn(4, 2, dtype=F64))
    risk = Risk(model, lambda out, batch: (out - batch[1]).square().mean(), batch, quiet=True)
    for name in ("notes", "batches", "model", "soundness"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(risk, name, None)
    before = dict(vars(risk))
    hessian(risk) @ risk.space.random(dtype=F64)
    assert {
        n: v for n, v in vars(risk).items() if n not in ("soundness", "foreseen")
    } == before  # what is found is kept, nothing else
    noted = risk.noted("last").noted("first", first=True)
    assert (risk.notes, noted.notes) == ((), ("first", "last"))
    assert noted.soundness is risk.soundness


def test_derivatives_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all operators and products of a risk and of its copies."""
    model, batch = nn.Linear(3, 2).to(F64), (torch.randn(4, 3, dtype=F64), torch.randn(4, 2, dtype=F64))
    risk = Risk(model, lambda out, batch: (out - batch[1]).square().mean(), batch, quiet=True)
    calls = []
    check = soundness.check
    monkeypatch.setattr(soundness, "check", lambda risk: calls.append(1) or check(risk))
    for make in (hessian, gauss_newton, functional, hessian):
        make(risk) @ risk.space.random(dtype=F64)
    hessian(risk.noted("a copy")) @ risk.space.random(dtype=F64)
    assert calls == [1]
    assert risk.soundness == soundness.Soundness(twice=True, forward=True, through=True)
