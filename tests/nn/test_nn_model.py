"""What a Transformer computes, part by part, against formulas written here."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call, grad, jvp, vmap

from quadform.core.errors import InputError
from quadform.core.spec import CRAMMED_BERT, BlockSpec, Gain, Projection, count_parameters, design, parameter_shapes
from quadform.kernels import attention
from quadform.nn import ByteTokenizer, CharTokenizer, Transformer
from quadform.nn.transformer import IGNORE, sinusoid
from quadform.testing import check_design

SMALL = {"depth": 2, "d_model": 12, "heads": 3, "vocab": 9}


def moved(*args, scale=0.3, seed=1, **kwargs):
    config = args[0] if args and not isinstance(args[0], str) else design(*args, **{**SMALL, **kwargs})
    model = Transformer(config, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += scale * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


def draw(*shape, vocab=9, seed=3):
    return torch.randint(1, vocab, shape, generator=torch.Generator().manual_seed(seed))


def close(got, want, atol=1e-12):
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


# ----------------------------------------------------------------------------------------------- variants of a design
VARIANTS = {
    "grouped queries": {"kv_heads": 1},
    "rotary": {"positions": "rotary", "heads": 2},
    "sinusoidal": {"positions": "sinusoidal"},
    "no positions": {"positions": "none"},
    "merged": {"merged": True},
    "linear": {"linear": True},
    "linear, merged": {"linear": True, "merged": True},
    "merged, grouped": {"merged": True, "heads": 4, "kv_heads": 2},
    "merged, biased": {"merged": True, "biases": ("v", "o", "mlp")},
    "attention only": {"mlp": False},
    "all biases": {"biases": ("q", "k", "v", "o", "mlp", "out")},
    "untied": {"tied": False, "biases": ("out",)},
    "geglu": {"activation": "geglu"},
    "swiglu": {"activation": "swiglu"},
    "rms": {"norm": "rms"},
    "one head": {"heads": 1},
}


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract_of_variants(variant, kind):
    """Every variant keeps the contract of a design: causal, padding-invariant, cached = full, saved = loaded."""
    check_design(replace(design("pre-ln", kind=kind, **{**SMALL, **VARIANTS[variant]}), design=""), depth=4)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "none"])
@pytest.mark.parametrize("name", ["sas", "sas-p-no-norm", "shaped", "e-spa", "u-spa", "v-skipinit"])
def test_contract_with_other_positions_and_biases(name, positions):
    """Shaped and signal-preserving designs keep it too with other positions, query and key biases."""
    config = design(name, **{**SMALL, "d_model": 16, "heads": 4}, positions=positions, biases=("q", "k"))
    check_design(replace(config, design=""), depth=4)


@pytest.mark.parametrize("variant", [{"kv_heads": 1}, {"merged": True}, {"mlp": False}, {"norm": "layer"}])
@pytest.mark.parametrize("name", ["shaped", "u-spa", "v-skipinit", "no-skip-no-norm"])
def test_contract_of_combined_variants(name, variant):
    """Grouped heads, a merged W_QK, attention alone and another norm combine with every mixing."""
    check_design(replace(design(name, **{**SMALL, **variant}), design=""), depth=4)


def test_contract_without_values_and_softmax():
    """Linear attention without W_V, with query and key biases: the X-cache needs q . b_K (a softmax drops it)."""
    config = design("pre-ln", **SMALL, linear=True, biases=("q", "k"))
    blocks = tuple(replace(b, value=None, proj=None) for b in config.blocks)
    check_design(replace(config, blocks=blocks, design=""), depth=4)


@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "e-spa"])
def test_compiled_loss(name):
    """torch.compile gives the same loss; designs without an SPA table are one graph."""
    model, batch = Transformer(design=name, **SMALL), {"tokens": draw(2, 6)}
    compiled = torch.compile(model.loss, backend="eager", fullgraph=name != "e-spa")
    close(compiled(batch), model.loss(batch), atol=1e-6)


@pytest.mark.parametrize("layout", ["sequential", "parallel"])
def test_weights_of_zero_give_zero(layout):
    """0 X + 0 f(X) = 0: a block whose weights are all fixed at zero gives zeros."""
    nothing = Gain(skip=0.0, branch=0.0)
    config = design("parallel" if layout == "parallel" else "pre-ln", **SMALL, final_norm="none")
    blocks = tuple(replace(b, attn=nothing, mlp=nothing) for b in config.blocks)
    assert Transformer(replace(config, blocks=blocks))(draw(2, 6)).abs().max() == 0


def test_merged_equals_factored():
    """With W_QK[h] = W_Q[h] W_K[h]^T both forms are one function; initialisation sets it so."""
    tokens = draw(2, 6)
    for heads, kv_heads in ((3, 3), (3, 1), (4, 2)):
        size = SMALL | {"heads": heads, "kv_heads": kv_heads}
        two, one = (Transformer(design("pre-ln", **size, merged=m), seed=5, dtype=torch.float64) for m in (False, True))
        close(one(tokens), two(tokens))


def test_grouped_heads_equal_repeated_ones():
    """Grouped-query attention is multi-head attention whose key and value heads are repeated."""
    grouped = moved("pre-ln", kv_heads=1)
    full = moved("pre-ln")
    state = {name: t.repeat(1, 3) if name.endswith(("W_K", "W_V")) else t for name, t in grouped.state_dict().items()}
    full.load_state_dict(state)
    tokens = draw(2, 6)
    close(grouped(tokens), full(tokens))


def test_linear_attention():
    """Linear attention: A = Q K^T / sqrt(d_k), zero where masked, no softmax. Source: [ODS25]."""
    for kind in ("decoder", "encoder"):
        model = moved("pre-ln", kind=kind, linear=True, mlp=False, norm="none", heads=1, d_model=4, depth=1)
        X, Y = (s[0] for s in model.streams(draw(1, 5)))
        W = model.layers[0].attn
        A = (X @ W.W_Q) @ (X @ W.W_K).T / 2
        A = A.tril() if kind == "decoder" else A
        close(Y, X + A @ X @ W.W_V @ W.W_O)


def test_rotary_scores_depend_on_distance_only():
    """Shifting all tokens by padding in front leaves rotary scores alone: q_i . k_j depends on i - j."""
    model = moved("pre-ln", positions="rotary", heads=2, depth=1)
    N = torch.randn(1, 1, 12, dtype=torch.float64).expand(1, 6, 12)  # the same token everywhere
    S = model.layers[0].attn.matrix(N, model._frame(draw(1, 6), None, False))[0, 0].log()
    S = S - S.diagonal()[:, None]  # scores up to a row constant
    for distance in range(1, 6):
        along = S.diagonal(distance)
        close(along, along[0].expand_as(along))
    assert (S - S.mean()).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("relu", lambda z: z.clamp_min(0)),
        ("gelu", lambda z: 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))),
        ("leaky", lambda z: math.sqrt(2) * z.clamp_min(0)),
        ("geglu", lambda z: 0.5 * z[:, :48] * (1 + torch.erf(z[:, :48] / math.sqrt(2))) * z[:, 48:]),
        ("swiglu", lambda z: z[:, :48] / (1 + torch.exp(-z[:, :48])) * z[:, 48:]),
    ],
)
def test_activations(name, act):
    """act(X W_1 + b_1) W_2 + b_2; gated: act(a) b with [a, b] = X W_1 + b_1."""
    mlp = moved("pre-ln", activation=name, biases=("mlp",)).layers[0].mlp
    X = torch.randn(5, 12, dtype=torch.float64)
    close(mlp(X), act(X @ mlp.W_1 + mlp.b_1) @ mlp.W_2 + mlp.b_2)


@given(d=st.integers(1, 9), n=st.integers(1, 40))
def test_sinusoid(d, n):
    """PE[p, 2i] = sin(p / 10000^{2i/d}), PE[p, 2i+1] = cos(p / 10000^{2i/d})."""
    PE = sinusoid(torch.arange(n), d)
    for p in (0, n // 2, n - 1):
        for j in range(d):
            angle = p / 10_000 ** (2 * (j // 2) / d)
            assert PE[p, j].item() == pytest.approx(math.cos(angle) if j % 2 else math.sin(angle), abs=1e-12)


@pytest.mark.parametrize("init", ["normal", "fan-in", "xavier", "orthogonal"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "scaled-sinusoidal"])
def test_positions_do_not_drown_tokens(positions, init):
    """At the start tokens and positions are equally large within a factor of two, whatever the init."""
    size = {"depth": 1, "d_model": 768, "heads": 1, "d_ff": 1, "vocab": 64, "seq_len": 64}
    e = Transformer("pre-ln", **size, positions=positions, init=init).embed
    wave = sinusoid(torch.arange(64), 768)
    place = {"learned": getattr(e, "W_pos", wave), "sinusoidal": wave}.get(positions, getattr(e, "pos_scale", 1) * wave)
    ratio = (e.scale * e.W_E).square().mean().sqrt() / place.square().mean().sqrt()
    assert 0.5 < ratio.item() < 2


def test_scaled_sinusoids_start_as_published():
    """d^{-1/2} beside embeddings of N(0, 0.02^2), as in the code of the crammed BERT."""
    small = dict(CRAMMED_BERT) | {"depth": 1, "vocab": 9, "d_ff": 1}
    assert Transformer("sas", **small).embed.pos_scale.item() == pytest.approx(768**-0.5)


def test_embedding():
    """Stream 0 is norm(embed_scale W_E[token] + pos_scale PE)."""
    model = moved("pre-ln", positions="scaled-sinusoidal", embed_norm="layer", embed_scale=2.5)
    tokens, e = draw(1, 5), model.embed
    want = 2.5 * e.W_E[tokens] + e.pos_scale * sinusoid(torch.arange(5), 12)
    close(model.streams(tokens)[0], F.layer_norm(want, (12,), e.norm.weight, e.norm.bias))


def test_split_projection():
    """W_V = skip W_init + branch dW with a fixed orthogonal W_init that is saved but not trained."""
    config = design("pre-ln", **SMALL)
    split = Projection(init="orthogonal", skip=0.7, branch=0.2, learn=("branch",))
    model = moved(replace(config, blocks=tuple(replace(b, value=split, proj=split) for b in config.blocks)))
    attn = model.layers[0].attn
    close(attn.weight("V"), 0.7 * attn.W_V_init + attn.V_branch * attn.W_V)
    close(attn.W_O_init @ attn.W_O_init.T, torch.eye(12, dtype=torch.float64))
    assert "layers.0.attn.W_V_init" in model.state_dict()
    assert "layers.0.attn.W_V_init" not in dict(model.named_parameters())
    assert dict(model.named_parameters()).keys() == parameter_shapes(model.config).keys()


# -------------------------------------------------------------------------------------------------------------- losses
def test_causal_loss():
    """-log p of each next token, averaged; padding carries none; smoothing mixes in the uniform distribution."""
    model = moved("pre-ln", pad=0)
    tokens = draw(2, 6)
    tokens[1, 4:] = 0
    logs = model(tokens[:, :-1]).log_softmax(-1)
    picked = logs.gather(-1, tokens[:, 1:, None])[..., 0]
    real = tokens[:, 1:] != 0
    close(model.loss({"tokens": tokens}), -picked[real].mean())
    smooth = -(0.9 * picked + 0.1 * logs.mean(-1))[real].mean()
    close(model.loss({"tokens": tokens}, smoothing=0.1), smooth)
    each = model.loss({"tokens": tokens}, reduction="none")
    assert each.shape == (2, 5)
    close(each[real], -picked[real])


def test_causal_loss_with_a_mask():
    """Without a pad token a mask says the same: left-padded and right-padded rows lose what they lose alone."""
    model = moved("pre-ln")
    tokens = draw(2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]]).bool()
    loss = model.loss({"tokens": tokens, "mask": mask}, reduction="sum")
    alone = [model.loss({"tokens": t[m][None]}, reduction="sum") for t, m in zip(tokens, mask, strict=True)]
    close(loss, sum(alone))


def test_sequence_to_sequence_loss():
    """-log p(target | source), and neither side's padding moves it."""
    model = moved("pre-ln", kind="encoder-decoder", pad=0)
    source, target = draw(2, 5), draw(2, 6, seed=4)
    source[1, 3:] = 0
    target[1, 4:] = 0
    loss = model.loss({"source": source, "target": target}, reduction="sum")
    single = sum(
        model.loss({"source": s[s != 0][None], "target": t[t != 0][None]}, reduction="sum")
        for s, t in zip(source, target, strict=True)
    )
    close(loss, single)


