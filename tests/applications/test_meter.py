"""Long questions in short pieces: however little time a run gets it advances, and the end is that of one long run."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import quadform as qf
from quadform.applications import machine
from quadform.applications.opening import Opening
from quadform.applications.spectrum import measure as spectrum
from quadform.applications.spectrum.question import SpectrumQuestion
from quadform.applications.step_size import ceiling
from quadform.applications.subject import open_subject
from quadform.core import work
from quadform.core.record import Record
from quadform.core.work import Deadline, TimeUp


def test_time_is_over_only_after_something_advanced() -> None:
    """A deadline in the past passes until something is done that was not done before."""
    late = Deadline(-1.0)
    late.check(advanced=False)
    with pytest.raises(TimeUp):
        late.check()
    with pytest.raises(TimeUp):
        late.check(advanced=False)
    Deadline(None).check()


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by one second each time a deadline looks at it, however busy the machine is."""
    seconds = itertools.count()
    clock = {"monotonic": lambda: float(next(seconds)), "time": time.time, "process_time": time.process_time}
    monkeypatch.setattr(work, "time", SimpleNamespace(**clock))


def in_rounds(ask: Any, folder: Path, seconds: float) -> tuple[Record, int]:
    """Asked again and again with too little time, until it is whole."""
    for rounds in range(1, 60):
        found = ask(folder, max_time=seconds, progress=False)
        if not found.record.inputs["partial"]:
            return found.record, rounds
    raise AssertionError("60 rounds were not enough")


@pytest.mark.usefixtures("ticks")
def test_why_in_rounds(tmp_path: Path) -> None:
    """Cut within cells and within training: every number is that of the undisturbed run, to the last bit."""
    model = qf.Transformer(design="pre-ln", depth=1, d_model=8, heads=2, vocab=12, seq_len=8, seed=0)

    def ask(folder: Path, **how: Any) -> Any:
        data = qf.datasets.addition(digits=1)
        return qf.why(model, data, remove=["norm"], steps=[0, 20], batch_size=2, out=folder, resume=True, **how)

    found, rounds = in_rounds(ask, tmp_path / "cut", 60)
    assert rounds > 2
    assert found.scalars == ask(tmp_path / "whole", progress=False).record.scalars
    assert not (tmp_path / "cut" / "work").exists()


@pytest.mark.usefixtures("ticks")
def test_lr_in_rounds(tmp_path: Path) -> None:
    """Cut between and within eigenvalues: the vector the single batches start from is the one of the whole run."""
    model = qf.Transformer(design="pre-ln", depth=1, d_model=8, heads=2, vocab=12, seq_len=8, seed=0)
    batches = list(itertools.islice(qf.datasets.addition(digits=1).batches("valid", 2, 0), 3))

    def ask(folder: Path, **how: Any) -> Any:
        return qf.lr(model, batches, verify=3, out=folder, resume=True, **how)

    found, rounds = in_rounds(ask, tmp_path / "cut", 6)
    whole = ask(tmp_path / "whole", progress=False).record
    assert rounds > 5
    assert found.scalars == whole.scalars
    assert torch.equal(found.tensors["ceilings"], whole.tensors["ceilings"])
    assert not (tmp_path / "cut" / "work").exists()


def test_plans_count_the_work_with_vectors(monkeypatch):
    """A product of a search comes with the making of its vector orthogonal: a plan that adds none is too short."""
    question = Opening(model="new:pre-ln,depth=1,d_model=8,heads=2", data="add:digits=1")
    subject = open_subject(question)
    risk = subject.risk(quiet=True)
    asked = SpectrumQuestion(top=1, bottom=1, blocks="none", route="eager")
    told = []
    for slow in (0.0, 100.0):
        monkeypatch.setattr(ceiling, "vector_seconds", lambda *_, slow=slow: slow)
        monkeypatch.setattr(spectrum, "vector_seconds", lambda *_, slow=slow: slow)
        told.append((ceiling.seconds_of_product(risk), asked.measurement(subject).plan()))
    assert told[1][0] - told[0][0] == pytest.approx(75.0, abs=5)
    planned = told[0][1].details["planned"]
    extra = 100 * (0.75 * planned["eigenvalues"] + 0.6 * planned["trace"])
    assert told[1][1].seconds - told[0][1].seconds == pytest.approx(extra, rel=0.05)


def test_the_time_of_vectors_grows_with_rows(monkeypatch):
    """It is timed on two and told for as many as are asked: by a clock that goes on by 1 a look, 24 rows take 12."""
    looks = itertools.count()
    monkeypatch.setattr(machine.time, "perf_counter", lambda: float(next(looks)))
    assert machine.vector_seconds(10, torch.float32, torch.device("cpu"), 24) == 12.0


def test_a_plan_of_a_point_times_a_product(monkeypatch):
    """Passes counted for a product were four times as long as one with a kept graph."""
    monkeypatch.setattr("quadform.applications.point.measure.seconds_of_product", lambda risk, scale: 2.0 * scale)
    model = torch.nn.Linear(3, 1)
    plan = qf.point.plan(model, [(torch.randn(4, 3), torch.randn(4, 1))], torch.nn.functional.mse_loss)
    assert plan.seconds == 2.0 * plan.products > 0
