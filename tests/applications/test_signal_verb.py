"""`quadform signal` as a person meets it: text, JSON, exit codes, refusals."""

import json

import pytest

from quadform.applications.signal import SignalOpening, SignalQuestion, units
from quadform.cli import main
from quadform.core.work import Work
from quadform.corpora.datasets import dataset
from quadform.nn import Transformer

SMALL = [
    "--d-model",
    "32",
    "--heads",
    "2",
    "--networks",
    "2",
    "--tokens",
    "8",
    "--batch-size",
    "2",
    "--depths",
    "2",
    "--quiet",
]


def asked(capsys, *words):
    code = main(["signal", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_designs_as_text(capsys, tmp_path):
    """One line a curve with its prediction in brackets, a word for the end of the stack, and where it was saved."""
    code, out, _ = asked(capsys, "rezero", "no-skip", *SMALL, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "rezero, 2 blocks: alive" in out
    assert "agrees" in out
    assert f"saved {tmp_path / 'run'}" in out
    assert main(["report", str(tmp_path / "run"), "--quiet"]) == 0
    assert (tmp_path / "run" / "report.html").exists()


def test_a_saved_model_as_json(capsys, tmp_path):
    """A saved model is measured on data; stdout is one JSON value with tagged numbers."""
    settings = dataset("add", digits=2).settings
    folder = Transformer("pre-ln", depth=2, d_model=16, heads=2, seed=0, **settings).save(tmp_path / "model")
    code, out, _ = asked(capsys, str(folder), "--data", "add:digits=2", "--batch-size", "4", "--json", "--quiet")
    assert code == 0
    body = json.loads(out)
    assert body["scalars"][f"{folder}/cosine"]["kind"] == "estimate"
    assert body["inputs"]["curves"][0]["depth"] == 2


def test_a_new_model(capsys):
    """`new:DESIGN,...` draws a model for the data and measures it beside its prediction."""
    code, out, _ = asked(capsys, "new:pre-ln,depth=2,d_model=32,heads=2", "--batch-size", "4", "--quiet")
    assert code in (0, 3)
    assert "new:pre-ln,depth=2,d_model=32,heads=2" in out


def test_dry_run_computes_nothing(capsys, monkeypatch):
    monkeypatch.setattr(Transformer, "__init__", None)
    code, out, _ = asked(capsys, "pre-ln", "--depths", "6,24", "--dry-run", "--quiet")
    assert code == 0
    assert out.count("networks of") == 2


def test_stopped_by_time(capsys):
    code, out, _ = asked(capsys, "rezero", "pre-ln", *SMALL, "--max-time", "0.000001s")
    assert code == 3
    assert "pre-ln, 2 blocks" not in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["pre-lm"], "Did you mean `pre-ln`"),
        (["runs/nothing"], "runs/nothing"),
        ([], "needs a design or a model"),
        (["pre-ln", "--depths", "a"], "whole numbers"),
        (["pre-ln", "--depth", "3"], "Did you mean `--depths`"),
        (["pre-ln", "--resume"], "without a folder"),
    ],
)
def test_refusals(capsys, words, text):
    code, _, err = asked(capsys, *words, "--quiet")
    assert code == 2
    assert text in err
    assert len(err.strip().splitlines()) == 1


def test_the_plan_of_a_model_measures_one_batch(monkeypatch):
    """Time told of a model is that of its batches as they are measured, not of forward passes alone; the batch that is
    measured for it is not measured again."""
    pieces, piece, now = [], units.profiled, [0.0]

    def counted(*words):
        pieces.append(words)
        now[0] += 3.0
        return piece(*words)

    monkeypatch.setattr(units, "profiled", counted)
    monkeypatch.setattr(units.time, "perf_counter", lambda: now[0])
    word = "new:pre-ln,depth=1,d_model=8,heads=2"
    subject = SignalOpening(subjects=(word,), data="add:digits=1", batches=4).open()
    measurement = SignalQuestion().measurement(subject)
    plan = measurement.plan()
    assert plan.seconds == 4 * 3.0
    assert plan.text.startswith(f"{word}: 32 sequences, about ")
    assert len(pieces) == 1
    with Work(progress=False) as work:
        measurement.measure(work)
    assert len(pieces) == 4
