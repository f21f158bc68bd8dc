"""The rate in force at the measured step against the ceiling at that step; the peak of the schedule by itself."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import torch

import quadform as qf
from quadform.answers.texts import EN, KO
from quadform.applications.opening import Opening
from quadform.applications.step_size import StepSize, lr
from quadform.applications.step_size.rules import read_optimizer
from quadform.applications.step_size.state import rates_of_run
from quadform.applications.subject import open_subject
from quadform.cli.main import main
from quadform.core.errors import FileError, InputError
from quadform.corpora import dataset
from quadform.integrations.trainer_files import optimizer_state, trainer_files
from quadform.nn import Transformer
from quadform.train import Schedule, TrainConfig, train
from quadform.train.runs import open_run


@pytest.fixture(scope="module")
def data():
    return dataset("add", digits=1)


def make(data, **options) -> Transformer:
    return Transformer("pre-ln", depth=1, d_model=4, heads=2, **options, **data.settings)


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory) -> Path:
    """A run of 20 steps to its end: linear decay from 2, so that its last step has 2 / 19."""
    out = tmp_path_factory.mktemp("rates") / "run"
    train(make(data), data, TrainConfig(steps=20, batch_size=4, lr=2.0, optimizer="sgd"), out=out, progress=False)
    return out


WORDS = ["--batch-size", "4", "--batches", "1", "--verify", "0", "--checkpoints", "0", "--quiet"]


def test_the_rate_of_a_run_is_the_one_of_its_step(data, folder):
    """At the end of a schedule: the rate its last step had, the one its log holds; the peak is the largest of all."""
    run = open_run(folder)
    written = [json.loads(line)["lr"] for line in (folder / "metrics.jsonl").read_text().splitlines() if "lr" in line]
    found = rates_of_run(run)
    factors = [run.config.schedule.factor(t, 20) for t in range(20)]
    assert found["lr"] == pytest.approx(written[-1], rel=1e-12)
    assert found["lr"] == pytest.approx(2 * factors[-1], rel=1e-12)
    assert found["peak"] == pytest.approx(2 * max(factors), rel=1e-12)
    assert found["peak"] > 10 * found["lr"]


def test_a_run_without_a_rule_has_the_rate_of_its_step_too(data, tmp_path):
    """Muon is measured on copies; what is held against it is the rate of the last step, not the peak."""
    config = TrainConfig(steps=6, batch_size=4, lr=1e-2, optimizer="muon")
    train(make(data), data, config, out=tmp_path, progress=False)
    found = lr(str(tmp_path), verify=1, batches=1, progress=False)
    assert found.optimizer == "AdamW and Muon"
    assert found.lr == rates_of_run(open_run(tmp_path))["lr"] < 1e-2


def test_a_run_under_way_has_the_rate_of_its_next_step(data, tmp_path):
    """A checkpoint in the middle: what the next step from these weights takes."""
    config = TrainConfig(steps=20, batch_size=4, lr=0.5, schedule=Schedule(decay="cosine", warmup=4))
    train(make(data), data, config, out=tmp_path, progress=False)
    run = open_run(tmp_path)
    for step in (0, 3, 11, 20):
        object.__setattr__(run, "step", step)
        assert rates_of_run(run)["lr"] == 0.5 * config.schedule.factor(min(step, 19), 20)


def test_the_sentence_is_about_the_rate_in_force(folder, tmp_path, capsys):
    """A run whose peak is above the ceiling of its last step and whose last rate is far below it is below it."""
    assert main(["lr", str(folder), *WORDS, "--out", str(tmp_path / "lr")]) == 0
    said = capsys.readouterr().out
    found = StepSize.load(tmp_path / "lr")
    given = found.record.inputs
    assert given["lr"] < found.ceiling.value < given["peak_lr"]  # the case that was told wrongly
    line = next(x for x in said.splitlines() if "learning rate in force at this step" in x)
    assert f"is {given['lr'] / found.ceiling.value:.2g} times the ceiling" in line
    assert "The schedule peaks at 2, at another step; the ceiling of that step was not measured." in line
    assert "Lower the learning rate" not in said
    for texts in (EN, KO):
        assert texts("rate_peak", peak="2") in found.said(texts.lang)
    assert found.verdicts()[0].status == "yellow"  # not tried, and not red


def test_a_rate_of_your_own_is_held_against_the_ceiling(folder, tmp_path, capsys):
    """`--lr`: your own number, said to be yours; no peak is named beside it."""
    assert main(["lr", str(folder), *WORDS, "--lr", "1e6", "--out", str(tmp_path / "lr")]) == 0
    said = capsys.readouterr().out
    assert "red: Lower the learning rate below" in said
    assert "yours, 1e+06, is" in said
    assert "peak" not in said
    assert StepSize.load(tmp_path / "lr").verdicts()[0].status == "red"


def test_an_optimizer_object_has_its_own_rate_and_peak(data):
    """torch's scheduler: `lr` is what the next step takes, `initial_lr` the peak."""
    model = make(data, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=4)
    batches = list(itertools.islice(data.batches("train", 4, 0), 2))
    for batch in batches:
        model.loss(batch).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    found = read_optimizer(optimizer, model)
    assert (found.lr, found.peak) == (pytest.approx(0.3 * 0.55), 0.3)
    answer = lr(model, batches, optimizer=optimizer, verify=0, progress=False)
    assert answer.record.inputs["lr"] == pytest.approx(0.165)
    assert any("0.165, the learning rate in force at this step, is" in line for line in answer.lines())


