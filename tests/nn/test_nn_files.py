"""Models and tokenizers on disk, weights from torch.nn, and check_design seeing what is broken."""

import json
import os
import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quadform.core.errors import CheckFailed, FileError, InputError
from quadform.core.spec import design
from quadform.nn import ByteTokenizer, CharTokenizer, PieceTokenizer, Search, Transformer, from_torch, generate
from quadform.nn import attention as attention_module
from quadform.nn import frame as frame_module
from quadform.nn.tokens import BOS, EOS, MASK, PAD, SPECIALS, UNK, load_tokenizer, save_tokenizer
from quadform.testing import check_design

SMALL = {"depth": 2, "d_model": 8, "heads": 2, "vocab": 9}


# ------------------------------------------------------------------------------------------------------------- models
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_save_and_load(tmp_path, dtype):
    """The loaded model has the same description, dtype, weights and logits, bit for bit; no pickle is involved."""
    model = Transformer(design="sas", seed=3, dtype=dtype, **SMALL)
    again = Transformer.load(model.save(tmp_path / "m"))
    tokens = torch.arange(6)[None]
    assert again.config == model.config
    assert torch.equal(again(tokens), model(tokens))
    assert again(tokens).dtype == dtype
    assert sorted(p.suffix for p in (tmp_path / "m").iterdir()) == [".json", ".safetensors"]


def test_saving_again_replaces_the_old_weights(tmp_path):
    """One weights file is left, and it is the new one's."""
    Transformer(design="pre-ln", seed=0, **SMALL).save(tmp_path)
    second = Transformer(design="pre-ln", seed=1, **SMALL)
    second.save(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert torch.equal(Transformer.load(tmp_path).embed.W_E, second.embed.W_E)


@pytest.mark.parametrize("crash_at", [0, 1])
def test_a_crash_while_saving_leaves_the_old_model(tmp_path, monkeypatch, crash_at):
    """Whichever of the two writes fails, the model saved before still loads."""
    first = Transformer(design="pre-ln", seed=0, **SMALL)
    first.save(tmp_path)
    real, calls = os.replace, []

    def replace(*args):
        calls.append(args)
        if len(calls) > crash_at:
            raise OSError("disk full")
        real(*args)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk full"):
        Transformer(design="pre-ln", seed=1, **SMALL).save(tmp_path)
    monkeypatch.undo()
    assert torch.equal(Transformer.load(tmp_path).embed.W_E, first.embed.W_E)


def damage_nothing_there(folder):
    for path in folder.iterdir():
        path.unlink()


def damage_truncated_json(folder):
    path = folder / "model.json"
    path.write_text(path.read_text()[:100])


def damage_truncated_weights(folder):
    (path,) = folder.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-10])


def damage_missing_weights(folder):
    next(folder.glob("*.safetensors")).unlink()


def damage_json(change):
    def damage(folder):
        path = folder / "model.json"
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))

    return damage


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (damage_nothing_there, "there is no model"),
        (damage_truncated_json, "not a complete quadform model"),
        (damage_truncated_weights, "damaged or truncated"),
        (damage_missing_weights, "is missing"),
        (damage_json(lambda b: b.update(format="other")), "does not describe a quadform model"),
        (damage_json(lambda b: b.update(schema=99)), "newer quadform"),
        (damage_json(lambda b: b["weights"].update(file="../x.safetensors")), "outside its folder"),
        (damage_json(lambda b: b["config"].update(d_ff=48)), "not a complete quadform model"),
        (damage_json(lambda b: b["config"].update(norms="x")), "no setting 'norms'"),
        (damage_json(lambda b: b.pop("config")), "not a complete quadform model"),
    ],
)
def test_damaged_models_are_refused(tmp_path, damage, text):
    """Missing, truncated, foreign, newer or inconsistent files give a FileError that says which."""
    Transformer(design="pre-ln", **SMALL).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(FileError) as caught:
        Transformer.load(tmp_path)
    assert text in str(caught.value)


