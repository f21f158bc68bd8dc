"""A study: stages in a folder, resumable, redrawn without computing."""

from __future__ import annotations

from pathlib import Path

import pytest

from quadform.applications import study
from quadform.applications.configs.report import ReportConfig
from quadform.core.record import Estimate, Provenance, Record


def record(kind: str) -> Record:
    made = Provenance.collect(seed=0, dtype="float64", device="cpu")
    return Record(kind=kind, inputs={}, scalars={"x": Estimate(1.0)}, tensors={}, made=made)


def stages(ran: list[str], broken: str = "") -> list[study.Stage]:
    def run(name: str):
        def go(into: Path) -> Record:
            if name == broken:
                raise KeyboardInterrupt
            ran.append(name)
            return record(name)

        return go

    return [study.Stage(name, name, run(name)) for name in ("lr", "spectrum", "signal")]


def test_a_stopped_study_goes_on(tmp_path: Path) -> None:
    """Stages that were finished before an interruption are read, not run again; a fresh study runs all."""
    ran: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        dict(study._go(stages(ran, broken="signal"), tmp_path, resume=True))
    assert ran == ["lr", "spectrum"]
    assert list(dict(study._go(stages(ran), tmp_path, resume=True))) == ["lr", "spectrum", "signal"]
    assert ran == ["lr", "spectrum", "signal"]
    dict(study._go(stages(ran), tmp_path, resume=False))
    assert ran == ["lr", "spectrum", "signal"] * 2


def test_records_in_a_folder(tmp_path: Path) -> None:
    """The stages of a model are one study, the exact layer another; a record of the folder itself stands alone."""
    assert study.records_in(tmp_path) == []
    for name in ("signal", "lr", "attention"):
        record(name).save(tmp_path / name)
    assert [[r.kind for r in s] for s in study.records_in(tmp_path)] == [["lr", "signal"], ["attention"]]
    record("alone").save(tmp_path)
    assert [[r.kind for r in s] for s in study.records_in(tmp_path)] == [["alone"]]


def test_a_new_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`new:...` is studied on one probe for all stages: lambda_max of `lr` and of `spectrum` is the same number."""
    monkeypatch.setattr(study, "PROBE", {"batch": 4, "batches": 2})
    word = "new:sas-p,depth=1,dim=16,heads=2"
    (found,) = study.open_studies((word,), ReportConfig(data="add:digits=2"), tmp_path)
    by_kind = {r.kind: r for r in found}
    assert list(by_kind) == ["step-size", "spectrum", "signal", "why"]
    top = by_kind["spectrum"].scalars["top/0"].value
    assert by_kind["step-size"].scalars["ceiling/sgd"].value == pytest.approx(2 / top, rel=1e-2)
    assert [r.kind for s in study.open_studies((str(tmp_path),), ReportConfig(), None) for r in s] == list(by_kind)