def test_masked_loss_and_classifier():
    """An encoder's loss counts labelled positions only; a classifier reads the mean over real tokens."""
    model = moved("pre-ln", kind="encoder", pad=0)
    tokens, labels = draw(2, 6), torch.full((2, 6), IGNORE)
    labels[0, 2], labels[1, 4] = 3, 5
    logs = model(tokens).log_softmax(-1)
    close(model.loss({"tokens": tokens, "labels": labels}), -(logs[0, 2, 3] + logs[1, 4, 5]) / 2)
    with pytest.raises(InputError, match="needs `labels`"):
        model.loss({"tokens": tokens})
    classifier = moved("pre-ln", kind="encoder", pad=0, classes=3)
    padded = torch.cat((tokens, torch.zeros(2, 2, dtype=torch.long)), 1)
    close(classifier(padded), classifier(tokens))
    assert classifier(tokens).shape == (2, 3)
    want = F.cross_entropy(classifier(tokens), torch.tensor([0, 2]))
    close(classifier.loss({"tokens": tokens, "labels": torch.tensor([0, 2])}), want)
    with pytest.raises(InputError, match="needs `labels`"):
        moved("pre-ln", classes=3).loss({"tokens": tokens})


def test_separate_and_shared_vocabularies():
    """A shared vocabulary has one embedding; separate ones have two, and the target side is tied to the output."""
    shared = Transformer(design="post-ln", kind="encoder-decoder", **SMALL)
    separate = Transformer(design="post-ln", kind="encoder-decoder", source_vocab=20, **SMALL)
    assert not hasattr(shared, "source_embed")
    assert separate.source_embed.W_E.shape == (20, 12)
    assert separate(draw(2, 4), source=draw(2, 5, vocab=20)).shape == (2, 4, 9)
    assert count_parameters(separate.config) == sum(p.numel() for p in separate.parameters())


