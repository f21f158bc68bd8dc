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
from quadform.applications import journal
from quadform.applications.journal import Deadline, TimeUp
from quadform.applications.meter import Meter
from quadform.core.progress import Progress
from quadform.core.record import Record


def test_time_is_over_only_after_something_advanced() -> None:
    """A deadline in the past passes until something is done that was not done before."""
    late = Deadline(-1.0)
    late.check(advanced=False)
    with pytest.raises(TimeUp):
        late.check()
    with pytest.raises(TimeUp):
        late.check(advanced=False)
    Deadline(None).check()


def test_a_meter_counts_products() -> None:
    """Pieces end at what was expected of them, the bar never goes back, and what was there tells nothing of speed."""
    seen: list[tuple[int, int, float, str]] = []
    bar = Progress(40, "test", show=lambda *told: seen.append(told))
    meter = Meter(bar, Deadline(None))
    meter.skip(10)
    with meter.piece("a", 10):
        first, second = meter.of_estimator(), meter.of_estimator()
        for done in (1, 2, 3):
            first(done, 10, 0.0, "x")
        second(2, 50, 0.0, "y")
        assert bar.done == 15
        second(30, 50, 0.0, "y")
        assert bar.done == 20
    with meter.piece("b", 20, weight=0.5):
        meter.of_estimator()(8, 9, 0.0, "")
        assert bar.done == 24
    assert bar.done == 40
    assert [s[0] for s in seen] == sorted(s[0] for s in seen)
    assert seen[0][3] == "a x"
    elapsed = seen[0][2] / 29  # 29 to do after the first of this run, each as long as that one
    assert 0 < elapsed < 1


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by one second each time a deadline looks at it, however busy the machine is."""
    seconds = itertools.count()
    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=lambda: float(next(seconds)), time=time.time))


def in_rounds(ask: Any, folder: Path, seconds: float) -> tuple[Record, int]:
    """Asked again and again with too little time, until it is whole."""
    for rounds in range(1, 60):
        found = ask(resume=folder, max_time=seconds, progress=False)
        if not found.record.inputs["partial"]:
            return found.record, rounds
    raise AssertionError("60 rounds were not enough")


@pytest.mark.usefixtures("ticks")
def test_why_in_rounds(tmp_path: Path) -> None:
    """Cut within cells and within training: every number is that of the undisturbed run, to the last bit."""
    model = qf.Transformer(design="pre-ln", depth=1, dim=8, heads=2, vocab=12, seq_len=8, seed=0)

    def ask(**how: Any) -> Any:
        return qf.why(model, qf.datasets.addition(digits=1), remove=["norm"], steps=[0, 20], batch=2, **how)

    found, rounds = in_rounds(ask, tmp_path / "cut", 60)
    assert rounds > 2
    assert found.scalars == ask(resume=tmp_path / "whole", progress=False).record.scalars
    assert not (tmp_path / "cut" / "state").exists()


@pytest.mark.usefixtures("ticks")
def test_lr_in_rounds(tmp_path: Path) -> None:
    """Cut between and within eigenvalues: the vector the single batches start from is the one of the whole run."""
    model = qf.Transformer(design="pre-ln", depth=1, dim=8, heads=2, vocab=12, seq_len=8, seed=0)
    batches = list(itertools.islice(qf.datasets.addition(digits=1).batches("valid", 2, 0), 3))

    def ask(**how: Any) -> Any:
        return qf.lr(model, batches, verify=3, **how)

    found, rounds = in_rounds(ask, tmp_path / "cut", 6)
    whole = ask(resume=tmp_path / "whole", progress=False).record
    assert rounds > 5
    assert found.scalars == whole.scalars
    assert torch.equal(found.tensors["ceilings"], whole.tensors["ceilings"])
