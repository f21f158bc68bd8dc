"""`why` of one step of another trainer's run: Hugging Face folders, Lightning .ckpt, plain torch files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import quadform as qf
from quadform.answers.why_step import WhyStep
from quadform.cli.main import main
from quadform.core.errors import InputError
from quadform.curvature.risk import Risk

LR = 1e-3


def loss(out: Tensor, batch: Any) -> Tensor:
    return F.mse_loss(out, batch[1])


class Course:
    """Six steps of a small net in float64, its weights and optimizer kept after steps 2 and 4."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.batch = (torch.randn(8, 3).double(), torch.randn(8, 2).double())
        optimizer = torch.optim.AdamW(self.model.parameters(), LR)
        self.kept: dict[int, tuple[nn.Module, dict[str, Any]]] = {}
        for step in range(1, 7):
            optimizer.zero_grad()
            loss(self.model(self.batch[0]), self.batch).backward()
            optimizer.step()
            if step in (2, 4):
                self.kept[step] = (copy.deepcopy(self.model), copy.deepcopy(optimizer.state_dict()))


@pytest.fixture(scope="module")
def course() -> Course:
    return Course()


def saved(course: Course, folder: Path, kind: str) -> None:
    for step, (model, state) in course.kept.items():
        if kind == "lightning":
            weights = {f"net.{n}": t for n, t in model.state_dict().items()}
            body = {"state_dict": weights, "global_step": step, "optimizer_states": [state], "lr_schedulers": []}
            torch.save(body, folder / f"step={step}.ckpt")
        else:
            torch.save({"model": model.state_dict(), "optimizer": state, "step": step}, folder / f"{step}.pt")


@pytest.mark.parametrize("kind", ["lightning", "plain"])
def test_checkpoints_around_a_step_explain_it(course: Course, tmp_path: Path, kind: str) -> None:
    """Slope and change are those of the two models; the ceiling is that of `lr` at the one before."""
    saved(course, tmp_path, kind)
    found = qf.why(course.model, [course.batch], loss, step=3, checkpoints=str(tmp_path), progress=False)
    assert isinstance(found, WhyStep)
    risks = [Risk(course.kept[s][0], loss, [course.batch], quiet=True) for s in (2, 4)]
    g = risks[0].gradient()
    d = {n: risks[1].params[n] - p for n, p in risks[0].params.items()}
    s, t = found.record.scalars, found.record.tensors
    assert s["change"].value == pytest.approx(float(risks[1].value() - risks[0].value()), rel=1e-6)
    assert float(t["slope"].sum()) == pytest.approx(sum(float((g[n] * d[n]).sum()) for n in d), rel=1e-6)
    assert float(t["slope"].sum() + t["curve"].sum()) == pytest.approx(s["change"].value, rel=1e-3)
    state = next(tmp_path.glob("*2.*"))
    lr = qf.lr(course.kept[2][0], [course.batch], loss, state=str(state), verify=0, progress=False)
    assert found.rate.value == pytest.approx(LR / lr.ceiling.value, rel=0.03)
    assert found.cause == "neither"
    assert "The log does not tell about its batch" in found.said()
    assert "by the checkpoints at 2 and 4" in found.lines()[0]
    with pytest.raises(InputError, match="it needs a checkpoint before and after it; there are 2, 4"):
        qf.why(course.model, [course.batch], loss, step=5, checkpoints=str(tmp_path), progress=False)
    with pytest.raises(InputError, match="give step= too"):
        qf.why(course.model, [course.batch], loss, checkpoints=str(tmp_path), progress=False)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Trainer: checkpoints at 2 and 4, a log with a long gradient at step 3."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("trainer")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=16)
    )
    optimizer = torch.optim.AdamW(model.parameters(), LR)
    ids, log = torch.randint(0, 16, (4, 8)), []
    for step in range(1, 5):
        optimizer.zero_grad()
        value = model(input_ids=ids, labels=ids).loss
        value.backward()
        optimizer.step()
        log.append({"step": step, "loss": float(value), "grad_norm": 9.0 if step == 3 else 1.0, "learning_rate": LR})
        if step % 2 == 0:
            at = folder / f"checkpoint-{step}"
            model.save_pretrained(at)
            torch.save(optimizer.state_dict(), at / "optimizer.pt")
            (at / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": log}))
    return folder


def test_a_folder_of_the_trainer_with_its_log(
    trainer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line: weights, state, rate and log are found without a flag; the odd line is blamed."""
    words = ["why", str(trainer), "--step", "3", "--out", str(tmp_path / "why"), "--quiet"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "step 3, by the checkpoints at 2 and 4; AdamW" in out
    assert "the gradient norm is 9 times that around it" in out
    found = WhyStep.load(tmp_path / "why")
    assert found.lr == LR
    assert found.cause == ("data" if found.rate.value <= 1 else "both")
    assert main(["why", str(trainer), "--step", "3", "--dry-run"]) == 0
    for lang in ("en", "ko"):
        found.report(tmp_path / f"{lang}.html", lang=lang)


def test_the_rate_is_blamed_where_it_is_above_the_ceiling(trainer: Path, tmp_path: Path) -> None:
    path = trainer / "checkpoint-4" / "trainer_state.json"
    before = path.read_text()
    body = json.loads(before)
    for line in body["log_history"]:
        line |= {"learning_rate": 10.0, "grad_norm": 1.0}
    path.write_text(json.dumps(body))
    try:
        found = qf.why(str(trainer), step=3, progress=False)
    finally:
        path.write_text(before)
    assert found.cause == "ceiling"
    assert found.verdicts()[0].status == "red"
