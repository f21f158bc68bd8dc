"""One question for Python and command line: every field is read, and both give the same record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import quadform as qf
from quadform.applications.asking import Door
from quadform.applications.compare.measure import CompareMeasurement
from quadform.applications.decoding import DecodeTask
from quadform.applications.fitting import TrainTask
from quadform.applications.opening import Probe
from quadform.cli import main
from quadform.cli.listing import LsTask
from quadform.core.errors import InputError, UnknownName
from quadform.core.question import Fields, Task, options
from quadform.core.record import Record, strict_json
from quadform.core.work import Work
from quadform.corpora.question import DataTask
from quadform.experiments import ReproduceTask
from quadform.explorer.question import ExploreTask
from quadform.explorer.serving import Served
from quadform.lecture.question import TeachTask

MODEL = "new:pre-ln,depth=1,d_model=4,heads=2"
PROBE: dict[str, Any] = {"data": "add:digits=1", "batch_size": 2}

#: verb -> (its Python function, fields of a small question)
ASKED: dict[str, tuple[Door[Any], dict[str, Any]]] = {
    "spectrum": (qf.spectrum, {**PROBE, "top": 1, "density": True, "probes": 2, "steps": 3, "route": "eager"}),
    "lr": (qf.lr, {**PROBE, "batches": 2, "verify": 2, "short_run": 3, "checkpoints": 2}),
    "why": (qf.why, {**PROBE, "remove": ("norm",), "steps": (0, 2), "lr": 1e-2, "seed": 1}),
    "signal": (
        qf.signal,
        {
            **PROBE,
            "depths": [1, 2],
            "d_model": 8,
            "heads": 2,
            "tokens": 4,
            "networks": 2,
            "jacobian": True,
            "batches": 2,
        },
    ),
    "attention": (
        qf.attention,
        {"tokens": 3, "d_model": 2, "d_k": 1, "d_v": 3, "sink": 0.5, "mask": "causal", "vary": "scale=0.1:1:3"},
    ),
    "point": (qf.point, {**PROBE, "batches": 1, "polish": True, "steps": 1, "inertia": 100}),
    "taylor": (qf.taylor, {**PROBE, "along": ("grad", "update", "random"), "random": 1, "points": 5}),
    "landscape": (qf.landscape, {**PROBE, "plane": "grad", "points": 3, "axes": 2}),
    "flat": (qf.flat, {**PROBE, "batches": 1, "rounds": 0, "products": 40, "tol": 1e-3}),
    "prune": (
        qf.prune,
        {**PROBE, "batches": 4, "sparsity": 0.25, "products": 8, "rounds": 2, "held_out": 1, "each": True},
    ),
    "quantize": (qf.quantize, {**PROBE, "batches": 4, "budget": 9, "group": 4, "products": 8, "each": True}),
    "precond": (qf.precond, {**PROBE, "batches": 2, "methods": ("none", "adam", "kfac"), "fit": 4, "probes": 2}),
    "verify": (qf.verify, {"shapes": 2, "largest": 2, "seed": 1}),
    "doctor": (qf.doctor, {"dtype": "float32", "seed": 1}),
    "compare": (
        qf.compare,
        {**PROBE, "designs": ("pre-ln", "sas"), "depths": (1,), "d_model": 4, "heads": 2, "budget": 1},
    ),
    "report": (qf.study, {**PROBE, "batches": 1}),
}
#: A small training.
TRAINED: dict[str, Any] = {
    "data": "add:digits=1",
    "depth": 1,
    "d_model": 4,
    "heads": 2,
    "steps": 3,
    "batch_size": 2,
    "test": 4,
}
#: What a verb is asked of, where it is not MODEL alone.
NAMED: dict[str, list[str]] = {"signal": ["pre-ln", MODEL]}
#: Entries of a record that differ between two runs of one question.
TIMES = ("cost", "timing", "speed", "seconds", "report")


def recording(asked: Any) -> tuple[Any, set[str]]:
    """The same value, and the names of the fields that are read from now on."""
    names, seen = set(options(type(asked))), set()

    def read(self: Any, name: str) -> Any:
        if name in names:
            seen.add(name)
        return object.__getattribute__(self, name)

    cls = dataclasses.make_dataclass("Recording", [], bases=(type(asked),), frozen=True, kw_only=True)
    cls.__getattribute__ = read  # type: ignore[method-assign]
    same = object.__new__(cls)
    same.__dict__.update(vars(asked))
    return same, seen


def parts(verb: str) -> tuple[Any, Probe | None]:
    """The question and the opening of a call."""
    door, fields = ASKED[verb]

    def of(part: type[Fields], **more: Any) -> Any:
        return part(**{n: v for n, v in fields.items() if n in options(part)}, **more)

    return of(door.question), None if door.opening is None else of(door.opening, **door.opening.naming(named(verb)))


def named(verb: str) -> Any:
    """What a verb is asked of, as Python names it."""
    return NAMED.get(verb, MODEL)


@pytest.mark.parametrize("verb", ASKED)
def test_every_field_is_read(verb: str) -> None:
    """No field is accepted and ignored, neither of the question nor of what opens its model."""
    question, opening = parts(verb)
    asked, seen = recording(question)
    subject = None
    if opening is not None:
        opener, opened = recording(opening)
        subject = opener.open()
    with Work(progress=False) as work:
        measurement = asked.measurement(subject)
        measurement.plan()
        measurement.measure(work)
    assert seen == set(options(type(question)))
    if opening is not None:  # reading a pickle or a hub needs one; tests/applications/test_subject.py has both
        assert opened >= set(options(type(opening))) - {"allow_download", "trust_pickle", "length"}


@pytest.mark.parametrize(
    "task",
    [
        ReproduceTask(names="growth-linear", seed=1, figures="svg"),
        ExploreTask(port=0, no_open=True, seed=1),
        TeachTask(port=0, no_open=True, seed=1),
    ],
    ids=lambda task: task.verb,
)
def test_every_field_of_a_task_is_read(task: Task, tmp_path: Path) -> None:
    """The same of what is done rather than measured; an opened page is closed."""
    asked, seen = recording(task)
    with Work(tmp_path, progress=False) as work:
        asked.plan()
        found = asked.run(work)
    if isinstance(found, Served):
        found.signals.close()
        found.place.listening.close()
    assert seen == set(options(type(task)))


def tasks_of(verb: str, folder: Path) -> list[Task]:
    """Tasks of a verb that read all its fields together."""
    (folder / "own.txt").write_text("a text of my own")
    if verb == "ls":
        return [LsTask(), LsTask(what="runs", where=str(folder))]
    if verb == "train":
        return [TrainTask(**TRAINED)]
    if verb == "decode":
        qf.fit(**TRAINED, out=folder / "run", progress=False)
        (folder / "lines").write_text("1+1=\n")
        run = str(folder / "run")
        return [DecodeTask(model=run, texts="1+1="), DecodeTask(model=run, file=str(folder / "lines"), sample=True)]
    return [
        DataTask(action="build", names=(str(folder / "own.txt"),), out=str(folder / "built")),
        DataTask(action="fetch", names=("moby",), out=str(folder)),
    ]


def test_training_and_decoding_are_the_same_by_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`qf.fit` and `quadform train` give one record and one model; `qf.decode` what `quadform decode` prints."""
    monkeypatch.chdir(tmp_path)
    here = qf.fit(**TRAINED, out="here", progress=False)
    assert main(["train", *(w for n, v in TRAINED.items() for w in flag(n, v)), "--out", "there", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    record = json.loads(strict_json(here.plain()))
    assert {n: told[n] for n in ("kind", "inputs", "scalars")} == {n: record[n] for n in ("kind", "inputs", "scalars")}
    decoded = qf.decode("here", texts=["1+1=", "2+3="], beam=2)
    assert main(["decode", "there", "1+1=", "2+3=", "--beam", "2"]) == 0
    assert capsys.readouterr().out == f"{decoded}\n"
    with pytest.raises(InputError, match="holds a run already"):
        qf.fit(**TRAINED, out="here", progress=False)


@pytest.mark.parametrize("verb", ["ls", "data", "train", "decode"])
def test_every_field_of_several_tasks_is_read(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields that belong to one list, one action, or one kind of search each."""
    monkeypatch.setattr("quadform.corpora.fetch.store.fetch", lambda name, **how: None)
    read = set()
    for task in tasks_of(verb, tmp_path):
        asked, seen = recording(task)
        with Work(progress=False) as work:
            asked.run(work)
        read |= seen
    filled = {"recipe"} if verb == "decode" else set()  # read when the task is made: it fills the other fields
    assert read == set(options(type(task))) - filled


def test_lists_are_the_same_by_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """`qf.ls("designs", depth=2)` has the rows of `quadform ls designs --depth 2`; its text shows them all."""
    here = qf.ls("designs", depth=2)
    assert main(["ls", "designs", "--depth", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == here.plain() | {"ok": True}
    assert all(row[0] in str(here) for row in here.rows)
    assert "what='designs'" in str(qf.ls.__signature__)


def test_reproduce_gives_the_same_record_by_both_ways(tmp_path: Path) -> None:
    """Numbers and tensors of an experiment, bit for bit; only its processor time differs."""
    here = qf.reproduce(names="growth-linear", seed=1, progress=False).outcomes[0].record
    assert main(["reproduce", "growth-linear", "--seed", "1", "--out", str(tmp_path), "--quiet"]) == 0
    there = Record.load(tmp_path / "growth-linear")
    assert there.inputs == here.inputs
    assert {n: e for n, e in there.scalars.items() if n != "cpu_seconds"} == {
        n: e for n, e in here.scalars.items() if n != "cpu_seconds"
    }
    assert all(torch.allclose(t, here.tensors[n], rtol=0, atol=0, equal_nan=True) for n, t in there.tensors.items())


def timeless(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers without those that tell how fast this machine is."""
    return {n: e for n, e in scalars.items() if n.rpartition("/")[2] not in TIMES}


@pytest.fixture
def two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model of a comparison is trained for two steps: how many fit a budget depends on the machine."""
    told = CompareMeasurement._time

    def timed(asked: CompareMeasurement, progress: Any) -> dict[str, Any]:
        found = told(asked, progress)
        return found | {"steps": dict.fromkeys(found["steps"], 2)}

    monkeypatch.setattr(CompareMeasurement, "_time", timed)


@pytest.fixture
def same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much free memory at every look."""
    for module in ("doctor.measure", "machine"):
        monkeypatch.setattr(f"quadform.applications.{module}.free_bytes", lambda device: 1e9)


@pytest.mark.usefixtures("two_steps", "same_memory")
@pytest.mark.parametrize("verb", [verb for verb in ASKED if verb != "report"])  # it is in test_study.py
def test_python_and_command_line_give_the_same_record(verb: str, tmp_path: Path) -> None:
    """The same question by both ways: equal numbers, tensors and inputs, bit for bit."""
    door, fields = ASKED[verb]
    model = [] if door.opening is None else NAMED.get(verb, [MODEL])
    here = door(*([] if door.opening is None else [named(verb)]), **fields, progress=False).record
    words = [w for n, v in fields.items() for w in flag(n, v)]
    assert main([verb, *model, *words, "--out", str(tmp_path), "--quiet"]) in (0, 3)
    there = Record.load(tmp_path)
    assert timeless(there.scalars) == timeless(here.scalars)
    assert there.tensors.keys() == here.tensors.keys()
    assert all(torch.equal(t, here.tensors[n]) for n, t in there.tensors.items())
    assert {k: v for k, v in there.inputs.items() if k not in TIMES} == {
        k: v for k, v in here.inputs.items() if k not in TIMES
    }


def flag(name: str, value: Any) -> list[str]:
    """A field as words of the command line."""
    word = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [word] if value else []
    return [word, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]


def test_unknown_fields_are_named() -> None:
    """A mistyped field of a question, or one that only a named model has."""
    with pytest.raises(UnknownName, match="has no field 'tpo'"):
        qf.spectrum(MODEL, tpo=3)
    with pytest.raises(UnknownName, match="has no field 'batch_size'"):
        qf.spectrum(torch.nn.Linear(1, 1), torch.ones(1, 1), batch_size=3)


def test_a_named_model_takes_no_loss() -> None:
    """It has its own; `batches` then is how many."""
    with pytest.raises(InputError, match="has its own loss"):
        qf.spectrum(MODEL, loss=torch.nn.functional.mse_loss)
    with pytest.raises(InputError, match="is their number"):
        qf.spectrum(MODEL, [torch.ones(1, 1)])


def test_doors_describe_themselves() -> None:
    """`help(qf.spectrum)`: arguments, fields with their defaults and texts."""
    assert "top=5" in str(qf.spectrum.__signature__)
    assert "top: Number of largest eigenvalues." in (qf.spectrum.__doc__ or "")
