"""A run folder opens again: same weights, same data, same optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import quadform
from quadform.core.errors import FileError, InputError, UnknownName
from quadform.corpora import DATASETS, Dataset, dataset
from quadform.corpora.fetch import build
from quadform.corpora.opened import Ragged
from quadform.nn.transformer import Transformer
from quadform.train import TrainConfig, open_run, prepare, train
from quadform.train.feed import meals
from quadform.train.runs import Run, Symbols, tokenizer_of


def test_open_run(tmp_path: Path) -> None:
    """`open_run` gives the weights, data, settings and AdamW moments that training ended with."""
    data = dataset("add", digits=2, reverse=True)
    model = Transformer("sas-p", depth=2, d_model=16, heads=2, **data.settings)
    trained = train(model, data, TrainConfig(steps=5, batch_size=8, save_every=2), out=tmp_path, progress=False)
    run = open_run(tmp_path)
    assert run.step == trained.step == 5
    assert run.data == data
    assert run.config.steps == 5
    assert all(
        torch.equal(a, b) for a, b in zip(run.model.state_dict().values(), model.state_dict().values(), strict=True)
    )
    moments = run.optimizer().tensors()
    assert any("exp_avg_sq" in name and bool((t > 0).any()) for name, t in moments.items())


def test_runs_are_printed_in_a_line(tmp_path: Path) -> None:
    """A run, its end, its plan and its optimizer print what they are, no tensor and no tree of modules."""
    data = dataset("reverse", letters=3, longest=3)
    plan = prepare(data, steps=2, depth=1, d_model=8, heads=1, batch_size=4, valid_every=1)
    done = plan.train(out=tmp_path / "run", progress=False)
    run = open_run(tmp_path / "run")
    named = f"pre-ln encoder-decoder, 1 + 1 blocks, d 8, 1 head, {sum(p.numel() for p in run.model.parameters()):,}"
    assert repr(run) == f"Run({named} parameters; {data}; step 2 of 2; {tmp_path / 'run'})"
    assert repr(done).startswith(f"Trained({named} parameters; step 2 (steps), loss ")
    assert repr(plan).startswith(f"Plan({named} parameters; {data}; TrainConfig(steps=2, batch_size=4, ")
    assert repr(run.optimizer()).startswith("Optimizer(AdamW over ")
    assert repr(next(meals(run.model, data, batch_size=4, accumulate=1, seed=0))).startswith("Meal([{'source': (")
    assert repr(Ragged.of([[1, 2], [3]])) == "Ragged(2 rows, 3 tokens)"
    assert repr(Symbols("01")) == "Symbols('01')"
    assert eval(repr(run.config)) == run.config
    assert all(len(repr(x)) < 700 and " at 0x" not in repr(x) for x in (run, done, plan))


def test_no_run_here(tmp_path: Path) -> None:
    """A folder without a run is an error that says how to make one."""
    with pytest.raises(FileError, match="no training run at"):
        open_run(tmp_path)


def test_every_letter_is_one_character() -> None:
    """The words of any number of letters are written with different characters, read back as they were."""
    for letters in (3, 26, 60, 1500):
        data = dataset("reverse", letters=letters, longest=2)
        coder = tokenizer_of(data)
        ids = list(range(data.settings["vocab"] - letters, data.settings["vocab"]))
        assert coder.size == data.settings["vocab"]
        assert coder.encode(coder.decode(ids)) == ids


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    """A byte of the command line that is no UTF-8 comes as a lone surrogate; no tokenizer can write it."""
    data = dataset("pystdlib", seq_len=16, limit=4000)
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, **data.settings)
    run = Run(None, model, data, TrainConfig(), 0, {})
    with pytest.raises(InputError, match="not valid UTF-8"):
        run.decode(["def \udcff"])


def test_data_that_is_not_here_is_told_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on own data in a relative folder, opened from elsewhere: the error says which folder, and from where."""
    (tmp_path / "p.tsv").write_text("".join(f"word {i}\tWort {i}\n" for i in range(200)))
    monkeypatch.chdir(tmp_path)
    build(["p.tsv"], "own")
    data = dataset("own")
    kept = data.to_dict()
    assert Dataset.from_dict(kept).settings == data.settings
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(FileError, match=r"no data set in the folder own \(relative to"):
        next(Dataset.from_dict(kept).batches("train", 2))


@pytest.mark.parametrize("name", [n for n in ("add", "copy", "sort", "numbers-ko", "pystdlib") if n in DATASETS])
def test_data_is_a_value(name: str) -> None:
    """from_dict(to_dict(data)) == data, and an unknown class names the known ones."""
    data = dataset(name)
    assert Dataset.from_dict(data.to_dict()) == data
    with pytest.raises(UnknownName, match="Addition"):
        Dataset.from_dict({"class": "Nothing"})


def test_only_the_run_folder_knows_the_names_of_its_files():
    """No other module writes down the name of a file in a run folder."""
    source = Path(quadform.__file__).parent
    names = ("metrics.jsonl", "scores.json", "averaged")
    told = [
        f"{path.relative_to(source)}: {name}"
        for path in source.rglob("*.py")
        if path != source / "train" / "folder.py"
        for name in names
        if f'"{name}"' in path.read_text(encoding="utf-8")
    ]
    assert told == []
