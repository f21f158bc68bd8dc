"""The monitor: right numbers, and training that does not notice it."""

from __future__ import annotations

import copy
import csv
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import quadform as qf
from quadform.answers.monitor import MonitorAnswer
from quadform.applications.monitor.heads import qk_norms
from quadform.applications.monitor.pace import Share
from quadform.applications.monitor.portion import part_of
from quadform.applications.monitor.reading import Reading
from quadform.applications.monitor.tracking import follow, ritz, search
from quadform.applications.monitor.warning import Rules
from quadform.applications.signal.observe import _scores
from quadform.core.errors import InputError
from quadform.core.number import Estimate
from quadform.core.operator import Dense
from quadform.curvature import soundness
from quadform.curvature.operators import gauss_newton, hessian
from quadform.curvature.risk import Risk
from quadform.estimate.vectors import multiply

D, HEADS, WORDS = 8, 2, 7


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(D, D) for _ in range(4))
        self.norm, self.mlp, self.drop = nn.LayerNorm(D), nn.Linear(D, D), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (p(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(a.transpose(1, 2).flatten(2))
        return x + self.drop(self.mlp(x).tanh())


class GPT(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(WORDS, D), nn.Linear(D, WORDS)
        self.h = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.h:
            x = block(x)
        return self.read(x)


def loss(out: Tensor, batch: Tensor) -> Tensor:
    return F.cross_entropy(out[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def batches(count: int = 4, seed: int = 3) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(0, WORDS, (4, 6), generator=g) for _ in range(count)]


def gpt(dtype: torch.dtype = torch.float32, layers: int = 2) -> GPT:
    torch.manual_seed(0)
    return GPT(layers).to(dtype)


def train(model: nn.Module, optimizer: Any, steps: int, monitor: Any = None, *, accumulate: int = 1) -> Any:
    data = batches(5, seed=9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, 6)
    for i in range(steps):
        for j in range(accumulate):
            loss(model(data[(i + j) % 5]), data[(i + j) % 5]).backward()
        optimizer.step()
        scheduler.step()
        if monitor is not None:
            monitor.step()
        optimizer.zero_grad()
    return scheduler


# --- following an eigenvalue ----------------------------------------------------------------------------------------
def symmetric(seed: int, n: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q
    values = torch.cat([torch.linspace(-1, 2, n - 1, dtype=torch.float64), torch.tensor([5.0], dtype=torch.float64)])
    return Q @ torch.diag(values) @ Q.T


def operator(M: Tensor) -> Dense:
    return Dense(M, qf.Space((("w", (len(M),)),)), symmetric=True)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 12))
def test_a_step_of_following_rises_and_stays_below_the_top(seed: int, n: int) -> None:
    """The Ritz value is at least the Rayleigh quotient, at most lambda_max, with an eigenvalue within its residual."""
    M = symmetric(seed, n)
    v = torch.randn(n, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    x, r, theta, products = ritz(operator(M), v)
    values = torch.linalg.eigvalsh(M)
    assert (v @ M @ v) / (v @ v) - 1e-10 <= theta <= values[-1] + 1e-10
    assert 1 <= products <= 3
    torch.testing.assert_close(r, M @ x - theta * x, atol=1e-10, rtol=0)
    found = follow(operator(M), v)
    assert float((values - found.theta).abs().min()) <= found.residual + 1e-10
    assert (found.theta, found.residual) == (theta, float(r.norm()))


def test_the_next_time_begins_nearer_to_the_top() -> None:
    """The vector kept has a larger part in the top eigenvector than the one that was measured, at no product."""
    M = symmetric(4, 20)
    top = torch.linalg.eigh(M)[1][:, -1]
    v = top + 0.01 * torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = follow(operator(M), v)
    assert found.products == 1
    assert abs(float(found.v @ top)) > abs(float(v @ top / v.norm()))


def test_the_risk_and_its_gradient_come_from_the_graphs_of_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of unequal size and a parameter the loss does not see; nothing is evaluated for it."""
    model = gpt(torch.float64, layers=1)
    model.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
    risk = Risk(model, loss, [batches(1)[0], batches(1)[0][:2]], quiet=True)
    H, want = hessian(risk), (risk.value(), risk.gradient())
    multiply(H, torch.ones(1, risk.space.size, dtype=torch.float64))
    monkeypatch.setattr(Risk, "gradient", None)
    value, gradient = H.point()
    torch.testing.assert_close(value, want[0].detach())
    torch.testing.assert_close(gradient, want[1])


@pytest.mark.parametrize("held", [1, 4])
def test_a_part_of_the_held_batches_speaks_for_all_of_them(held: int) -> None:
    """Full searches see everything; a reading of the part alone is off by no more than its error, and says so."""
    model = gpt(torch.float64, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 3)
    whole, small = (qf.Monitor(model, optimizer, batches(held), loss=loss, every=1, part=p) for p in (1.0, 0.25))
    for monitor in (whole, small):
        monitor.step()
    assert small.last.ceiling == pytest.approx(whole.last.ceiling, rel=0.05)
    train(model, optimizer, 2)
    after, part = whole.step(), small.step()
    assert part.lambda_P.value == pytest.approx(after.lambda_P.value, abs=part.lambda_P.error + after.lambda_P.error)
    assert part.lambda_P.error > after.lambda_P.error


def test_a_part_that_cannot_be_cut_is_refused() -> None:
    assert [t.tolist() for t in part_of([(torch.arange(8), torch.arange(8))], 0.25)[0]] == [[0, 1]] * 2
    for wrong in ((torch.ones(4, 2), torch.ones(3)), {"x": torch.ones(())}):
        with pytest.raises(InputError, match="first axis"):
            part_of([wrong], 0.5)
    with pytest.raises(InputError, match="between 0 and 1"):
        part_of([torch.ones(4)], 0.0)


def test_two_products_solve_two_dimensions_and_one_is_enough_near_the_vector() -> None:
    M = symmetric(1, 2)
    values, vectors = torch.linalg.eigh(M)
    found = follow(operator(M), torch.tensor([1.0, 0.3], dtype=torch.float64))
    assert (found.theta, found.products) == (pytest.approx(float(values[-1])), 2)
    assert found.residual < 1e-12
    assert follow(operator(M), vectors[:, -1]).products == 1


def test_following_keeps_up_with_a_matrix_that_turns() -> None:
    """Two products a step follow lambda_max of a slowly changing matrix to 2 %, from a full search."""
    A, B = symmetric(2, 20), symmetric(5, 20)
    pair = search(operator(A))
    for t in np.linspace(0, 0.2, 21):
        M = (1 - t) * A + t * B
        pair = follow(operator(M), pair.v)
        assert pair.theta == pytest.approx(float(torch.linalg.eigvalsh(M)[-1]), rel=0.02)


# --- the numbers ----------------------------------------------------------------------------------------------------
def test_the_ceiling_is_that_of_lr_and_lambda_max_that_of_the_dense_hessian() -> None:
    """The first reading against `qf.lr` with the same live state, and against an explicit Hessian in float64."""
    model, held = gpt(torch.float64, layers=1), batches(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    train(model, optimizer, 7)
    monitor = qf.Monitor(model, optimizer, held, loss=loss, every=1)
    reading = monitor.step()
    assert reading is not None
    assert reading is monitor.last
    values = torch.linalg.eigvalsh(hessian(Risk(model, loss, held, quiet=True)).dense())
    assert reading.lambda_max.value == pytest.approx(float(values[-1]), rel=0.05)
    found = qf.lr(model, held, loss=loss, optimizer=optimizer, verify=0)
    assert reading.ceiling == pytest.approx(found.ceiling.value, rel=0.05)
    assert reading.ratio == pytest.approx(reading.lr / reading.ceiling)
    assert reading.lr == optimizer.param_groups[0]["lr"]


def test_logits_entropy_and_norms_of_each_head() -> None:
    """Against the formulas, written out for the one block of a model."""
    model, held = gpt(torch.float64, layers=1), batches(1)
    monitor = qf.Monitor(model, torch.optim.SGD(model.parameters(), 0.1), held, loss=loss, every=1)
    reading, block = monitor.step(), model.h[0]
    y = block.norm(model.embed(held[0]))
    q, k = (p(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (block.q_proj, block.k_proj))
    S = q @ k.mT / (D / HEADS) ** 0.5
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    A = S.masked_fill(~visible, -torch.inf).softmax(-1)
    largest = S.masked_fill(~visible, -torch.inf).amax((0, 2, 3))
    torch.testing.assert_close(reading.logits[0].double(), largest.detach(), rtol=1e-5, atol=1e-6)
    entropy = -(A * A.clamp(min=1e-300).log()).sum(-1).mean((0, 2))
    torch.testing.assert_close(reading.entropy[0].double(), entropy.detach(), rtol=1e-5, atol=1e-6)
    W_Q, W_K = (p.weight.T.unflatten(1, (HEADS, -1)).transpose(0, 1) for p in (block.q_proj, block.k_proj))
    torch.testing.assert_close(reading.qk[0], torch.linalg.matrix_norm(W_Q @ W_K.mT).detach())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_logits_of_torch_s_own_attention(batch_first: bool, masked: bool) -> None:
    """The softmax of the logits that are told is the attention that torch gives; their largest is what is read."""
    torch.manual_seed(0)
    mha = nn.MultiheadAttention(D, HEADS, batch_first=batch_first, dtype=torch.float64)
    nn.init.normal_(mha.in_proj_bias)
    x = torch.randn(2, 5, D, dtype=torch.float64)
    x = x if batch_first else x.transpose(0, 1)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64) if masked else None
    A = mha(x, x, x, attn_mask=mask, average_attn_weights=False)[1].detach()
    S = _scores(mha, (x, x, x), {"attn_mask": mask})
    torch.testing.assert_close((S if mask is None else S + mask).softmax(-1), A)
    assert _scores(mha, (x, x, x), {"attn_mask": torch.ones(5, 5, dtype=torch.float64)}) is None


def test_norms_inside_fused_matrices_and_of_shared_keys() -> None:
    """nn.MultiheadAttention stores (out, in) in one matrix; GPT-2 (in, out); fewer key heads serve their neighbours."""
    mha = nn.MultiheadAttention(D, HEADS, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 3, D, dtype=torch.float64)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = mha

        def forward(self, x: Tensor) -> Tensor:
            return self.attn(x, x, x)[0]

    risk = Risk(Wrapped(), lambda out, b: out.square().mean(), x, quiet=True)
    found = qk_norms(risk.model, risk.space.views, risk.params)
    W_Q, W_K = (w.T.unflatten(1, (HEADS, -1)).transpose(0, 1) for w in mha.in_proj_weight.detach().chunk(3)[:2])
    torch.testing.assert_close(found[0], torch.linalg.matrix_norm(W_Q @ W_K.mT))

    transformers = pytest.importorskip("transformers")
    ids = torch.arange(8)[None]
    sizes = {"vocab_size": 9, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 8}
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9))
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=8, num_hidden_layers=1, **sizes))
    fused = gpt2.transformer.h[0].attn.c_attn.weight.detach().chunk(3, 1)
    own = llama.model.layers[0].self_attn
    for model, W_Q, W_K, heads, keys in (
        (gpt2, fused[0], fused[1], 2, 2),
        (llama, own.q_proj.weight.detach().T, own.k_proj.weight.detach().T, 4, 2),
    ):
        risk = Risk(model, None, {"input_ids": ids, "labels": ids}, quiet=True)
        Q = W_Q.unflatten(1, (heads, -1)).transpose(0, 1)
        K = W_K.unflatten(1, (keys, -1)).transpose(0, 1).repeat_interleave(heads // keys, 0)
        found = qk_norms(risk.model, risk.space.views, risk.params)
        torch.testing.assert_close(found[0], torch.linalg.matrix_norm(Q @ K.mT))


def test_shares_of_the_trace_add_up_and_lie_near_the_dense_ones() -> None:
    model, held = gpt(torch.float64, layers=1), batches(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    reading = qf.Monitor(model, optimizer, held, loss=loss, every=1, traces=200).step()
    assert sum(reading.traces.values()) == pytest.approx(1)
    risk = Risk(model, loss, held, quiet=True)
    diagonal = risk.space.unflatten(hessian(risk).dense().diagonal())
    whole = sum(float(t.sum()) for t in diagonal.values())
    layer = sum(float(t.sum()) for n, t in diagonal.items() if n.startswith("h.0."))
    assert reading.traces["h.0"] == pytest.approx(layer / whole, abs=0.1)


def test_the_functional_share_and_the_layer_of_the_sharpest_direction() -> None:
    """1 - <v, H_o v> / lambda_max with v the top eigenvector of the dense Hessian; in full searches alone."""
    model = gpt(torch.float64, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=1)
    first, second = monitor.step(), monitor.step()
    risk = Risk(model, loss, batches(1), quiet=True)
    values, vectors = torch.linalg.eigh(hessian(risk).dense())
    v = vectors[:, -1]
    outer = float(v @ gauss_newton(risk).dense() @ v)
    assert first.functional == pytest.approx(1 - outer / float(values[-1]), abs=0.05)
    assert second.functional is None
    by_name = risk.space.unflatten(v.square())
    share = sum(float(t.sum()) for n, t in by_name.items() if n.startswith("h.0."))
    assert first.direction["h.0"] == pytest.approx(share, abs=0.1)
    assert sum(first.direction.values()) == pytest.approx(1)


# --- training does not notice ---------------------------------------------------------------------------------------
def states(model: nn.Module, optimizer: Any, scheduler: Any) -> Any:
    buffers = optimizer.state_dict()["state"]
    drawn = (torch.rand(3), random.getstate(), np.random.get_state()[1].tolist())
    return model.state_dict(), buffers, scheduler.state_dict(), drawn, [m.training for m in model.modules()]


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_training_is_the_same_bit_for_bit(kind: str) -> None:
    """Dropout, a scheduler, momentum or Adam: weights, optimizer state, gradients' effect, random state, all equal."""
    found = []
    for watched in (False, True):
        model = gpt()
        params = model.parameters()
        optimizer: Any = (
            torch.optim.Adam(params, 1e-2) if kind == "adam" else torch.optim.SGD(params, 0.1, 0.9, weight_decay=0.01)
        )
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        monitor = qf.Monitor(model, optimizer, batches(2), loss=loss, every=2, traces=1) if watched else None
        scheduler = train(model, optimizer, 9, monitor, accumulate=2)
        found.append(states(model, optimizer, scheduler))
        assert monitor is None or len(monitor.history) == 4
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_gradients_being_accumulated_are_left_alone() -> None:
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=1)
    loss(model(batches()[1]), batches()[1]).backward()
    kept = {n: p.grad.clone() for n, p in model.named_parameters()}
    monitor.step()
    assert all(torch.equal(p.grad, kept[n]) for n, p in model.named_parameters())


# --- when -----------------------------------------------------------------------------------------------------------
def test_the_share_of_time_stays_below_the_overhead() -> None:
    """With a clock of our own: steps take 1 s, full searches 10 s, others 1 s. After the first, which is no full
    search, is waited out, never more than the share, and near it in the end."""
    now = 0.0
    pace, shares, readings = Share(0.05, lambda: now), [], 0
    for step in range(1, 5001):
        now += 1.0
        full = pace.full(readings)
        if pace.due(step, full):
            took = 10.0 if full else 1.0
            now += took
            pace.took(took, full)
            readings += 1
            shares.append(pace.spent / now)
    assert shares[0] > 0.05
    assert max(shares[1:]) <= 0.05
    assert shares[-1] > 0.045


def test_by_time_the_first_reading_is_a_cheap_lower_bound_that_rises() -> None:
    """It begins at the gradient with at most two products an eigenvalue; the readings after it find the top."""
    model = gpt(torch.float64, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    train(model, optimizer, 3)
    dense = torch.linalg.eigvalsh(hessian(Risk(model, loss, batches(1), quiet=True)).dense())[-1]
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, overhead=0.999)
    while len(monitor.history) < 8:
        monitor.step()
    first, *_, last = monitor.history
    assert not first.full
    assert max(first.lambda_max.matvecs, first.lambda_P.matvecs) <= 2
    assert 0.3 * dense < first.lambda_max.value < last.lambda_max.value <= dense * (1 + 1e-9)
    assert last.lambda_max.value == pytest.approx(float(dense), rel=0.05)


def test_derivatives_are_checked_once_before_training_on_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no reading pays for it. Batches that cannot be cut, or whose first rows have no loss, are checked whole."""
    sizes: list[int] = []
    monkeypatch.setattr(soundness, "check", lambda risk: sizes.append(len(risk.batches[0])) or soundness.Soundness())
    model = gpt()

    def few(out: Tensor, batch: Tensor) -> Tensor:
        return loss(out, batch) if len(batch) > 2 else out.sum() * torch.nan

    def none(out: Tensor, batch: Tensor) -> Tensor:
        assert len(batch) > 2
        return loss(out, batch)

    for own, rows in ((loss, 2), (few, 4), (none, 4)):
        monitor = qf.Monitor(model, torch.optim.SGD(model.parameters(), 0.1), batches(2), loss=own, every=1)
        assert sizes == [rows]
        assert monitor.step()
        assert sizes == [rows]
        sizes.clear()


def test_the_monitor_measures_by_its_clock() -> None:
    """Each measurement takes 4 ticks of a clock that moves by itself; the rest of the time is the loop's."""
    ticks = iter(range(10**6))
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, overhead=0.1, clock=lambda: float(next(ticks)))
    for _ in range(60):
        monitor.step()
    assert 1 < len(monitor.history) < 15
    assert monitor.share <= 0.1 + 1e-9


@pytest.mark.parametrize("given", [{"every": 0}, {"every": 2.5}, {"overhead": 0.0}, {"every": 5, "overhead": 0.1}])
def test_a_pace_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    model = gpt()
    with pytest.raises(InputError):
        qf.Monitor(model, torch.optim.SGD(model.parameters(), 0.1), batches(1), loss=loss, **given)


# --- real set-ups ---------------------------------------------------------------------------------------------------
def test_compiled_models_are_measured_as_they_are_inside() -> None:
    plain, inner = gpt(), gpt()
    compiled = torch.compile(inner, backend="eager")
    readings = []
    for model, weights in ((plain, plain), (compiled, inner)):
        optimizer = torch.optim.AdamW(weights.parameters(), 1e-2)
        readings.append(qf.Monitor(model, optimizer, batches(1), loss=loss, every=1).step())
    assert readings[0].numbers().keys() == readings[1].numbers().keys()
    assert readings[0].lambda_max.value == readings[1].lambda_max.value


def test_a_model_in_ddp_trains_and_is_measured(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        inner = gpt()
        model = nn.parallel.DistributedDataParallel(inner)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=2)
        train(model, optimizer, 4, monitor)
    finally:
        torch.distributed.destroy_process_group()
    assert [r.step for r in monitor.history] == [2, 4]
    assert all(r.ceiling > 0 for r in monitor.history)
    assert not monitor.warnings


def test_frozen_parts_are_left_out_and_come_in_when_unfrozen() -> None:
    model = gpt(layers=1)
    model.embed.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=1)
    train(model, optimizer, 2, monitor)
    few = monitor.answer().coverage
    model.embed.requires_grad_(True)
    train(model, optimizer, 2, monitor)
    assert "1 frozen" in few
    assert "frozen" not in monitor.answer().coverage
    assert not monitor.warnings
    assert len(monitor.history) == 4


def test_an_optimizer_without_a_rule_has_eigenvalues_and_no_ceiling() -> None:
    model = gpt()
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=1)
    reading = monitor.step()
    assert reading.lambda_max.value > 0
    assert reading.ceiling is None
    assert reading.ratio is None
    assert any("RMSprop" in note for note in monitor.answer().notes)
    assert not monitor.answer().verdicts()


