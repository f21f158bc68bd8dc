"""`why` of one step: the step is repeated, its numbers are right, and what is blamed is to blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import quadform as qf
from quadform.answers.why_step import WhyStep
from quadform.cli.main import main
from quadform.core.errors import InputError
from quadform.core.record import Estimate, Provenance, Record
from quadform.corpora import dataset
from quadform.nn import Transformer
from quadform.train import TrainConfig, train
from quadform.train.folder import RunFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps with a small constant rate, every step in its log."""
    data, out = dataset("add", digits=1), tmp_path_factory.mktemp("why") / "run"
    model = Transformer("pre-ln", depth=1, d_model=4, heads=2, **data.settings)
    config = TrainConfig(steps=8, batch_size=4, lr=1e-3, log_every=1, valid_every=8)
    train(model, data, config, out=out, progress=False)
    return out


def test_the_step_is_repeated_and_its_parts_add_up(folder: Path) -> None:
    """The loss is that of the log; slope and curvature together are the change of the loss, at a rate as small."""
    found = qf.why(str(folder), step=6, progress=False)
    assert isinstance(found, WhyStep)
    logged = {line["step"]: line["loss"] for line in RunFolder(folder).lines() if "loss" in line}
    s, t = found.record.scalars, found.record.tensors
    assert s["loss"].value == pytest.approx(logged[6], rel=1e-4)
    assert found.same
    assert s["change"].value == pytest.approx(float(t["slope"].sum() + t["curve"].sum()), rel=0.05)
    assert set(found.layers) >= {"layers.0"}
    assert found.cause in ("neither", "data")
    assert found.rate.value < 1


def test_it_is_printed_and_drawn(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["why", str(folder), "--step", "8", "--out", str(tmp_path / "why"), "--quiet"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "step 8, trained again from step" in out
    assert "times the ceiling on the batches after it" in out
    found = WhyStep.load(tmp_path / "why")
    for lang, title in (("en", "Step 8 of"), ("ko", "의 8단계")):
        assert title in found.report(tmp_path / f"{lang}.html", lang=lang).read_text()


def answer(lr: float, norm: float, slope: float, curve: float, logged: float | None = None) -> WhyStep:
    values = {"loss": 1.0, "loss_others": 1.0, "norm": norm, "norm_others": 1.0, "change": slope + curve}
    ceiling = Estimate(1.0, 0.01, "estimate", error_kind="residual")
    scalars = {n: Estimate(v) for n, v in values.items()} | {"ceiling": ceiling, "ceiling_others": ceiling}
    tensors = {"slope": torch.tensor([slope, 0.0]), "curve": torch.tensor([0.0, curve])}
    inputs: dict[str, Any] = {"step": 5, "begun": 0, "lr": lr, "layers": ["a", "b"], "logged": logged, "rule": "SGD"}
    return WhyStep(Record("why-step", inputs | {"coverage": ""}, scalars, tensors, Provenance.collect()))


def test_what_is_blamed() -> None:
    """Rate above the ceiling, a batch with a long gradient, both, neither; curvature above slope; another loss."""
    cases = {"ceiling": (3.0, 1.0), "data": (0.5, 5.0), "both": (3.0, 5.0), "neither": (0.5, 1.0)}
    assert {name: answer(*given, -1.0, 0.1).cause for name, given in cases.items()} == {n: n for n in cases}
    assert [v.status for v in answer(3.0, 3.0, -1.0, 0.1).verdicts()] == ["red", "yellow"]
    assert "the step was too long" in answer(3.0, 1.0, -1.0, 2.0).said()
    assert "The slope is the larger part" in answer(3.0, 1.0, -1.0, 0.1).said()
    assert "most of it in b" in answer(3.0, 1.0, -1.0, 0.1).said()
    assert "not repeated exactly" in answer(0.5, 1.0, -1.0, 0.1, logged=2.0).said()


def test_steps_that_cannot_be_explained_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="steps 1 to 8"):
        qf.why(str(folder), step=9, progress=False)
    with pytest.raises(InputError, match="training run of quadform"):
        qf.why("new:pre-ln,depth=1,d_model=4,heads=2", step=1, progress=False)
