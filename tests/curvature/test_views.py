"""The paper's names inside the weights of Hugging Face models: a view is what its name says, or there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadform.core.space import View
from quadform.curvature.views import attention_views

SIZES: dict[str, Any] = {"vocab_size": 11, "max_position_embeddings": 16}
GPT = {"vocab_size": 11, "n_embd": 16, "n_layer": 1, "n_head": 4, "n_positions": 16}
WIDE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}

NAMED = {
    "GPT2": GPT,
    "GPTNeoX": {**SIZES, **WIDE, "intermediate_size": 8},
    "GPTBigCode": {**GPT, "multi_query": True},
    "GPTBigCode, heads of their own": {**GPT, "multi_query": False},
    "Falcon, heads of their own": {**SIZES, **WIDE, "multi_query": False, "new_decoder_architecture": False},
    "Falcon, one key": {**SIZES, **WIDE, "multi_query": True, "new_decoder_architecture": False},
    "Falcon, groups": {**SIZES, **WIDE, "new_decoder_architecture": True, "num_kv_heads": 2},
    "CodeGen": {**GPT, "rotary_dim": 2, "n_ctx": 16},
    "CodeGen, two heads a group": {**GPT, "n_head": 8, "rotary_dim": 2, "n_ctx": 16},
    "Persimmon": {**SIZES, **WIDE, "intermediate_size": 8, "pad_token_id": 0},
    "Phi3": {**SIZES, **WIDE, "intermediate_size": 8, "num_key_value_heads": 2, "pad_token_id": 0},
    "Llama": {**SIZES, **WIDE, "intermediate_size": 8, "num_key_value_heads": 2},
    "Qwen3": {**SIZES, **WIDE, "intermediate_size": 8, "num_key_value_heads": 2, "head_dim": 4},
    "Bert": {**SIZES, **WIDE, "intermediate_size": 8},
    "OPT": {**SIZES, **WIDE, "ffn_dim": 8, "word_embed_proj_dim": 16},
}
UNNAMED = {
    "Deberta": {**SIZES, **WIDE, "intermediate_size": 8, "pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    "MiniMax": {**SIZES, **WIDE, "intermediate_size": 8, "num_key_value_heads": 2, "layer_types": ["linear_attention"]},
    "Qwen3Next": {
        **SIZES,
        **WIDE,
        "intermediate_size": 8,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "layer_types": ["full_attention"],
        "num_experts": 0,
    },
    "Lfm2": {**SIZES, **WIDE, "intermediate_size": 8, "num_key_value_heads": 2, "layer_types": ["conv"]},
    "Mamba2": {
        "vocab_size": 11,
        "hidden_size": 16,
        "state_size": 8,
        "num_hidden_layers": 1,
        "num_heads": 4,
        "head_dim": 8,
    },
}


def made(name: str, sizes: dict[str, Any]) -> tuple[nn.Module, dict[str, View]]:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name.partition(',')[0]}Config")(**sizes)
    model = transformers.AutoModel.from_config(config).double().eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.zero_() if n.endswith("bias") else p.normal_()
    run = lambda: model(input_ids=torch.tensor([[3, 5, 4, 9, 7]]))  # noqa: E731
    return model, {v.name: v for v in attention_views(model, {n for n, _ in model.named_parameters()}, run)}


@pytest.mark.parametrize("name", NAMED)
def test_a_view_is_what_its_name_says(name: str) -> None:
    """Attention is uniform without its queries, as it is without its keys, and nothing without its values; so for every
    head with keys of its own."""
    model, views = made(name, NAMED[name])
    path = next(n for n in views if n.endswith(".W_Q")).removesuffix(".W_Q")
    params, seen = dict(model.named_parameters()), []
    model.get_submodule(path).register_forward_hook(lambda m, a, out: seen.append(out[0].clone()))

    @torch.no_grad()
    def without(part: str) -> Tensor:
        view = views[f"{path}.{part}"]
        weight = params[view.of]
        before = weight.clone()
        weight.view(view.seen_as)[tuple(slice(a, b) for a, b in view.cut)] = 0
        model(input_ids=torch.tensor([[3, 5, 4, 9, 7]]))
        weight.copy_(before)
        return seen.pop()

    heads = [n for n in views if n.startswith(f"{path}.W_Q[")]
    assert len(heads) == NAMED[name].get("n_head", 4)
    torch.testing.assert_close(without("W_Q"), without("W_K"))
    assert float(without("W_V").abs().max()) < 1e-9 * float(without("W_Q").abs().max())
    if f"{path}.W_K[3]" in views:
        torch.testing.assert_close(without("W_Q[3]"), without("W_K[3]"))


def test_a_norm_inside_the_module_hides_no_names() -> None:
    """ALBERT's attention ends with a skip and a norm; the weights are named all the same, shared by its layers."""
    sizes = {**SIZES, **WIDE, "intermediate_size": 8, "embedding_size": 8}
    assert [n for n in made("Albert", sizes)[1] if n.endswith((".W_Q", ".W_K", ".W_V"))]


@pytest.mark.parametrize("name", ["Qwen3", "Persimmon", "Gemma3Text", "Olmo2"])
def test_norms_of_small_queries_hide_no_names(name: str) -> None:
    """Models that norm queries and keys, as they are made: the epsilon of a norm is not small beside them."""
    transformers = pytest.importorskip("transformers")
    sizes = {**SIZES, **WIDE, "intermediate_size": 8, "num_key_value_heads": 4, "head_dim": 4, "pad_token_id": 0}
    model = transformers.AutoModel.from_config(getattr(transformers, f"{name}Config")(**sizes)).eval()
    epsilons = [getattr(m, "eps", None) for m in model.modules()]
    run = lambda: model(input_ids=torch.tensor([[3, 5, 4, 9, 7]]))  # noqa: E731
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        names = {v.name for v in attention_views(model, {n for n, _ in model.named_parameters()}, run)}
        assert {"layers.0.self_attn.W_Q", "layers.0.self_attn.W_K", "layers.0.self_attn.W_V"} <= names
        assert ("layers.0.self_attn.W_Q[3]" in names) is (name != "Olmo2")  # which norms over all heads
    assert [getattr(m, "eps", None) for m in model.modules()] == epsilons


def test_attention_written_out_is_seen() -> None:
    """A module of one's own, with scores and softmax in plain torch; without its softmax it has no names."""

    class Plain(nn.Module):
        def __init__(self, softmax: bool) -> None:
            super().__init__()
            self.num_heads, self.softmax = 2, softmax
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            A = q @ k.mT
            return ((A.softmax(-1) if self.softmax else A) @ v).transpose(1, 2).flatten(2)

    for softmax in (True, False):
        model = Plain(softmax)
        views = attention_views(
            model, {n for n, _ in model.named_parameters()}, lambda m=model: m(torch.randn(2, 5, 8))
        )
        assert ("W_Q[1]" in {v.name for v in views}) is softmax


@pytest.mark.parametrize("name", UNNAMED)
def test_other_orders_have_no_names(name: str) -> None:
    """Scores of more than queries and keys, gated queries, a matrix of another kind of layer."""
    assert not [n for n in made(name, UNNAMED[name])[1] if not n.rpartition(".")[2].startswith("W_O")]