def test_a_model_without_attention_has_none() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mse = lambda out, batch: (out - batch[1]).square().mean()  # noqa: E731
    monitor = qf.Monitor(model, optimizer, (x, x.sum(1, keepdim=True)), loss=mse, every=1)
    reading = monitor.step()
    assert (reading.logits, reading.entropy, reading.qk) == (None, None, None)
    assert len(monitor.answer().figures()) == 1


# --- what is said ---------------------------------------------------------------------------------------------------
def test_a_rate_above_the_ceiling_is_said_once_and_again_when_it_comes_back() -> None:
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=1)
    ceiling = monitor.step().ceiling
    for rate in (1.5 * ceiling, 1.5 * ceiling, 0.5 * ceiling, 3 * ceiling):
        optimizer.param_groups[0]["lr"] = rate
        monitor.step()
    place, share = max(monitor.last.direction.items(), key=lambda item: item[1])
    first, second = monitor.warnings
    assert first.startswith("step 2: the learning rate is 1.5 times the ceiling; ")
    assert (
        second == f"step 5: the learning rate is 3 times the ceiling; {100 * share:.0f} % of that direction in {place}"
    )


def test_each_rule_is_said_when_its_score_passes_and_not_while_it_stays() -> None:
    """Readings made by hand: a logit that rises past 30, then falls; curvature four times the median before."""

    def reading(step: int, logit: float, lam: float) -> Reading:
        heads = torch.tensor([[1.0, torch.nan], [2.0, logit]])
        value = Estimate(lam, 0.0, "estimate", error_kind="residual")
        return Reading(step, 0.0, False, 1.0, 0.1, value, value, 0.2, heads)

    history, said = [], []
    for step, (logit, lam) in enumerate([(10, 1), (29, 1), (31, 1), (40, 1.1), (35, 9), (60, 9)], 1):
        history.append(reading(step, float(logit), float(lam)))
        said.append(list(Rules().warnings(history)))
    assert said == [
        [],
        [],
        ["step 3: layer 1 head 1: largest logit 31 and rising, learning rate at 0.5 of its ceiling"],
        [],
        ["step 5: lambda_max of P^-1 H is 9 times its median of the 4 readings before"],
        ["step 6: layer 1 head 1: largest logit 60 and rising, learning rate at 0.5 of its ceiling"],
    ]
    early = [reading(step, 1.0, lam) for step, lam in enumerate((1.0, 9.0, 90.0), 1)]  # first readings rise to the top
    assert not [line for n in (1, 2, 3) for line in Rules().warnings(early[:n])]
    quiet = Rules(logit=math.inf, growth=math.inf)
    assert not [line for n in range(1, 7) for line in quiet.warnings(history[:n])]


