"""Architectures of transformers as values: tiny random models, the batches they take, where W_Q, W_K and W_V lie.

A new architecture is one line of `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

F64 = torch.float64
VOCAB, PAD, WIDTH, HEADS, ROWS, TOKENS = 11, 1, 8, 2, 2, 5

Batch = dict[str, Any]
#: One matrix: the parameter that holds it, how that is seen, and the part of it, as numpy would write it.
Part = tuple[str, tuple[int, ...], tuple[Any, ...]]
ALL = slice(None)


@dataclass(frozen=True)
class Architecture:
    """A class of models with small sizes; `batches` makes what it takes, `qkv` the parts of its first attention."""

    name: str
    family: str
    task: str  # transformers.AutoModelFor...
    sizes: Mapping[str, Any]
    batches: Mapping[str, Callable[[], Batch]]
    qkv: Mapping[str, Part] | str  # or why its matrices have no names
    shifted: bool = False  # the loss of a token is read one place before it
    heads: int = HEADS  # 0: heads have no names
    dtype: torch.dtype = F64

    def model(self, dtype: torch.dtype = F64) -> nn.Module:
        """The same random model at every call."""
        torch.manual_seed(0)
        config = getattr(transformers, f"{self.name}Config")(**self.sizes)
        model: nn.Module = getattr(transformers, f"AutoModelFor{self.task}").from_config(config)
        model = model.to(F64).eval()
        torch.manual_seed(1)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn_like(p))
        return model.to(dtype)

    def reference(self, dtype: torch.dtype = F64) -> nn.Module:
        """The same with experts that torch differentiates twice in float64."""
        model = self.model(dtype)
        for module in model.modules():
            if hasattr(config := getattr(module, "config", None), "_experts_implementation"):
                config._experts_implementation = "eager"
        return model

    def loss(self, F: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of its logits, written out."""
        labels = batch["labels"]
        if self.shifted:
            F, labels = F[:, :-1], labels[:, 1:]
        return nn.functional.cross_entropy(F.reshape(-1, F.shape[-1]), labels.reshape(-1), ignore_index=-100)


# --- batches ------------------------------------------------------------------------------------------------------
def _ids(tokens: int = TOKENS) -> Tensor:
    return torch.randint(4, VOCAB, (ROWS, tokens), generator=torch.Generator().manual_seed(2))


def _text(hidden: slice | None = None, mask: bool = True) -> Batch:
    """Tokens that are their own labels; those of the last row in `hidden` are padding."""
    ids = _ids()
    seen = torch.ones_like(ids)
    if hidden is not None:
        seen[-1, hidden] = 0
    batch = {"input_ids": ids.masked_fill(seen == 0, PAD), "labels": ids.masked_fill(seen == 0, -100)}
    return batch | ({"attention_mask": seen} if mask else {})


def _packed() -> Batch:
    """Two sequences in one row, told apart by their positions, which transformers reads where no keys are kept."""
    ids = _ids(4).reshape(1, 8)
    labels = ids.clone()
    labels[0, [0, 5]] = -100
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "use_cache": False}


MASKS: dict[str, Callable[[], Batch]] = {
    "plain": lambda: _text(mask=False),
    "ones": lambda: _text(),
    "left": lambda: _text(slice(0, 2)),
    "right": lambda: _text(slice(-2, None)),
}
CACHED = MASKS | {"no cache": lambda: _text(mask=False) | {"use_cache": False}}
PACKED = CACHED | {"packed": _packed}


def _image(size: int = 8) -> Batch:
    pixels = torch.randn(ROWS, 3, size, size, dtype=F64, generator=torch.Generator().manual_seed(2))
    return {"pixel_values": pixels, "labels": torch.tensor([0, 2])}


def _sound(hidden: int | None) -> Batch:
    waves = torch.randn(ROWS, 60, dtype=F64, generator=torch.Generator().manual_seed(2))
    batch = {"input_values": waves, "labels": torch.tensor([0, 2])}
    if hidden is None:
        return batch
    seen = torch.ones(waves.shape, dtype=torch.long)
    seen[-1, waves.shape[1] - hidden :] = 0
    return batch | {"attention_mask": seen}


