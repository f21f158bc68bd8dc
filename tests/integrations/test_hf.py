"""Hugging Face folders without a hub: loading, probes, names, attention."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

import quadform as qf
from quadform.core.errors import FileError, InputError
from quadform.integrations import hf

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """A small GPT-2 with a word tokenizer, as `save_pretrained` leaves it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("gpt")
    words = {w: i for i, w in enumerate(["<pad>", "<unk>", "the", "loss", "of", "a", "model", "is", "curved"])}
    tok = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, unk_token="<unk>", pad_token="<pad>")
    fast.save_pretrained(path)
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=9, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("something reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_folder_becomes_a_spectrum_without_a_network(folder: Path, no_network: None) -> None:
    """load -> probe -> spectrum, as in the documentation; coverage says that c_attn was split."""
    model, tok = hf.load(folder)
    assert not model.training
    batch = qf.probe(tok, ["the loss of a model is curved", "a model"], length=6)
    s = qf.spectrum(model, batch, top=1, density=False, blocks="qkv", probes=2, route="eager", progress=False)
    assert "c_attn split into query/key/value" in s.coverage
    assert s.blocks("h.0", "query", "value").value > 0


def test_loading_loads_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe is made, no weights are hashed, the model is not run."""

    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("more than loading")

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", never)
    monkeypatch.setattr("quadform.corpora.running.library_files", never)
    monkeypatch.setattr("quadform.applications.subject.tensors_hash", never)
    model, tok = hf.load(folder, dtype="float64")
    assert next(model.parameters()).dtype == torch.float64
    assert tok("the loss")["input_ids"] == [2, 3]


def test_probe_hides_what_is_filled_up(folder: Path) -> None:
    """Rows are cut at `length`; padding has mask 0 and label -100, and does not change the loss."""
    model, tok = hf.load(folder, dtype="float64")
    batch = hf.probe(tok, ["the loss of a model is curved", "a model is"], length=5)
    assert batch["input_ids"].shape == (2, 5)
    assert batch["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert batch["labels"][1].tolist() == [5, 6, 7, -100, -100]
    alone = hf.probe(tok, ["a model is"], length=5)
    short = {n: t[1:] for n, t in batch.items()}
    with torch.no_grad():
        assert float(model(**short).loss) == pytest.approx(float(model(**alone).loss), rel=1e-6)


def test_one_text_is_cut_into_rows(folder: Path) -> None:
    """Consecutive rows of `length` tokens, in batches of so many."""
    _, tok = hf.load(folder)
    text = "the loss of a model is curved " * 3
    batches = hf.probe(tok, text, length=4, batch=2)
    assert [tuple(b["input_ids"].shape) for b in batches] == [(2, 4), (2, 4), (1, 4)]
    assert torch.cat([b["input_ids"] for b in batches]).flatten().tolist() == tok(text)["input_ids"][:20]


def test_names_of_the_paper(folder: Path) -> None:
    """W_Q, W_K, W_V inside c_attn, and their heads."""
    model, _ = hf.load(folder)
    found = hf.names(model)
    assert found["transformer.h.0.attn.W_Q"] == ("transformer.h.0.attn.c_attn.weight", (8, 8))
    assert found["transformer.h.0.attn.W_V[1]"] == ("transformer.h.0.attn.c_attn.weight", (8, 4))
    ours = hf.names(qf.Transformer("pre-ln", depth=1, d_model=8, heads=2, vocab=5, seed=0))
    assert ours["layers.0.attn.W_K"] == ("layers.0.attn.W_K", (8, 8))


def test_attention_inside_the_scope_has_a_second_derivative(folder: Path) -> None:
    """Double backward through the switched model equals that of the eager one; the switch is undone."""
    model, tok = hf.load(folder, dtype="float64")
    batch = hf.probe(tok, "the loss of a model is curved " * 2, length=7)
    p = model.transformer.h[0].attn.c_attn.weight

    def twice() -> torch.Tensor:
        (g,) = torch.autograd.grad(model(**batch).loss, p, create_graph=True)
        return torch.autograd.grad(g.square().sum(), p)[0]

    before = model.config._attn_implementation
    with hf.second_order(model):
        got = twice()
    assert model.config._attn_implementation == before
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = twice()
    assert float((got - want).norm() / want.norm()) <= 1e-5  # transformers takes the loss in float32
    with (
        pytest.raises(InputError, match="no attention that transformers can switch"),
        hf.second_order(torch.nn.ReLU()),
    ):
        pass


def test_bad_input_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    """No folder, too little text, nothing to predict, quantised weights."""
    _, tok = hf.load(folder)
    with pytest.raises(FileError, match=r"no config\.json"):
        hf.load(tmp_path)
    with pytest.raises(InputError, match="has 2 tokens, but one row needs 5"):
        hf.probe(tok, "a model", length=5)
    with pytest.raises(InputError, match="none of the texts"):
        hf.probe(tok, ["a"], length=5)
    with pytest.raises(InputError, match="at least 2"):
        hf.probe(tok, "a model", length=1)
    with pytest.raises(InputError, match="at least one row"):
        hf.probe(tok, ["a model"], length=4, batch=0)
    quantised = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(quantised | {"quantization_config": {"load_in_4bit": True}}))
    with pytest.raises(InputError, match="4-bit weights cannot be differentiated twice"):
        hf.load(tmp_path)
