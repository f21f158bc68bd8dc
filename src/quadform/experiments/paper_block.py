"""The model of the paper's experiments and the exact second-order view of its last attention layer.

GPT-2-like decoder on 5-digit addition: one head of full width, ReLU MLP of 4 d, learned positions, untied output, no
biases, all W ~ N(0, (0.8 / sqrt d)^2), embeddings ~ N(0, sigma^2), cross-entropy on the six answer digits.
Source of the setting: [ODS25, experiments]. Float64 throughout; the paper computes in float32.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.designs import design
from ..core.rng import stream
from ..core.spec import Gain
from ..corpora.datasets import Addition
from ..nn.transformer import Transformer
from ..theory.attention import AttentionLayer
from .gram_norms import GramNorms

#: The positions whose logits are the answer: one before each of the six digits.
ANSWER = slice(11, 17)


def batch_of(sequences: int, seed: int) -> dict[str, Tensor]:
    """`sequences` additions of the published distribution: tokens and labels (sequences, 18)."""
    return next(Addition(digits=5).batches("all", sequences, seed))


def paper_model(
    d: int,
    depth: int = 1,
    *,
    seed: int,
    sigma: float | None = None,
    norm: Literal["layer", "rms", "none"] = "none",
    linear: bool = False,
    merged: bool = False,
    skip: float = 1.0,
    name: str = "pre-ln",
    device: str = "cpu",
) -> Transformer:
    """The network, of another design where `name` says so.

    `sigma` is the size of the embeddings (None: that of the weights), `skip` the attention residual.

    Draws depend on the seed and the tensor's name only: sigma multiplies the same numbers.
    """
    config = design(
        name,
        depth=depth,
        d_model=d,
        heads=1,
        vocab=12,
        seq_len=18,
        norm=norm,
        linear=linear,
        tied=False,
        d_ff=4 * d,
        merged=merged,
    )
    blocks = tuple(dataclasses.replace(b, attn=Gain(skip=skip)) for b in config.blocks)
    model = Transformer(dataclasses.replace(config, blocks=blocks, embed_scale=1.0), dtype=torch.float64)
    std = 0.8 / math.sqrt(d)

    def draw(where: str, shape: tuple[int, ...]) -> Tensor:
        return std * torch.randn(shape, generator=stream(seed, f"paper/{where}"), dtype=torch.float64)

    with torch.no_grad():
        for where, p in model.named_parameters():
            if where.endswith("W_QK"):  # the product of the two factors it stands for: the same function
                stem = where.removesuffix("W_QK")
                p.copy_((draw(f"{stem}W_Q", (d, d)) @ draw(f"{stem}W_K", (d, d)).T)[None])
            elif p.ndim == 2:
                p.copy_(
                    (sigma / std if sigma is not None and where.startswith("embed.") else 1.0) * draw(where, p.shape)
                )
    return model.to(device).requires_grad_(True)


@torch.no_grad()
def last_attention(model: Transformer, batch: dict[str, Tensor]) -> AttentionLayer:
    """The last softmax attention layer of a network without norms, with everything behind it as its loss. [own]

    F = A N W_V at the answer positions. Behind it lie W_O, the residual, the ReLU MLP and the output, all piecewise
    linear, so d2l/dF2 is one matrix a token and the layer's split H_o + H_f is the network's own.
    """
    tokens, labels = batch["tokens"], batch["labels"]
    block: Any = model.layers[-1]
    frame = model._frame(tokens, None, causal=True)
    X = model.streams(tokens)[-2] if len(model.layers) > 1 else model.embed(tokens, frame)
    W_Q, W_K, W_V, W_O = (getattr(block.attn, f"W_{x}").detach() for x in "QKVO")
    W_1, W_2, W_U = block.mlp.W_1.detach(), block.mlp.W_2.detach(), model.W_U.detach()
    skip = block.spec.attn.skip
    Y = skip * X + block.attn(X, frame)
    Y, wanted = Y[:, ANSWER], labels[:, ANSWER]
    active = ((Y @ W_1) > 0).to(Y.dtype)
    logits = (Y + torch.relu(Y @ W_1) @ W_2) @ W_U
    p = logits.softmax(-1)
    weight = 1.0 / wanted.numel()
    # d logits / dF = W_O (I + W_1 diag(active) W_2) W_U, one (d, vocab) matrix a token
    J = W_O @ (W_U + torch.einsum("df,btf,fv->btdv", W_1, active, W_2 @ W_U))
    error = p - torch.nn.functional.one_hot(wanted, p.shape[-1])
    g = weight * torch.einsum("btdv,btv->btd", J, error)
    Jp = torch.einsum("btdv,btv->btd", J, p)
    Hl = weight * (torch.einsum("btdv,btv,btev->btde", J, p, J) - Jp[..., :, None] * Jp[..., None, :])
    loss = (g.flatten(0, 1), Hl.flatten(0, 1))
    seen = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()[ANSWER]
    return AttentionLayer(X[:, ANSWER], W_Q, W_K, W_V, context=X, mask=seen, loss=loss)


#: What `network_norms` gives for every layer, in this order.
PARTS: tuple[tuple[Literal["outer", "functional", "total"], Literal["W_V", "W_Q"]], ...] = (
    ("outer", "W_V"),
    ("outer", "W_Q"),
    ("functional", "W_V"),
    ("functional", "W_Q"),
    ("total", "W_V"),
    ("total", "W_Q"),
)
#: The parts of the split alone.
MEASURED = PARTS[:4]


def network_norms(model: Transformer, batch: Any, *, squared: bool = False) -> Tensor:
    """Exact Frobenius norms (layers, 6) of the diagonal blocks of every attention layer, split at the network's output.

    H_f has its own formula, so nothing is lost to the subtraction H - H_o.
    """
    net, rows = GramNorms(model, batch, squared=squared), []
    for layer in range(len(model.layers)):
        found = net.norms(layer)
        rows.append(torch.stack([getattr(found[w], part) for part, w in PARTS]))
    return torch.stack(rows).cpu()
