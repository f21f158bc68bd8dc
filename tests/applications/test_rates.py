"""The rate in force at the measured step against the ceiling at that step; the peak of the schedule by itself."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from quadform.applications.step_size import StepSize, lr
from quadform.applications.step_size.rules import read_optimizer
from quadform.applications.step_size.state import rates_of_run
from quadform.cli.main import main
from quadform.nn import Transformer
from quadform.report import step_size
from quadform.report.texts import EN, KO
from quadform.train import Schedule, TrainConfig, dataset, train
from quadform.train.runs import open_run


@pytest.fixture(scope="module")
def data():
    return dataset("add", digits=1)


def make(data, **options) -> Transformer:
    return Transformer("pre-ln", depth=1, dim=4, heads=2, **options, **data.settings)


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory) -> Path:
    """A run of 20 steps to its end: linear decay from 2, so that its last step has 2 / 19."""
    out = tmp_path_factory.mktemp("rates") / "run"
    train(make(data), data, TrainConfig(steps=20, batch_size=4, lr=2.0, optimiser="sgd"), out=out, progress=False)
    return out


WORDS = ["--batch", "4", "--batches", "1", "--verify", "0", "--quiet"]


def test_the_rate_of_a_run_is_the_one_of_its_step(data, folder):
    """At the end of a schedule: the rate its last step had, the one its log holds; the peak is the largest of all."""
    run = open_run(folder)
    written = [json.loads(line)["lr"] for line in (folder / "metrics.jsonl").read_text().splitlines() if "lr" in line]
    found = rates_of_run(run)
    factors = [run.config.schedule.factor(t, 20) for t in range(20)]
    assert found["lr"] == pytest.approx(written[-1], rel=1e-12)
    assert found["lr"] == pytest.approx(2 * factors[-1], rel=1e-12)
    assert found["peak"] == pytest.approx(2 * max(factors), rel=1e-12)
    assert found["peak"] > 10 * found["lr"]


def test_a_run_under_way_has_the_rate_of_its_next_step(data, tmp_path):
    """A checkpoint in the middle: what the next step from these weights takes."""
    config = TrainConfig(steps=20, batch_size=4, lr=0.5, schedule=Schedule(decay="cosine", warmup=4))
    train(make(data), data, config, out=tmp_path, progress=False)
    run = open_run(tmp_path)
    for step in (0, 3, 11, 20):
        object.__setattr__(run, "step", step)
        assert rates_of_run(run)["lr"] == 0.5 * config.schedule.factor(min(step, 19), 20)


def test_the_sentence_is_about_the_rate_in_force(folder, tmp_path, capsys):
    """A run whose peak is above the ceiling of its last step and whose last rate is far below it is below it."""
    assert main(["lr", str(folder), *WORDS, "--out", str(tmp_path / "lr")]) == 0
    said = capsys.readouterr().out
    found = StepSize.load(tmp_path / "lr")
    given = found.record.inputs
    assert given["lr"] < found.ceiling < given["peak_lr"]  # the case that was told wrongly
    line = next(x for x in said.splitlines() if x.startswith("learning rate in force at step 20"))
    assert line.endswith("below it")
    assert f"{given['lr'] / found.ceiling:.2g} of the ceiling" in line
    peak = next(x for x in said.splitlines() if "peak" in x)
    assert ": 2;" in peak
    assert "not measured" in peak
    assert "above the ceiling" not in said
    for texts in (EN, KO):
        assert texts("rate_head_peak", peak="2") in step_size.summary(found.record, texts)
    assert "in force" in step_size.summary(found.record, EN)
    assert step_size.status(found.record) == "fair"  # not tried, and not red


def test_a_rate_of_your_own_is_held_against_the_ceiling(folder, tmp_path, capsys):
    """`--lr`: your own number, said to be yours; no peak is named beside it."""
    assert main(["lr", str(folder), *WORDS, "--lr", "1e6", "--out", str(tmp_path / "lr")]) == 0
    said = capsys.readouterr().out
    assert "your learning rate 1e+06" in said
    assert "above the ceiling" in said
    assert "peak" not in said
    record = StepSize.load(tmp_path / "lr").record
    assert step_size.status(record) == "poor"
    assert "Your learning rate" in step_size.summary(record, EN)


def test_an_optimizer_object_has_its_own_rate_and_peak(data):
    """torch's scheduler: `lr` is what the next step takes, `initial_lr` the peak."""
    model = make(data, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=4)
    batches = list(itertools.islice(data.batches("train", 4, 0), 2))
    for batch in batches:
        model.loss(batch).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    found = read_optimizer(optimizer, model)
    assert (found.lr, found.peak) == (pytest.approx(0.3 * 0.55), 0.3)
    answer = lr(model, batches, None, optimizer, progress=False)
    assert answer.record.inputs["lr"] == pytest.approx(0.165)
    assert any(line.startswith("learning rate in force: 0.165") for line in answer.lines())


def test_a_record_that_does_not_say_which_rate_it_holds_is_not_judged(folder, tmp_path, capsys):
    """Older records hold the peak: no sentence is made of it, and no colour."""
    assert main(["lr", str(folder), *WORDS, "--lr", "1e6", "--out", str(tmp_path / "lr")]) == 0
    found = StepSize.load(tmp_path / "lr")
    del found.record.inputs["lr_is"]
    assert not any("learning rate" in line for line in found.lines())
    assert step_size.status(found.record) == "fair"