# -------------------------------------------------------------------------------------------------- initial values
def test_ways_to_build():
    """A config, a design name, and a design with settings give the same model; torch's default dtype is respected."""
    settings = {"depth": 2, "d_model": 12, "heads": 3, "vocab": 9}
    models = [
        Transformer(design("sas", **settings), seed=4),
        Transformer("sas", seed=4, **settings),
        Transformer(design="sas", seed=4, **settings),
    ]
    states = [m.state_dict() for m in models]
    assert all(torch.equal(states[0][n], s[n]) for s in states[1:] for n in states[0])
    assert models[0].embed.W_E.dtype == torch.get_default_dtype()
    single, double = (Transformer("sas", seed=4, dtype=t, **settings) for t in (torch.float32, torch.float64))
    assert all(torch.equal(p, q.float()) for p, q in zip(single.parameters(), double.parameters(), strict=True))


def test_an_own_block_is_a_design():
    """`Transformer(design=BlockSpec())` is the model of that block: Pre-LN, by another name."""
    settings = {"depth": 2, "d_model": 12, "heads": 3, "vocab": 9}
    wanted = Transformer("pre-ln", **settings).state_dict()
    for model in (Transformer(design=BlockSpec(), **settings), Transformer(BlockSpec(), **settings)):
        assert all(torch.equal(t, wanted[name]) for name, t in model.state_dict().items())
    with pytest.raises(InputError, match="a name or a BlockSpec; got int"):
        Transformer(design=3)


