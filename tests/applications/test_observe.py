"""Watching models by hooks: stacks are found, what is measured is what passes, and nothing of the model is changed."""

import copy

import pytest
import torch
from torch import nn

from quadform.applications.signal.observe import find_stacks, watching
from quadform.applications.signal.profiler import TOKENS, Profiler
from quadform.core.errors import InputError, UnknownName
from quadform.curvature.settings import measured
from quadform.nn import Transformer
from quadform.propagation.collapse import AttentionCollapse, NormRatio, TokenCollapse

torch.set_num_threads(1)
f64 = torch.float64
SMALL = {"depth": 3, "d_model": 16, "heads": 4, "vocab": 20}


def tokens(rows=3, n=7, seed=0, vocab=20):
    return torch.randint(vocab, (rows, n), generator=torch.Generator().manual_seed(seed))


def profiled(model, call, mask=None, blocks=None):
    with measured(model):
        stacks = find_stacks(model, call, blocks)
        profiler = Profiler(stacks)
        profiler.forward(model, call, mask)
    return profiler


class Words(nn.Module):
    """torch's own encoder behind an embedding, tokens first or batch first."""

    def __init__(self, batch_first):
        super().__init__()
        self.embed, self.batch_first = nn.Embedding(20, 16), batch_first
        block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(block, 3, enable_nested_tensor=False)

    def forward(self, ids):
        X = self.embed(ids)
        return self.encoder(X if self.batch_first else X.transpose(0, 1))


@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "u-spa"])
def test_what_is_measured_is_what_passes(name):
    """Every measure after every block equals the same measure of `Transformer.streams`."""
    model, ids = Transformer(name, seed=0, dtype=f64, **SMALL), tokens()
    profile = profiled(model, lambda: model(ids)).profiles[0]
    with torch.no_grad():
        streams = model.streams(ids)
    for l, X in enumerate(streams):
        direct = TokenCollapse(TOKENS)
        direct.update(X)
        for measure in TOKENS:
            assert profile.layers(measure)[l] == direct.result()[measure]
        growth = NormRatio()
        growth.update(X, streams[0])
        assert profile.layers("growth")[l] == growth.result()["growth"]


def test_attention_of_our_blocks():
    """Entropy and sink of every head equal those of the matrix the layer says it uses."""
    model, ids = Transformer("pre-ln", seed=0, dtype=f64, **SMALL), tokens(n=12)
    profile = profiled(model, lambda: model(ids)).profiles[0]
    with torch.no_grad():
        X, frame = model.streams(ids), model._frame(ids, None, True)
        for l, layer in enumerate(model.layers):
            direct = AttentionCollapse(causal=True)
            direct.update(layer.attn.matrix(layer.norm_attn(X[l]), frame))
            for measure in ("entropy", "entropy_share", "sink"):
                for h, e in enumerate(profile.head_layers(measure)[l]):
                    assert e.value == pytest.approx(direct.result()[f"{measure}[{h}]"].value, rel=1e-10)


def test_gradients_of_the_loss():
    """gradient = rms(dL/dX_l) / rms(dL/dX_L), geometric mean over sequences, as autograd gives it; no .grad appears."""
    model, ids = Transformer("pre-ln", seed=0, dtype=f64, **SMALL), tokens()
    with measured(model):
        profiler = Profiler(find_stacks(model, lambda: model(ids)))
        profiler.backward(model, lambda: model.loss({"tokens": ids}))
    assert all(p.grad is None for p in model.parameters())
    frame = model._frame(ids[:, :-1], None, True)
    X = [model.embed(ids[:, :-1], frame)]
    for layer in model.layers:
        X.append(layer(X[-1], frame))
    logits = model.logits(model.final_norm(X[-1]))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    found = torch.autograd.grad(loss, X)
    for l, e in enumerate(profiler.profiles[0].layers("gradient")):
        sizes = found[l].square().sum((1, 2)).sqrt() / found[-1].square().sum((1, 2)).sqrt()
        assert e.value == pytest.approx(float(sizes.log().mean().exp()), rel=1e-10)


def test_random_direction_in_place_of_a_loss():
    """With a generator the gradient starts after the last block as a normal draw: its ratio there is one."""
    model, ids = Transformer("rezero", seed=0, **SMALL), tokens()
    with measured(model):
        profiler = Profiler(find_stacks(model, lambda: model(ids)))
        profiler.backward(model, lambda: model(ids), generator=torch.Generator().manual_seed(0))
    ratios = [e.value for e in profiler.profiles[0].layers("gradient")]
    assert ratios == pytest.approx([1.0] * 4, rel=1e-6)  # ReZero starts as the identity


