"""Weights of Hugging Face models in our modules: equal logits, plus a cache, beams, designs and curvature.

    GPT2LMHeadModel    Pre-LN decoder, learned positions, tanh-GELU, biases everywhere, tied output
    LlamaForCausalLM   Pre-RMSNorm decoder, rotary positions, SwiGLU, grouped keys
    T5ForConditionalGeneration
                       Pre-RMSNorm encoder-decoder, relative positions, unscaled scores, ReLU or a gate, no biases
    BertForMaskedLM    Post-LN encoder, normalised embedding, output transform; every token is of type 0

A setting of theirs that would change the numbers and has no counterpart here is refused by its name, and so is a weight
that found no place. Dropout of attention, and inside the MLPs and after the last norm of T5, has none and is left out;
`dropout` is that of the branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from quadform.core.errors import InputError
from quadform.core.spec import BlockSpec, Gain, ModelConfig
from quadform.nn.transformer import Transformer

ACTIVATIONS = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu": "gelu", "relu": "relu"}
#: Settings that change no logits of a model in evaluation, in any family.
_HARMLESS = {
    *("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range", "model_type"),
    *("output_attentions", "output_hidden_states", "return_dict", "_name_or_path", "_attn_implementation", "id2label"),
    *("label2id", "problem_type", "chunk_size_feed_forward", "task_specific_params", "pretraining_tp"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "vocab_size"),
}


@dataclass(frozen=True)
class Family:
    """One kind of model: the settings that are read, its description here, and its weights by our names."""

    read: frozenset[str]
    describe: Callable[[Any, Mapping[str, Tensor]], dict[str, Any]]
    weights: Callable[[dict[str, Tensor], ModelConfig], dict[str, Tensor]]


@torch.no_grad()
def from_hf(model: nn.Module, **settings: Any) -> Transformer:
    """The `Transformer` that computes the logits of a Hugging Face model; its weights are copied.

    `settings` are fields of `ModelConfig` that the model does not decide: dropout, pad, bos, eos. Padding may stand on
    the right; on the left where the other model is given `position_ids` that count real tokens, as ours always do.
    """
    name = type(model).__name__
    if name not in FAMILIES:
        raise InputError(f"weights of {name} are not supported; supported: {', '.join(FAMILIES)}.")
    theirs: Any = model.config
    family = FAMILIES[name]
    _refuse_unknown(theirs, family, name)
    tokens: dict[str, Any] = {key: getattr(theirs, f"{key}_token_id", None) for key in ("pad", "bos", "eos")}
    state = dict(model.state_dict())
    described = tokens | family.describe(theirs, state)
    for key in tokens:
        if not isinstance(described[key], int) or not 0 <= described[key] < theirs.vocab_size:
            described[key] = None
    config = ModelConfig(vocab=theirs.vocab_size, embed_scale=1.0, **(described | dict(settings)))
    like = next(model.parameters())
    ours = Transformer(config, dtype=like.dtype, device=like.device)
    found = family.weights(state, config)
    if state:
        raise InputError(f"{name} has weights without a counterpart in quadform: {', '.join(sorted(state)[:6])}.")
    ours.load_state_dict(found)
    return ours.eval()


def _refuse_unknown(theirs: Any, family: Family, name: str) -> None:
    usual = type(theirs)().to_dict()
    for key, value in theirs.to_dict().items():
        if key not in _HARMLESS | family.read and value != usual.get(key):
            raise InputError(f"{name} has {key} = {value!r}, which is not supported (only {usual.get(key)!r} is).")


def _activation(name: str, known: Mapping[str, str] = ACTIVATIONS) -> Any:
    if name not in known:
        raise InputError(f"the activation {name!r} is not supported; supported: {', '.join(known)}.")
    return known[name]


# --------------------------------------------------------------------------------------------------------------- GPT-2
def _gpt2(c: Any, _: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "blocks": (BlockSpec(activation=_activation(c.activation_function)),) * c.n_layer,
        "d_model": c.n_embd,
        "heads": c.n_head,
        "d_ff": c.n_inner or 4 * c.n_embd,
        "seq_len": c.n_positions,
        "tied": c.tie_word_embeddings,
        "biases": ("q", "k", "v", "o", "mlp"),
        "eps": c.layer_norm_epsilon,
    }


def _gpt2_weights(state: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    found = {"embed.W_E": state.pop("transformer.wte.weight"), "embed.W_pos": state.pop("transformer.wpe.weight")}
    found |= _output(state, "lm_head.weight", config)
    found |= _norm(state, "transformer.ln_f", "final_norm")
    for i in range(config.depth):
        at, to = f"transformer.h.{i}.", f"layers.{i}."
        W, b = (state.pop(f"{at}attn.c_attn.{part}").chunk(3, -1) for part in ("weight", "bias"))
        for letter, matrix, bias in zip("QKV", W, b, strict=True):
            found |= {f"{to}attn.W_{letter}": matrix, f"{to}attn.b_{letter}": bias}
        for theirs, ours in (("attn.c_proj", "attn.{}_O"), ("mlp.c_fc", "mlp.{}_1"), ("mlp.c_proj", "mlp.{}_2")):
            found[to + ours.format("W")] = state.pop(f"{at}{theirs}.weight")
            found[to + ours.format("b")] = state.pop(f"{at}{theirs}.bias")
        found |= _norm(state, f"{at}ln_1", f"{to}norm_attn") | _norm(state, f"{at}ln_2", f"{to}norm_mlp")
    return found


# --------------------------------------------------------------------------------------------------------------- Llama
def _llama(c: Any, _: Mapping[str, Tensor]) -> dict[str, Any]:
    rope = dict(c.rope_parameters)
    if rope.pop("rope_type", "default") != "default" or set(rope) != {"rope_theta"}:
        raise InputError(
            f"LlamaForCausalLM has rope_parameters = {c.rope_parameters}; only plain rotations are supported."
        )
    if c.head_dim * c.num_attention_heads != c.hidden_size:
        raise InputError(f"LlamaForCausalLM has head_dim = {c.head_dim}; here a head has hidden_size / heads.")
    biases = (*(("q", "k", "v", "o") if c.attention_bias else ()), *(("mlp",) if c.mlp_bias else ()))
    block = BlockSpec(norm="rms", activation=_activation(c.hidden_act, {"silu": "swiglu", "gelu": "geglu"}))
    return {
        "blocks": (block,) * c.num_hidden_layers,
        "d_model": c.hidden_size,
        "heads": c.num_attention_heads,
        "kv_heads": c.num_key_value_heads,
        "d_ff": c.intermediate_size,
        "seq_len": c.max_position_embeddings,
        "positions": "rotary",
        "rotary_base": float(rope["rope_theta"]),
        "tied": c.tie_word_embeddings,
        "biases": biases,
        "final_norm": "rms",
        "eps": c.rms_norm_eps,
    }


def _llama_weights(state: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    found = {"embed.W_E": state.pop("model.embed_tokens.weight")} | _output(state, "lm_head.weight", config)
    found |= _norm(state, "model.norm", "final_norm")
    for i in range(config.depth):
        at, to = f"model.layers.{i}.", f"layers.{i}."
        for letter in "QKVO":
            found |= _linear(state, f"{at}self_attn.{letter.lower()}_proj", f"{to}attn", letter)
        both = [_linear(state, f"{at}mlp.{name}_proj", f"{to}mlp", "1") for name in ("gate", "up")]
        found |= {name: torch.cat([part[name] for part in both], -1) for name in both[0]}
        found |= _linear(state, f"{at}mlp.down_proj", f"{to}mlp", "2")
        found |= _norm(state, f"{at}input_layernorm", f"{to}norm_attn")
        found |= _norm(state, f"{at}post_attention_layernorm", f"{to}norm_mlp")
    return found


# ---------------------------------------------------------------------------------------------------------------- BERT
def _bert(c: Any, _: Mapping[str, Tensor]) -> dict[str, Any]:
    act = _activation(c.hidden_act)
    return {
        "kind": "encoder",
        "blocks": (BlockSpec(norm_at="post", activation=act),) * c.num_hidden_layers,
        "d_model": c.hidden_size,
        "heads": c.num_attention_heads,
        "d_ff": c.intermediate_size,
        "seq_len": c.max_position_embeddings,
        "tied": c.tie_word_embeddings,
        "biases": ("q", "k", "v", "o", "mlp", "out"),
        "embed_norm": "layer",
        "final_norm": "none",
        "transform": act,
        "eps": c.layer_norm_eps,
    }


def _bert_weights(state: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    state.pop("bert.embeddings.position_ids", None)
    state.pop("bert.embeddings.token_type_ids", None)
    types = state.pop("bert.embeddings.token_type_embeddings.weight")
    found = {
        "embed.W_E": state.pop("bert.embeddings.word_embeddings.weight"),
        "embed.W_pos": state.pop("bert.embeddings.position_embeddings.weight") + types[0],
        "b_U": state.pop("cls.predictions.decoder.bias"),
    }
    state.pop("cls.predictions.bias", None)  # the same one, or one that is not used
    found |= _output(state, "cls.predictions.decoder.weight", config)
    found |= _norm(state, "bert.embeddings.LayerNorm", "embed.norm")
    found |= _linear(state, "cls.predictions.transform.dense", "transform", "T")
    found |= _norm(state, "cls.predictions.transform.LayerNorm", "transform.norm")
    for i in range(config.depth):
        at, to = f"bert.encoder.layer.{i}.", f"layers.{i}."
        for letter, name in (("Q", "query"), ("K", "key"), ("V", "value")):
            found |= _linear(state, f"{at}attention.self.{name}", f"{to}attn", letter)
        found |= _linear(state, f"{at}attention.output.dense", f"{to}attn", "O")
        found |= _norm(state, f"{at}attention.output.LayerNorm", f"{to}norm_attn")
        found |= _linear(state, f"{at}intermediate.dense", f"{to}mlp", "1")
        found |= _linear(state, f"{at}output.dense", f"{to}mlp", "2")
        found |= _norm(state, f"{at}output.LayerNorm", f"{to}norm_mlp")
    return found


# ------------------------------------------------------------------------------------------------------------------ T5
def _t5(c: Any, state: Mapping[str, Tensor]) -> dict[str, Any]:
    gates = {"gelu_new": "geglu-tanh", "gelu_pytorch_tanh": "geglu-tanh", "silu": "swiglu"}
    act = _activation(c.dense_act_fn, gates if c.is_gated_act else ACTIVATIONS)
    block = BlockSpec(norm="rms", activation=act)
    own, source = state["decoder.embed_tokens.weight"], state["encoder.embed_tokens.weight"]
    start = getattr(c, "decoder_start_token_id", None)
    return {
        "kind": "encoder-decoder",
        "blocks": (replace(block, cross=Gain()),) * c.num_decoder_layers,
        "encoder_blocks": (block,) * c.num_layers,
        "d_model": c.d_model,
        "heads": c.num_heads,
        "d_k": c.d_kv,
        "d_ff": c.d_ff,
        "source_vocab": None if torch.equal(own, source) else c.vocab_size,
        "positions": "relative",
        "buckets": c.relative_attention_num_buckets,
        "max_distance": c.relative_attention_max_distance,
        "attn_scale": 1.0,
        "tied": torch.equal(own, state["lm_head.weight"]),
        "logit_scale": c.d_model**-0.5 if c.scale_decoder_outputs else None,
        "final_norm": "rms",
        "eps": c.layer_norm_epsilon,
        "bos": c.pad_token_id if start is None else start,
    }


def _t5_weights(state: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    state.pop("shared.weight", None)  # the same as theirs, or not used
    source = state.pop("encoder.embed_tokens.weight")
    found = {"embed.W_E": state.pop("decoder.embed_tokens.weight")} | _output(state, "lm_head.weight", config)
    found |= {} if config.source_vocab is None else {"source_embed.W_E": source}
    attention = {"SelfAttention": "attn", "EncDecAttention": "cross"}
    for side, table, norm, stack, depth in (
        ("encoder", "encoder_relative", "encoder_norm", "encoder_layers", len(config.encoder_blocks)),
        ("decoder", "relative", "final_norm", "layers", config.depth),
    ):
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found |= {f"{table}.W_R": state.pop(first)} | _norm(state, f"{side}.final_layer_norm", norm)
        parts = ("SelfAttention", "DenseReluDense") if side == "encoder" else (*attention, "DenseReluDense")
        for i in range(depth):
            for j, part in enumerate(parts):
                at, to = f"{side}.block.{i}.layer.{j}.", f"{stack}.{i}."
                branch = attention.get(part, "mlp")
                found |= _norm(state, f"{at}layer_norm", f"{to}norm_{branch}")
                if part in attention:
                    for letter in "QKVO":
                        found |= _linear(state, f"{at}{part}.{letter.lower()}", f"{to}{branch}", letter)
                    continue
                inner = [n for n in ("wi", "wi_0", "wi_1") if f"{at}{part}.{n}.weight" in state]
                read = [state.pop(f"{at}{part}.{n}.weight").mT for n in inner]
                found[f"{to}mlp.W_1"] = torch.cat(read, -1)
                found |= _linear(state, f"{at}{part}.wo", f"{to}mlp", "2")
    return found


# --------------------------------------------------------------------------------------------------------------- parts
def _linear(state: dict[str, Tensor], at: str, to: str, letter: str) -> dict[str, Tensor]:
    """`nn.Linear` as W (in, out) and b."""
    found = {f"{to}.W_{letter}": state.pop(f"{at}.weight").mT}
    bias = state.pop(f"{at}.bias", None)
    return found if bias is None else found | {f"{to}.b_{letter}": bias}


def _norm(state: dict[str, Tensor], at: str, to: str) -> dict[str, Tensor]:
    names = [part for part in ("weight", "bias") if f"{at}.{part}" in state]
    return {f"{to}.{part}": state.pop(f"{at}.{part}") for part in names}


def _output(state: dict[str, Tensor], at: str, config: ModelConfig) -> dict[str, Tensor]:
    """The output matrix; a tied one is the embedding."""
    W = state.pop(at, None)
    return {} if config.tied or W is None else {"W_U": W.mT}


_GPT2_READ = (
    "n_embd n_layer n_head n_inner n_positions activation_function layer_norm_epsilon resid_pdrop embd_pdrop attn_pdrop"
)
_GPT2_READ += " summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
_LLAMA_READ = "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size rope_parameters"
_LLAMA_READ += " max_position_embeddings attention_bias mlp_bias hidden_act rms_norm_eps head_dim attention_dropout"
_BERT_READ = "hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings hidden_act"
_BERT_READ += " layer_norm_eps type_vocab_size attention_probs_dropout_prob hidden_dropout_prob classifier_dropout"
_T5_READ = "d_model d_kv d_ff num_layers num_decoder_layers num_heads relative_attention_num_buckets dropout_rate"
_T5_READ += " relative_attention_max_distance layer_norm_epsilon initializer_factor feed_forward_proj dense_act_fn"
_T5_READ += " is_gated_act scale_decoder_outputs decoder_start_token_id classifier_dropout"
FAMILIES = {
    "GPT2LMHeadModel": Family(frozenset(_GPT2_READ.split()), _gpt2, _gpt2_weights),
    "LlamaForCausalLM": Family(frozenset(_LLAMA_READ.split()), _llama, _llama_weights),
    "BertForMaskedLM": Family(frozenset(_BERT_READ.split()), _bert, _bert_weights),
    "T5ForConditionalGeneration": Family(frozenset(_T5_READ.split()), _t5, _t5_weights),
}
"""The Hugging Face classes whose weights are known, by name."""