def test_models_are_printed_readably():
    """The tree of modules begins with what the model is, and every part says its sizes; caches print no tensors."""
    model = Transformer("sas", depth=24, d_model=12, heads=3, vocab=9, kind="encoder-decoder")
    text = repr(model)
    count = sum(p.numel() for p in model.parameters())
    assert f"sas encoder-decoder, 24 + 24 blocks, d 12, 3 heads, {count:,} parameters" in text
    assert "MLP(12 -> 48, relu)" in text
    assert "Embedding(vocab=9, d=12, positions=learned)" in text
    memory = model.encode(torch.ones(3, 40, dtype=torch.long), torch.ones(3, 40, dtype=torch.bool))
    assert repr(memory) == "Memory(X (3, 40, 12) torch.float32, masked)"
    frame = model._frame(torch.ones(3, 40, dtype=torch.long), torch.ones(3, 40, dtype=torch.bool), causal=True)
    assert repr(frame) == "Frame(40 tokens from 0, causal, mask)"
    assert repr(model.caches(7)[0]) == "LayerCache(kv, 0 of 7 tokens, 0 bytes)"
    assert [repr(t) for t in (ByteTokenizer(), CharTokenizer("ab"))] == ["ByteTokenizer()", "CharTokenizer('ab')"]
    assert repr(CharTokenizer("".join(map(chr, range(0xAC00, 0xD7A4))))).endswith("... 11,172 characters)")


