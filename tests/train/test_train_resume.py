"""Exact resume: a run killed at any moment ends with the weights of a run that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from quadform.core.errors import FileError, InputError
from quadform.corpora import Letters
from quadform.nn import Transformer
from quadform.train import TrainConfig, train

DATA = Letters(letters=3, longest=4)
CONFIG = {"steps": 24, "batch_size": 4, "save_every": 5, "valid_every": 7, "watch_every": 3, "log_every": 2, "lr": 0.01}

CHILD = """
import os, signal, sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from test_train_resume import CONFIG, DATA, TrainConfig, model, train
how, out = sys.argv[2:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def at_step_13(done, total, left, text):
    if done == 13:
        die()

count = 0
rename = os.replace
def at_a_write(a, b):
    global count
    count += "checkpoint" in str(b)
    die() if count == 4 else rename(a, b)  # tensors of step 10 are there, its JSON is not yet

if how == "write":
    os.replace = at_a_write
train(model(), DATA, TrainConfig(**CONFIG), out=out, progress=at_step_13 if how == "step" else False)
"""


def model():
    return Transformer("sas-p", depth=2, d_model=8, heads=2, dropout=0.2, **DATA.settings)


def run(**more):
    return train(model(), DATA, TrainConfig(**CONFIG), progress=False, **more)


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    return run(out=folder), folder


@pytest.mark.parametrize(("how", "step"), [("step", 10), ("write", 5)])
def test_killed_run_ends_bit_equal(how, step, tmp_path, whole):
    """kill -9 between two checkpoints, or while one is written; resumed: same weights and metrics, bit for bit."""
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), how, str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert json.loads((tmp_path / "checkpoint" / "record.json").read_text())["inputs"]["state"]["step"] == step
    with open(tmp_path / "metrics.jsonl", "a") as f:
        f.write('{"step": 13, "lo')  # a line the kill cut off
    done, (expect, folder) = run(out=tmp_path), whole
    for (name, a), b in zip(done.model.state_dict().items(), expect.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert metrics(tmp_path) == metrics(folder)
    assert (done.loss, done.valid, done.best_step) == (expect.loss, expect.valid, expect.best_step)
    assert len(list((tmp_path / "checkpoint").iterdir())) == 2


def test_without_folder_the_run_is_the_same(whole):
    """Checkpoints do not change a run."""
    for a, b in zip(run().model.parameters(), whole[0].model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_finished_run_is_not_run_again(whole):
    """Resuming a finished run gives its result at once; resume=False begins anew."""
    steps = []
    done = train(model(), DATA, TrainConfig(**CONFIG), out=whole[1], progress=lambda *a: steps.append(a[0]))
    assert steps in ([], [CONFIG["steps"]])
    assert (done.step, done.stopped, done.loss) == (24, "steps", whole[0].loss)
    for a, b in zip(done.model.parameters(), whole[0].model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_other_settings_are_refused(tmp_path):
    """A folder with a run of other settings, another model or other data is not taken up; the difference is named."""
    short = {**CONFIG, "steps": 2}
    train(model(), DATA, TrainConfig(**short), out=tmp_path, progress=False)
    with pytest.raises(InputError, match=r"train\.lr\)"):
        train(model(), DATA, TrainConfig(**{**short, "lr": 0.5}), out=tmp_path, progress=False)
    with pytest.raises(InputError, match="data"):
        train(model(), Letters(task="copy", letters=3, longest=4), TrainConfig(**short), out=tmp_path, progress=False)
    other = Transformer("sas-p", depth=2, d_model=16, heads=2, dropout=0.2, **DATA.settings)
    with pytest.raises(InputError, match=r"model\.d_model"):
        train(other, DATA, TrainConfig(**short), out=tmp_path, progress=False)
    anew = train(model(), DATA, TrainConfig(**{**short, "lr": 0.5}), out=tmp_path, resume=False, progress=False)
    assert anew.step == 2
    (next((tmp_path / "checkpoint").glob("*.safetensors"))).write_bytes(b"damaged")
    with pytest.raises(FileError, match="damaged"):
        train(model(), DATA, TrainConfig(**{**short, "lr": 0.5}), out=tmp_path, progress=False)


class Stop(Exception):
    pass


def stop_at(step):
    def stop(done, total, left, text):
        if done == step:
            raise Stop

    return stop


def test_beginning_anew_forgets(tmp_path):
    """A run begun anew and stopped before its first checkpoint does not go on from the old one."""
    config = TrainConfig(**{**CONFIG, "steps": 6})
    train(model(), DATA, config, out=tmp_path, progress=False)
    with pytest.raises(Stop):
        train(model(), DATA, config, out=tmp_path, resume=False, progress=stop_at(2))
    with pytest.raises(Stop):  # it passes step 1 again
        train(model(), DATA, config, out=tmp_path, progress=stop_at(1))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_optimizer_resumes(optimizer, tmp_path):
    """Momentum and moments are part of the checkpoint."""
    config = TrainConfig(**{**CONFIG, "steps": 9}, optimizer=optimizer)
    expect = train(model(), DATA, config, progress=False).model
    with pytest.raises(Stop):
        train(model(), DATA, config, out=tmp_path, progress=stop_at(7))
    done = train(model(), DATA, config, out=tmp_path, progress=False).model
    for a, b in zip(done.parameters(), expect.parameters(), strict=True):
        assert torch.equal(a, b)
