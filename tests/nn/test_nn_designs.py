"""Every design against its published formula, written here a second time with explicit matrices, to 1e-12."""

import math

import pytest
import torch

from quadform.core.spec import DESIGNS, design
from quadform.nn import Transformer
from quadform.testing import check_design

D, H, T, DEPTH = 12, 3, 6, 3
EPS = 1e-5


def moved(config, scale=0.3, seed=1):
    """A model in double precision with weights away from their start."""
    model = Transformer(config, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += scale * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


# ---------------------------------------------------------------------------------------- formulas, nothing shared
def layer_norm(X, w, b):
    centred = X - X.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() * w + b


def rms_norm(X, w):
    return X / (X.square().mean(-1, keepdim=True) + EPS).sqrt() * w


def softmax_matrix(N, W_Q, W_K, h, causal, B=None):
    """softmax(Q_h K_h^T / sqrt(d_k) + B) of head h."""
    k = W_Q.shape[1] // H
    cols = slice(h * k, (h + 1) * k)
    S = (N @ W_Q[:, cols]) @ (N @ W_K[:, cols]).T / math.sqrt(k)
    S = S if B is None else S + B
    if causal:
        S = S.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    E = (S - S.max(-1, keepdim=True).values).exp()
    return E / E.sum(-1, keepdim=True)


def uniform_matrix(causal):
    C = torch.ones(T, T, dtype=torch.float64)
    C = C.tril() if causal else C
    return C / C.sum(-1, keepdim=True)


def heads(V, matrices):
    k = V.shape[1] // H
    return torch.cat([matrices[h] @ V[:, h * k : (h + 1) * k] for h in range(H)], 1)


def mha(N, p, causal):
    return (
        heads(N @ p["attn.W_V"], [softmax_matrix(N, p["attn.W_Q"], p["attn.W_K"], h, causal) for h in range(H)])
        @ p["attn.W_O"]
    )


def shaped(N, V, p, causal):
    matrices = [
        p["attn.alpha"][h] * torch.eye(T, dtype=torch.float64)
        + p["attn.beta"][h] * softmax_matrix(N, p["attn.W_Q"], p["attn.W_K"], h, causal)
        - p["attn.gamma"][h] * uniform_matrix(causal)
        for h in range(H)
    ]
    return heads(V, matrices)


def relu_mlp(X, p):
    return (X @ p["mlp.W_1"]).clamp_min(0) @ p["mlp.W_2"]


def leaky_mlp(X, p, slope):
    Z = X @ p["mlp.W_1"]
    return math.sqrt(2 / (1 + slope**2)) * torch.where(Z > 0, Z, slope * Z) @ p["mlp.W_2"]


def kernel(family, strength):
    i = torch.arange(T, dtype=torch.float64)
    if family == "u-spa":
        return (1 - strength) * torch.eye(T, dtype=torch.float64) + strength
    return torch.eye(T, dtype=torch.float64) if strength == math.inf else torch.exp(-strength * (i[:, None] - i).abs())


def root(Sigma, causal):
    if causal:
        return torch.linalg.cholesky(Sigma)
    values, vectors = torch.linalg.eigh(Sigma)
    return vectors * values.sqrt() @ vectors.T


def strengths(family, final):
    if family == "u-spa":
        return [1 - (1 - final) ** (l / DEPTH) for l in range(DEPTH + 1)]
    a = math.sqrt(1 - math.exp(-2 * final))
    return [math.inf, *(-0.5 * math.log(1 - a ** (2 * l / DEPTH)) for l in range(1, DEPTH + 1))]


def spa(N, p, causal, family, l, final):
    s = strengths(family, final)
    A = root(kernel(family, s[l + 1]), causal) @ torch.linalg.inv(root(kernel(family, s[l]), causal))
    rows = A.clamp_min(0).sum(-1, keepdim=True)
    B = A.clamp_min(1e-300).log()
    matrices = [rows * softmax_matrix(N, p["attn.W_Q"], p["attn.W_K"], h, causal, B) for h in range(H)]
    return heads(N @ p["attn.W_V"], matrices) @ p["attn.W_O"]


def pre_ln(X, p, l, causal):
    Y = X + mha(layer_norm(X, p["norm_attn.weight"], p["norm_attn.bias"]), p, causal)
    return Y + relu_mlp(layer_norm(Y, p["norm_mlp.weight"], p["norm_mlp.bias"]), p)


def post_ln(X, p, l, causal, skip=1.0):
    Y = layer_norm(skip * X + mha(X, p, causal), p["norm_attn.weight"], p["norm_attn.bias"])
    return layer_norm(skip * Y + relu_mlp(Y, p), p["norm_mlp.weight"], p["norm_mlp.bias"])


def parallel(X, p, l, causal):
    N = layer_norm(X, p["norm.weight"], p["norm.bias"])
    return X + mha(N, p, causal) + relu_mlp(N, p)


def no_skip(X, p, l, causal):
    Y = mha(rms_norm(X, p["norm_attn.weight"]), p, causal)
    return relu_mlp(rms_norm(Y, p["norm_mlp.weight"]), p)


def v_skipinit(X, p, l, causal):
    N = rms_norm(X, p["norm_attn.weight"])
    eye = torch.eye(T, dtype=torch.float64)
    matrices = [
        p["attn.alpha"][h] * eye + p["attn.beta"][h] * softmax_matrix(N, p["attn.W_Q"], p["attn.W_K"], h, causal)
        for h in range(H)
    ]
    Y = heads(N @ p["attn.W_V"], matrices) @ p["attn.W_O"]
    return leaky_mlp(rms_norm(Y, p["norm_mlp.weight"]), p, 0.0)


def shaped_block(X, p, l, causal):
    N = rms_norm(X, p["norm_attn.weight"])
    Y = p["attn_branch"] * shaped(N, N @ p["attn.W_V"], p, causal) @ p["attn.W_O"]
    return p["mlp_skip"] * Y + p["mlp_branch"] * relu_mlp(rms_norm(Y, p["norm_mlp.weight"]), p)


def first_value(N, p, l):
    """Block 1 keeps W_V = a_V I + b_V dW."""
    if l > 0:
        return N
    return N @ (p["attn.V_skip"] * torch.eye(D, dtype=torch.float64) + p["attn.V_branch"] * p["attn.W_V"])


def sas(X, p, l, causal):
    N = rms_norm(X, p["norm_attn.weight"])
    Y = p["attn_branch"] * shaped(N, first_value(N, p, l), p, causal)
    return p["mlp_skip"] * Y + p["mlp_branch"] * relu_mlp(rms_norm(Y, p["norm_mlp.weight"]), p)


def sas_p(X, p, l, causal):
    N = rms_norm(X, p["norm.weight"])
    return p["attn_branch"] * shaped(N, first_value(N, p, l), p, causal) + p["mlp_branch"] * relu_mlp(N, p)


def sas_p_no_norm(X, p, l, causal):
    N = layer_norm(X, p["norm.weight"], p["norm.bias"]) if l == 0 else X
    return p["attn_branch"] * shaped(N, first_value(N, p, l), p, causal) + p["mlp_branch"] * relu_mlp(N, p)


def spa_block(family, final):
    def block(X, p, l, causal):
        Y = spa(rms_norm(X, p["norm_attn.weight"]), p, causal, family, l, final)
        return leaky_mlp(rms_norm(Y, p["norm_mlp.weight"]), p, 0.0)

    return block


def rezero(X, p, l, causal):
    Y = X + p["attn_branch"] * mha(X, p, causal)
    return Y + p["attn_branch"] * relu_mlp(Y, p)


FORMULAS = {
    "no-skip": no_skip,
    "pre-ln": pre_ln,
    "post-ln": post_ln,
    "parallel": parallel,
    "v-skipinit": v_skipinit,
    "shaped": shaped_block,
    "u-spa": spa_block("u-spa", 0.8),
    "e-spa": spa_block("e-spa", 0.005),
    "sas": sas,
    "sas-p": sas_p,
    "sas-p-no-norm": sas_p_no_norm,
    "deepnorm": lambda X, p, l, causal: post_ln(X, p, l, causal, skip=(2 * DEPTH) ** 0.25),
    "rezero": rezero,
}


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("name", FORMULAS)
def test_design_is_its_published_formula(name, kind):
    """Block by block, X_l from the module equals the formula applied to X_{l-1}, to 1e-12 of its size."""
    model = moved(design(name, kind=kind, depth=DEPTH, d_model=D, heads=H, vocab=9, eps=EPS))
    tokens = torch.randint(0, 9, (1, T), generator=torch.Generator().manual_seed(2))
    stream = [X[0].detach() for X in model.streams(tokens)]
    for l in range(DEPTH):
        prefix = f"layers.{l}."
        p = {n.removeprefix(prefix): t.detach() for n, t in model.named_parameters() if n.startswith(prefix)}
        want = FORMULAS[name](stream[l], p, l, kind == "decoder")
        torch.testing.assert_close(stream[l + 1], want, rtol=0, atol=1e-12 * float(want.abs().max()))


@pytest.mark.parametrize("name", DESIGNS)
def test_contract(name):
    """`check_design` holds for every named design, as decoder, encoder and encoder-decoder."""
    check_design(name)


@pytest.mark.parametrize("name", ["sas", "sas-p", "shaped"])
def test_simplified_blocks_at_the_start(name):
    """At initialisation SAS = SAS-P = N + b_FF MLP(N), N = RMSNorm(X): shaped attention is the identity there.

    (With W_V = W_O = I; the shaped block's orthogonal W_V W_O stands in front.)
    """
    model = Transformer(design(name, depth=2, d_model=D, heads=H, vocab=9, eps=1e-15), dtype=torch.float64)
    stream = [X[0].detach() for X in model.streams(torch.arange(T)[None])]
    for l, layer in enumerate(model.layers):
        N = stream[l] / stream[l].square().mean(-1, keepdim=True).sqrt()
        if name == "shaped":
            N = N @ (layer.attn.W_V @ layer.attn.W_O)
        want = N + layer.spec.mlp.branch * relu_mlp(N, {"mlp.W_1": layer.mlp.W_1, "mlp.W_2": layer.mlp.W_2})
        torch.testing.assert_close(stream[l + 1], want.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["u-spa-no-norm", "e-spa-no-norm"])
def test_spa_stacks_carry_their_kernel(name):
    """An attention-only stack turns Sigma_0 = I into its last target : X_L X_L^T = Sigma_L (orthogonal W_V W_O)."""
    config = design(
        name, depth=DEPTH, d_model=2 * T, heads=1, vocab=2 * T, mlp=False, positions="none", embed_scale=1.0
    )
    model = Transformer(config, dtype=torch.float64)
    with torch.no_grad():
        model.embed.W_E.copy_(torch.eye(2 * T))
    X = model.streams(torch.arange(T)[None])[-1][0].detach()
    family = name.removesuffix("-no-norm")
    want = kernel(family, strengths(family, config.blocks[0].mixing.bias.final)[-1])
    torch.testing.assert_close(X @ X.T, want, rtol=0, atol=1e-12)


def test_rezero_is_the_identity_at_the_start():
    """ReZero: every block is the identity at initialisation, and one scalar serves both branches."""
    model = Transformer(design="rezero", depth=2, d_model=D, heads=H, vocab=9, dtype=torch.float64)
    stream = model.streams(torch.arange(T)[None])
    assert torch.equal(stream[0], stream[2])
    assert [n for n, _ in model.layers[0].named_parameters() if "branch" in n] == ["attn_branch"]


def test_alpha_comb():
    """A parallel block with alpha_comb: out = alpha_comb X + MHA(N) + MLP(N), alpha_comb learned from its start."""
    model = moved(design("parallel", depth=1, d_model=D, heads=H, vocab=9, alpha_comb=0.25, eps=EPS))
    before, after = (X[0].detach() for X in model.streams(torch.arange(T)[None]))
    p = {n.removeprefix("layers.0."): t.detach() for n, t in model.named_parameters()}
    want = parallel(before, p, 0, True) + (p["attn_skip"] - 1) * before
    torch.testing.assert_close(after, want, rtol=0, atol=1e-12)
    assert Transformer(design("parallel", alpha_comb=0.25)).layers[0].attn_skip.item() == 0.25
