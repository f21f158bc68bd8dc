"""`quadform train` and `quadform decode`, and the Python beside them: what is printed, kept, refused."""

from __future__ import annotations

import io
import json

import pytest
import torch

import quadform as qf
from quadform.cli import main
from quadform.core.errors import InputError, UnknownName
from quadform.corpora import Masked, dataset
from quadform.nn import Sampling, Search, Transformer
from quadform.train import fit, open_run, prepare, score_test
from quadform.train.recipes import recipe_for, with_objective

SMALL = ["--depth", "1", "--d-model", "16", "--heads", "2", "--batch-size", "8", "--test", "20", "--quiet"]
WORDS = "reverse:letters=4,longest=3"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to reverse words of 3 letters, made by the verb."""
    folder = tmp_path_factory.mktemp("runs") / "reverse"
    words = ["--data", WORDS, *SMALL, "--d-model", "32", "--batch-size", "32", "--steps", "250", "--lr", "5e-3"]
    assert main(["train", *words, "--out", str(folder)]) == 0
    return folder


def test_what_training_prints_and_keeps(tmp_path, capsys):
    """One line for the model, the loss, validation and test with their errors, and what to do next."""
    out = tmp_path / "a"
    assert main(["train", "--data", WORDS, *SMALL, "--steps", "4", "--out", str(out)]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("pre-ln encoder-decoder, 1 + 1 blocks, d 16, 2 heads, ")
    assert lines[0].count("parameters") == 1
    assert [line.split(":")[0].split(" ")[0] for line in lines[1:4]] == ["training", "valid", "test"]
    assert lines[4] == f"saved {out}; next: `quadform decode {out} TEXT`, `quadform spectrum {out}`"
    assert said.err == ""
    assert {p.name for p in out.iterdir()} == {"metrics.jsonl", "checkpoint", "along", "best", "model", "scores.json"}
    kept = json.loads((out / "scores.json").read_text())
    assert kept["stopped"] == "steps"
    assert 0 <= kept["test exact"]["value"] <= 1


def test_json(tmp_path, capsys):
    """`--json` prints one object and nothing else."""
    assert main(["train", *SMALL, "--steps", "2", "--out", str(tmp_path), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["saved"] == str(tmp_path)
    assert not body["partial"]


def test_dry_run_writes_nothing(tmp_path, capsys, monkeypatch):
    """`--dry-run` tells parameters, work, memory and time; nothing is written, no model is trained."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--data", WORDS, *SMALL, "--steps", "50", "--dry-run"]) == 0
    said = capsys.readouterr().out
    model = Transformer("pre-ln", depth=1, d_model=16, heads=2, **dataset("reverse", letters=4, longest=3).settings)
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in said
    assert all(word in said for word in ("GFLOP", "MiB", "50 steps of 1 x 8", "nothing was trained"))
    assert list(tmp_path.iterdir()) == []


def test_counted_work():
    """Matrix products of a step: 6 x parameters x tokens of a decoder without attention scores and embedding lookup."""
    data = dataset("add", digits=2)
    plan = prepare(data, depth=1, d_model=64, heads=1, batch_size=16)
    cost = plan.cost(1)
    T = data.settings["seq_len"]
    matrices = sum(p.numel() for n, p in plan.model.named_parameters() if p.ndim == 2 and "W_pos" not in n)
    scores = 12 * 16 * T * T * 64  # Q K^T and A V, forward and twice backward, counted or not by torch
    least = 6 * matrices * 16 * T
    assert least * 0.99 <= cost["flops_per_step"] <= (least + scores) * 1.3
    assert cost["weight_bytes"] == 16 * cost["parameters"]