def _spoken(**more: Any) -> Batch:
    features = torch.randn(ROWS, 4, 16, dtype=F64, generator=torch.Generator().manual_seed(2))
    return {"input_features": features, "labels": _ids(4), **more}


IMAGES: dict[str, Callable[[], Batch]] = {"plain": _image}
SOUNDS: dict[str, Callable[[], Batch]] = {
    "plain": lambda: _sound(None),
    "ones": lambda: _sound(0),
    "right": lambda: _sound(25),
}
SPOKEN: dict[str, Callable[[], Batch]] = {"plain": _spoken, "no cache": lambda: _spoken(use_cache=False)}


# --- where queries, keys and values lie --------------------------------------------------------------------------
def separate(path: str, q: str = "q_proj", k: str = "k_proj", v: str = "v_proj") -> dict[str, Part]:
    """Three matrices beside each other."""
    named = {"W_Q": q, "W_K": k, "W_V": v}
    return {f"{path}.{paper}": (f"{path}.{own}.weight", (), ()) for paper, own in named.items()}


def inside(path: str, own: str, seen: tuple[int, ...], **parts: tuple[Any, ...]) -> dict[str, Part]:
    """Parts of one matrix, which is seen with the shape `seen`."""
    return {f"{path}.{paper}": (f"{path}.{own}.weight", seen, at) for paper, at in parts.items()}


def columns(path: str, own: str) -> dict[str, Part]:
    """(Q | K | V) along the outputs of a Conv1D, which stores (in, out)."""
    return inside(path, own, (WIDTH, 3, WIDTH), **{w: (ALL, i) for i, w in enumerate(("W_Q", "W_K", "W_V"))})


def stacked(path: str, own: str, keys: int = HEADS) -> dict[str, Part]:
    """Queries of all heads, then keys, then values, along the outputs of a Linear."""
    count, width = HEADS, WIDTH // HEADS
    ends = [0, count, count + keys, count + 2 * keys]
    cuts = {w: (slice(ends[i], ends[i + 1]),) for i, w in enumerate(("W_Q", "W_K", "W_V"))}
    return inside(path, own, (ends[3], width, WIDTH), **cuts)


def by_head(path: str, own: str) -> dict[str, Part]:
    """Query, key and value of a head, head by head."""
    seen = (HEADS, 3, WIDTH // HEADS, WIDTH)
    return inside(path, own, seen, **{w: (ALL, i) for i, w in enumerate(("W_Q", "W_K", "W_V"))})


# --- sizes ----------------------------------------------------------------------------------------------------------
GPT = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 16}
WIDE = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
    "pad_token_id": PAD,
}
KEYS = {**WIDE, "num_key_value_heads": 1, "head_dim": 4}
PAIR = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
TEXT_TO_TEXT = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "d_kv": 4,
    "d_ff": 8,
    "num_layers": 2,
    "num_heads": HEADS,
    "decoder_start_token_id": 0,
    "pad_token_id": PAD,
}
PICTURE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 8,
    "image_size": 8,
    "patch_size": 4,
    "num_labels": 3,
}
WAVE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 8,
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
    "num_labels": 3,
    "vocab_size": VOCAB,
}


# --- the table --------------------------------------------------------------------------------------------------------
def _decoder(name: str, sizes: Mapping[str, Any], qkv: Mapping[str, Part] | str, batches: Any = PACKED) -> Architecture:
    return Architecture(name, "decoder", "CausalLM", sizes, batches, qkv, shifted=True)


def _llama(name: str, sizes: Mapping[str, Any] = {}, batches: Any = PACKED) -> Architecture:
    return _decoder(name, {**KEYS, **sizes}, separate("model.layers.0.self_attn"), batches)


def _experts(name: str, sizes: Mapping[str, Any], qkv: Mapping[str, Part] | str | None = None) -> Architecture:
    where = separate("model.layers.0.self_attn") if qkv is None else qkv
    return Architecture(name, "experts", "CausalLM", {**KEYS, **sizes}, PACKED, where, shifted=True)