def test_seeds():
    """One seed, one model; every tensor has its own stream, so depth does not move the layers before."""
    a, b = (Transformer(design="sas", depth=n, d_model=12, heads=3, vocab=9, seed=7).state_dict() for n in (2, 3))
    same = [n for n in a if torch.equal(a[n], b[n])]
    assert [n for n in a if n not in same] == [n for n in a if n.endswith("mlp_branch")]  # b_FF depends on depth
    c = Transformer(design="sas", depth=2, d_model=12, heads=3, vocab=9, seed=8)
    assert not torch.equal(c.embed.W_E, a["embed.W_E"])


@pytest.mark.parametrize(
    ("init", "std"),
    [("normal", (0.02, 0.02)), ("fan-in", (64**-0.5, 256**-0.5)), ("xavier", ((2 / 320) ** 0.5, (2 / 320) ** 0.5))],
)
def test_initial_scales(init, std):
    """N(0, 0.02^2); N(0, 1/fan_in); Glorot: standard deviations of W_1 (64, 256) and W_2 (256, 64)."""
    mlp = Transformer(design="pre-ln", depth=1, init=init).layers[0].mlp
    assert mlp.W_1.std().item() == pytest.approx(std[0], rel=0.03)
    assert mlp.W_2.std().item() == pytest.approx(std[1], rel=0.03)


@given(rows=st.integers(1, 6), columns=st.integers(1, 6))
def test_orthogonal(rows, columns):
    """W^T W or W W^T is the identity times max(out/in, 1): X W keeps the second moment."""
    from quadform.nn.init import orthogonal

    W = orthogonal((rows, columns), torch.Generator().manual_seed(rows + 10 * columns))
    G = W.T @ W if rows >= columns else W @ W.T
    close(G, max(columns / rows, 1.0) * torch.eye(len(G), dtype=torch.float64))


def test_deepnorm_start():
    """DeepNorm: W_V, W_O, W_1 and W_2 start (8L)^{1/4} times smaller than the same draws; W_Q and W_K do not."""
    deep = Transformer(design="deepnorm", depth=2, dtype=torch.float64).layers[1]
    plain = Transformer(design="post-ln", depth=2, init="xavier", dtype=torch.float64).layers[1]
    for name in ("attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O", "mlp.W_1", "mlp.W_2"):
        ratio = 1.0 if name in ("attn.W_Q", "attn.W_K") else 16**0.25
        close(ratio * deep.get_parameter(name), plain.get_parameter(name))


def test_embedding_start():
    """Tokens and learned positions enter the stream at the same size: 0.02 for init "normal", 1 otherwise."""
    for init, size in (("normal", 0.02), ("fan-in", 1.0)):
        embed = Transformer(design="pre-ln", vocab=2000, init=init, depth=1).embed
        assert (embed.scale * embed.W_E).std().item() == pytest.approx(size, rel=0.02)
        assert embed.W_pos.std().item() == pytest.approx(size, rel=0.02)


def test_zero_queries_and_biases():
    """W_Q = 0 and all biases 0 where the design says so."""
    attn = Transformer(design="sas", depth=2, biases=("q", "k")).layers[1].attn
    for t in (attn.W_Q, attn.b_Q, attn.b_K):
        assert not t.any()
    assert attn.W_K.any()


