"""Two processes make the steps of one process with twice the batches; process 0 writes; a stopped run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from quadform.corpora import Letters
from quadform.nn import Transformer
from quadform.train import TrainConfig, train

DATA = Letters(letters=3, longest=5)
CONFIG = {"steps": 8, "batch_size": 4, "accumulate": 2, "save_every": 3, "valid_every": 4, "watch_every": 4, "lr": 0.01}

CHILD = """
import sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from test_train_ddp import CONFIG, DATA, TrainConfig, model, train
import torch.distributed as dist
dist.init_process_group("gloo")  # one group for three runs
class Stop(Exception): pass
folder = sys.argv[2]
whole = train(model(), DATA, TrainConfig(**CONFIG), out=folder + "/whole", progress=False)
# both processes are stopped at step 5, after the checkpoint of step 3
from quadform.train import loop
update = loop._Run.update
def stopping(self, meal):
    if self.step == 5:
        raise Stop
    return update(self, meal)
loop._Run.update = stopping
try:
    train(model(), DATA, TrainConfig(**CONFIG), out=folder + "/again", progress=False)
except Stop:
    pass
loop._Run.update = update
again = train(model(), DATA, TrainConfig(**CONFIG), out=folder + "/again", progress=False)
same = all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True))
total = torch.stack([p.detach().sum() for p in whole.model.parameters()]).sum()
both = [torch.zeros_like(total) for _ in range(2)]
dist.all_gather(both, total)
assert same and torch.equal(*both), (same, both)
assert whole.valid == again.valid and whole.step == 8
dist.destroy_process_group()
"""


ALONE = """
import sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from test_train_ddp import CONFIG, DATA, TrainConfig, model, train
from quadform.train import loop
update = loop._Run.update
def failing(self, meal):
    if self.step == 2 and self.group.rank == 1:
        raise MemoryError("process 1 alone")
    return update(self, meal)
loop._Run.update = failing
train(model(), DATA, TrainConfig(**CONFIG), progress=False)
"""


def model():
    return Transformer("sas-p", depth=2, d_model=8, heads=2, dtype=torch.float64, **DATA.settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two processes have trained, once without and once with a stop in between."""
    folder = tmp_path_factory.mktemp("ddp")
    done = together(folder, CHILD)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def together(folder, code):
    """Two processes run the code."""
    (folder / "child.py").write_text(code)
    (folder / "temporary").mkdir()
    words = ["--standalone", "--nproc-per-node", "2", "--log-dir", str(folder / "logs"), str(folder / "child.py")]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, str(Path(__file__).parent), str(folder)],
        env={**os.environ, "TMPDIR": str(folder / "temporary")},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_process_that_fails_alone_ends_the_run(tmp_path):
    """It leaves at once, while the other waits for its gradient; torchrun ends that one."""
    done = together(tmp_path, ALONE)
    assert done.returncode != 0
    assert "process 1 alone" in done.stderr


def test_nothing_is_left_in_the_temporary_folder(folder):
    """torchrun makes a folder for logs in the temporary one unless it is told where; it is told."""
    assert list((folder / "temporary").glob("torchelastic_*")) == []


def test_two_processes_are_one(folder):
    """2 processes x 2 batches a step end with the weights of 1 process x 4 batches, to rounding; so does a run that
    was stopped and went on (bit for bit that of the one that was not, asserted in the processes)."""
    alone = train(model(), DATA, TrainConfig(**{**CONFIG, "accumulate": 4}), progress=False)
    for name in ("whole", "again"):
        found = Transformer.load(folder / name / "model")
        for a, b in zip(found.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_process_0_writes_once(folder):
    """One log: every step that is logged or validated stands in it once, and the validation is the single process's."""
    alone = train(model(), DATA, TrainConfig(**{**CONFIG, "accumulate": 4}), progress=False)
    lines = [json.loads(line) for line in (folder / "again" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "valid" in line] == [4, 8]
    assert lines[-1]["valid"]["loss"]["value"] == pytest.approx(alone.valid["loss"].value, rel=1e-8)


def test_another_number_of_processes_is_refused(folder):
    """A run of two processes does not go on in one: its batches would be others."""
    with pytest.raises(Exception, match="processes"):
        train(model(), DATA, TrainConfig(**CONFIG), out=folder / "whole", progress=False)
