"""T5: relative positions, head widths and scales as settings of any model; Hugging Face's weights, logits and texts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quadform.core.errors import InputError
from quadform.core.spec import BlockSpec, ModelConfig, count_parameters, design
from quadform.integrations import from_hf
from quadform.nn import Search, Transformer, generate
from quadform.nn.relative import bucket_numbers
from quadform.propagation.profile import predict
from quadform.testing import check_design

transformers = pytest.importorskip("transformers")
T5 = transformers.models.t5.modeling_t5

VOCAB, TOKENS = 23, 7
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def t5(**more):
    sizes = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 2}
    sizes |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, **more}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCAB, **sizes))


def untied(**more):
    """As T5 1.1 has it: an output matrix of its own, no scale of the logits, a gate."""
    model = t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, **more)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, 16))
    return model


def two_embeddings():
    model = t5()
    model.encoder.embed_tokens = torch.nn.Embedding(VOCAB, 16)
    return model


MODELS = {
    "T5": t5,
    "T5 1.1": untied,
    "T5, d_kv = d_model / heads, gated SiLU, usual buckets": lambda: t5(
        d_kv=8, feed_forward_proj="gated-silu", relative_attention_num_buckets=32, relative_attention_max_distance=128
    ),
    "T5, another embedding of the source": two_embeddings,
}


@pytest.fixture(autouse=True)
def _double_all_through(monkeypatch):
    """Hugging Face's T5 has the mean square of its norms in float32; here in its own type."""

    def norm(self, X):
        return torch.nn.functional.rms_norm(X, self.weight.shape, self.weight, self.variance_epsilon)

    monkeypatch.setattr(T5.T5LayerNorm, "forward", norm)


def moved(make, dtype=torch.float64, seed=0):
    """A model away from its start, in evaluation; by 0.3 the scores, which nothing divides, cost float32 2e-5 alone."""
    torch.manual_seed(seed)
    model = make().to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model


def batch(seed=1, tokens=TOKENS):
    random = torch.Generator().manual_seed(seed)
    source, target = torch.randint(3, VOCAB, (2, 3, tokens), generator=random)
    places = torch.arange(tokens)
    return source, places < torch.tensor([[tokens], [4], [1]]), target, places < torch.tensor([[3], [tokens], [2]])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_logits_are_equal(name, dtype, side):
    """Logits of every real token, with padding of source and target on either side."""
    theirs = moved(MODELS[name], dtype)
    source, source_mask, target, mask = batch()
    if side == "left":
        source_mask, mask = source_mask.flip(1), mask.flip(1)
    given = {"attention_mask": source_mask.long(), "decoder_attention_mask": mask.long()}
    want = theirs(input_ids=source, decoder_input_ids=target, **given).logits
    got = from_hf(theirs)(target, mask, source=source, source_mask=source_mask)
    assert (got - want)[mask].abs().max() < TOLERANCE[dtype] * want[mask].abs().max()


@given(seed=st.integers(0, 10**6), heads=st.integers(1, 3), width=st.integers(1, 9), far=st.integers(5, 40))
@settings(max_examples=10, deadline=None)
@torch.no_grad()
def test_drawn_models(seed, heads, width, far):
    """Heads, widths and distances of any kind, texts longer than the largest distance."""
    made = {"num_heads": heads, "d_kv": width, "relative_attention_max_distance": far}
    theirs = moved(lambda: t5(**made), seed=seed)
    source, _, target, _ = batch(seed, tokens=45)
    want = theirs(input_ids=source, decoder_input_ids=target).logits
    got = from_hf(theirs)(target, source=source)
    assert (got - want).abs().max() < 1e-12 * want.abs().max()


@given(sides=st.integers(2, 40), far=st.integers(42, 400), causal=st.booleans())
@settings(max_examples=40, deadline=None)
def test_buckets(sides, far, causal):
    """The bucket of every distance is that of Hugging Face's T5, at the edges too, where float32 decides."""
    buckets = 2 * sides
    apart = torch.arange(-far, far + 1)
    want = T5.T5Attention._relative_position_bucket(apart, not causal, buckets, far)
    assert torch.equal(bucket_numbers(buckets, far, causal, torch.device("cpu")), want)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_whole(name, tmp_path):
    """Parameters as promised, the same after saving and loading, gradients everywhere, special tokens taken over."""
    ours = from_hf(moved(MODELS[name]))
    source, _, target, _ = batch()
    assert count_parameters(ours.config) == sum(p.numel() for p in ours.parameters())
    assert (ours.config.pad, ours.config.bos, ours.config.eos) == (0, 0, 1)
    assert ModelConfig.from_toml(ours.config.to_toml()) == ours.config
    assert torch.equal(Transformer.load(ours.save(tmp_path))(target, source=source), ours(target, source=source))
    ours.loss({"source": source, "target": target}).backward()
    assert [n for n, p in ours.named_parameters() if p.grad is None or not bool(p.grad.abs().sum())] == []