def test_padding_does_not_count():
    """Measures of a padded batch equal those of its sequences alone, for tokens and for attention."""
    model = Transformer("pre-ln", kind="encoder", seed=0, dtype=f64, pad=0, **SMALL)
    ids = tokens(rows=2, n=9) % 19 + 1
    ids[1, 6:] = 0
    mask = ids != 0
    padded = profiled(model, lambda: model(ids), lambda stack, X: mask).profiles[0]
    alone = Profiler((padded.stack,))
    with measured(model):
        for row in (ids[:1], ids[1:, :6]):
            alone.forward(model, lambda row=row: model(row))
    for measure in TOKENS:
        for a, b in zip(padded.layers(measure), alone.profiles[0].layers(measure), strict=True):
            assert a.value == pytest.approx(b.value, rel=1e-8, abs=1e-12)
    for row_a, row_b in zip(padded.head_layers("sink"), alone.profiles[0].head_layers("sink"), strict=True):
        assert [e.value for e in row_a] == pytest.approx([e.value for e in row_b], rel=1e-8)


@pytest.mark.parametrize("split", [1, 2])
def test_pieces_add_up(split):
    """Batches measured apart and joined give what one pass over all sequences gives; a piece survives a file."""
    model, ids = Transformer("pre-ln", seed=0, dtype=f64, **SMALL), tokens(rows=4)
    whole = profiled(model, lambda: model(ids))
    joined = Profiler(whole.stacks)
    for part in ids.split(split):
        numbers, tensors = profiled(model, lambda part=part: model(part)).state()
        joined.load(numbers, tensors)
    for measure in TOKENS:
        for a, b in zip(joined.profiles[0].layers(measure), whole.profiles[0].layers(measure), strict=True):
            assert (a.value, a.stderr) == pytest.approx((b.value, b.stderr), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(joined.profiles[0].kernels[0].result(), whole.profiles[0].kernels[0].result())


def test_tokens_first_is_the_same_model():
    """A torch encoder with tokens (T, batch, d) gives the profile of its batch-first twin, gradients included."""
    torch.manual_seed(0)
    first, second = Words(True), Words(False)
    second.load_state_dict(first.state_dict())
    ids, found = tokens(), []
    for model in (first, second):
        profiler = profiled(model, lambda model=model: model(ids))
        assert profiler.stacks[0].name == "encoder.layers"
        assert profiler.stacks[0].batch_first == model.batch_first
        with measured(model):
            profiler.backward(model, lambda model=model: model(ids).square().mean())
        found.append(profiler.profiles[0])
    for measure in (*TOKENS, "gradient"):
        for a, b in zip(found[0].layers(measure), found[1].layers(measure), strict=True):
            assert a.value == pytest.approx(b.value, rel=1e-4)
    assert found[0].layers("gradient")[0].value != pytest.approx(1.0, rel=1e-3)
    assert len(found[1].head_layers("sink")[0]) == 4


def test_nothing_of_the_model_is_changed():
    """Modes, weights, gradients, hooks, random state and torch's switches are as before, also after an error."""
    torch.manual_seed(1)
    model, ids = Words(True), tokens()
    model.train()
    model.encoder.layers[1].eval()
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    random, fast = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()

    def fail():
        torch.randn(3)
        raise RuntimeError("in the middle")

    profiled(model, lambda: model(ids))
    with pytest.raises(RuntimeError, match="middle"):
        profiled(model, fail)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_watching_changes_no_output():
    """The output of a model that is watched, attention included, is its output unwatched."""
    ids = tokens()
    for model in (Words(True).eval(), Transformer("sas", seed=0, **SMALL).eval()):
        with torch.no_grad():
            plain = model(ids)
            profiler = Profiler(find_stacks(model, lambda model=model: model(ids)))
            with watching(model, profiler.stacks, profiler, attention=True):
                watched = model(ids)
        torch.testing.assert_close(watched, plain, rtol=1e-5, atol=1e-6)


def test_blocks_by_name():
    """A list of blocks or a pattern may be named; a wrong one is refused with those that exist."""
    model, ids = Transformer("pre-ln", seed=0, **SMALL), tokens()

    def call():
        return model(ids)

    assert find_stacks(model, call, "layers") == (find_stacks(model, call)[0],)
    assert find_stacks(model, call, "layers.[02]")[0].calls == ("layers.0", "layers.2")
    with pytest.raises(UnknownName, match="layers"):
        find_stacks(model, call, "layer")
    with pytest.raises(InputError, match="does not give tokens of the shape"):
        find_stacks(model, call, "embed")
    lone = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(InputError, match="no stack of blocks"):
        find_stacks(lone, lambda: lone(torch.randn(2, 3, 4)))


def test_both_stacks_of_an_encoder_decoder():
    """An encoder-decoder has two stacks; cross-attention does not enter the heads of the decoder."""
    model = Transformer("pre-ln", kind="encoder-decoder", seed=0, **SMALL)
    source, target = tokens(n=9), tokens(n=5, seed=1)
    profiler = profiled(model, lambda: model(target, source=source))
    assert [(s.name, s.depth) for s in profiler.stacks] == [("encoder_layers", 3), ("layers", 3)]
    assert profiler.profiles[1].head_layers("sink")[0][0].note.startswith("3 sequences")
    assert [len(p.kernels[0].result()) for p in profiler.profiles] == [9, 5]


# ------------------------------------------------------------------------------------------------ Hugging Face
@pytest.fixture(scope="module")
def hf():
    return pytest.importorskip("transformers")


def hugging_face(hf, name):
    """A small model with random weights, what it is called with, its stacks (name, depth), and heads."""
    ids = tokens(rows=2, n=11, vocab=40)
    both = {"num_attention_heads": 4, "num_hidden_layers": 3, "hidden_size": 16, "vocab_size": 40}
    wide = {**both, "intermediate_size": 32}
    if name.startswith("gpt2"):
        config = hf.GPT2Config(n_layer=3, n_embd=16, n_head=4, vocab_size=40, bos_token_id=0, eos_token_id=0)
        config._attn_implementation = name.split("-")[1]
        return hf.GPT2LMHeadModel(config), {"input_ids": ids}, [("transformer.h", 3)]
    if name == "llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**wide, num_key_value_heads=2))
        return model, {"input_ids": ids}, [("model.layers", 3)]
    if name == "albert":
        model = hf.AlbertForMaskedLM(hf.AlbertConfig(**wide, embedding_size=8))
        return model, {"input_ids": ids}, [("albert.encoder.albert_layer_groups", 3)]
    if name == "bert":
        mask = torch.ones_like(ids)
        mask[1, 8:] = 0
        return hf.BertForMaskedLM(hf.BertConfig(**wide)), {"input_ids": ids, "attention_mask": mask}, [
            ("bert.encoder.layer", 3)
        ]  # fmt: skip
    config = hf.T5Config(
        num_layers=3, d_model=16, num_heads=4, d_kv=4, d_ff=32, vocab_size=40, decoder_start_token_id=0
    )
    batch = {"input_ids": ids, "labels": ids[:, :5].clone()}
    return hf.T5ForConditionalGeneration(config), batch, [("encoder.block", 3), ("decoder.block", 3)]


@pytest.mark.parametrize("name", ["gpt2-eager", "gpt2-sdpa", "llama", "albert", "bert", "t5"])
def test_hugging_face_models(hf, name):
    """Stacks are found without help; tokens are the model's own hidden states; each block shows its heads."""
    torch.manual_seed(0)
    model, batch, expected = hugging_face(hf, name)
    profiler = profiled(model, lambda: model(**batch))
    assert [(s.name, s.depth) for s in profiler.stacks] == expected
    assert all(len(row) == 4 for p in profiler.profiles for row in p.head_layers("entropy"))
    if name != "t5":
        with torch.no_grad():
            hidden = model.eval()(**batch, output_hidden_states=True).hidden_states
        for l in range(3):  # the last one has the final norm in it
            direct = TokenCollapse(("cosine",))
            direct.update(hidden[l])
            assert profiler.profiles[0].layers("cosine")[l].value == pytest.approx(direct.result()["cosine"].value)


def test_hugging_face_attention(hf):
    """Entropies seen through the fused kernel equal those of the weights the eager path returns, padding left out."""
    torch.manual_seed(0)
    model, batch, _ = hugging_face(hf, "bert")
    for p in model.parameters():
        p.data += 0.2 * torch.randn_like(p)  # attention that is not uniform
    mask = batch["attention_mask"].bool()
    profile = profiled(model, lambda: model(**batch), lambda stack, X: mask).profiles[0]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model.eval()(**batch, output_attentions=True).attentions
    for l, A in enumerate(maps):
        direct = AttentionCollapse()
        direct.update(A, mask[:, None, :, None] & mask[:, None, None, :])
        for h in range(4):
            for measure in ("entropy", "entropy_share", "sink"):
                wanted = direct.result()[f"{measure}[{h}]"]
                assert profile.head_layers(measure)[l][h].value == pytest.approx(wanted.value, rel=1e-4)