def test_a_run_is_not_overwritten(run, capsys):
    """A folder with a run is refused without `--resume`, and a finished run resumed is at its end at once."""
    words = ["--data", WORDS, *SMALL, "--d-model", "32", "--batch-size", "32", "--steps", "250", "--lr", "5e-3"]
    assert main(["train", *words, "--out", str(run)]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main(["train", *words, "--out", str(run), "--resume"]) == 0


def test_out_of_time_goes_on(tmp_path, capsys):
    """`--max-time` ends with exit code 3 and the way to go on; `--resume` ends the run."""
    words = ["train", *SMALL, "--steps", "40", "--out", str(tmp_path)]
    assert main([*words, "--max-time", "0.001s"]) == 3
    assert json.loads((tmp_path / "scores.json").read_text())["stopped"] == "time"
    assert main([*words, "--resume"]) == 0
    assert open_run(tmp_path).step == 40


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--design", "paralel"], "design='paralel' is not a block design. Did you mean `parallel`? See"),
        (["--data", "revers"], "no data set 'revers'"),
        (["--data", "reverse:leters=3"], "'reverse' has no setting 'leters'; there are letters, longest. Did you mean"),
        (["--data", "packages:foo=3"], "'packages' has no setting 'foo'; there are classes, seq_len, source."),
        (["--data", "reverse", "--objective", "masked"], "running text"),
        (["--data", "reverse", "--objective", "causal"], "the objective of Letters is seq2seq"),
        (["--heads", "3"], "does not divide into 3 heads"),
        (["--precision", "bf16"], "bf16"),
        (["--steps", "0"], "steps is at least 1"),
        (["--steps", "99999999999"], "steps is at most 1,000,000,000; got 99,999,999,999."),
        (["--test", "99999999999"], "give at most 1,000,000"),
        (["--depth", "99999999999"], "depth is at most 100,000 blocks"),
        (["--batch-size", "99999999999"], "this training needs at least"),
        (["--accumulate", "99999999999"], "this training needs at least"),
        (["--d-model", "99999999996"], "this training needs at least"),
        (["--d-ff", "99999999999"], "this training needs at least"),
        (["--data", "reverse:longest=99999999999"], "this training needs at least"),
        (["--data", "a" * 300], "no data set"),
        (["--start-from", "a" * 300], "there is no training run"),
        (["--test", "-1"], "test=-1: give at least 0."),
        (["--start-from", "nowhere"], "there is no training run at nowhere"),
    ],
)
def test_training_refusals(words, text, tmp_path, capsys):
    """Bad input: exit code 2 and one line that says what to do."""
    assert main(["train", *words, "--out", str(tmp_path / "x"), "--quiet"]) == 2
    assert text in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- decode
