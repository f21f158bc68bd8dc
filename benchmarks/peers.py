"""Models of others at our shapes: Hugging Face GPT-2, a plain GPT written out here, torch.nn.Transformer, JoeyNMT.

Every maker gives (module, loss function of a batch). Packages that are not installed raise `Missing` with their name.
"""

from __future__ import annotations

import logging
import math
import types

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Missing(Exception):
    """A peer that is not installed here."""


class PlainGPT(nn.Module):
    """The usual small GPT: Pre-LN, one matrix for queries, keys and values, GELU, tied output, torch's fused attention.

    Written for this comparison after the published recipe of small GPT training code; no biases but those of the norms,
    so that it has the parameters of our Pre-LN decoder.
    """

    def __init__(self, depth: int, dim: int, heads: int, vocab: int, seq_len: int) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(vocab, dim), nn.Embedding(seq_len, dim)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(dim),
                    "qkv": nn.Linear(dim, 3 * dim, bias=False),
                    "out": nn.Linear(dim, dim, bias=False),
                    "norm2": nn.LayerNorm(dim),
                    "up": nn.Linear(dim, 4 * dim, bias=False),
                    "down": nn.Linear(4 * dim, dim, bias=False),
                }
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(
                    p, std=0.02 / math.sqrt(2 * depth) if name.endswith(("out.weight", "down.weight")) else 0.02
                )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        B, T = x.shape
        h = self.tokens(x) + self.places.weight[:T]
        for b in self.blocks:
            q, k, v = b["qkv"](b["norm1"](h)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + b["out"](a.transpose(1, 2).reshape(B, T, -1))
            h = h + b["down"](F.gelu(b["up"](b["norm2"](h))))
        logits = F.linear(self.norm(h), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def plain_gpt(size: dict[str, int]):
    model = PlainGPT(**size)
    return model, lambda tokens: model(tokens[:, :-1], tokens[:, 1:])


def hf_gpt2(size: dict[str, int]):
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise Missing("transformers") from error
    config = GPT2Config(
        vocab_size=size["vocab"],
        n_positions=size["seq_len"],
        n_embd=size["d_model"],
        n_layer=size["depth"],
        n_head=size["heads"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = GPT2LMHeadModel(config)

    def loss(tokens: Tensor) -> Tensor:
        x = tokens[:, :-1]  # it shifts the labels itself; as many positions as the others compute
        return model(input_ids=x, labels=x).loss

    return model, loss


def ours(design: str, size: dict[str, int], **settings):
    from quadform.nn import Transformer

    model = Transformer(design, **size, **settings)
    return model, lambda tokens: model.loss({"tokens": tokens})


class TorchPairs(nn.Module):
    """torch.nn.Transformer with embedding, sinusoids and a tied output."""

    def __init__(self, depth: int, dim: int, heads: int, d_ff: int, vocab: int, longest: int = 512) -> None:
        super().__init__()
        from quadform.nn.transformer import sinusoid

        self.embed = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embed.weight, std=dim**-0.5)
        self.body = nn.Transformer(dim, heads, depth, depth, d_ff, 0.0, batch_first=True)
        self.register_buffer("wave", sinusoid(torch.arange(longest), dim).float())
        self.scale = dim**0.5

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        source, x, y = batch["source"], batch["target"][:, :-1], batch["target"][:, 1:]
        hidden = source == 0
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        sides = [self.scale * self.embed(t) + self.wave[: t.shape[1]] for t in (source, x)]
        h = self.body(
            *sides,
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return F.cross_entropy(F.linear(h, self.embed.weight).flatten(0, 1), y.flatten(), ignore_index=0)


def torch_pairs(size: dict[str, int]):
    model = TorchPairs(**size)
    return model, model.loss


def joey_model(size: dict[str, int]):
    """JoeyNMT's own model of this shape: Pre-LN (its default), tied, sinusoids; its own special tokens (pad 1)."""
    try:
        from joeynmt.model import build_model
        from joeynmt.vocabulary import Vocabulary
    except ImportError as error:
        raise Missing(f"joeynmt ({error})") from error
    specials = types.SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        sep_token=None, unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = Vocabulary([f"t{i}" for i in range(size["vocab"] - 4)], specials)
    side = {
        "type": "transformer",
        "num_layers": size["depth"],
        "num_heads": size["heads"],
        "embeddings": {"embedding_dim": size["d_model"], "scale": True, "dropout": 0.0},
        "hidden_size": size["d_model"],
        "ff_size": size["d_ff"],
        "dropout": 0.0,
        "layer_norm": "pre",
    }
    config = {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": side,
        "decoder": side,
    }
    logging.disable(logging.INFO)
    return build_model(config, src_vocab=words, trg_vocab=words)


def joey_pairs(size: dict[str, int]):
    model = joey_model(size)
    model.loss_function = ("crossentropy", 0.0)

    def loss(batch: dict[str, Tensor]) -> Tensor:
        source, target = (torch.where(t < 3, t + 1, t) for t in (batch["source"], batch["target"]))
        x, y = target[:, :-1], target[:, 1:]
        out, *_ = model(
            return_type="loss",
            src=source,
            trg_input=x,
            trg=y,
            src_mask=(source != 1)[:, None],
            src_length=(source != 1).sum(1),
            trg_mask=(x != 1)[:, None],
        )
        return out / (y != 1).sum()

    return model, loss
