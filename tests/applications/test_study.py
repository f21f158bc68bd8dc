"""A study: stages in a folder, resumable, redrawn without computing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quadform.applications.configs.report import ReportConfig
from quadform.applications.study import folder, measure, open_studies, records_in, stages
from quadform.core.errors import FileError, InputError
from quadform.core.record import Estimate, Provenance, Record
from quadform.core.work import Deadline

ASKED: dict[str, Any] = {"model": "m", "seed": 0}


def record(kind: str, **inputs: Any) -> Record:
    made = Provenance.collect(seed=0, dtype="float64", device="cpu")
    return Record(kind=kind, inputs=inputs, scalars={"x": Estimate(1.0)}, tensors={}, made=made)


def three(ran: list[str], broken: str = "", slow: str = "") -> list[stages.Stage]:
    """Stages that write down that they ran; `broken` is interrupted, `slow` takes all the time it is given."""

    def run(name: str):
        def go(into: Path, seconds: float | None, resume: bool) -> Record:
            if name == broken:
                raise KeyboardInterrupt
            ran.append(name)
            if name == slow and seconds is not None:
                into.mkdir(parents=True, exist_ok=True)
                while seconds > 0:
                    seconds -= _tick()
                return record(name, partial=True)
            return record(name)

        return go

    return [stages.Stage(name, name, run(name)) for name in ("lr", "spectrum", "signal")]


def _tick() -> float:
    import time

    time.sleep(0.02)
    return 0.02


def go(listed: list[stages.Stage], into: Path, **settings: Any) -> list[folder.Study]:
    config = ReportConfig(**settings)
    return measure._go(listed, ASKED, into, config, Deadline(config.seconds))


def test_a_stopped_study_goes_on(tmp_path: Path) -> None:
    """Stages that were finished before an interruption are read, not run again; a fresh study runs all."""
    ran: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        go(three(ran, broken="signal"), tmp_path, resume=True)
    assert ran == ["lr", "spectrum"]
    (found,) = go(three(ran), tmp_path, resume=True)
    assert [r.kind for r in found.records] == ["lr", "spectrum", "signal"]
    assert ran == ["lr", "spectrum", "signal"]
    go(three(ran), tmp_path)
    assert ran == ["lr", "spectrum", "signal"] * 2


def test_time_ends_a_study(tmp_path: Path) -> None:
    """The stage under way is cut, later ones are not begun, all of them are named missing; `--resume` finishes."""
    ran: list[str] = []
    (found,) = go(three(ran, slow="spectrum"), tmp_path, max_time="0.3s")
    assert ran == ["lr", "spectrum"]
    assert [r.kind for r in found.records] == ["lr", "spectrum"]
    assert found.missing == ("spectrum", "signal")
    assert records_in(tmp_path)[0].missing == ("spectrum", "signal")
    (found,) = go(three(ran), tmp_path, resume=True)
    assert ran == ["lr", "spectrum", "spectrum", "signal"]
    assert found.missing == records_in(tmp_path)[0].missing == ()


def test_however_short_the_time_something_advances(tmp_path: Path) -> None:
    """A thousandth of a second, again and again: every round finishes one more stage."""
    ran: list[str] = []
    for k in range(1, 4):
        (found,) = go(three(ran), tmp_path, max_time="0.001s", resume=True)
        assert len(found.records) == k


def test_another_study_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """`--resume` with another model or seed: refused by name; without it the older records are gone at once."""
    ran: list[str] = []
    go(three(ran), tmp_path)
    with pytest.raises(InputError, match=r"other settings \(model .m. / .n."):
        measure._go(three(ran), ASKED | {"model": "n"}, tmp_path, ReportConfig(resume=True), Deadline(None))
    with pytest.raises(KeyboardInterrupt):
        go(three(ran, broken="lr"), tmp_path)
    assert records_in(tmp_path) == []


def test_plans_add_up(tmp_path: Path) -> None:
    """The plan of several stages: products and seconds added, the largest memory; finished ones are left out."""
    costs = {"lr": stages.Cost(10, 2.0, 5e6), "spectrum": stages.Cost(30, 4.0, 8e6), "signal": stages.Cost(0, 1.0)}
    listed = [replace(s, plan=lambda n=s.name: costs[n]) for s in three([])]
    body = measure._plan_of(listed, "m")
    assert (body["products"], body["seconds"], body["bytes"]) == (40, 7.0, 8e6)
    assert body["text"].splitlines()[0] == "plan for m: 3 stages, about 40 products, 7 s in all, 8 MB beside the model"
    record("lr").save(tmp_path / "lr")
    left = measure._left(listed, tmp_path, ReportConfig(resume=True))
    assert [s.name for s in left] == ["spectrum", "signal"]


def test_records_in_a_folder(tmp_path: Path) -> None:
    """The stages of a model are one study, the exact layer another; a record of the folder itself stands alone."""
    assert records_in(tmp_path) == []
    for name in ("signal", "lr", "attention"):
        record(name).save(tmp_path / name)
    assert [[r.kind for r in s.records] for s in records_in(tmp_path)] == [["lr", "signal"], ["attention"]]
    record("alone").save(tmp_path)
    assert [[r.kind for r in s.records] for s in records_in(tmp_path)] == [["alone"]]
    (tmp_path / "other" / "lr").mkdir(parents=True)
    (tmp_path / "other" / folder.ASKED).write_text('{"asked": {}, "stages": ["nothing"]}')
    with pytest.raises(FileError, match="is damaged"):
        records_in(tmp_path / "other")


def test_new_models_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`new:...` is studied on one probe for all stages: lambda_max of `lr` and of `spectrum` is the same number."""
    monkeypatch.setattr(stages, "PROBE", {"batch": 4, "batches": 2})
    word = "new:sas-p,depth=1,dim=16,heads=2"
    planned = measure.plan((word,), ReportConfig(data="add:digits=2"), tmp_path / "none")
    assert [s["stage"] for s in planned["studies"][0]["stages"]] == ["signal", "lr", "spectrum", "why"]
    assert all(s["seconds"] > 0 for s in planned["studies"][0]["stages"])
    assert not (tmp_path / "none").exists()
    (found,) = open_studies((word,), ReportConfig(data="add:digits=2"), tmp_path)
    by_kind = {r.kind: r for r in found.records}
    assert list(by_kind) == ["step-size", "spectrum", "signal", "why"]
    top = by_kind["spectrum"].scalars["top/0"].value
    assert by_kind["step-size"].scalars["ceiling/sgd"].value == pytest.approx(2 / top, rel=1e-2)
    (again,) = open_studies((str(tmp_path),), ReportConfig(), None)
    assert [r.kind for r in again.records] == list(by_kind)
    assert measure.plan((str(tmp_path),), ReportConfig(), None)["seconds"] == 0
    both = measure._targets((word, "new:pre-ln"), ReportConfig(), tmp_path)
    assert [into for _, _, into in both] == [tmp_path / "sas-p-depth-1-dim-16-heads-2", tmp_path / "pre-ln"]
