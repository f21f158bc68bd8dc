"""Every output names the data it used; text fields of tables are found or asked for."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import quadform as qf
from quadform.applications.opening import Opening
from quadform.applications.probes import encoded
from quadform.applications.subject import open_subject
from quadform.cli.main import main
from quadform.core.errors import FileError, InputError, TooLarge, UnknownName
from quadform.core.record import Record
from quadform.corpora.text_files import read_text_file
from quadform.report.page import page_of
from quadform.report.texts import EN, KO

TEXTS = ["the loss is curved", 'a model of a curved loss,\nwith "quotes"', "주어진 글"]
WHOLE = "\n".join(TEXTS)


def table(folder: Path, suffix: str, rows: list[dict]) -> str:
    path = folder / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(r) for r in rows) + "\n\n", encoding="utf-8")
    elif suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        with open(path, "w", newline="", encoding="utf-8-sig") as f:
            writer = csv.DictWriter(f, list(rows[0]), delimiter="\t" if suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv"])
def test_the_text_field_is_found_or_asked_for(suffix, tmp_path):
    """A usual name among others, the only field with words, or the one that is named; never the raw file."""
    rows = [{"id": str(i), "title": "head", "text": t} for i, t in enumerate(TEXTS)]
    usual = table(tmp_path, suffix, rows)
    found = read_text_file(usual)
    assert found.text == WHOLE
    assert "field `text` of 3 rows" in found.described
    assert read_text_file(f"{usual}:title").text == "head\nhead\nhead"
    with pytest.raises(UnknownName, match=r"has no field `txt`; it has id, title, text.*Did you mean `text`"):
        read_text_file(f"{usual}:txt")
    alone = table(tmp_path, suffix, [{"id": str(i), "remark": t} for i, t in enumerate(TEXTS)])
    assert read_text_file(alone).text == WHOLE
    several = table(tmp_path, suffix, [{"question": "why", "answer": t} for t in TEXTS])
    with pytest.raises(InputError, match=r"several fields with text: question, answer. Name one: `.*:question`"):
        read_text_file(several)
    numbers = table(tmp_path, suffix, [{"a": "1", "b": "2.5"}])
    with pytest.raises(InputError, match="no field with text in it; it has a, b"):
        read_text_file(numbers)


def test_plain_text_stays_plain(tmp_path):
    """Other files are read as they are; a table that is none is told by its line."""
    path = tmp_path / "notes.txt"
    path.write_text('{"text": "a"}\n', encoding="utf-8")
    assert read_text_file(str(path)).text == '{"text": "a"}\n'
    with pytest.raises(InputError, match="is not a table, so it has no field `text`"):
        read_text_file(f"{path}:text")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\nnot json\n')
    with pytest.raises(FileError, match="line 2 is not JSON"):
        read_text_file(str(tmp_path / "bad.jsonl"))
    with pytest.raises(FileError, match="no such text file"):
        read_text_file(str(tmp_path / "nothing.csv"))
    with pytest.raises(FileError, match="no such text file"):
        read_text_file("x" * 5000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small GPT-2 with a tokenizer of bytes."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    path = tmp_path_factory.mktemp("gpt")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tok).save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=256, n_positions=8)
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


SMALL = ["--batch-size", "2", "--length", "8", "--quiet"]
VERBS = {
    "lr": ["--batches", "1", "--verify", "0", "--short-run", "0"],
    "spectrum": ["--top", "1", "--blocks", "none"],
    "signal": [],
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_library_is_named_where_no_data_was(verb, folder, tmp_path, capsys):
    """Without data the loss is that of Python's standard library: terminal, record and report say so."""
    out = tmp_path / verb
    assert main([verb, str(folder), *SMALL, *VERBS[verb], "--out", str(out)]) == 0
    assert "data: source of Python's standard library, as no data was named" in capsys.readouterr().out
    record = Record.load(out)
    for texts in (EN, KO) if verb != "signal" else (EN,):  # notes of its curves stay on the English page
        shown = " ".join(f"{row.value} {row.note}" for row in page_of(record).rows(record, texts))
        assert texts("data_library") in shown


