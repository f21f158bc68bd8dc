"""Corpora as data sets: what is read from archives, how it is split, and what batches are made of it."""

from __future__ import annotations

import itertools
import json
import re
import tarfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quadform.core.errors import FileError, InputError, UnknownName
from quadform.corpora import datasets
from quadform.corpora.datasets import Dataset, dataset
from quadform.corpora.fetch import build, fetched
from quadform.corpora.fetch.pairs import aligned, debian, family, read_pairs, split_sentences, typescript, write_pairs
from quadform.corpora.fetch.text import prose, python, read_documents
from quadform.corpora.opened import ParallelText, Ragged, Text, documents, split_of
from quadform.nn.tokens import BOS, EOS, PAD
from quadform.nn.transformer import Transformer
from quadform.train import TrainConfig, open_run, train
from quadform.train.recipes import fit, score_test

WORDS = ("one", "two", "three", "four", "five", "six", "seven")


def rows(count: int = 400) -> list[str]:
    """Lines `group TAB source TAB target`: different sentences of 1 to 7 words."""
    lines = []
    for i in range(count):
        n = 1 + i % 7
        lines.append(f"group {i // 3}\t{' '.join(WORDS[:n])} {i}\t{' '.join(reversed(WORDS[:n])).upper()} {i}")
    return lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("own")
    (base / "pairs.tsv").write_text("\n".join(rows()) + "\n")
    return str(build([base / "pairs.tsv"], base / "packed", held=5).folder)