# -------------------------------------------------------------------------------------------------- torch.nn weights
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
def test_torch_transformer_weights_give_equal_logits(norm_first, activation, bias):
    """nn.Transformer between an embedding and a linear layer = our model with its weights, padding included."""
    theirs = nn.Transformer(
        16,
        4,
        2,
        3,
        32,
        dropout=0.0,
        activation=activation,
        norm_first=norm_first,
        batch_first=True,
        bias=bias,
        dtype=torch.float64,
    ).eval()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.5)
    W_E, W_S = torch.randn(7, 16, dtype=torch.float64), torch.randn(9, 16, dtype=torch.float64)
    output = nn.Linear(16, 7, dtype=torch.float64)
    source, target = torch.randint(0, 9, (2, 5)), torch.randint(0, 7, (2, 6))
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    want = theirs(
        W_S[source],
        W_E[target],
        tgt_mask=torch.ones(6, 6).triu(1).bool(),
        src_key_padding_mask=~real,
        memory_key_padding_mask=~real,
    )
    ours = from_torch(theirs, W_E, output, source_embedding=W_S)
    torch.testing.assert_close(ours(target, source=source, source_mask=real), output(want), rtol=0, atol=1e-12)
    tied = from_torch(theirs, W_E, source_embedding=W_S, bos=1, eos=2)
    torch.testing.assert_close(tied(target, source=source, source_mask=real), want @ W_E.T, rtol=0, atol=1e-12)
    assert len(generate(tied, [[3, 4]], Search(beam=2, max_length=4))) == 1


@pytest.mark.parametrize("activation", [nn.GELU(), torch.nn.functional.gelu, "relu"])
def test_every_torch_layer_keeps_its_activation(activation):
    """torch's copied decoder layers fall back to ReLU where the activation is a module: so do ours, layer by layer."""
    theirs = nn.Transformer(8, 2, 2, 2, 16, 0.0, activation, batch_first=True, dtype=torch.float64).eval()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.5)
    W_E, source, target = (
        torch.randn(7, 8, dtype=torch.float64),
        torch.randint(0, 7, (2, 5)),
        torch.randint(0, 7, (2, 6)),
    )
    want = theirs(W_E[source], W_E[target], tgt_mask=torch.ones(6, 6).triu(1).bool()) @ W_E.T
    torch.testing.assert_close(from_torch(theirs, W_E)(target, source=source), want, rtol=0, atol=1e-12)


def test_torch_norms_of_another_kind_are_refused():
    """One eps for all norms, all of them LayerNorm: anything else would silently be another function."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, layer_norm_eps=1e-3)
    for last in (nn.LayerNorm(8), nn.RMSNorm(8, eps=1e-3)):
        with pytest.raises(InputError, match="one eps"):
            from_torch(nn.TransformerEncoder(layer, 1, last, enable_nested_tensor=False), torch.randn(5, 8))


def test_torch_encoder_weights():
    """nn.TransformerEncoder without a final norm becomes an encoder; other activations are refused."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    W_E, tokens = torch.randn(5, 8, dtype=torch.float64), torch.randint(0, 5, (2, 4))
    torch.testing.assert_close(from_torch(theirs, W_E)(tokens), theirs(W_E[tokens]) @ W_E.T, rtol=0, atol=1e-12)
    odd = nn.TransformerEncoderLayer(8, 2, 16, activation=nn.SiLU(), batch_first=True)
    odd = nn.TransformerEncoder(odd, 1, enable_nested_tensor=False)
    with pytest.raises(InputError, match="silu"):
        from_torch(odd, W_E)
    with pytest.raises(InputError, match="got Linear"):
        from_torch(nn.Linear(2, 2), torch.randn(5, 8))


# --------------------------------------------------------------------------------------------------------- tokenizers
SAMPLES = ["hello", "안녕하세요 세계", "Grüße, café ☃ 𝔘", "a  b\n\tc", "<eos> <pad>", ""]


@given(text=st.text(max_size=40))
def test_bytes_round_trip(text):
    """decode(encode(text)) = NFC(text), special ids excluded from text."""
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)
    assert all(MASK < i < tokenizer.size for i in tokenizer.encode(text))


def test_characters():
    """Known characters round-trip, others become UNK; jamo and syllables are the same text."""
    tokenizer = CharTokenizer.of(["한글 abc"])
    assert tokenizer.decode([BOS, *tokenizer.encode("글 한a"), EOS, PAD]) == "글 한a"
    assert tokenizer.encode(unicodedata.normalize("NFD", "한글")) == tokenizer.encode("한글")
    assert tokenizer.encode("z") == [UNK]
    assert tokenizer.size == len(SPECIALS) + 6


def test_pieces_round_trip(tmp_path):
    """Byte-level pieces round-trip every text, Hangul in either normal form, and never produce a special id."""
    pytest.importorskip("tokenizers")
    tokenizer = PieceTokenizer.train(["hello world, hello there", "안녕하세요 세계"] * 20, 300)
    assert 261 < tokenizer.size <= 300
    for text in SAMPLES:
        ids = tokenizer.encode(text)
        assert tokenizer.decode([BOS, *ids, EOS, PAD]) == text
        assert all(MASK < i < tokenizer.size for i in ids)
    assert tokenizer.encode(unicodedata.normalize("NFD", "한")) == tokenizer.encode("한")
    assert len(tokenizer.encode("hello")) < 5
    with pytest.raises(InputError, match="at least 261"):
        PieceTokenizer.train(["x"], 100)