@pytest.mark.parametrize("verb", VERBS)
def test_the_file_and_its_field_are_named(verb, folder, tmp_path, capsys):
    path = table(tmp_path, ".jsonl", [{"id": i, "content": t * 9} for i, t in enumerate(TEXTS)])
    out = tmp_path / verb
    assert main([verb, str(folder), *SMALL, *VERBS[verb], "--data", path, "--out", str(out)]) == 0
    told = f"{path}, field `content` of 3 rows"
    assert f"data: {told}" in capsys.readouterr().out
    record = Record.load(out)
    assert told in " ".join(f"{row.value} {row.note}" for row in page_of(record).rows(record, EN))


def test_the_probe_is_the_text_of_the_field(folder, tmp_path):
    """Tokens of the field alone: no braces, no names of fields."""
    path = table(tmp_path, ".csv", [{"n": i, "text": t} for i, t in enumerate(TEXTS)])
    batch = open_subject(Opening(model=str(folder), data=path, batch_size=2, length=8)).batches[0]["input_ids"]
    assert batch.shape == (2, 8)
    _, tok = qf.integrations.hf.load(folder)
    assert tok.decode(batch.flatten()) == WHOLE[:16]


@pytest.mark.parametrize("tokenizer", [True, False])
@pytest.mark.parametrize(("size", "what"), [({"batch_size": 10**11}, "1 x 100,"), ({"batches": 10**11}, "100,.* x 8")])
def test_a_probe_is_held_against_memory(tokenizer, size, what, folder, tmp_path):
    """Of text or of random tokens: before the model is run on any of it."""
    if not tokenizer:
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).symlink_to(folder / name)
        folder = tmp_path
    with pytest.raises(TooLarge, match=rf"a probe of {what}.* sequences needs \S+ TB"):
        open_subject(Opening(model=str(folder), length=8, **size))


def test_a_long_text_is_read_as_far_as_it_is_needed():
    """The first tokens are those of the whole text, at any cut; and not the whole text is encoded."""
    text, read = "".join("abc "[i % 4] * (1 + i % 7) for i in range(5000)), []

    def words(t: str) -> list[int]:
        read.append(len(t))
        return [len(word) for word in t.split()]

    for needed in (1, 7, 300):
        got, whole = encoded(words, text, needed), words(text)
        assert len(got) > needed
        assert got[:needed] == whole[:needed]
    assert min(read) < len(text) / 4
    assert encoded(words, "a bc", 9) == [1, 2]


def test_a_text_that_is_short_is_told(folder, tmp_path):
    """9 tokens are two sequences of 4 where 2 x 3 were asked for."""
    path = tmp_path / "short.txt"
    path.write_text("curvature")
    ask = Opening(model=str(folder), data=str(path), batch_size=2, batches=3, length=4)
    found = open_subject(ask)
    assert [b["input_ids"].shape for b in found.batches] == [(2, 4)]
    assert found.notes == ["the text has 2 sequences of 4 tokens; 6 were asked for"]
    assert not open_subject(replace(ask, batches=1)).notes


def test_data_of_our_own_models_is_named(tmp_path, capsys):
    """A data set with its settings and split, in `lr`, `spectrum`, `why` and `compare`."""
    tiny = ["new:pre-ln,depth=1,d_model=4,heads=2", "--data", "add:digits=1", "--batch-size", "4", "--quiet"]
    for verb, more in (VERBS | {"why": ["--remove", "norm"]}).items():
        assert main([verb, *tiny, *more, "--out", str(tmp_path / verb)]) == 0
        assert "data: Addition (digits 1), valid split" in capsys.readouterr().out, verb
    flags = ["--designs", "pre-ln", "--depths", "1", "--d-model", "4", "--heads", "2", "--batch-size", "4"]
    assert main(["compare", *flags, "--data", "add:digits=1", "--budget", "0.2s", "--quiet"]) == 0
    assert "Addition (digits 1)" in capsys.readouterr().out


def test_python_says_that_the_batches_were_given():
    data = qf.datasets.addition(digits=1)
    model = qf.Transformer("pre-ln", depth=1, d_model=4, heads=2, **data.settings)
    found = qf.lr(model, [next(data.batches("train", 4, 0))], optimizer="sgd", verify=0, progress=False)
    assert "data: the batches given" in str(found)