# --------------------------------------------------------------------------------------------------------------- pairs
def test_splits_tear_no_group_apart(folder):
    """Every pair is in exactly one split, and all pairs of a group are in the same one."""
    data = dataset(folder, pieces=0)
    parts = [set(data.texts(split)) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(data.texts("all")) == 400
    groups = [{int(source.split()[-1]) // 3 for source, _ in part} for part in parts]
    assert not groups[0] & groups[1]
    assert not groups[0] & groups[2]
    assert not groups[1] & groups[2]
    assert all(len(part) > 30 for part in parts)


def test_one_epoch_visits_every_pair_once(folder):
    """16 batches of a 16th of the split each are one epoch: a permutation of it."""
    data = dataset(folder, pieces=0)
    sources, _ = data.tokens("train")
    size = 10
    count = len(sources) // (16 * size)
    epoch = list(itertools.islice(data.batches("train", size), 16 * count))
    seen = [tuple(t for t in row if t != PAD) for batch in epoch for row in batch["source"].tolist()]
    assert len(seen) == len(set(seen)) == 16 * size * count
    more = [
        tuple(t for t in r if t != PAD)
        for b in itertools.islice(data.batches("train", size), 64)
        for r in b["source"].tolist()
    ]
    assert set(more) == {tuple(sources[i]) for i in range(len(sources))}


@given(start=st.integers(0, 70), seed=st.integers(0, 3), size=st.integers(1, 9))
@settings(max_examples=10)
def test_a_stream_is_taken_up_anywhere(folder, start, seed, size):
    """Batch i of a stream that begins at i is batch i of the stream that begins at 0."""
    data = dataset(folder, pieces=0)
    whole = next(itertools.islice(data.batches("train", size, seed), start, None))
    there = next(data.batches("train", size, seed, start))
    assert all(torch.equal(whole[k], there[k]) for k in whole)


def test_batches_hold_equally_many_tokens(folder):
    """The 16 batches of a pool differ by less than two sentences in tokens, and each has sentences of like length."""
    data = dataset(folder, pieces=0)
    pool = list(itertools.islice(data.batches("train", 12), 16))
    tokens = [int((b["source"] != PAD).sum() + (b["target"] != PAD).sum()) for b in pool]
    longest = max(int((b["source"] != PAD).sum(1).max() + (b["target"] != PAD).sum(1).max()) for b in pool)
    assert max(tokens) - min(tokens) < 2 * longest
    assert sum(len(b["source"]) for b in pool) == 16 * 12
    padding = sum(int((b["target"] == PAD).sum()) for b in pool) / sum(b["target"].numel() for b in pool)
    assert padding < 0.1


def test_what_a_batch_looks_like(folder):
    """Source + EOS with its mask; BOS + target + EOS; the texts come back through the tokenizer."""
    data = dataset(folder)
    texts = dict(data.texts("train"))
    batch = next(data.batches("train", 8))
    for source, mask, target in zip(*(batch[k].tolist() for k in ("source", "source_mask", "target")), strict=True):
        length = sum(mask)
        assert mask == [i < length for i in range(len(mask))]
        assert source[length - 1] == EOS
        inner = target[1 : target.index(EOS)]
        assert target[0] == BOS
        assert texts[data.tokenizer.decode(source)] == data.tokenizer.decode(inner)


def test_questions_are_pairs_of_the_split(folder):
    """(source + EOS, target without specials), `count` different ones; more than there are is refused."""
    data = dataset(folder, pieces=0)
    texts = dict(data.texts("valid"))
    asked = data.questions("valid", 20, seed=1)
    assert len({tuple(q) for q, _ in asked}) == 20
    assert all(q[-1] == EOS and texts[data.tokenizer.decode(q)] == data.tokenizer.decode(a) for q, a in asked)
    assert asked != data.questions("valid", 20, seed=2)
    with pytest.raises(InputError, match=r"has \d+ pairs; 5000"):
        data.questions("valid", 5000)


def test_long_pairs_are_left_out_and_kept_in_texts(folder):
    """`longest` bounds the tokens of both sides; `sentences` still has them, so a score is over the whole split."""
    data = dataset(folder, pieces=0, longest=20)
    sources, targets = data.tokens("train")
    assert int(sources.lengths.max()) <= 21
    assert int(targets.lengths.max()) <= 22
    assert len(sources) < len(data.texts("train")) == len(data.sentences("train"))


def test_a_run_folder_opens_its_data_again(folder):
    """to_dict and from_dict are inverse; other contents under the same name are refused."""
    data = dataset(folder, pieces=300)
    assert isinstance(data, ParallelText)
    assert Dataset.from_dict(json.loads(json.dumps(data.to_dict()))) == data
    with pytest.raises(FileError, match="other contents"):
        Dataset.from_dict(data.to_dict() | {"digest": "0" * 16}).texts("train")


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=8), st.data())
def test_ragged_rows_are_padded_lists(lists, data):
    """rows(i_1, i_2, ...) are the lists i_1, i_2, ... with PAD up to the longest of them."""
    ragged = Ragged.of(lists)
    chosen = data.draw(st.lists(st.integers(0, len(lists) - 1), min_size=1, max_size=5))
    longest = max(len(lists[i]) for i in chosen)
    assert ragged.rows(torch.tensor(chosen)).tolist() == [lists[i] + [PAD] * (longest - len(lists[i])) for i in chosen]
    assert [ragged[i] for i in range(len(ragged))] == lists


# ---------------------------------------------------------------------------------------------------------- own corpora
def test_own_text_is_held_out_by_document(tmp_path):
    """Documents of "valid" are in no other split; windows are runs of the documents' bytes with EOS between."""
    for i in range(60):
        (tmp_path / f"{i}.txt").write_text(f"document {i} " * 5)
    data = dataset(str(build([tmp_path], tmp_path.parent / "text").folder), seq_len=16)
    assert isinstance(data, Text)
    parts = [set(data.texts(split)) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60
    assert parts[1]
    assert parts[2]
    tokens = next(data.batches("valid", 4))["tokens"]
    whole = ",".join(map(str, data.stream_of("valid").tolist()))
    assert all(",".join(map(str, row)) in whole for row in tokens.tolist())
    assert data.settings == {"kind": "decoder", "vocab": data.tokenizer.size, "seq_len": 16}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
def test_each_row_of_a_table_is_a_document(tmp_path, suffix):
    """The rows of the text field, held out row by row, in their order; numbers and other fields are left out."""
    texts = [f"document {i}, of a table" for i in range(120)]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": i, "body": t, "title": "head"}) + "\n" for i, t in enumerate(texts)))
    else:
        tab = "," if suffix == ".csv" else "\t"
        path.write_text(f"id{tab}body{tab}title\n" + "".join(f'{i}{tab}"{t}"{tab}head\n' for i, t in enumerate(texts)))
    named = f"{path}:body" if suffix == ".tsv" else path
    made = build([named], tmp_path / "packed")
    assert (made.kind, made.manifest["counts"]["documents"]) == ("text", len(texts))
    assert [text for _, text in documents(str(made.folder))] == texts
    data = dataset(str(made.folder), seq_len=16)
    parts = [data.texts(split) for split in ("train", "valid", "test")]
    assert min(map(len, parts)) > 0
    assert sorted(t for part in parts for t in part) == sorted(texts)


def test_a_table_without_its_text_field_is_told_by_its_columns(tmp_path):
    """No field of that name, several that could be, none with words, a binary table: nothing is made."""
    (tmp_path / "rows.csv").write_text("question,answer,n\nwhy so,because,1\n")
    (tmp_path / "numbers.csv").write_text("a,b\n1,2\n")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    for named, text in (
        ("rows.csv:text", "has no field `text`; it has question, answer, n"),
        ("rows.csv", "several fields with text: question, answer"),
        ("numbers.csv", "no field with text in it; it has a, b"),
        ("rows.parquet", "Save it as one of them"),
    ):
        with pytest.raises((InputError, FileError, UnknownName), match=text):
            build([tmp_path / named], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_damaged_pieces_are_learned_again(tmp_path):
    """Two letters whose ids were exchanged, and half a file: the checksum tells, and the pieces are learned anew."""
    pytest.importorskip("tokenizers")
    (tmp_path / "p.tsv").write_text("".join(f"the source {i} of it\tdas Ziel {i} davon\n" for i in range(40)))
    folder = build([tmp_path / "p.tsv"], tmp_path / "packed", held=5).folder
    first = dataset(str(folder), pieces=280).tokenizer
    kept = folder / "pieces-280.json"
    whole = kept.read_text()
    a, b = (re.search(rf'"{letter}.":\d+', whole)[0] for letter in "ab")
    number = {x: x.rpartition(":")[2] for x in (a, b)}
    swapped = whole.replace(a, a.replace(number[a], number[b])).replace(b, b.replace(number[b], number[a]))
    for damage in (swapped, whole[: len(whole) // 2]):
        kept.write_text(damage)
        again = dataset(str(folder), pieces=280).tokenizer
        assert again.to_dict() == first.to_dict()
        assert kept.read_text() == whole


def test_splits_without_text_are_told_before_training(tmp_path):
    """One document is in one split: no step is made, and the error says that documents are held out whole."""
    (tmp_path / "book.txt").write_text("once upon a time " * 50)
    (tmp_path / "one.tsv").write_text("one\tone more\n")
    for file, text in (("book.txt", "held out whole"), ("one.tsv", "no pair in its")):
        data = dataset(str(build([tmp_path / file], tmp_path / f"packed {file}").folder))
        model = Transformer("pre-ln", depth=1, d_model=8, heads=2, **data.settings)
        before = model.embed.W_E.detach().clone()
        with pytest.raises(InputError, match=text):
            train(model, data, TrainConfig(steps=1, batch_size=2), progress=False)
        assert torch.equal(model.embed.W_E, before)


def test_a_run_whose_test_split_is_empty_ends_well(tmp_path, capsys):
    """What cannot be scored is said, and the trained run is given."""
    lines = [f"{i}\tword {i}\tWort {i}" for i in range(400) if split_of(str(i), 20) != "test"]
    (tmp_path / "p.tsv").write_text("\n".join(lines))
    data = dataset(str(build([tmp_path / "p.tsv"], tmp_path / "packed").folder))
    size = {"depth": 1, "d_model": 8, "heads": 2, "d_ff": 8}
    run = fit(data, steps=1, batch_size=2, valid_batches=1, watch_every=0, progress=False, **size)
    assert score_test(run) == {}
    assert "not scored" in capsys.readouterr().err


def test_the_test_split_is_searched_as_the_recipe_says(folder, tmp_path):
    """Greedy and a beam of 5, or the original search of "vaswani", which `decode` calls by the same name."""
    from quadform.applications.decoding.question import DecodeTask
    from quadform.nn import Search
    from quadform.train.bleu import score_model

    size = {"depth": 1, "d_model": 8, "heads": 2, "d_ff": 8, "steps": 1, "batch_size": 2, "valid_batches": 1}
    data = dataset(folder, pieces=0)
    plain = fit(data, watch_every=0, progress=False, **size)
    assert set(score_test(plain, 4)) == {
        f"{score}, {how}" for score in ("BLEU", "chrF") for how in ("greedy", "beam 5")
    }
    run = fit(data, recipe="vaswani", out=tmp_path / "run", watch_every=0, progress=False, **size)
    asked = DecodeTask(model="run", recipe="vaswani")
    assert (run.search.beam, run.search.penalty, run.search.alpha) == (asked.beam, asked.penalty, asked.length_penalty)
    assert f"+{run.search.beyond}" == asked.max_length == "+50"
    how = Search(beam=4, penalty="gnmt", alpha=0.6, beyond=50, max_length=data.longest + 51)
    want = score_model(run.model, data, split="test", count=4, how=how)
    found = score_test(run, 4)
    assert (found["BLEU, beam 4"], found["chrF, beam 4"]) == (want.bleu, want.chrf)


def test_a_line_of_pairs_ends_at_a_line_feed_alone(tmp_path):
    """U+2028, U+0085 and a form feed inside a sentence end no line; they are blanks."""
    (tmp_path / "p.tsv").write_text("a\u2028b\x85c\fd\te f\r\ng\th\n", newline="")
    packed = build([tmp_path / "p.tsv"], tmp_path / "x")
    assert [pair[1:] for pair in read_pairs(packed.path("pairs.tsv.gz"))] == [("a b c d", "e f"), ("g", "h")]


def test_own_documents_keep_their_split_elsewhere(tmp_path):
    """Names are paths below the common folder, so the digest and the splits do not depend on where the files lie."""
    made = []
    for place in ("here", "there/deeper"):
        for i in range(3):
            (tmp_path / place / "sub").mkdir(parents=True, exist_ok=True)
            (tmp_path / place / "sub" / f"{i}.txt").write_text(f"text {i}")
        (tmp_path / place / "top.txt").write_text("top")
        made.append(build([tmp_path / place], tmp_path / f"packed-{place.replace('/', '-')}"))
    assert made[0].digest == made[1].digest
    assert [n for n, _ in read_documents(made[0].path("documents.jsonl.gz"))] == [
        *("sub/0.txt", "sub/1.txt", "sub/2.txt", "top.txt"),
    ]


def test_own_documents_on_several_drives(tmp_path, monkeypatch):
    """Files without a folder above all of them (two drives of Windows) are named by their whole paths."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"text {name}")

    def no_common_path(paths):
        raise ValueError("Paths don't have the same drive")

    monkeypatch.setattr("os.path.commonpath", no_common_path)
    build([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert [name for name, _ in documents(str(tmp_path / "out"))] == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_own_text_needs_a_file(tmp_path, monkeypatch):
    """A folder without files, a relative one too, is told so; nothing is made."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", tmp_path / "empty"):
        with pytest.raises(InputError, match=f"there is no file in {folder};"):
            build([folder], "out")
    assert not (tmp_path / "out").exists()


def test_names_that_no_file_can_have(tmp_path):
    """300 characters, and a null character: no file, no data set, no run; each told in a sentence."""
    for name in ("a" * 300, "a\0b"):
        with pytest.raises(UnknownName, match="no data set"):
            dataset(name)
        with pytest.raises(FileError, match="there is no training run"):
            open_run(name)
        with pytest.raises(FileError, match="there is no file"):
            build([name], tmp_path / "out")
    (tmp_path / "text").write_text("x")
    with pytest.raises(FileError, match="cannot be written"):
        build([tmp_path / "text"], tmp_path / ("a" * 300))


def test_own_pairs_refuse_what_is_no_pair(tmp_path):
    """A line with one column, a mixture of kinds, a missing file, and nothing at all are told by name."""
    (tmp_path / "bad.tsv").write_text("a\tb\nonly one\n")
    with pytest.raises(FileError, match="line 2"):
        build([tmp_path / "bad.tsv"], tmp_path / "x")
    assert not (tmp_path / "x").exists()
    (tmp_path / "t.txt").write_text("text")
    with pytest.raises(InputError, match="one data set"):
        build([tmp_path / "bad.tsv", tmp_path / "t.txt"], tmp_path / "x")
    with pytest.raises(FileError, match=r"no file .*none\.tsv"):
        build([tmp_path / "none.tsv"], tmp_path / "x")
    with pytest.raises(InputError, match="at least 3"):
        build([tmp_path / "t.txt"], tmp_path / "x", held=2)


def test_duplicates_and_untranslated_lines_are_left_out(tmp_path):
    """A source that came before, an empty side, and two equal sides give no pair; text is NFC with single blanks."""
    told = write_pairs(
        [("g", "a  b", "x"), ("h", "a b", "y"), ("g", "same", "same"), ("g", "", "z"), ("g", "c", "e\u0301\n f")],
        tmp_path,
    )
    assert read_pairs(tmp_path / "pairs.tsv.gz") == [("g", "a b", "x"), ("g", "c", "\u00e9 f")]
    assert told["counts"]["pairs"] == 2


def test_names_are_found_and_mistyped_ones_suggested(monkeypatch, tmp_path):
    """Every data set is a function of `datasets`; what is not fetched says how, what does not exist what is near."""
    monkeypatch.setenv("QUADFORM_DATA", str(tmp_path))
    assert datasets.addition(digits=3) == dataset("add", digits=3)
    with pytest.raises(FileError, match=r"quadform data fetch tsmsg-de.*4\.4 MB, licence: Apache-2\.0"):
        datasets.tsmsg_de()
    with pytest.raises(UnknownName, match="Did you mean `tsmsg-de`"):
        dataset("tsmsg-dee")
    with pytest.raises(AttributeError, match="tsmsg_xx"):
        _ = datasets.tsmsg_xx


@given(st.text(min_size=1, max_size=10), st.integers(3, 50))
def test_split_of_a_group_is_a_function_of_its_name(group, held):
    """The same group is in the same split, everywhere and always."""
    assert split_of(group, held) == split_of(group, held) in ("train", "valid", "test")


# -------------------------------------------------------------------------------------------------- what archives hold
def test_typescript_messages_join_by_key(tmp_path):
    """English comes from the compiler's source, the translation from the table; keys on one side only are left out."""
    source = tmp_path / "src"
    (source / "lib" / "de").mkdir(parents=True)
    (source / "lib" / "typescript.js").write_text(
        'A: diag(1, 1 /* Error */, "A_1", "A \\"quoted\\" \'{0}\'."),\n B: diag(2, 3 /* Message */, "B_2", "B."),\n'
        '  C: diag(3, 1 /* Error */, "C_3", "No table.", true),'
    )
    table = {"A_1": "Ein „{0}“.", "B_2": "B ist.", "D_4": "nicht da"}
    (source / "lib" / "de" / "diagnosticMessages.generated.json").write_text(json.dumps(table))
    with tarfile.open(tmp_path / "t.tgz", "w:gz") as tar:
        tar.add(source, "package")
    typescript([tmp_path / "t.tgz"], tmp_path, to="de")
    found = read_pairs(tmp_path / "pairs.tsv.gz")
    assert found == [("a quoted", "A \"quoted\" '{0}'.", "Ein „{0}“."), ("b", "B.", "B ist.")]
    with pytest.raises(FileError, match="lib/xx/"):
        typescript([tmp_path / "t.tgz"], tmp_path, to="xx")


LIST = """Package: libfoo-dev
Description-md5: {md5}
Description-{language}: {short}
 {first}
 {second}
 .
  {verbatim}
 .
 - {bullet}
 .
 {last}

"""


def test_debian_lists_join_on_md5(tmp_path):
    """Short line and running text give pairs; indented blocks and bullets none; another md5 gives nothing."""
    english = LIST.format(
        md5="1",
        language="en",
        short="tool",
        first="First is this. Then",
        second="that.",
        verbatim="code",
        bullet="item",
        last="One. Two.",
    )
    italian = LIST.format(
        md5="1",
        language="it",
        short="strumento",
        first="Il primo. Poi",
        second="quello.",
        verbatim="codice",
        bullet="voce",
        last="Uno e due insieme.",
    )
    other = italian.replace("md5: 1", "md5: 2").replace("strumento", "altro")
    (tmp_path / "h_dists_x_Translation-en").write_text(english)
    (tmp_path / "h_dists_x_Translation-it").write_text(other + italian)
    debian([tmp_path / f"h_dists_x_Translation-{language}" for language in ("en", "it")], tmp_path, to="it")
    assert read_pairs(tmp_path / "pairs.tsv.gz") == [
        ("foo", "tool", "strumento"),
        ("foo", "First is this.", "Il primo."),
        ("foo", "Then that.", "Poi quello."),
    ]


def test_descriptions_of_different_shape_give_the_short_line_only():
    """Another number of paragraphs, or of sentences, is no alignment."""
    assert list(aligned("a\n One.\n .\n Two.", "b\n Uno.")) == [("a", "b")]
    assert list(aligned("a\n One. Two.", "b\n Uno.")) == [("a", "b")]
    assert list(aligned("a\n One. Two.", "b\n Uno. Due.")) == [("a", "b"), ("One.", "Uno."), ("Two.", "Due.")]


def test_sentences_end_before_a_capital():
    """After . ! ? and blanks, before a capital or a letter without case; not after an initial or e.g."""
    assert split_sentences("It is v. 2.0 e.g. Foo. Next one! Last") == ["It is v. 2.0 e.g. Foo.", "Next one!", "Last"]
    assert split_sentences("이것은 문장입니다. 다음 문장.") == ["이것은 문장입니다.", "다음 문장."]
    assert split_sentences("See J. Smith. Ok") == ["See J. Smith.", "Ok"]


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("libfoo2-dev", "foo"),
        ("python3-foo-doc", "foo"),
        ("foo", "foo"),
        ("golang-github-foo-bar", "foo"),
        ("2ping", "2ping"),
    ],
)
def test_families_of_packages(package, name):
    """Without lib, python, golang, up to the first digit or hyphen."""
    assert family(package) == name


def test_prose_and_python_source(tmp_path):
    """Chapters are documents, the whole book once more is not; tests of a wheel are left out."""
    import zipfile

    book = tmp_path / "data"
    book.mkdir()
    for name, text in {"chapter_1.txt": "one", "data.txt": "one two", "chapter_1.json": "{}"}.items():
        (book / name).write_text(text)
    with tarfile.open(tmp_path / "b.tgz", "w:gz") as tar:
        tar.add(book, "package/data")
    prose([tmp_path / "b.tgz"], tmp_path)
    assert read_documents(tmp_path / "documents.jsonl.gz") == [("chapter_1", "one\n")]
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("p/a.py", "x = 1\n")
        wheel.writestr("p/tests/test_a.py", "assert x\n")
        wheel.writestr("p/a.so", b"\0")
        wheel.writestr("p-1.dist-info/METADATA", "Name: p\nLicense-Expression: BSD-3-Clause\n\nLicense: of the text\n")
    assert python([tmp_path / "w.whl"], tmp_path)["licence"] == "BSD-3-Clause"
    assert read_documents(tmp_path / "documents.jsonl.gz") == [("p/a.py", "x = 1\n")]


def test_packed_folder_is_verified(folder):
    """The manifest of a built folder names every file with its checksum."""
    found = fetched(folder)
    assert found.kind == "pairs"
    assert found.manifest["licence"] == "your own"
    assert found.manifest["counts"]["pairs"] == 400
