"""Head and loss cut along tokens: products are those of a double backward, at a small part of its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_units import double_backward, gap, made, tiny, uncompiled
from test_units_memory import allocated
from torch import Tensor, nn
from torch.nn import functional as F

from quadform.curvature import Risk, functional, gauss_newton, halves, hessian, wide
from quadform.distributed.processes import Group
from quadform.nn import Transformer

__all__ = ["uncompiled"]
F64 = torch.float64
D, VOCAB, TOKENS = 4, 9, 7


class Language(nn.Module):
    """Two blocks, wide inside, between an embedding and a head; the loss is the caller's."""

    def __init__(self, d: int = D, vocab: int = VOCAB, *, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.tied = nn.Embedding(vocab, d), tied
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d)) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(d), None if tied else nn.Linear(d, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        x = self.norm(x)
        return x @ self.embed.weight.T if self.head is None else self.head(x)


def language(**options: Any) -> tuple[Language, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = Language(**options).to(F64)
    for p in model.parameters():
        nn.init.normal_(p, std=0.7)
    ids = torch.randint(VOCAB, (2, TOKENS))
    labels = ids.roll(1, 0).clone()
    labels[0, :2] = -100
    return model, (ids, labels)


def normalised(out: Tensor, y: Tensor) -> Tensor:
    """A log-likelihood written out."""
    return -(out - out.logsumexp(-1, keepdim=True)).gather(-1, y.clamp(0)[..., None])[y >= 0].mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda out, y: F.cross_entropy(out.view(-1, VOCAB), y.view(-1)),
    "sum": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum"),
    "each token": lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").square().mean(),
    "shifted": lambda out, y: F.cross_entropy(out[..., :-1, :].contiguous().view(-1, VOCAB), y[:, 1:].reshape(-1)),
    "turned": lambda out, y: F.cross_entropy(out.transpose(1, 2), y),
    "turned by name": lambda out, y: F.cross_entropy(input=out.mT, target=y, label_smoothing=0.1),
    "weights of classes": lambda out, y: nn.CrossEntropyLoss(torch.arange(1.0, VOCAB + 1, dtype=F64), ignore_index=3)(
        out.reshape(2 * TOKENS, -1), y.clamp(0).flatten()
    ),
    "nll": lambda out, y: F.nll_loss(out.log_softmax(-1).flatten(0, 1), y.flatten()),
    "written out": normalised,
    "soft cap": lambda out, y: F.cross_entropy((3 * torch.tanh(out / 3)).double().flatten(0, 1), y.flatten()),
    "some tokens": lambda out, y: F.cross_entropy(out[y >= 0], y[y >= 0]),
    "scale of each token": lambda out, y: F.cross_entropy(
        (out * torch.linspace(1, 2, TOKENS, dtype=F64)[None, :, None].expand(2, -1, 1)).flatten(0, 1), y.flatten()
    ),
    "energy": lambda out, y: (out.softmax(dim=-1) * 2).sum(-1).square().mean() + out.logsumexp(-1).mean(),
}
WHOLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda out, y: out.mean(1).log_softmax(-1)[:, 0].square().sum(),
    "div": lambda out, y: F.cross_entropy(out.div_(2).flatten(0, 1), y.flatten()),
    "[]": lambda out, y: F.cross_entropy(out[..., 1:].flatten(0, 1), y.clamp(0, VOCAB - 2).flatten()),
    "exp": lambda out, y: out.exp().mean(),
}


@pytest.fixture
def few_at_once(monkeypatch: Any) -> list[int]:
    """Five tokens at a time; how many calls there were."""
    monkeypatch.setattr(wide, "AT_ONCE", 5 * VOCAB)
    calls = []
    own = wide.stepped

    def counted(x: Tensor, *args: Any) -> Tensor:
        calls.append(x.shape[0])
        return own(x, *args)

    monkeypatch.setattr(wide, "stepped", counted)
    monkeypatch.setattr(halves, "stepped", counted)
    return calls


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_tokens_are_cut(name: str, tied: bool, few_at_once: list[int], capsys: Any) -> None:
    model, batch = language(tied=tied)
    risk = Risk(model, lambda out, batch: LOSSES[name](out, batch[1]), batch, quiet=True)
    v = risk.space.random(dtype=F64)
    few_at_once.clear()
    H = hessian(risk, route="units")
    assert gap(H @ v, double_backward(model, lambda: LOSSES[name](model(batch[0]), batch[1]), v)) <= 1e-12
    assert (H.route, H.why) == ("units", ())
    assert few_at_once
    assert max(few_at_once) <= 5
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "some tokens"])
@pytest.mark.parametrize("make", [gauss_newton, functional])
def test_halves_are_cut(name: str, make: Any, few_at_once: list[int], capsys: Any) -> None:
    """H_o and H_f are those of the logits whole, for one vector and for several, also where the loss is not the sum of
    those of tokens or takes the logits twice."""
    model, batch = language(tied=name in ("mean", "shifted"))
    risk = Risk(model, lambda out, batch: LOSSES[name](out, batch[1]), batch, quiet=True)
    V = risk.space.random(3, dtype=F64)
    want = make(risk) @ V
    A = make(risk, route="units")
    few_at_once.clear()
    assert gap(A @ V, want) <= 1e-12
    assert gap(A @ {n: t[0] for n, t in V.items()}, {n: t[0] for n, t in want.items()}) <= 1e-12
    if name != "written out":  # where one part takes what another gave
        assert set(few_at_once) <= {1, 2, 3, 4, 5}
        assert A.run.choice.ways[0].made[0].narrow is False
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", WHOLE)
def test_losses_that_need_all_tokens_are_told(name: str, few_at_once: list[int], capsys: Any) -> None:
    """One line, once; the products are right, and nothing is computed that a model would not do itself."""
    model, batch = language()
    risk = Risk(model, lambda out, batch: WHOLE[name](out, batch[1]), batch, quiet=True)
    v = risk.space.random(dtype=F64)
    H = hessian(risk, route="units")
    want = double_backward(model, lambda: WHOLE[name](model(batch[0]), batch[1]), v)
    for _ in range(2):
        assert gap(H @ v, want) <= 1e-12
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"head and loss cannot be cut along tokens (`{name}`")
    assert H.route == "units"


