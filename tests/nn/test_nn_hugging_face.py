"""Hugging Face weights in our modules: equal logits on random tiny models; what has no counterpart is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

transformers = pytest.importorskip("transformers")

from quadform.core.errors import InputError  # noqa: E402
from quadform.core.spec import count_parameters  # noqa: E402
from quadform.integrations import from_hf  # noqa: E402
from quadform.nn import Search, Transformer, generate  # noqa: E402

VOCAB, TOKENS = 23, 7
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def gpt2(**more):
    more = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, **more}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL, **more))


def llama(**more):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 24, "max_position_embeddings": 16, **more}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **sizes))


def bert(**more):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, **more}
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, max_position_embeddings=16, **sizes))


SMALL = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "sdpa"}
MODELS = {
    "GPT-2": gpt2,
    "GPT-2, own output, plain GELU": lambda: gpt2(tie_word_embeddings=False, activation_function="gelu", n_inner=24),
    "Llama": llama,
    "Llama, tied, rotary base, biases": lambda: llama(
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 500.0}, attention_bias=True
    ),
    "Llama, one key head, MLP biases": lambda: llama(num_key_value_heads=1, mlp_bias=True, rms_norm_eps=1e-3),
    "BERT": bert,
    "BERT, tanh-GELU, own output": lambda: bert(hidden_act="gelu_new", tie_word_embeddings=False, layer_norm_eps=1e-3),
}


def moved(make, dtype, seed=0):
    """A model away from its start (biases and norms too), in evaluation, all of its steps in its own precision."""
    torch.manual_seed(seed)
    model = make().to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    return model


@pytest.fixture(autouse=True)
def _double_all_through(monkeypatch):
    """Hugging Face's Llama has RMSNorm and rotations in float32 (and an eager softmax); here in its own type."""
    module = transformers.models.llama.modeling_llama

    def norm(self, X):
        return torch.nn.functional.rms_norm(X, self.weight.shape, self.weight, self.variance_epsilon)

    def rotary(self, x, position_ids):
        base, width = self.config.rope_parameters["rope_theta"], self.config.head_dim
        rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        turns = (position_ids[..., None] * rates).repeat(1, 1, 2)
        return turns.cos().to(x.dtype), turns.sin().to(x.dtype)

    monkeypatch.setattr(module.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(module.LlamaRotaryEmbedding, "forward", rotary)


def batch(side="right", seed=1):
    tokens = torch.randint(3, VOCAB, (3, TOKENS), generator=torch.Generator().manual_seed(seed))
    lengths = torch.tensor([[TOKENS], [4], [1]])
    mask = torch.arange(TOKENS) < lengths
    return tokens, mask if side == "right" else mask.flip(1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_logits_are_equal(name, dtype, side):
    """Logits of every real token, with padding on either side and without any."""
    theirs = moved(MODELS[name], dtype)
    ours = from_hf(theirs)
    tokens, mask = batch(side)
    places = (mask.cumsum(1) - 1).clamp_min(0)
    want = theirs(input_ids=tokens, attention_mask=mask.long(), position_ids=places).logits
    got = ours(tokens, mask)
    scale = want[mask].abs().max()
    assert (got - want)[mask].abs().max() < TOLERANCE[dtype] * scale
    whole = theirs(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    assert (ours(tokens, torch.ones_like(mask)) - whole).abs().max() < TOLERANCE[dtype] * scale


@given(seed=st.integers(0, 10**6), heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 4)]), base=st.floats(2, 1e6))
@settings(max_examples=15, deadline=None)
@torch.no_grad()
def test_drawn_llamas(seed, heads, base):
    """Heads, key heads and rotary bases of any kind."""
    rope = {"rope_type": "default", "rope_theta": base}
    made = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "rope_parameters": rope}
    theirs = moved(lambda: llama(**made), torch.float64, seed)
    tokens, mask = batch(seed=seed)
    want = theirs(input_ids=tokens, attention_mask=mask.long()).logits[mask]
    assert (from_hf(theirs)(tokens, mask)[mask] - want).abs().max() < 1e-12 * want.abs().max()


@pytest.mark.parametrize("name", MODELS)
def test_models_are_whole(name, tmp_path):
    """Parameters as promised, the same after saving and loading, gradients everywhere, special tokens taken over."""
    ours = from_hf(moved(MODELS[name], torch.float64))
    assert count_parameters(ours.config) == sum(p.numel() for p in ours.parameters())
    tokens, mask = batch()
    assert torch.equal(Transformer.load(ours.save(tmp_path))(tokens, mask), ours(tokens, mask))
    assert (ours.config.bos, ours.config.eos) == (1, 2)
    labels = {"labels": tokens} if ours.config.kind == "encoder" else {}
    ours.loss({"tokens": tokens, **labels}).backward()
    unused = [n for n, p in ours.named_parameters() if p.grad is None or not bool(p.grad.abs().sum())]
    assert unused == []


@pytest.mark.parametrize("name", ["GPT-2", "Llama, tied, rotary base, biases"])
@torch.no_grad()
def test_decoding_is_theirs(name):
    """Greedy search writes what Hugging Face's `generate` writes, from a cache too."""
    theirs = moved(MODELS[name], torch.float64)
    prompt = batch()[0][:1, :3]
    ids = theirs.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, 3:].tolist()
    want = ids[: ids.index(2)] if 2 in ids else ids
    for cache in ("kv", "none"):
        ((found,),) = generate(from_hf(theirs), prompt.tolist(), Search(max_length=8, cache=cache))
        assert list(found.tokens) == want


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: gpt2(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx = True"),
        (lambda: gpt2(activation_function="silu"), "the activation 'silu' is not supported"),
        (lambda: gpt2(add_cross_attention=True), "add_cross_attention = True"),
        (lambda: llama(head_dim=8), "head_dim = 8"),
        (lambda: llama(hidden_act="relu"), "the activation 'relu' is not supported; supported: silu, gelu"),
        (lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), "rope_parameters"),
        (lambda: bert(is_decoder=True), "is_decoder = True"),
        (lambda: gpt2().transformer, "weights of GPT2Model are not supported; supported: GPT2LMHeadModel, Llama"),
    ],
)
def test_refusals(make, text):
    """A setting that changes the numbers and has no counterpart, or a class that is not known, is told by its name."""
    with pytest.raises(InputError, match=text):
        from_hf(make())


def test_weights_without_a_place():
    """A weight that nothing here stands for is told by its name."""
    model = gpt2()
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"without a counterpart in quadform: extra\.bias, extra\.weight"):
        from_hf(model)
