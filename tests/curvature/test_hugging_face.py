"""Models of transformers, tiny and random: fast routes, the split at their logits, the weights of unequal batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from quadform.core.errors import InputError
from quadform.curvature import Risk, functional, gauss_newton, hessian

transformers = pytest.importorskip("transformers")

F64 = torch.float64
VOCAB = 11
WIDE = {
    "vocab_size": VOCAB,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
}
KEYS = {**WIDE, "num_key_value_heads": 1}
PAIR = {
    "vocab_size": VOCAB,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("CausalLM", {"vocab_size": VOCAB, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}),
    "Llama": ("CausalLM", KEYS),
    "OPT": ("CausalLM", {**WIDE, "ffn_dim": 8, "word_embed_proj_dim": 8}),
    "Gemma2": ("CausalLM", {**KEYS, "head_dim": 4, "sliding_window": 3, "final_logit_softcapping": 2.0}),
    "Mixtral": ("CausalLM", {**KEYS, "num_local_experts": 3}),
    "DeepseekV3": (  # its router divides in place
        "CausalLM",
        {
            **WIDE,
            "num_key_value_heads": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "kv_lora_rank": 4,
            "q_lora_rank": 4,
            "qk_rope_head_dim": 2,
            "qk_nope_head_dim": 2,
            "v_head_dim": 4,
        },
    ),
    "Bert": ("MaskedLM", WIDE),
    "Esm": ("MaskedLM", {**WIDE, "mask_token_id": 3, "pad_token_id": 1}),
    "T5": (
        "Seq2SeqLM",
        {
            "vocab_size": VOCAB,
            "d_model": 8,
            "d_kv": 4,
            "d_ff": 8,
            "num_layers": 1,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
    ),
    "Bart": ("Seq2SeqLM", PAIR),
}


def made(name: str) -> nn.Module:
    task, sizes = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"AutoModelFor{task}").from_config(config).to(F64).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def batch_of(mask: str, rows: int = 2, tokens: int = 5) -> dict[str, Any]:
    """Token ids as their own labels; `mask`: none, all ones, or with two places of the last row hidden."""
    ids = torch.randint(4, VOCAB, (rows, tokens))
    seen = torch.ones_like(ids)
    seen[-1, {"left": slice(0, 2), "right": slice(-2, None)}.get(mask, slice(0, 0))] = 0
    hidden = {} if mask in ("none", "no cache") else {"attention_mask": seen}
    return {"input_ids": ids, "labels": ids.masked_fill(seen == 0, -100), **hidden} | (
        {"use_cache": False} if mask == "no cache" else {}
    )


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in b) / max(float(t.abs().max()) for t in b.values())


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("GPT2", "ones"),
        ("GPT2", "right"),
        ("GPT2", "no cache"),
        ("Llama", "left"),
        ("OPT", "right"),
        ("Bert", "ones"),
        ("T5", "right"),
        ("Bart", "ones"),
        ("Gemma2", "right"),
        ("Mixtral", "ones"),
        ("DeepseekV3", "ones"),
    ],
)
def test_masks_stay_on_the_fast_route(name: str, mask: str, capsys: Any) -> None:
    """transformers skips masks of ones, which depends on values; while a model is traced it must not ask."""
    risk = Risk(made(name), data=batch_of(mask), quiet=True)
    v = risk.space.random(dtype=F64)
    H = hessian(risk, route="traced")
    assert gap(H @ v, hessian(risk) @ v) <= 1e-6  # some compute norms or the loss in float32
    assert H.route == "traced"  # type: ignore[attr-defined]
    assert "cannot be" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_padded_batch_is_compiled() -> None:
    risk = Risk(made("GPT2"), data=batch_of("right"), params="*attn*", quiet=True)
    v = risk.space.random(dtype=F64)
    H = gauss_newton(risk, route="compiled")
    assert gap(H @ v, gauss_newton(risk) @ v) <= 1e-6
    assert H.route == "compiled"  # type: ignore[attr-defined]


def test_one_program_serves_all_masks() -> None:
    """Batches of one shape with different padding: the mask is read at each product, not when the model was traced."""
    batches = [batch_of(mask) for mask in ("ones", "right", "left")]
    risk = Risk(made("GPT2"), data=batches, quiet=True)
    v = risk.space.random(dtype=F64)
    H = hessian(risk, route="traced")
    assert gap(H @ v, hessian(risk) @ v) <= 1e-6
    assert len(H.run.programs) == 1  # type: ignore[attr-defined]


# --- the split ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["Gemma2", "Esm", "Bart", "GPT2"])
def test_the_split_is_at_the_logits_that_are_returned(name: str, capsys: Any) -> None:
    """H_o and H_f are those of theta -> logits and logits -> loss, written out as two functions."""
    model, batch = made(name), batch_of("none", rows=1, tokens=4)
    if name == "Bart":
        model.final_logits_bias.normal_()  # type: ignore[operator]
    risk = Risk(model, data=batch, quiet=True)
    labels = batch["labels"]
    targets = labels[:, 1:] if MODELS[name][0] == "CausalLM" else labels

    def logits(theta: dict[str, Tensor], batch: Any) -> Tensor:
        return functional_call(model, theta, (), batch).logits

    def loss(F: Tensor, batch: Any) -> Tensor:
        F = F[:, : targets.shape[1]]
        return nn.functional.cross_entropy(F.reshape(-1, VOCAB), targets.reshape(-1))

    two = Risk(logits, loss, batch, risk.params, quiet=True)
    v = risk.space.random(dtype=F64)
    for part in (gauss_newton, functional):
        assert gap(part(risk) @ v, part(two) @ v) <= 1e-5
    assert capsys.readouterr().err == ""


class Capped(nn.Module):
    """Computes its loss inside, from logits that no module makes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4, dtype=F64), nn.Linear(4, 5, dtype=F64)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.body(x).tanh()).tanh()
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_logits_that_cannot_be_followed_are_told(capsys: Any) -> None:
    """The split is then at the head, and that is said; with the loss outside it is at the logits again."""
    model, x, y = Capped(), torch.randn(6, 3, dtype=F64), torch.randint(5, (6,))
    gauss_newton(Risk(model, data={"x": x, "labels": y}, quiet=True))
    assert "after `head`, in a way that cannot be followed" in capsys.readouterr().err

    def loss(out: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(out["logits"], batch["labels"])

    risk = Risk(model, loss, {"x": x, "labels": y}, quiet=True)
    two = Risk(
        lambda p, b: functional_call(model, p, (), b)["logits"],
        lambda F, b: nn.functional.cross_entropy(F, b["labels"]),
        {"x": x, "labels": y},
        risk.params,
        quiet=True,
    )
    v = risk.space.random(dtype=F64)
    assert gap(gauss_newton(risk) @ v, gauss_newton(two) @ v) <= 1e-12
    assert capsys.readouterr().err == ""


def test_the_loss_of_the_model_is_left_as_it_was() -> None:
    model = made("Gemma2")
    before = model.loss_function
    risk = Risk(model, data=batch_of("none"), quiet=True)
    gauss_newton(risk) @ risk.space.random(dtype=F64)
    assert model.loss_function is before
    assert "_loss_function" not in model.__dict__


# --- unequal batches ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "want"), [("T5", [16, 3]), ("Bart", [16, 3]), ("Bert", [16, 3]), ("GPT2", [14, 2])])
def test_batches_count_by_the_labels_that_the_loss_reads(name: str, want: list[int]) -> None:
    """Two rows of eight targets and one of three; a next-token loss has one fewer a row."""
    batches = [batch_of("none", 2, 8), batch_of("none", 1, 3)]
    model = made(name)
    risk = Risk(model, data=batches, quiet=True)
    assert risk.weights == [n / sum(want) for n in want]
    if name != "GPT2":
        whole = [nn.functional.cross_entropy(model(**b).logits.flatten(0, 1), b["labels"].flatten()) for b in batches]
        total = sum(n * float(t.detach()) for n, t in zip(want, whole, strict=True)) / sum(want)
        assert float(risk.value()) == pytest.approx(total, rel=1e-6)


def test_a_shifted_loss_of_ones_own_is_seen() -> None:
    """The loss is asked, not its name; a first batch whose first labels are left out does not tell."""
    batches = [batch_of("none", 2, 8), batch_of("none", 1, 3)]
    batches[0]["labels"][:, 0] = -100

    def shifted(out: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    assert Risk(made("GPT2"), shifted, batches, quiet=True).weights == [14 / 16, 2 / 16]


@pytest.mark.parametrize("shifted", [False, True])
def test_a_loss_that_does_not_know_minus_100(shifted: bool) -> None:
    """No label is put before a loss that the batch does not have: on a GPU that would end the process."""
    batches = [batch_of("none", 2, 8), batch_of("none", 1, 3)]

    def loss(out: Any, batch: Any) -> Tensor:
        z, y = (out.logits[:, :-1], batch["labels"][:, 1:]) if shifted else (out.logits, batch["labels"])
        return -(z.log_softmax(-1) * nn.functional.one_hot(y, z.shape[-1])).sum(-1).mean()

    want = [14 / 16, 2 / 16] if shifted else [16 / 19, 3 / 19]
    assert Risk(made("GPT2"), loss, batches, quiet=True).weights == want


# --- keys for tokens to come ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("cache", [{}, {"use_cache": True}, {"use_cache": False}])
@pytest.mark.parametrize("inside", [False, True])
def test_units_keep_what_positions_mean(cache: dict[str, Any], inside: bool) -> None:
    """transformers tells packed sequences by their positions where no keys are kept, and only there. Units keep none;
    the function that is measured stays the model's own, also where it is a part of another."""
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    model: Any = transformers.GPT2LMHeadModel(config).to(F64).eval()
    if inside:
        model = _Around(model)
    ids = torch.randint(4, VOCAB, (1, 6))
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    risk = Risk(model, data={"input_ids": ids, "labels": ids, "position_ids": positions, **cache}, quiet=True)
    v = risk.space.random(dtype=F64)
    for part in (hessian, gauss_newton):
        H = part(risk, route="units")
        assert gap(H @ v, part(risk) @ v) <= 1e-6
        assert H.route == "units"  # type: ignore[attr-defined]


class _Around(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Any) -> Any:
        return self.model(**batch)


def test_a_risk_evaluates_a_language_model_three_times() -> None:
    """Where the logits pass, and twice the loss; the names of attention take its first layer alone."""
    model: Any = made("GPT2")
    calls = [0, 0]
    blocks = model.transformer.h
    for i, block in enumerate((blocks[0], blocks[-1])):
        block.mlp.register_forward_hook(lambda *args, i=i: calls.__setitem__(i, calls[i] + 1))
    assert Risk(model, None, batch_of("right"), quiet=True).shifted
    assert calls == [3, 3]


def test_a_loss_of_the_next_token_that_is_random_is_refused() -> None:
    model: Any = made("GPT2")
    head = model.lm_head.forward
    model.lm_head.forward = lambda x: head(x) * (1 + 0.1 * torch.rand(()))
    with pytest.raises(InputError, match="not deterministic"):
        Risk(model, None, batch_of("right"), quiet=True)