@pytest.mark.parametrize("make", [hessian, gauss_newton, functional])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "bert", "t5"])
def test_hugging_face_losses_are_cut(name: str, make: Any, monkeypatch: Any, capsys: Any) -> None:
    """Shifted labels, soft caps, tied heads; H_o and H_f make the logits once and add a shift to them."""
    model, batch = tiny(name)
    batch = {**batch, "labels": batch["labels"].masked_fill(batch["attention_mask"] == 0, -100)}
    if name == "gemma2":  # gives nan where a token sees none
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    known = Risk(model, data=batch, quiet=True)
    v = known.space.random(dtype=F64)
    want = make(known) @ v
    monkeypatch.setattr(wide, "AT_ONCE", 3 * 31)
    risk = Risk(model, data=batch, quiet=True)
    assert gap(make(risk, route="units") @ v, want) <= 1e-5
    assert "cannot be cut" not in capsys.readouterr().err


@pytest.mark.parametrize("tied", [False, True])
def test_own_models_are_cut(tied: bool, few_at_once: list[int], capsys: Any) -> None:
    torch.manual_seed(0)
    sizes = {"heads": 2, "vocab": VOCAB, "depth": 2, "seq_len": 6, "tied": tied, "pad": 0}
    model = Transformer("pre-ln", d_model=D, dtype=F64, **sizes)
    batch = {"tokens": torch.randint(0, VOCAB, (2, 6))}
    risk = Risk(model, data=batch, quiet=True)
    v = risk.space.random(dtype=F64)
    few_at_once.clear()
    with risk.context():
        want = double_backward(model, lambda: model.loss(batch), v)
    assert gap(hessian(risk, route="units") @ v, want) <= 1e-12
    assert few_at_once
    assert not capsys.readouterr().err


def test_programs_of_head_and_loss_are_made_once(few_at_once: list[int], uncompiled: None) -> None:
    """One for whole parts and one for the last, smaller one, beside that of the blocks."""
    model, batch = language()
    risk = Risk(model, lambda out, batch: LOSSES["mean"](out, batch[1]), batch, quiet=True)
    v, A = risk.space.random(dtype=F64), hessian(risk, route="compiled-units")
    want = double_backward(model, lambda: LOSSES["mean"](model(batch[0]), batch[1]), v)
    for _ in range(3):
        assert gap(A @ v, want) <= 1e-12
    assert A.route == "compiled-units"
    assert made(A) == [1, 1, 1]


def test_memory_of_long_sequences(monkeypatch: Any) -> None:
    """GPT-2 of small width: from the risk to its products nothing holds the logits once."""
    transformers = pytest.importorskip("transformers")
    vocab, tokens = 5000, 160
    config = transformers.GPT2Config(
        n_layer=2, n_head=1, n_embd=4, n_positions=tokens, vocab_size=vocab, bos_token_id=0, eos_token_id=0
    )
    model, ids = transformers.GPT2LMHeadModel(config), torch.randint(vocab, (1, tokens))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    monkeypatch.setattr(wide, "AT_ONCE", 4 * vocab)
    risks: list[Risk] = []
    logits = 4 * tokens * vocab
    assert allocated(lambda: risks.append(Risk(model, data=batch, quiet=True)))[0] < logits / 2
    v = risks[0].space.random()
    monkeypatch.setattr(Group, "free_here", lambda group, device: 20.0 * logits)  # convexity is not looked at
    for make in (hessian, gauss_newton, functional):
        made: list[Any] = []
        first, _ = allocated(lambda make=make, made=made: made.append(make(risks[0], route="units")) or made[0] @ v)
        most, left = allocated(lambda A=made[0]: A @ v)
        assert max(first, most) < logits / 2
        assert left == 0
        assert not made[0].psd
