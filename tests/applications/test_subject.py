"""MODEL and its probe: every kind opens, every refusal says what to do, nothing reaches for a network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import quadform as qf
from quadform.applications.opening import Opening
from quadform.applications.spectrum.question import SpectrumQuestion
from quadform.applications.subject import open_subject, parse_data, parse_new, weights_hash
from quadform.cli.main import main
from quadform.core.errors import FileError, InputError, UnknownName
from quadform.core.question import seconds_of
from quadform.corpora import dataset
from quadform.nn.transformer import Transformer
from quadform.train import TrainConfig, train


def test_new() -> None:
    """`new:sas-p,depth=2,d_model=16` with `add:digits=2`: the design, the data's vocabulary, the batches asked."""
    s = open_subject(
        Opening(model="new:sas-p,depth=2,d_model=16,heads=2", data="add:digits=2", batch_size=3, batches=2)
    )
    assert (s.model.config.design, s.model.config.depth, s.model.config.d_model) == ("sas-p", 2, 16)
    assert [len(b["tokens"]) for b in s.batches] == [3, 3]
    assert torch.isfinite(s.risk(quiet=True).value())
    again = open_subject(Opening(model="new:sas-p,depth=2,d_model=16,heads=2", data="add:digits=2", batch_size=3))
    assert again.source["weights"] == s.source["weights"]


def test_run_and_saved_model(tmp_path: Path) -> None:
    """A run folder gives its weights, data and step; a folder written by `Transformer.save` its weights."""
    data = dataset("add", digits=2)
    model = Transformer("pre-ln", depth=1, d_model=16, heads=2, **data.settings)
    train(model, data, TrainConfig(steps=3, batch_size=4), out=tmp_path / "run", progress=False)
    s = open_subject(Opening(model=str(tmp_path / "run")))
    assert s.step == 3
    assert s.source["data"]["digits"] == 2
    assert weights_hash(s.model) == weights_hash(model)
    model.save(tmp_path / "saved")
    assert weights_hash(open_subject(Opening(model=str(tmp_path / "saved"), data="add:digits=2")).model) == (
        weights_hash(model)
    )
    with pytest.raises(InputError, match=r"has 9 positions, the data Addition needs 12\. Name the data it was trained"):
        open_subject(Opening(model=str(tmp_path / "saved"), data="add:digits=3"))


def test_hugging_face_folder(tmp_path: Path) -> None:
    """A local folder without tokenizer: random tokens, said so; labels give a loss; weights in the dtype asked."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    s = open_subject(Opening(model=str(tmp_path), dtype="float64", batch_size=2, length=8))
    assert s.batches[0]["input_ids"].shape == (2, 8)
    assert "random tokens" in s.notes[0]
    risk = s.risk(quiet=True)
    assert risk.dtype == torch.float64
    assert torch.isfinite(risk.value())


def test_a_part_of_a_stored_matrix_is_said_to_be_one(tmp_path: Path) -> None:
    """GPT-2 stores queries, keys and values in one matrix: who asks for the queries is told that all are measured."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=8)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    question = Opening(model=str(tmp_path), length=4, batch_size=1)
    told = "64 parameters were asked for, parts of matrices that are stored with others: the whole 192 are measured"
    for params, count in (("*.W_Q", 1), ("*.W_Q,*.W_K,*.W_V", 0), ("*.c_attn.weight", 0)):
        risk = open_subject(question).risk(SpectrumQuestion(params=params), quiet=True)
        assert sum(note.startswith(told) for note in risk.notes) == count


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_weights_in_halves_are_analysed_in_float32(stored: str, tmp_path: Path, capsys) -> None:
    """A folder of halves, a Hugging Face one and one of ours: opened, every number in float32, and one line says so."""
    transformers = pytest.importorskip("transformers")
    kind = getattr(torch, stored)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=8)
    transformers.GPT2LMHeadModel(config).to(kind).save_pretrained(tmp_path / "hf")
    ours = Transformer("pre-ln", depth=1, d_model=8, heads=2, seed=0, **dataset("add", digits=1).settings)
    ours.to(kind).save(tmp_path / "ours")
    told = f"stored in {stored}, analysed in float32"
    for name, more in (("hf", ["--length", "4"]), ("ours", ["--data", "add:digits=1"])):
        found = open_subject(Opening(model=str(tmp_path / name), data=more[-1] if name == "ours" else "auto"))
        assert {t.dtype for t in found.model.state_dict().values() if t.is_floating_point()} == {torch.float32}
        for verb in (["spectrum", "--top", "1"], ["lr", "--verify", "0", "--batches", "1"], ["signal"]):
            out = ["--out", str(tmp_path / f"{name}-{verb[0]}"), "--quiet"]
            assert main([verb[0], str(tmp_path / name), *verb[1:], *more, *out]) == 0
            assert capsys.readouterr().out.count(told) == 1