def test_a_record_that_does_not_say_which_rate_it_holds_is_not_judged(folder, tmp_path, capsys):
    """Older records hold the peak: no sentence is made of it, and no colour."""
    assert main(["lr", str(folder), *WORDS, "--lr", "1e6", "--out", str(tmp_path / "lr")]) == 0
    found = StepSize.load(tmp_path / "lr")
    del found.record.inputs["lr_is"]
    assert not any("Keep the learning rate" in line or "in force" in line for line in found.lines())
    assert found.verdicts()[0].status == "yellow"


# --- checkpoints of a Hugging Face trainer ----------------------------------------------------------------------------
STEPS, PEAK = 6, 0.02


def checkpoint(out: Path, steps: int = STEPS) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """What `Trainer` leaves in a checkpoint after `steps` of 6: weights, optimizer.pt, scheduler.pt,
    trainer_state.json; matrices and the rest in two groups, linear decay to 0."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    matrices, rest = ([p for p in model.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": rest, "weight_decay": 0.0}], lr=PEAK)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    history = []
    for step in range(steps):
        ids = torch.randint(0, 16, (4, 8))
        model(input_ids=ids, labels=ids).loss.backward()
        history.append({"step": step + 1, "learning_rate": optimizer.param_groups[0]["lr"], "loss": 1.0})
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(out)
    torch.save(optimizer.state_dict(), out / "optimizer.pt")
    torch.save(schedule.state_dict(), out / "scheduler.pt")
    (out / "trainer_state.json").write_text(json.dumps({"global_step": steps, "log_history": history}))
    return model, optimizer


def asked(out: Path, *more: str) -> StepSize:
    keep = out.parent / f"{out.name}-lr"
    assert main(["lr", str(out), *WORDS, "--length", "8", *more, "--out", str(keep)]) == 0
    return StepSize.load(keep)


def test_the_state_beside_the_weights_is_used(tmp_path, capsys):
    """optimizer.pt gives P and the rate of the next step, without a flag: the ceiling of the optimizer itself."""
    model, optimizer = checkpoint(tmp_path / "c", steps=4)
    found = asked(tmp_path / "c")
    said = capsys.readouterr().out
    assert "P from optimizer.pt at step 4" in said
    assert "step 4, float32" in said
    assert "6.67e-03, the learning rate in force at this step, is" in said
    assert "The schedule peaks at 0.02" in said
    subject = open_subject(Opening(model=str(tmp_path / "c"), batch_size=4, length=8))
    own = lr(model.eval(), subject.batches, optimizer=optimizer, verify=0, progress=False)
    assert found.ceiling.value == pytest.approx(own.ceiling.value, rel=1e-3)
    (tmp_path / "c" / "optimizer.pt").unlink()
    without = asked(tmp_path / "c")
    assert "no optimizer state" in capsys.readouterr().out
    assert abs(without.ceiling.value / found.ceiling.value - 1) > 0.1
    assert without.record.inputs["lr"] == pytest.approx(PEAK / 3)  # scheduler.pt still tells


def test_at_the_end_of_a_schedule_the_log_tells_the_last_rate(tmp_path):
    """After the last step optimizer and schedule hold 0; the last rate that moved the weights stands in the log."""
    checkpoint(tmp_path / "c")
    found = trainer_files(tmp_path / "c")
    assert (found.step, found.peak) == (STEPS, PEAK)
    assert found.lr == pytest.approx(PEAK / STEPS)
    assert asked(tmp_path / "c").record.inputs["lr"] == pytest.approx(PEAK / STEPS)


def test_a_state_that_cannot_be_used_is_told_and_left(tmp_path, capsys):
    """Damaged, of another model, of another optimizer: the answer says why, and stands without it."""
    checkpoint(tmp_path / "c", steps=2)
    path = tmp_path / "c" / "optimizer.pt"
    torch.save(torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1).state_dict(), path)
    asked(tmp_path / "c")
    assert "optimizer.pt beside the weights is not used" in capsys.readouterr().out
    path.write_bytes(b"no pickle at all")
    asked(tmp_path / "c")
    assert "optimizer.pt beside the weights is not used" in capsys.readouterr().out
    asked(tmp_path / "c", "--optimizer", "sgd")
    assert "beside the weights" not in capsys.readouterr().out
    for name in ("trainer_state.json", "scheduler.pt"):
        (tmp_path / "c" / name).write_bytes(b"\x00 broken")
    assert trainer_files(tmp_path / "c").step is None


def test_of_a_folder_with_many_checkpoints_the_latest_is_meant(tmp_path, capsys):
    for steps in (2, 4):
        checkpoint(tmp_path / "run" / f"checkpoint-{steps}", steps)
    (tmp_path / "run" / "checkpoint-9").mkdir()  # not finished: it has no model
    asked(tmp_path / "run")
    assert "P from optimizer.pt at step 4" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["optimizer.bin", "last.ckpt", "own.pt"])
def test_states_of_accelerate_lightning_and_own_loops(name, tmp_path):
    """The same ceiling from the state wherever a trainer puts it; where it lies beside the weights, without a word."""
    model, optimizer = checkpoint(tmp_path / "c", steps=4)
    subject = open_subject(Opening(model=str(tmp_path / "c"), batch_size=4, length=8))
    state = optimizer.state_dict()
    bodies = {
        "optimizer.bin": state,
        "last.ckpt": {
            "global_step": 4,
            "state_dict": model.state_dict(),
            "optimizer_states": [state],
            "lr_schedulers": [{"_last_lr": [PEAK / 3], "base_lrs": [PEAK]}],
        },
        "own.pt": {"model": model.state_dict(), "optimizer": state, "step": 4},
    }
    for kept in ("optimizer.pt", "scheduler.pt", "trainer_state.json"):
        (tmp_path / "c" / kept).unlink()
    torch.save(bodies[name], tmp_path / "c" / name)
    options = {"verify": 0, "progress": False, "products": 8}
    want = lr(model.eval(), subject.batches, optimizer=Wrapped(optimizer), **options)
    found = lr(model.eval(), subject.batches, state=tmp_path / "c" / name, **options)
    assert found.ceiling.value == pytest.approx(want.ceiling.value, rel=1e-6)
    assert found.record.inputs["P"] == f"P from {name} at step 4"
    beside = trainer_files(tmp_path / "c")
    assert (beside.optimizer is None) == (name == "own.pt")
    if name == "last.ckpt":
        assert (beside.step, beside.lr, beside.peak) == (4, PEAK / 3, PEAK)


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another, as accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_a_file_with_code_is_refused_with_the_lines_that_convert_it(tmp_path):
    """The two lines, run, give a file that is read."""

    class Odd:
        def __reduce__(self):
            return dict, ()

    optimizer = checkpoint(tmp_path / "c", steps=1)[1]
    torch.save({"optimizer": optimizer.state_dict(), "args": Odd()}, tmp_path / "all.pt")
    with pytest.raises(FileError, match="cannot be read without running code in it") as refused:
        optimizer_state(tmp_path / "all.pt")
    assert "(it holds dict)" in str(refused.value)
    lines = re.findall(r"`(body = .*?|torch.save.*?)`", str(refused.value))
    scope = {"torch": torch}
    for line in lines:
        exec(line.replace("'all.pt'", f"'{tmp_path}/all.pt'").replace("'optimizer.pt'", f"'{tmp_path}/new.pt'"), scope)
    assert optimizer_state(tmp_path / "new.pt").keys() == optimizer.state_dict().keys()
    torch.save({"weights": 1}, tmp_path / "none.pt")
    with pytest.raises(FileError, match=r"holds none .it has weights."):
        optimizer_state(tmp_path / "none.pt")


@pytest.mark.parametrize("kind", ["text", "cut", "pickle"])
def test_a_file_that_torch_did_not_write_is_called_that(kind, tmp_path):
    """No word of code that it holds, nor of torch's own advice; a pickle of later protocols is refused alike."""
    torch.save({"state": {}, "param_groups": []}, tmp_path / "whole.pt")
    body = {"text": b"hello", "cut": (tmp_path / "whole.pt").read_bytes()[:300], "pickle": b"\x80\x04\x95\x00."}[kind]
    (tmp_path / "odd.pt").write_bytes(body)
    with pytest.raises(FileError, match=r"odd.pt` is no file of torch.save, or it is damaged \(\w+\)\. Give a file"):
        optimizer_state(tmp_path / "odd.pt")


def test_a_folder_without_a_trainer_has_no_step(tmp_path, capsys):
    """Nothing tells how long such a model was trained: no step is made up."""
    checkpoint(tmp_path / "c", steps=0)
    for name in ("trainer_state.json", "scheduler.pt", "optimizer.pt"):
        (tmp_path / "c" / name).unlink()
    assert asked(tmp_path / "c").record.inputs["source"]["step"] is None
    assert "step 0" not in capsys.readouterr().out


def test_frozen_parameters_can_be_taken_in(data):
    """`include_frozen=True`, which refusals recommend, is taken by `qf.lr` and `qf.spectrum`."""
    model = make(data, dtype=torch.float64).requires_grad_(False)
    batch = next(data.batches("train", 4, 0))
    with pytest.raises(InputError, match="include_frozen=True"):
        qf.lr(model, batch, optimizer="sgd", progress=False)
    found = qf.lr(model, batch, optimizer="sgd", include_frozen=True, verify=0, progress=False)
    options = {"top": 1, "density": False, "blocks": "none", "progress": False}
    other = qf.spectrum(model, batch, include_frozen=True, **options)
    assert found.ceiling.value == pytest.approx(2 / other.top[0].value, rel=1e-3)