def test_tokenizer_files(tmp_path):
    """Every tokenizer is loaded as it was saved; foreign files are refused."""
    pytest.importorskip("tokenizers")
    for tokenizer in (ByteTokenizer(), CharTokenizer("añ한"), PieceTokenizer.train(["aa ab"] * 9, 270)):
        again = load_tokenizer(save_tokenizer(tokenizer, tmp_path / "t.json"))
        assert type(again) is type(tokenizer)
        assert again.size == tokenizer.size
        assert again.encode("añ한 aa") == tokenizer.encode("añ한 aa")
    (tmp_path / "t.json").write_text('{"format": "other"}')
    with pytest.raises(FileError, match="is not a tokenizer"):
        load_tokenizer(tmp_path / "t.json")
    with pytest.raises(FileError, match="cannot be read"):
        load_tokenizer(tmp_path / "nothing.json")


# -------------------------------------------------------------------------------------- check_design sees what breaks
def broken(monkeypatch, owner, name, make):
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, make(real))


BREAKS = {
    "no token sees a later one": (
        attention_module,
        "attend",
        lambda real: lambda q, k, v, *, causal=False, **kw: real(q, k, v, causal=False, **kw),
    ),
    "padding changes nothing": (
        attention_module,
        "running_mean",
        lambda real: lambda V, mask, causal: real(V, None, causal),
    ),
    "attention = its matrix times values": (
        attention_module,
        "running_mean",
        lambda real: lambda V, mask, causal: 1.001 * real(V, mask, causal),
    ),
    "decoding from a kv cache = full pass": (
        frame_module.LayerCache,
        "running_total",
        lambda real: lambda self, v: v,
    ),
    "decoding from a x cache = full pass": (
        attention_module.Attention,
        "_from_x_cache",
        lambda real: lambda self, N, frame, cache: 1.001 * real(self, N, frame, cache),
    ),
    "shaped attention is the identity at the start": (
        attention_module.Attention,
        "queries",
        lambda real: lambda self, N: real(self, N) + 0.1 * N.unflatten(-1, (self.heads, -1)).transpose(-2, -3),
    ),
    "save and load": (
        Transformer,
        "state_dict",
        lambda real: lambda self, *a, **k: {n: t + 1 if t.ndim == 0 else t for n, t in real(self, *a, **k).items()},
    ),
    "parameters are as promised": (
        Transformer,
        "named_parameters",
        lambda real: lambda self, *a, **k: list(real(self, *a, **k))[1:],
    ),
}


@pytest.mark.parametrize("wanted", BREAKS)
def test_check_design_names_what_is_broken(monkeypatch, wanted):
    """A fault planted in each part of the contract makes check_design fail, naming that part."""
    broken(monkeypatch, *BREAKS[wanted])
    with pytest.raises(CheckFailed) as caught:
        check_design("sas", depth=3)
    failed = [line for line in str(caught.value).splitlines() if line.startswith("FAILED")]
    assert any(wanted in line for line in failed), failed


def test_check_design_sees_reordering_and_kernels(monkeypatch):
    """A cache that forgets to reorder, and an SPA bias of the wrong layer, are found."""
    with monkeypatch.context() as patch:
        patch.setattr(frame_module.LayerCache, "select", lambda self, rows: None)
        with pytest.raises(CheckFailed, match="FAILED decoder: decoding from a kv cache"):
            check_design("pre-ln", depth=3)
    real = attention_module.spa_bias
    monkeypatch.setattr(attention_module, "spa_bias", lambda f, p, n, *rest: real(f, p, 0.5 * n, *rest))
    with pytest.raises(CheckFailed, match="FAILED decoder: kernels are carried exactly"):
        check_design("e-spa", depth=3)


def test_check_design_sees_exploding_gradients():
    """Unit skips without norms at depth 300 overflow single precision; the check says so, whatever name the model
    still carries."""
    config = design("pre-ln", norm="none", depth=3, d_model=16, heads=4, vocab=13)
    with pytest.raises(CheckFailed, match=r"FAILED gradients finite at depth 300: \d+ tensors have none"):
        check_design(config, depth=300)


def test_check_design_of_a_model_of_few_positions():
    """Learned positions for two tokens break no contract: the design is checked with room for its tokens."""
    assert all(f.ok for f in check_design(design("pre-ln", depth=1, d_model=8, heads=2, vocab=5, seq_len=2), depth=2))
