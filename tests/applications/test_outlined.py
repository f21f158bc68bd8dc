"""Plans of large models: from the configuration, without weights; what does not fit is refused before the work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import quadform as qf
from quadform.applications import machine, outlined, room
from quadform.applications.opening import Opening
from quadform.cli import main
from quadform.core.errors import TooLarge
from quadform.curvature import Risk
from quadform.curvature.routes import Products

NEW = "new:pre-ln,depth=1,d_model=8,heads=2"


@pytest.fixture
def gpt2(tmp_path: Path) -> str:
    """A folder of a tiny GPT-2 without a tokenizer."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    return str(tmp_path / "gpt2")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model counts as large."""
    monkeypatch.setattr(outlined, "LARGE", 1)


def planned(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--dry-run", "--json", "--quiet"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ["spectrum", "--curvature", "hessian"],
        ["spectrum", "--curvature", "gauss_newton"],
        ["lr", "--verify", "3"],
        ["why"],
    ],
)
def test_no_weights_are_read_for_a_plan(
    words: list[str], gpt2: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan without weights counts the products and vectors of the plan with them."""
    transformers = pytest.importorskip("transformers")
    words = [words[0], gpt2, *words[1:], "--batch-size", "2"]
    loaded = planned(words, capsys)
    assert room.NOTE not in loaded["text"]
    monkeypatch.setattr(outlined, "LARGE", 1)
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "from_pretrained", None)
    found = planned(words, capsys)
    assert room.NOTE in found["text"]
    assert found["products"] == loaded["products"]
    assert found["room"]["vectors"] == loaded["room"]["vectors"] > 0
    assert found["room"]["product"] > 0
    assert found["room"]["weights"] > 0
    assert found["bytes"] == sum(found["room"][part] for part in ("weights", "product", "vectors"))
    assert found["seconds"] > 0


@pytest.mark.usefixtures("large")
def test_a_new_model_is_not_drawn_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quadform.nn.transformer.initialise", None)
    plan = qf.spectrum.plan(NEW, top=1, blocks="none")
    assert room.NOTE in plan.text


@pytest.mark.usefixtures("large")
def test_a_model_that_looks_at_values_is_loaded(gpt2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    forward = transformers.GPT2LMHeadModel.forward

    def looks(self: Any, input_ids: torch.Tensor | None = None, **more: Any) -> Any:
        assert input_ids is not None
        int(input_ids[0, 0])
        return forward(self, input_ids=input_ids, **more)

    assert outlined.outlined(Opening(model=gpt2)) is not None
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", looks)
    assert outlined.outlined(Opening(model=gpt2)) is None
    assert room.NOTE not in qf.spectrum.plan(gpt2, top=1, blocks="none").text


def test_small_models_are_timed(gpt2: str) -> None:
    assert outlined.outlined(Opening(model=gpt2)) is None
    assert outlined.outlined(Opening(model=NEW)) is None


def test_what_does_not_fit_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No product runs; both numbers are told. In a plan without weights they stand in the text."""
    monkeypatch.setattr(room, "WORTH_COUNTING", 0)
    need = room.product_bytes(Opening(model=NEW).open().risk())
    monkeypatch.setattr(Products, "__call__", None)
    monkeypatch.setattr(room, "free_bytes", lambda device: need)
    with pytest.raises(TooLarge, match=r"need .*B at least; .*B are free\. Take smaller batches"):
        qf.spectrum(NEW, top=1, blocks="none", progress=False)
    for ask in (qf.lr, qf.point, qf.taylor, qf.flat, qf.why):
        with pytest.raises(TooLarge, match=r"need .*B at least; .*B are free\. Take smaller batches"):
            ask(NEW, progress=False)
    monkeypatch.setattr(outlined, "LARGE", 1)
    assert "free: take smaller batches" in qf.spectrum.plan(NEW, top=1, blocks="none").text


def test_a_model_is_opened_with_one_sequence(gpt2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a model can be run is tried before the batch is held against memory: on one sequence of it."""
    from transformers import GPT2LMHeadModel

    seen: list[int] = []
    forward = GPT2LMHeadModel.forward
    monkeypatch.setattr(
        GPT2LMHeadModel, "forward", lambda self, **b: seen.append(len(b["input_ids"])) or forward(self, **b)
    )
    assert len(Opening(model=gpt2, batch_size=4).open().batches[0]["input_ids"]) == 4
    assert seen == [1]


def test_the_plan_of_a_report_says_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlined, "LARGE", 1)
    for free, told in ((1e12, r"beside the model$"), (1e4, r"beside the model: \S+ MB at least, and 10 kB free: take")):
        monkeypatch.setattr(room, "free_bytes", lambda device, free=free: free)
        assert re.search(told, qf.study.plan(NEW).text.splitlines()[0])


def test_the_peak_of_a_product_is_more_than_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the sequences keep twice as much; small products, and models whose code is not known, are not counted."""
    one, two = (Opening(model=NEW, batch_size=b).open().risk() for b in (4, 8))
    assert room.product_bytes(one) == 0
    monkeypatch.setattr(room, "WORTH_COUNTING", 0)
    beside = room.VECTORS * one.space.size * 4
    small, large = (room.product_bytes(risk) - beside for risk in (one, two))
    assert 1.8 * small < large < 2 * small
    x = torch.ones(2, 3)
    risk = Risk(torch.nn.Linear(3, 1), lambda out, batch: out.square().mean(), (x, x), quiet=True)
    assert room.product_bytes(risk) == 0


def test_long_vectors_are_timed_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_TIMED", 10)
    clock = iter(range(100))
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    found = [machine.vector_seconds(n, torch.float32, torch.device("cpu"), 2) for n in (10, 40)]
    assert found[1] == 4 * found[0]
