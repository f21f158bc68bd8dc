"""`quadform explore RUN`: the page follows the record that a monitor writes while a model trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quadform as qf
from browsing import served, violations
from quadform.cli.main import main
from quadform.core.errors import InputError
from quadform.core.record import Provenance, Record
from quadform.explorer import watch
from quadform.explorer.serving import find_place, serving


class Training:
    """A small model with attention that a monitor reads at every step."""

    def __init__(self, out: Path) -> None:
        torch.manual_seed(0)
        block = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        model = nn.Sequential(nn.Embedding(5, 8), nn.TransformerEncoder(block, 2), nn.Linear(8, 5))
        self.x, self.model = torch.randint(0, 5, (2, 4)), model
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        self.monitor = qf.Monitor(model, self.optimizer, self.x, loss=self.loss, every=1, out=out)

    @staticmethod
    def loss(out: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out.flatten(0, 1), batch.flatten())

    def step(self) -> None:
        self.loss(self.model(self.x), self.x).backward()
        self.optimizer.step()
        self.monitor.step()


def asked(watching: watch.Watching, version: str = "", **more: Any) -> dict[str, Any]:
    message = {"seq": 1, "lang": "en", "theme": "light", "version": version}
    return watching.answer(json.dumps(message | more))


def test_pictures_come_when_the_record_has_grown(tmp_path: Path) -> None:
    """Nothing is drawn twice; a message that is none is an error; the folder keeps one record."""
    training, watching = Training(tmp_path / "run"), watch.Watching(tmp_path / "run")
    assert asked(watching) == {"kind": "answer", "seq": 1, "version": ""}  # nothing is there yet
    training.step()
    first = asked(watching)
    assert "in 1 steps" in first["said"]
    assert [p["title"] for p in first["pictures"]] == [p["title"] for p in asked(watching, theme="dark")["pictures"]]
    assert asked(watching, first["version"]) == {"kind": "answer", "seq": 1, "version": first["version"]}
    training.step()
    assert asked(watching, first["version"])["said"] != first["said"]
    assert len(Record.load(tmp_path / "run").tensors["step"]) == 2
    assert len(list((tmp_path / "run").iterdir())) == 2
    assert watching.answer("{}")["kind"] == "error"


def test_a_folder_without_a_record_of_a_monitor_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="holds no record of a monitor"):
        watch.watched(tmp_path / "none")
    Record("spectrum", {}, {}, {}, Provenance.collect()).save(tmp_path / "other")
    with pytest.raises(InputError, match="a record of 'spectrum', which does not grow"):
        watch.watched(tmp_path / "other")
    assert main(["explore", str(tmp_path / "other"), "--no-open", "--port", "0"]) == 2
    assert "which does not grow" in capsys.readouterr().err


def test_a_record_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    training = Training(tmp_path / "run")
    training.step()
    assert "the record was not written" in training.monitor.warnings[0]
    assert len(training.monitor.history) == 1


@pytest.mark.browser
def test_the_page_grows_with_the_run(browser, tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.step()
    make = lambda place: watch.application(place, watch.watched(tmp_path / "run"))  # noqa: E731
    with serving(find_place(0), make) as place, served(browser, place, size=(1280, 900)) as page:
        said = page.inner_text("#said")
        assert page.locator("#pictures img").count() == 2
        assert page.evaluate("[...document.images].every((i) => i.complete && i.naturalWidth > 300)")
        training.step()
        page.wait_for_function("(said) => document.getElementById('said').innerText !== said", arg=said)
        assert violations(page, least=10) == []
