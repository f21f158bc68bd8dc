"""Plans of large models: counted from the headers of their files, timed on single sequences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quadform.applications import lighter
from quadform.applications.opening import Opening
from quadform.cli import main
from quadform.curvature import prediction

LENGTH = 7


@pytest.fixture
def gpt2(tmp_path: Path) -> tuple[str, Any]:
    """A folder of a tiny GPT-2 without a tokenizer: its probe is random tokens."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "gpt2")
    return str(tmp_path / "gpt2"), model


def test_headers_tell_the_size(gpt2: tuple[str, Any], tmp_path: Path) -> None:
    """The numbers in the files are the parameters of the model; no file, or a damaged one, counts nothing."""
    folder, model = gpt2
    assert lighter.parameters_stored(folder) == sum(p.numel() for p in model.parameters())
    assert lighter.parameters_stored("new:pre-ln") == 0
    (tmp_path / "damaged.safetensors").write_bytes(b"\xff" * 20)
    assert lighter.parameters_stored(str(tmp_path)) == 0


def test_a_small_model_is_asked_as_it_is(gpt2: tuple[str, Any]) -> None:
    asked = Opening(model=gpt2[0], batch_size=8)
    assert lighter.lighter(asked) == (asked, 1.0)


@pytest.mark.parametrize(
    ("batch", "batches", "light", "scale"), [(8, 1, (1, 1), 8.0), (8, 4, (1, 2), 16.0), (1, 1, (1, 1), 1.0)]
)
def test_a_large_model_is_asked_with_single_sequences(
    batch: int,
    batches: int,
    light: tuple[int, int],
    scale: float,
    gpt2: tuple[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """sequences that are timed x scale = sequences that are meant."""
    monkeypatch.setattr(lighter, "LARGE", 1)
    found, times = lighter.lighter(Opening(model=gpt2[0], batch_size=batch, batches=batches))
    assert (found.batch_size, found.batches) == light
    assert times == scale
    assert times * found.batch_size * found.batches == batch * batches


def planned(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The plan of a command."""
    capsys.readouterr()
    assert main([*words, "--length", str(LENGTH), "--dry-run", "--json", "--quiet"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("verb", [["spectrum", "--top", "1", "--blocks", "none"], ["lr"]])
def test_the_plan_runs_no_whole_probe(
    verb: list[str], gpt2: tuple[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No batch of a large model that a plan runs has more than one sequence; products are counted as for the whole."""
    transformers = pytest.importorskip("transformers")
    seen: list[int] = []
    forward = transformers.GPT2LMHeadModel.forward

    def watched(self: Any, input_ids: torch.Tensor | None = None, **more: Any) -> Any:
        assert input_ids is not None
        seen.append(len(input_ids))
        return forward(self, input_ids=input_ids, **more)

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", watched)
    words = [verb[0], gpt2[0], *verb[1:], "--batch-size", "3", "--batches", "4"]
    whole = planned(words, capsys)
    assert max(seen) == 3
    seen.clear()
    monkeypatch.setattr(lighter, "LARGE", 1)
    light = planned(words, capsys)
    assert set(seen) == {1}
    assert light["products"] == whole["products"]


def test_the_time_of_a_product_is_scaled(
    gpt2: tuple[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A product of 1 s on one of 8 sequences is 8 s."""
    monkeypatch.setattr(lighter, "LARGE", 1)
    monkeypatch.setattr(prediction, "timed", lambda run, v: 1.0)
    monkeypatch.setattr("quadform.applications.spectrum.measure.vector_seconds", lambda *words: 0.0)
    words = ["spectrum", gpt2[0], "--top", "1", "--blocks", "none", "--route", "eager", "--batch-size"]
    for batch in (1, 8):
        found = planned([*words, str(batch)], capsys)
        assert found["seconds"] == found["products"] * batch
