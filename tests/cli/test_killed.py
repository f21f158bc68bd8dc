"""kill -9 at a random moment, then `--resume`: the numbers of a run that was left alone.

One process imports the package and forks a child for every run, so that a killed run costs its work only.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quadform.core.record import Estimate, Record

PROBE = ["--data", "add:digits=1", "--batch", "2"]
MODEL = "new:pre-ln,depth=1,dim=4,heads=2"
COMMANDS = {
    "spectrum": [MODEL, *PROBE, "--top", "2", "--density", "--blocks", "qkv"],
    "lr": [MODEL, *PROBE, "--batches", "2", "--verify", "3"],
    "why": [MODEL, *PROBE, "--remove", "norm", "--steps", "0,2"],
    "compare": ["--designs", "pre-ln,sas-p", "--depths", "1", "--dim", "4", "--heads", "2", "--budget", "1s"],
    "signal": ["pre-ln", "no-skip", "--depths", "2", "--dim", "8", "--heads", "2", "--tokens", "4", "--networks", "6"],
    "attention": ["--tokens", "6", "--dim", "6", "--vary", "scale=0.01:1:60"],
    "verify": ["--shapes", "40", "--largest", "4"],
    "report": [MODEL, *PROBE, "--batches", "1"],
}
#: Forks a child a run. A line of stdin is (words, seconds or null); a child that outlives its seconds is killed. The
#: answer is (exit code or -9, seconds it ran). States are saved at every product, not every minute.
SERVER = """
import json, os, sys, time
import torch
torch.set_num_threads(1)
import quadform.applications.why.measure, quadform.applications.compare.measure
import quadform.applications.spectrum.call, quadform.applications.spectrum.measure
import quadform.applications.signal.measure, quadform.applications.step_size.measure, quadform.report
import quadform.applications.study.measure, quadform.applications.attention.measure
import quadform.applications.verify.measure
from quadform.cli import main
from quadform.estimate import resume
resume.SAVE_EVERY = 0.0
for line in sys.stdin:
    words, limit = json.loads(line)
    began = time.monotonic()
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os._exit(main(words))
    while True:
        done, status = os.waitpid(child, os.WNOHANG if limit else 0)
        if done:
            break
        if time.monotonic() - began > limit:
            os.kill(child, 9)
            limit = None
        time.sleep(0.002)
    print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began]), flush=True)
"""


class Runner:
    """The server: `run(words)` to the end, `run(words, seconds)` until it is killed."""

    def __init__(self, errors: Path) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.errors = errors
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors.open("w"),
            text=True,
            env=env,
        )

    def run(self, words: list[str], seconds: float | None = None) -> tuple[int, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([words, seconds]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.errors.read_text()
        code, took = json.loads(answer)
        assert code in (0, 3, -9), self.errors.read_text()
        return code, took


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("errors") / "stderr")
    yield runner
    assert runner.process.stdin is not None
    runner.process.stdin.close()
    runner.process.wait(timeout=60)


def numbers(folder: Path) -> dict[str, Estimate]:
    """Every number of every finished record below the folder, but for the speed of this machine."""
    found = {}
    for path in sorted(folder.rglob("record.json")):
        if "state" not in path.parts and "unfinished" not in path.parts:
            scalars = Record.load(path).scalars
            found |= {
                f"{path.parent.relative_to(folder)} {n}": e
                for n, e in scalars.items()
                if not n.endswith(("speed", "seconds"))
            }
    return found


def take_plan(source: Path, target: Path) -> None:
    """Begin `target` with the plan of `source`: how many steps fit a budget is measured, and differs by the moment."""
    source, target = source / "work", target / "work"
    target.mkdir(parents=True)
    shutil.copy(source / "question.json", target)
    (plan,) = [line for line in (source / "pieces.jsonl").read_text().splitlines() if '"piece": "plan"' in line]
    (target / "pieces.jsonl").write_text(plan + "\n")


@pytest.mark.parametrize("verb", COMMANDS)
def test_killed_and_resumed_is_the_same(verb: str, runner: Runner, tmp_path: Path) -> None:
    """Killed twice at shares of the time the whole run takes; resumed, every number is equal to the last bit."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    begun = [verb, *COMMANDS[verb], "--quiet", "--resume", "--out"]
    if verb == "compare":
        runner.run([*begun, str(tmp_path / "planned"), "--max-time", "0.001s"])
        take_plan(tmp_path / "planned", whole)
        take_plan(tmp_path / "planned", cut)
    _, took = runner.run([*begun, str(whole)])
    words = [*begun, str(cut)]
    killed = 0
    draw = random.Random(verb)  # the load of the machine makes the moment more random still
    for share in (draw.uniform(0.1, 0.5), draw.uniform(0.3, 0.7)):
        killed += runner.run(words, share * took)[0] == -9
    assert killed, "both runs were over before they were killed"
    runner.run(words)
    assert numbers(cut) == numbers(whole)
    assert len(numbers(cut)) > 5
    assert not list(cut.rglob("state"))
    assert not list(cut.rglob("unfinished"))
    if verb == "report":
        assert (cut / "report.html").read_text().rstrip().endswith("</html>")