def test_weights_that_are_not_finite_are_a_warning_and_training_goes_on() -> None:
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=1)
    kept = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.read.weight.fill_(torch.nan)
    assert monitor.step() is None
    assert monitor.warnings == ["step 1: nothing was measured: the loss on the held batches is nan"]
    model.load_state_dict(kept)
    assert monitor.step().lambda_max.value > 0


def test_readings_reach_the_log_the_file_the_record_and_the_page(tmp_path: Path) -> None:
    model, told = gpt(), []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitor = qf.Monitor(
        model, optimizer, batches(1), loss=loss, every=3, csv=tmp_path / "m.csv", log=lambda n, s: told.append((s, n))
    )
    with pytest.raises(InputError):
        monitor.record()
    train(model, optimizer, 9, monitor)
    assert told == [(r.step, r.numbers()) for r in monitor.history]
    lines = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert [float(line["lambda_max"]) for line in lines] == [r.lambda_max.value for r in monitor.history]
    assert [int(line["step"]) for line in lines] == [3, 6, 9]
    monitor.record().save(tmp_path / "run")
    answer = MonitorAnswer.load(tmp_path / "run")
    assert answer.step.tolist() == [3, 6, 9]
    assert torch.equal(answer.heads("logits")[-1].float(), monitor.last.logits)
    assert answer.course("ratio").tolist() == pytest.approx([r.ratio for r in monitor.history])
    assert answer.table().column("loss") == tuple(r.loss for r in monitor.history)
    assert set(answer.figures()) == {"monitor", "monitor-attention"}
    for lang, words in (("en", "λ_max(P⁻¹H)"), ("ko", "P⁻¹H의 λ_max")):
        assert words in answer.report(tmp_path / f"{lang}.html", lang=lang).read_text()


def test_the_verdict_is_of_the_largest_ratio() -> None:
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    monitor = qf.Monitor(model, optimizer, batches(1), loss=loss, every=1)
    ceiling = monitor.step().ceiling
    for rate in (3 * ceiling, 0.1 * ceiling):
        optimizer.param_groups[0]["lr"] = rate
        monitor.step()
    (verdict,) = monitor.answer().verdicts()
    assert verdict.number.value == pytest.approx(3, rel=0.1)
    assert verdict.status in ("red", "undecided")
    assert monitor.answer().worst[0] == 2