def test_decoding_texts(run, capsys):
    """Each TEXT gives one line; so do the lines of stdin and of a file."""
    assert main(["decode", str(run), "abc", "dd"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["cba", "dd"]
    assert "texts decoded: 2, with " in err
    assert err.endswith("greedy search\n")


def test_decoding_is_told_in_korean(run, capsys):
    """The sentence beside the texts, on stderr; none with `--quiet`."""
    main(["decode", str(run), "abc", "--beam", "2", "--lang", "ko"])
    out, err = capsys.readouterr()
    assert out == "cba\n"
    assert "디코딩한 텍스트: 1개" in err
    assert err.endswith("폭이 2인 빔 탐색\n")
    main(["decode", str(run), "abc", "--sample", "--top-k", "1", "--lang", "ko", "--quiet"])
    assert capsys.readouterr() == ("cba\n", "")


def test_decoding_lines(run, capsys, tmp_path, monkeypatch):
    """Lines of a file and of stdin are texts too."""
    (tmp_path / "lines").write_text("abc\nba\n")
    assert main(["decode", str(run), "--file", str(tmp_path / "lines")]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("abc\nba\n"))
    assert main(["decode", str(run), "--beam", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == ["cba", "ab"] * 2


def test_a_line_ends_at_its_line_end(tmp_path):
    """Separators inside a text (U+2028, form feeds) do not cut it; an empty line is a text."""
    from quadform.applications.decoding.done import texts_of
    from quadform.applications.decoding.question import DecodeTask

    (tmp_path / "lines").write_text("a\u2028b\n\nc\fd\n", encoding="utf-8")
    assert texts_of(DecodeTask(model="r", file=str(tmp_path / "lines"))) == ["a\u2028b", "", "c\fd"]


def test_n_best_have_scores(run, capsys):
    """With `--n-best` every line is score TAB text, best first; `--json` has the same."""
    assert main(["decode", str(run), "abc", "--beam", "4", "--n-best", "3"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[0][1] == "cba"
    assert [float(s) for s, _ in lines] == sorted((float(s) for s, _ in lines), reverse=True)
    assert main(["decode", str(run), "abc", "--beam", "4", "--n-best", "3", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [h["text"] for h in body["outputs"][0]["hypotheses"]] == [text for _, text in lines]


def test_samples_follow_the_seed(run, capsys):
    """`--sample` draws by the seed; top-k 1 is greedy."""
    drawn = []
    for seed in ("1", "1"):
        main(["decode", str(run), *["abc"] * 5, "--sample", "--temperature", "5", "--seed", seed])
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].splitlines())) > 1
    main(["decode", str(run), "abc", "--sample", "--top-k", "1"])
    assert capsys.readouterr().out == "cba\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["abz"], "does not know 'z'"),
        ([""], "text 1 is empty"),
        (["abc", "--n-best", "2"], "beam=2"),
        (["abc", "--top-k", "2"], "are for sampling"),
        (["abc", "--sample", "--beam", "2"], "draws one text"),
        (["abc", "--file", "x"], "not both"),
        (["--file", "missing"], "the file missing cannot be read"),
        (["abc", "--beam", "0"], "give at least 1"),
        (["abcdabcdabcd"], "learned 5 positions"),
    ],
)
def test_decoding_refusals(run, words, text, capsys):
    """Bad input: exit code 2 and one line that says what to do."""
    assert main(["decode", str(run), *words]) == 2
    assert text in capsys.readouterr().err


def test_a_beam_that_does_not_fit(run, capsys):
    """The memory of a search is looked at before it begins."""
    assert main(["decode", str(run), "abc", "--beam", "99999999999"]) == 2
    assert "with a beam of 99,999,999,999 and up to" in capsys.readouterr().err


def test_no_run_to_decode(tmp_path, capsys):
    """A folder without a run says how to make one, unless it holds a model."""
    assert main(["decode", str(tmp_path), "abc"]) == 2
    assert "`quadform train --out" in capsys.readouterr().err
    (tmp_path / "model.json").write_text("{}")
    assert main(["decode", str(tmp_path), "abc"]) == 2
    assert "holds a model without the data it was trained on. Give the folder of" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- python
def test_one_function_trains():
    """qf.fit(...) trains by the recipe as quadform.train.fit does, and what it gives decodes."""
    data = dataset("add", digits=1)
    a = qf.fit(data, steps=3, depth=1, d_model=16, heads=2, test=10, progress=False)
    b = fit(data, steps=3, depth=1, d_model=16, heads=2, progress=False)
    for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(p, q)
    (found,) = a.decode(["3+4="])
    assert len(found[0].text) == 2
    assert a.decode(["3+4="], Search(beam=2, n_best=2))[0][0].score >= found[0].score
    assert len(a.decode(["3+4=", "1+1="], Sampling())) == 2
    assert {name for name in a.record.scalars if name.startswith("test")} == {"test exact"}
    assert isinstance(qf.train, type(json))


def test_said_settings_replace_the_recipe():
    """What is given wins; what is not comes from the recipe; `warmup` and `decay` go to the schedule."""
    data = dataset("reverse", letters=3, longest=3)
    plan = prepare(data, d_model=64, lr=0.5, warmup=7, decay="cosine", seed=3)
    assert (plan.config.lr, plan.config.seed, plan.config.steps) == (0.5, 3, recipe_for(data).train["steps"])
    assert (plan.config.schedule.decay, plan.config.schedule.warmup) == ("cosine", 7)
    assert (plan.model.config.d_model, plan.model.config.depth) == (64, 2)
    assert prepare(data).config.weight_decay == recipe_for(data).train["weight_decay"]
    assert prepare(data, optimizer="adam").config.weight_decay == 0  # the recipe's decay is AdamW's
    assert prepare(data, optimizer="adam", weight_decay=0.3).config.weight_decay == 0.3
    with pytest.raises(UnknownName, match="Did you mean `steps`"):
        prepare(data, step=3)
    with pytest.raises(UnknownName, match="Did you mean `depth`"):
        prepare(data, depht=3)


def test_objectives_by_name(tmp_path):
    """ "masked" wraps running text; a masked run starts a classifier, whose model takes no other sizes."""
    text = dataset("pystdlib", seq_len=32, limit=10_000)
    assert with_objective(text, "masked") == Masked(data=text)
    assert with_objective(text) is text
    small = {"depth": 1, "d_model": 16, "heads": 2, "batch_size": 4, "steps": 2, "progress": False}
    first = fit(text, objective="masked", out=tmp_path / "a", **small)
    assert set(score_test(first, 8)) == {"accuracy"}
    told = {"start_from": tmp_path / "a", "steps": 2, "batch_size": 4}
    labels = dataset("packages", seq_len=16, classes=3)
    run = fit(labels, out=tmp_path / "b", progress=False, **told)
    assert run.model.config.classes == 3
    with pytest.raises(InputError, match="depth cannot be changed"):
        prepare(labels, depth=3, **told)
    with pytest.raises(InputError, match="writes no text"):
        run.decode(["x"])