def _encoder(name: str, qkv: Mapping[str, Part] | str, sizes: Mapping[str, Any] = {}) -> Architecture:
    return Architecture(name, "encoder", "MaskedLM", {**WIDE, **sizes}, MASKS, qkv)


def _bert(name: str, stem: str = "", sizes: Mapping[str, Any] = {}) -> Architecture:
    stem = stem or name.lower()
    return _encoder(name, separate(f"{stem}.encoder.layer.0.attention.self", "query", "key", "value"), sizes)


def _pair(name: str, sizes: Mapping[str, Any] = {}) -> Architecture:
    where = separate("model.encoder.layers.0.self_attn")
    return Architecture(name, "encoder-decoder", "Seq2SeqLM", {**PAIR, **sizes}, CACHED, where)


def _t5(name: str, sizes: Mapping[str, Any] = {}) -> Architecture:
    where = separate("encoder.block.0.layer.0.SelfAttention", "q", "k", "v")
    return Architecture(name, "encoder-decoder", "Seq2SeqLM", {**TEXT_TO_TEXT, **sizes}, CACHED, where)


def _vision(name: str, qkv: Mapping[str, Part] | str, sizes: Mapping[str, Any] = {}) -> Architecture:
    return Architecture(name, "vision", "ImageClassification", {**PICTURE, **sizes}, IMAGES, qkv)


def _wave(name: str, stem: str) -> Architecture:
    where = separate(f"{stem}.encoder.layers.0.attention")
    return Architecture(name, "audio", "AudioClassification", WAVE, SOUNDS, where)