# ----------------------------------------------------------------------------------------------------- derivatives
@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "e-spa", "parallel"])
@pytest.mark.parametrize("padded", [False, True])
def test_second_derivatives(name, padded):
    """jvp(grad) = double backward = finite difference of gradients; masks and SPA biases included."""
    model = moved(name, depth=2, activation="gelu")
    batch = {"tokens": draw(2, 6)}
    if padded:
        batch["mask"] = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]]).bool()
    params = {n: p.detach() for n, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    v = {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in params.items()}

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self):
            return self.model.loss(batch)

    def loss(p):
        return functional_call(Loss(), {f"model.{n}": t for n, t in p.items()}, ())

    _, forward = jvp(grad(loss), (params,), (v,))
    model.attend = attention
    leaves = [p.clone().requires_grad_() for p in params.values()]
    g = torch.autograd.grad(loss(dict(zip(params, leaves, strict=True))), leaves, create_graph=True)
    double = torch.autograd.grad(sum((a * b).sum() for a, b in zip(g, v.values(), strict=True)), leaves)
    step = 1e-5
    plus, minus = (grad(loss)({n: p + s * v[n] for n, p in params.items()}) for s in (step, -step))
    for n, twice in zip(params, double, strict=True):
        close(forward[n], twice, atol=1e-10)
        close(forward[n], (plus[n] - minus[n]) / (2 * step), atol=1e-5 * max(1.0, float(twice.abs().max())))


@pytest.mark.parametrize("name", ["pre-ln", "shaped", "u-spa"])
@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_many_tangents_at_once(name, kind):
    """vmap(jvp(grad)) over k tangents equals k single products, padding included."""
    model, tokens = moved(name, kind=kind, pad=0), draw(2, 6)
    tokens[1, 4:] = 0
    sides = {"source": tokens} if kind == "encoder-decoder" else {}
    params = {n: p.detach() for n, p in model.named_parameters()}

    def f(p):
        return functional_call(model, p, (tokens,), sides).square().mean()

    V = {n: torch.randn(3, *p.shape, dtype=p.dtype) for n, p in params.items()}
    many = vmap(lambda v: jvp(grad(f), (params,), (v,))[1])(V)
    for i in range(3):
        one = jvp(grad(f), (params,), ({n: v[i] for n, v in V.items()},))[1]
        for n in params:
            close(many[n][i], one[n], atol=1e-10 * max(1.0, float(one[n].abs().max())))


def test_first_order_kernel_equals_the_second_order_one():
    """The fused path and `quadform.kernels.attention` give the same logits and gradients."""
    for name in ("pre-ln", "sas", "u-spa"):
        model, tokens = moved(name), draw(2, 6)
        results = []
        for kernel in (model.attend, attention):
            model.attend = kernel
            model.zero_grad()
            loss = model.loss({"tokens": tokens})
            loss.backward()
            results.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        for a, b in zip(*results, strict=True):
            close(a, b)


# ---------------------------------------------------------------------------------------------------------- behaviour
def test_dropout_is_off_in_evaluation():
    """Dropout acts in training mode only, and needs no seed to be switched off."""
    model = Transformer(design="pre-ln", **SMALL, dropout=0.5)
    tokens = draw(2, 6)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m, t: m(t.float()), "whole numbers"),
        (lambda m, t: m(t[0]), "(batch, n)"),
        (lambda m, t: m(t + 5), "not in this vocabulary of 9"),
        (lambda m, t: m(t, torch.ones(2, 3, dtype=torch.bool)), "differ in shape"),
        (lambda m, t: m(t, torch.ones(2, 6)), "boolean"),
        (lambda m, t: m(draw(1, 9)), "learned 8 positions"),
        (lambda m, t: m.encode(t), "no source side"),
        (lambda m, t: Transformer(m.config, depth=3), "not both"),
    ],
)
def test_wrong_inputs(call, text):
    """Wrong shapes, types and lengths are refused with the reason."""
    model = Transformer(design="pre-ln", **SMALL, seq_len=8)
    with pytest.raises(InputError) as caught:
        call(model, draw(2, 6))
    assert text in str(caught.value)


def test_training_reduces_the_loss():
    """A few steps of AdamW on one batch reduce the loss by half, in every family of designs."""
    tokens = draw(8, 12)
    for name in ("pre-ln", "post-ln", "sas-p", "shaped", "e-spa"):
        model = Transformer(design=name, depth=2, d_model=32, heads=4, vocab=9)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = model.loss({"tokens": tokens})
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0], (name, losses[0], losses[-1])
