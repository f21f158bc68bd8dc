"""Monte-Carlo stacks: random weights drawn and multiplied out, the oracle of the mean-field maps.

Written from the published block formulas, one plain function, no code shared with the package but the description it
reads (`BlockSpec`) and the target kernels of signal-preserving attention.
"""

import math

import torch
import torch.nn.functional as F

from quadform.propagation import shaping


def matrix(rows, columns, kind, std, generator):
    if kind == "orthogonal":
        Q = torch.linalg.qr(torch.randn(max(rows, columns), min(rows, columns), generator=generator))[0]
        return Q if rows >= columns else Q.T * math.sqrt(columns / rows)
    if kind == "xavier":
        bound = math.sqrt(6 / (rows + columns))
        return bound * (2 * torch.rand(rows, columns, generator=generator) - 1)
    return torch.randn(rows, columns, generator=generator) * (std if kind == "normal" else rows**-0.5)


def norm(X, kind):
    if kind == "none":
        return X
    if kind == "layer":
        X = X - X.mean(-1, keepdim=True)
    return X / X.square().mean(-1, keepdim=True).sqrt()


def activation(X, block):
    if block.activation in ("geglu", "swiglu"):
        a, b = X.chunk(2, -1)
        return (F.gelu(a) if block.activation == "geglu" else F.silu(a)) * b
    if block.activation == "leaky":
        return math.sqrt(2 / (1 + block.slope**2)) * torch.where(X > 0, X, block.slope * X)
    return X.clamp_min(0) if block.activation == "relu" else F.gelu(X)


def cosine(X):
    U = X / X.norm(dim=-1, keepdim=True)
    T = X.shape[-2]
    return float((((U @ U.mT).sum((-2, -1)) - T) / (T * (T - 1))).mean())


def run(config, T, seed, X=None, batch=4):
    """Mean off-diagonal cosine and rms after 0, 1, ..., depth blocks of one random network on random sequences."""
    generator = torch.Generator().manual_seed(seed)
    d, H, kind, std = config.d_model, config.heads, config.init, config.init_std
    causal = config.kind == "decoder"
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1) if causal else torch.zeros(T, T, dtype=torch.bool)
    C = (~hidden).float() / (~hidden).float().sum(-1, keepdim=True)
    X = torch.randn(batch, T, d, generator=generator) if X is None else X
    cosines, sizes = [cosine(X)], [float(X.square().mean().sqrt())]

    def draw(rows, columns, start="default"):
        return matrix(rows, columns, kind if start == "default" else start, std, generator)

    def attention(N, block, layer):
        m = block.mixing
        Q = N @ draw(d, d, block.query_init) if block.query_init != "zero" else torch.zeros_like(N)
        K = N @ draw(d, d)
        V = N
        if block.value is not None and block.value.init != "identity":
            V = N @ (draw(d, d, block.value.init) * block.init_gain)
        bias, D = torch.zeros(T, T), torch.ones(T)
        if m.bias is not None:
            make = shaping.u_spa_schedule if m.bias.family == "u-spa" else shaping.e_spa_schedule
            s = make(m.bias.final, config.depth)
            factor = shaping.u_spa_factor if m.bias.family == "u-spa" else shaping.e_spa_factor
            A = factor(s[layer], T) @ torch.linalg.inv(factor(s[layer - 1], T))
            A = A.tril().clamp_min(0)
            D = A.sum(-1).float()
            bias = torch.log(A / A.sum(-1, keepdim=True)).float()
        heads = []
        for q, k, v in zip(Q.chunk(H, -1), K.chunk(H, -1), V.chunk(H, -1), strict=True):
            G = q @ k.mT / math.sqrt(d / H)
            if m.kind == "linear":
                A = G.masked_fill(hidden, 0.0)
            else:
                A = D[:, None] * (G + bias).masked_fill(hidden, -math.inf).softmax(-1)
            heads.append(m.alpha * v + m.beta * A @ v - m.gamma * C @ v)
        out = torch.cat(heads, -1)
        if block.proj is not None and block.proj.init != "identity":
            out = out @ (draw(d, d, block.proj.init) * block.init_gain)
        return out

    def mlp(N, block):
        wide = config.d_ff * (2 if block.activation in ("geglu", "swiglu") else 1)
        W1, W2 = draw(d, wide) * block.init_gain, draw(config.d_ff, d) * block.init_gain
        return activation(N @ W1, block) @ W2

    for layer, b in enumerate(config.blocks, start=1):
        if b.layout == "parallel":
            N = norm(X, b.norm)
            X = b.attn.skip * X + b.attn.branch * attention(N, b, layer) + b.mlp.branch * mlp(N, b)
        elif b.norm_at == "pre":
            X = b.attn.skip * X + b.attn.branch * attention(norm(X, b.norm), b, layer)
            if b.mlp is not None:
                X = b.mlp.skip * X + b.mlp.branch * mlp(norm(X, b.norm), b)
        else:
            X = norm(b.attn.skip * X + b.attn.branch * attention(X, b, layer), b.norm)
            if b.mlp is not None:
                X = norm(b.mlp.skip * X + b.mlp.branch * mlp(X, b), b.norm)
        cosines.append(cosine(X))
        sizes.append(float(X.square().mean().sqrt()))
    return torch.tensor(cosines), torch.tensor(sizes)
