"""A study: sections asked of one opened model, resumable, redrawn without computing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import quadform as qf
from quadform.applications import opening, subject, training
from quadform.applications.study import measure as measuring
from quadform.applications.study import records_in
from quadform.applications.study.answer import Report
from quadform.applications.study.question import ReportOpening, ReportQuestion
from quadform.applications.study.sections import Made, Section, _Kept
from quadform.applications.study.targets import Target, Targets
from quadform.cli import main
from quadform.core.errors import InputError
from quadform.core.question import Plan
from quadform.core.record import Estimate, Provenance, Record
from quadform.core.work import Work

MODEL = "new:sas-p,depth=1,d_model=4,heads=2"
SMALL: dict[str, Any] = {"data": "add:digits=1", "batch_size": 2, "batches": 1}
FLAGS = ["--data", "add:digits=1", "--batch-size", "2", "--batches", "1", "--quiet"]
KINDS = {"step-size": "lr", "spectrum": "spectrum", "signal": "signal"}


def record(kind: str, **inputs: Any) -> Record:
    made = Provenance.collect(seed=0, dtype="float64", device="cpu")
    return Record(kind=kind, inputs=inputs, scalars={"x": Estimate(1.0)}, tensors={}, made=made)


@dataclass(frozen=True, kw_only=True)
class Noted(_Kept):
    """A question that writes down that it was asked; it is interrupted, or takes all its time."""

    verb = "noted"
    name: str = ""

    def measurement(self, subject: Any = None) -> Made:
        def go(work: Work) -> Record:
            if self.name in BROKEN:
                raise KeyboardInterrupt
            RAN.append(self.name)
            if self.name in SLOW and work.deadline.until is not None:
                work.deadline.until = 0.0
                return record(self.name, partial=True)
            return record(self.name)

        return Made(lambda: Plan("", 10, 2.0, 5e6), go)


RAN: list[str] = []
BROKEN: set[str] = set()
SLOW: set[str] = set()


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sections that write down that they ran, in place of those that measure."""
    for noted in (RAN, BROKEN, SLOW):
        noted.clear()
    listed = [Section(name, kind, Noted(name=kind)) for kind, name in KINDS.items()]
    monkeypatch.setattr(measuring, "sections_of", lambda *_: listed)
    monkeypatch.setattr("quadform.applications.study.sections.sections_of", lambda *_: listed)
    monkeypatch.setattr(measuring.Report, "report", lambda self, path, lang="en": Path(path))


def go(into: Path, seconds: float | None = None, resume: bool = False, seed: int = 0) -> Any:
    target = Targets((Target("the built-in default"),), ReportOpening(seed=seed))
    with Work(into, seconds=seconds, resume=resume, progress=False) as work:
        return measuring.ask(ReportQuestion(seed=seed), work, target)


def kinds(found: Any) -> list[str]:
    return [r.kind for r in found.records]


@pytest.mark.usefixtures("three")
def test_a_stopped_study_goes_on(tmp_path: Path) -> None:
    """Sections that were finished before an interruption are read, not run again; a fresh study runs all."""
    BROKEN.add("signal")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, resume=True)
    assert RAN == ["step-size", "spectrum"]
    BROKEN.clear()
    assert records_in(tmp_path)[0].missing == ("signal",)
    found = go(tmp_path, resume=True)
    assert kinds(found) == RAN == [*KINDS]
    assert found.ok
    go(tmp_path, resume=True)
    assert [*KINDS] == RAN
    go(tmp_path)
    assert [*KINDS] * 2 == RAN


@pytest.mark.usefixtures("three")
def test_time_ends_a_study(tmp_path: Path) -> None:
    """The section under way is cut, later ones are not begun, all of them are named missing; a resumed run ends it."""
    SLOW.add("spectrum")
    found = go(tmp_path, seconds=100.0)
    assert RAN == kinds(found) == ["step-size", "spectrum"]
    assert found.missing == ["spectrum", "signal"]
    assert not found.ok
    assert records_in(tmp_path)[0].missing == ("spectrum", "signal")
    found = go(tmp_path, resume=True)
    assert RAN == ["step-size", "spectrum", "spectrum", "signal"]
    assert found.missing == []
    assert records_in(tmp_path)[0].missing == ()


@pytest.mark.usefixtures("three")
def test_however_short_the_time_something_advances(tmp_path: Path) -> None:
    """A thousandth of a second, again and again: every round finishes one more section."""
    for k in range(1, 4):
        assert len(go(tmp_path, seconds=1e-3, resume=True).records) == k


@pytest.mark.usefixtures("three")
def test_another_study_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """Resumed with another seed: refused by name; a new study takes the older records away at once."""
    BROKEN.add("signal")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path)
    with pytest.raises(InputError, match=r"other settings \(seed 0 / 1"):
        go(tmp_path, resume=True, seed=1)
    BROKEN.add("step-size")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path)
    assert records_in(tmp_path) == []


@pytest.mark.usefixtures("three")
def test_plans_add_up() -> None:
    """The plan of several sections: products and seconds added, the largest memory."""
    plan = ReportQuestion().measurement(Targets((Target("the built-in default"),), ReportOpening())).plan()
    assert (plan.products, plan.seconds, plan.bytes) == (30, 6.0, 5e6)
    assert plan.text.splitlines()[0].endswith(": 3 stages, about 30 products, 6 s in all, 5 MB beside the model")