_ATTN = "transformer.h.0.attn"
ARCHITECTURES = {
    a.name: a
    for a in (
        _decoder("GPT2", GPT, columns(_ATTN, "c_attn")),
        _decoder("OpenAIGPT", GPT, columns(_ATTN, "c_attn"), MASKS),
        _decoder("GPTNeo", {**WIDE, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]],
                            "window_size": 3}, separate(f"{_ATTN}.attention")),
        _decoder("GPTJ", {**GPT, "rotary_dim": 2}, separate(_ATTN)),
        _decoder("GPTNeoX", WIDE, by_head("gpt_neox.layers.0.attention", "query_key_value")),
        _decoder("GPTBigCode", GPT, stacked(_ATTN, "c_attn", keys=1)),
        replace(_decoder("CodeGen", {**GPT, "n_head": 4, "rotary_dim": 2, "n_ctx": 16}, inside(
            _ATTN, "qkv_proj", (4, 3, 2, WIDTH), W_Q=(ALL, 0), W_K=(ALL, 2), W_V=(ALL, 1))), heads=4),
        _decoder("OPT", {**WIDE, "ffn_dim": 8, "word_embed_proj_dim": WIDTH},
                 separate("model.decoder.layers.0.self_attn")),
        _decoder("Bloom", {**WIDE, "n_layer": 2, "n_head": 2},
                 by_head("transformer.h.0.self_attention", "query_key_value"), CACHED),
        _decoder("Falcon", {**WIDE, "multi_query": True, "new_decoder_architecture": False},
                 stacked("transformer.h.0.self_attention", "query_key_value", keys=1)),
        _decoder("Mpt", {"vocab_size": VOCAB, "d_model": WIDTH, "n_heads": HEADS, "n_layers": 2, "max_seq_len": 16,
                         "expansion_ratio": 1}, stacked("transformer.blocks.0.attn", "Wqkv"), CACHED),
        _decoder("BioGpt", WIDE, separate("biogpt.layers.0.self_attn"), CACHED),
        _llama("Llama"),
        _llama("Mistral", {"sliding_window": 3}),
        _llama("Qwen2"),
        _llama("Qwen3"),
        _llama("Gemma"),
        _llama("Gemma2", {"sliding_window": 3, "final_logit_softcapping": 2.0}),
        _llama("Gemma3Text", {"sliding_window": 3}),
        _llama("Olmo"),
        replace(_llama("Olmo2"), heads=0),  # norms queries and keys over all heads
        _llama("Cohere"),
        _llama("Granite"),
        _llama("Starcoder2"),
        _llama("StableLm"),
        _llama("SmolLM3"),
        _llama("Nemotron"),
        _llama("Helium"),
        _llama("Glm", {"partial_rotary_factor": 0.5}),
        _decoder("Phi", WIDE, separate("model.layers.0.self_attn")),
        _decoder("Phi3", KEYS, stacked("model.layers.0.self_attn", "qkv_proj", keys=1)),
        _decoder("Persimmon", WIDE, by_head("model.layers.0.self_attn", "query_key_value")),
        _experts("Mixtral", {"num_local_experts": 3}),
        _experts("Qwen3Moe", {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 4}),
        _experts("Olmoe", {"num_experts": 3, "num_experts_per_tok": 2}),
        _experts("GptOss", {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 3}),
        _experts("DeepseekV3", {"num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
                                "moe_intermediate_size": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
                                "kv_lora_rank": 4, "q_lora_rank": 4, "qk_rope_head_dim": 2, "qk_nope_head_dim": 2,
                                "v_head_dim": 4, "head_dim": 2}, "latent attention has no such matrices"),
        _bert("Bert"),
        _bert("Roberta"),
        _bert("XLMRoberta", "roberta"),
        _bert("Electra"),
        _bert("Esm", "esm", {"mask_token_id": 3}),
        _bert("MegatronBert", "bert"),
        _encoder("DistilBert", separate("distilbert.transformer.layer.0.attention", "q_lin", "k_lin", "v_lin"),
                 {"dim": WIDTH, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 8}),
        _encoder("Albert", separate("albert.encoder.albert_layer_groups.0.albert_layers.0.attention",
                                    "query", "key", "value"), {"embedding_size": 4}),
        _encoder("MPNet", separate("mpnet.encoder.layer.0.attention.attn", "q", "k", "v")),
        _encoder("ModernBert", stacked("model.layers.0.attn", "Wqkv"),
                 {"local_attention": 2, "global_attn_every_n_layers": 2}),
        _encoder("Deberta", "its scores are no product of queries and keys alone",
                 {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
        _encoder("DebertaV2", "its scores are no product of queries and keys alone",
                 {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4}),
        _encoder("FNet", "it has no attention"),
        _t5("T5"),
        _t5("MT5"),
        replace(_t5("SwitchTransformers", {"num_experts": 2, "num_sparse_encoder_layers": 1,
                                           "num_sparse_decoder_layers": 1}), dtype=torch.float32),  # its routers are
        _pair("Bart"),
        _pair("Marian", {"decoder_vocab_size": VOCAB}),
        _pair("Pegasus"),
        _pair("MBart"),
        _pair("M2M100"),
        _pair("Blenderbot"),
        _vision("ViT", separate("vit.layers.0.attention")),
        _vision("DeiT", separate("deit.layers.0.attention"), {"architectures": ["DeiTForImageClassification"]}),
        _vision("Beit", separate("beit.layers.0.attention"), {"use_relative_position_bias": True}),
        _vision("Dinov2", separate("dinov2.encoder.layer.0.attention")),
        Architecture("Swin", "vision", "ImageClassification", {
            "embed_dim": WIDTH, "depths": [2, 2], "num_heads": [2, 2], "window_size": 2, "patch_size": 2,
            "image_size": 8, "num_labels": 3}, IMAGES, separate("swin.encoder.layers.0.blocks.0.attention")),
        _vision("ConvNext", "it has no attention", {"hidden_sizes": [4, 8], "depths": [2, 2], "num_stages": 2,
                                                    "patch_size": 2}),
        _wave("Wav2Vec2", "wav2vec2"),
        _wave("Hubert", "hubert"),
        Architecture("Whisper", "audio", "SpeechSeq2Seq", {
            **PAIR, "num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 8}, SPOKEN,
            separate("model.encoder.layers.0.self_attn")),
    )
}  # fmt: skip