def test_pickles_are_refused(tmp_path: Path) -> None:
    """A folder with `pytorch_model.bin` alone is not opened unless trusted; a bare pickle has no model to go with."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(FileError, match="could run code"):
        open_subject(Opening(model=str(tmp_path)))
    with pytest.raises(FileError, match="could run code"):
        open_subject(Opening(model=str(tmp_path / "pytorch_model.bin")))


@pytest.mark.parametrize(
    ("question", "error", "text"),
    [
        ({"model": "new:paralel"}, UnknownName, "parallel"),
        ({"model": "new:pre-ln,depth"}, InputError, "not a setting"),
        ({"model": "new:pre-ln,dept=3"}, UnknownName, "depth"),
        ({"model": "new:pre-ln", "data": "ad"}, UnknownName, "`add`"),
        ({"model": "new:pre-ln,vocab=7", "data": "add"}, InputError, "vocab"),
        ({"model": "gpt2-nowhere"}, FileError, "allow_download"),
        ({"model": "no/such/folder"}, FileError, "no model at"),
        ({"model": "new:pre-ln", "device": "cuda:9"}, InputError, "device"),
    ],
)
def test_refusals(question: dict[str, str], error: type[Exception], text: str) -> None:
    """What cannot be opened says what can."""
    with pytest.raises(error, match=text):
        open_subject(Opening(**question))


def test_empty_folder(tmp_path: Path) -> None:
    """A folder without a model names the three kinds of folder that hold one."""
    with pytest.raises(FileError, match="holds no model"):
        open_subject(Opening(model=str(tmp_path)))


def test_words() -> None:
    """Settings are JSON values or texts; lengths of time have units."""
    assert parse_new("new:u-spa,depth=3,positions=rotary") == ("u-spa", {"depth": 3, "positions": "rotary"})
    assert parse_data("add:digits=3,reverse=true") == ("add", {"digits": 3, "reverse": True})
    assert [seconds_of(t) for t in ("90s", "1.5m", "2h", "7")] == [90, 90, 7200, 7]
    for bad in ("", "ten", "0", "5d", "-3s"):
        with pytest.raises(InputError, match="length of time"):
            seconds_of(bad)
    for field in ("batch_size", "batches", "length"):
        with pytest.raises(InputError, match="at least 1"):
            Opening(model="new:pre-ln", **{field: 0})


@pytest.mark.parametrize("name", ["Bert", "Electra", "DistilBert"])
def test_a_tokenizer_made_up_from_the_config_is_none(name: str, tmp_path: Path) -> None:
    """Without vocabulary files transformers makes a tokenizer that knows no word; a probe of one token is no probe."""
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 30, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    small |= {"intermediate_size": 4, "embedding_size": 4, "dim": 4, "n_layers": 1, "n_heads": 1, "hidden_dim": 4}
    model = getattr(transformers, f"{name}ForMaskedLM")(getattr(transformers, f"{name}Config")(**small))
    model.save_pretrained(tmp_path)
    subject = open_subject(Opening(model=str(tmp_path), batch_size=4, length=16))
    assert subject.notes == ["this folder has no tokenizer: the probe is random tokens"]
    assert subject.batches[0]["labels"].unique().numel() > 4
    with pytest.raises(InputError, match="has no tokenizer to read"):
        open_subject(Opening(model=str(tmp_path), data=__file__))


def test_an_encoder_decoder_has_its_input_as_its_target(tmp_path: Path) -> None:
    """The loss of a T5 folder is its own, with the tokens as labels, and the answer says so."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=30, d_model=4, d_kv=4, d_ff=4, num_layers=1, num_heads=1, decoder_start_token_id=0
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    subject = open_subject(Opening(model=str(tmp_path), batch_size=2, length=4))
    assert "encoder-decoder: its target is its own input" in subject.notes
    batch = subject.batches[0]
    logits = subject.model(**batch).logits
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["input_ids"].flatten())
    assert torch.allclose(subject.risk(quiet=True).value(), wanted)


def test_a_model_without_tokens_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4, image_size=4, patch_size=4
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="takes no tokens"):
        open_subject(Opening(model=str(tmp_path)))


def test_text_that_is_none(tmp_path: Path) -> None:
    """A probe file that is not UTF-8 is told."""
    data, run = dataset("pystdlib", seq_len=8), tmp_path / "run"
    model = Transformer("pre-ln", depth=1, d_model=8, heads=1, **data.settings)
    train(model, data, TrainConfig(steps=1, batch_size=1), out=run, progress=False)
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe" * 500)
    with pytest.raises(FileError, match="cannot be read as UTF-8 text"):
        open_subject(Opening(model=str(run), data=str(tmp_path / "bad.txt")))


def test_a_length_that_nothing_follows_is_refused(tmp_path: Path) -> None:
    """Sums have their own length, and so have the data of a run; running text takes the one asked for."""
    for data in ("add:digits=1", "reverse"):
        with pytest.raises(InputError, match=r"length=77: the sequences of .* have their own lengths"):
            open_subject(Opening(model="new:pre-ln,depth=1,d_model=8", data=data, length=77))
    qf.fit("add:digits=1", out=tmp_path / "run", depth=1, d_model=8, heads=1, steps=2, progress=False)
    with pytest.raises(InputError, match="length=5: the sequences of the model's own data"):
        open_subject(Opening(model=str(tmp_path / "run"), length=5))