@pytest.mark.parametrize("name", ["T5", "T5 1.1"])
@pytest.mark.parametrize("seed", [0, 1])
@torch.no_grad()
def test_decoding_is_theirs(name, seed):
    """Greedy search writes what Hugging Face's `generate` writes, from every cache, in a padded batch."""
    theirs = moved(lambda: MODELS[name](num_decoder_layers=2), seed=seed)  # their cache has as many as the encoder
    ours = from_hf(theirs)
    source, mask, _, _ = batch()
    asked = {"max_new_tokens": 12, "do_sample": False, "decoder_start_token_id": 0}
    ids = theirs.generate(source, attention_mask=mask.long(), **asked)[:, 1:].tolist()
    want = [row[: row.index(1)] if 1 in row else row for row in ids]
    rows = [s[m].tolist() for s, m in zip(source, mask, strict=True)]
    for cache in ("kv", "static", "none"):
        found = generate(ours, rows, Search(max_length=12, cache=cache))
        assert [list(best.tokens) for (best,) in found] == want
        assert any(want)


@torch.no_grad()
def test_a_step_is_a_row():
    """Cached and static steps give the log-probabilities of the whole pass, beyond the largest distance too."""
    ours = from_hf(moved(t5, seed=3), eos=None)
    rows = batch()[0].tolist()
    plain = generate(ours, rows, Search(beam=3, max_length=40, cache="none"))
    for cache in ("kv", "static"):
        found = generate(ours, rows, Search(beam=3, max_length=40, cache=cache))
        assert [[h.tokens for h in best] for best in found] == [[h.tokens for h in best] for best in plain]
        for one, other in zip(found, plain, strict=True):
            assert one[0].log_prob == pytest.approx(other[0].log_prob, rel=1e-11)


RELATIVE = {"positions": "relative", "buckets": 8, "max_distance": 6}


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "shaped"])
def test_any_design_may_have_them(name, kind):
    """The contract of a design holds with relative positions, another scale of scores and of logits, other widths."""
    width = {} if name == "sas-p" else {"d_k": 3}
    scales = {"attn_scale": 0.7, "logit_scale": 0.25}
    config = design(name, kind=kind, depth=2, d_model=16, heads=4, vocab=13, **RELATIVE, **width, **scales)
    check_design(config, depth=4)


def test_second_derivative():
    """The Hessian product of the loss along the table: forward over reverse equals a difference of gradients."""
    model = from_hf(moved(t5))
    source, _, target, _ = batch()
    params = {n: p.detach() for n, p in model.named_parameters()}

    def loss(W):
        weights = params | {"relative.W_R": W}
        return torch.func.functional_call(model, weights, (target,), {"source": source}).square().mean()

    W, V = params["relative.W_R"], torch.randn_like(params["relative.W_R"])
    gradient = torch.func.grad(loss)
    _, product = torch.func.jvp(gradient, (W,), (V,))
    h = 1e-4
    want = (gradient(W + h * V) - gradient(W - h * V)) / (2 * h)
    assert (product - want).abs().max() < 1e-6 * want.abs().max()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: design("pre-ln", buckets=8), "buckets belongs to relative positions; these are learned"),
        (lambda: design("pre-ln", positions="relative", buckets=1), "at least 2 buckets; got 1"),
        (
            lambda: design("pre-ln", kind="encoder", positions="relative", buckets=7),
            "each side, 2 or more; got buckets = 7",
        ),
        (lambda: design("pre-ln", positions="relative", max_distance=16), "first 16 distances have a bucket each"),
        (lambda: design("pre-ln", linear=True, positions="relative"), "this block has no softmax"),
        (lambda: design("e-spa", positions="relative"), "this block has an SPA bias"),
        (lambda: design("sas", d_k=3), "without W_V or W_O the heads are the columns of X"),
        (lambda: design("pre-ln", d_k=0), "d_k is a whole number of at least 1; got 0"),
        (lambda: design("pre-ln", attn_scale=0.0), "attn_scale is above 0 and finite; got 0.0"),
        (lambda: design("pre-ln", logit_scale=float("inf")), "logit_scale is above 0 and finite; got inf"),
        (lambda: from_hf(t5(feed_forward_proj="gated-relu")), "'relu' is not supported; supported: gelu_new"),
        (lambda: from_hf(t5().encoder), "weights of T5Stack are not supported"),
        (lambda: from_hf(t5(is_decoder=True)), "is_decoder = True"),
    ],
)
def test_refusals(make, text):
    with pytest.raises(InputError, match=text):
        make()


@pytest.mark.parametrize(
    "settings", [RELATIVE, {"attn_scale": 1.0}, {"d_k": 24}, {"d_k": 24, "init": "normal", "init_std": 0.1}]
)
def test_the_mean_field_knows_scale_and_width(settings):
    """The predicted cosine is the measured one of a wide model, with other scores and other head widths."""
    config = design(BlockSpec(norm="rms"), depth=2, d_model=384, heads=16, vocab=8, kind="encoder", **settings)
    model = Transformer(config, dtype=torch.float64)
    X = torch.randn(1, 6, 384, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = X + X.mean(1, keepdim=True)
    Sigma_0 = X[0] @ X[0].mT / 384
    frame = model._frame(torch.zeros(1, 6, dtype=torch.long), None, False)
    for layer in model.layers:
        X = layer(X, frame)
    Sigma = X[0] @ X[0].mT / 384
    want = predict(config, Sigma_0=Sigma_0, keep=True).tensors["kernels"][-1]
    assert (Sigma - want).norm() < 0.15 * want.norm()