def test_records_in_a_folder(tmp_path: Path) -> None:
    """The sections of a model are one study, the exact layer another; a record of the folder itself stands alone."""
    assert records_in(tmp_path) == []
    for name in ("signal", "lr", "attention"):
        record(name).save(tmp_path / name)
    assert [[r.kind for r in s.records] for s in records_in(tmp_path)] == [["lr", "signal"], ["attention"]]
    record("alone").save(tmp_path)
    assert [[r.kind for r in s.records] for s in records_in(tmp_path)] == [["alone"]]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, list[str]]:
    """MODEL studied once by its name: the answer, where it lies, and what was opened for it."""
    folder = tmp_path_factory.mktemp("studied")
    with pytest.MonkeyPatch.context() as patch:
        opened = note_openings(patch)
        found = qf.study(MODEL, **SMALL, out=folder, progress=False)
    return found, folder, opened


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that are opened, and the runs that are read, in turn."""
    return note_openings(monkeypatch)


def note_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    for module, name in ((subject, "open_subject"), (subject, "open_run"), (training, "open_run")):
        true = getattr(module, name)

        def noted(asked: Any, *more: Any, _true: Any = true, **settings: Any) -> Any:
            found.append(str(getattr(asked, "model", asked)))
            return _true(asked, *more, **settings)

        monkeypatch.setattr(module, name, noted)
    return found


def test_one_model_is_opened_once(studied: tuple[Any, Path, list[str]], opened: list[str]) -> None:
    """All sections measure the same opened model, on one probe: lambda_max of `lr` and of `spectrum` is one number."""
    found, folder, for_it = studied
    assert for_it == [MODEL]
    by_kind = {r.kind: r for r in found.records}
    assert list(by_kind) == ["step-size", "spectrum", "point", "prune", "signal", "why"]
    top = by_kind["spectrum"].scalars["top/0"].value
    assert by_kind["step-size"].scalars["ceiling/sgd"].value == pytest.approx(2 / top, rel=1e-2)
    assert {r.made.dtype for r in found.records} == {"float32"}
    again = qf.study(str(folder), progress=False)
    assert kinds(again) == kinds(Report.load(folder)) == [*by_kind]
    assert qf.study.plan(str(folder)).seconds == 0
    assert opened == []


def test_a_training_run_is_studied_beside_itself(
    tmp_path: Path, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`report RUN --dtype float64`: one opening for log and sections, every record in that format, kept in the run.

    A run that was trained further is not drawn as if it were the one that was studied.
    """
    run = str(tmp_path / "run")
    train = ["train", "--data", "add:digits=1", "--d-model", "4", "--heads", "2", "--depth", "1", "--batch-size", "2"]
    train += ["--test", "0", "--quiet", "--out", run, "--dtype", "float32", "--steps"]
    assert main([*train, "10"]) == 0
    opened.clear()
    assert main(["report", run, *FLAGS, "--dtype", "float64"]) in (0, 3)
    assert opened == [run, run]  # the subject, and inside it its checkpoint
    found = Report.load(run)
    assert kinds(found) == ["step-size", "spectrum", "point", "prune", "signal", "training", "why"]
    assert {r.made.dtype for r in found.records} == {"float64"}
    assert (tmp_path / "run" / "report.html").exists()
    assert main(["report", run, "--quiet", "--lang", "ko"]) in (0, 3)
    assert 'lang="ko"' in (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "run" / "checkpoint").rename(tmp_path / "kept")
    assert main([*train, "12"]) == 0
    capsys.readouterr()
    assert main(["report", run, "--quiet"]) == 2
    assert "was studied with other weights" in capsys.readouterr().err


def test_both_ways_give_the_same_sections(studied: tuple[Any, Path, list[str]], tmp_path: Path) -> None:
    """Python and command line, a word and an opened model: every number of every section is the same."""
    here = studied[0].records
    assert main(["report", MODEL, *FLAGS, "--out", str(tmp_path)]) in (0, 3)
    there = Report.load(tmp_path).records
    ours, theirs = studied[0].record, Record.load(tmp_path)
    assert {**theirs.inputs, "report": None} == {**ours.inputs, "report": None}
    assert (theirs.scalars, theirs.tensors) == (ours.scalars, ours.tensors) == ({}, {})
    asked = opening.Opening(model=MODEL, **SMALL).open()
    third = qf.study(asked.model, asked.batches, progress=False).records
    for records in (there, third):
        assert [r.kind for r in records] == [r.kind for r in here]
        for a, b in zip(records, here, strict=True):
            assert [*a.scalars.values()] == [*b.scalars.values()]


@pytest.mark.usefixtures("three")
def test_several_models_have_a_folder_each(tmp_path: Path) -> None:
    """Two models in one folder: a study and a page each, one page over both; the folder is redrawn as a whole."""
    words = (MODEL, "new:pre-ln")
    found = qf.study(words, out=tmp_path, progress=False)
    assert len(found.studies) == 2
    assert found.record.inputs["folders"] == ["sas-p-depth-1-d_model-4-heads-2", "pre-ln"]
    assert len(qf.study(str(tmp_path), progress=False).studies) == len(Report.load(tmp_path).studies) == 2
    assert len(records_in(tmp_path / "pre-ln")) == 1
