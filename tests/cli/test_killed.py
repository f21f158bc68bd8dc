"""kill -9 at a random moment, inside every piece and after every piece, then `--resume`: what a whole run gives.

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
from typing import Any

import pytest
import torch

from quadform.core.record import Record

PROBE = ["--data", "add:digits=1", "--batch-size", "2"]
MODEL = "new:pre-ln,depth=1,d_model=4,heads=2"
COMMANDS = {
    "spectrum": [MODEL, *PROBE, "--top", "2", "--density", "--blocks", "qkv"],
    "lr": [MODEL, *PROBE, "--batches", "2", "--verify", "3", "--short-run", "4", "--checkpoints", "2"],
    "why": [MODEL, *PROBE, "--remove", "norm", "--steps", "0,2"],
    "compare": ["--designs", "pre-ln,sas-p", "--depths", "1", "--d-model", "4", "--heads", "2", "--budget", "1s"],
    "signal": [
        "pre-ln",
        "no-skip",
        "--depths",
        "2",
        "--d-model",
        "8",
        "--heads",
        "2",
        "--tokens",
        "4",
        "--networks",
        "6",
    ],
    "attention": ["--tokens", "6", "--d-model", "6", "--vary", "scale=0.01:1:60"],
    "verify": ["--shapes", "40", "--largest", "4"],
    "taylor": [MODEL, *PROBE, "--along", "grad,update", "--points", "5"],
    "prune": [MODEL, *PROBE, "--batches", "2", "--products", "8"],
    "quantize": [MODEL, *PROBE, "--batches", "2", "--products", "8", "--budget", "9", "--group", "4"],
    "report": [MODEL, *PROBE, "--batches", "1"],
}
#: The same with fewer pieces, and what has pieces alone.
PIECES = COMMANDS | {
    "spectrum": [MODEL, *PROBE, "--top", "1"],
    "attention": ["--tokens", "3", "--d-model", "2", "--vary", "scale=0.1:1:3"],
    "verify": ["--shapes", "3", "--largest", "2"],
    "reproduce": ["scalar-sinks", "--preset", "smoke"],
}
#: Forks a child a run. A line of stdin is (words, when it is killed): never (null), after so many seconds of processor
#: time, inside the first piece it computes ("inside", at the n-th step), or once n pieces are kept ("after"). The
#: answer is (exit code or -9, seconds of processor time). States are saved at every product, not every minute.
SERVER = """
import json, os, sys, time
import torch
torch.set_num_threads(1)
import altair, docstring_parser, jinja2, safetensors.torch, scipy.sparse.linalg, torch._decomp.decompositions_for_jvp
import tyro, vl_convert
import quadform.applications.attention.measure, quadform.applications.compare.measure
import quadform.applications.point.measure, quadform.applications.prune.measure
import quadform.applications.quantize.measure, quadform.applications.signal.measure
import quadform.applications.spectrum.call, quadform.applications.spectrum.measure
import quadform.applications.step_size.measure, quadform.applications.step_size.unruled
import quadform.applications.study.measure, quadform.applications.taylor.measure
import quadform.applications.verify.measure, quadform.applications.why.measure
import quadform.cli.answering, quadform.cli.parse, quadform.cli.show, quadform.curvature.convexity
import quadform.experiments.gallery, quadform.experiments.runner, quadform.experiments.scalar_sinks
import quadform.report.along, quadform.report.depth, quadform.report.html, quadform.report.isometry
import quadform.report.packages, quadform.report.point, quadform.report.prune, quadform.report.signal
import quadform.report.spectral, quadform.report.step_size, quadform.report.where, quadform.report.why
from quadform.cli import main
from quadform.core.work import Work
from quadform.estimate import resume
resume.SAVE_EVERY = 0.0

def killed(when):
    keep, spend, steps, pieces = Work.keep, Work.spend, 0, 0

    def end(*_, **__):
        os.kill(os.getpid(), 9)

    def kept(self, *args, **options):
        nonlocal pieces
        keep(self, *args, **options)
        pieces += 1
        if pieces >= when[1]:
            end()

    def spent(self, *args, **options):
        nonlocal steps
        spend(self, *args, **options)
        steps += 1
        if steps >= when[1]:
            end()

    if when[0] == "after":
        Work.keep = kept
    else:
        Work.keep, Work.spend = end, spent

for line in sys.stdin:
    words, limit = json.loads(line)
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        if isinstance(limit, list):
            killed(limit)
        os._exit(main(words))
    while isinstance(limit, float) and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.clock_gettime(~child << 3 | 2) > limit:  # Linux: the processor time of another process
            os.kill(child, 9)
            break
        time.sleep(0.002)
    _, status, used = os.wait4(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]), flush=True)
"""


#: More kills than any command here has pieces.
MOST_KILLS = 400


class Runner:
    """The server: `run(words)` to the end, `run(words, when)` until it is killed; `whole` runs by their words."""

    def __init__(self, folder: Path) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.folder, self.errors = folder, folder / "stderr"
        self.whole: dict[tuple[str, ...], tuple[Path, float]] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors.open("w"),
            text=True,
            env=env,
        )

    def run(self, words: list[str], when: float | tuple[str, int] | None = None) -> tuple[int, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([words, when]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.errors.read_text()
        code, took = json.loads(answer)
        assert code in (0, 3, -9), self.errors.read_text()
        return code, took


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("runs"))
    yield runner
    assert runner.process.stdin is not None
    runner.process.stdin.close()
    runner.process.wait(timeout=60)


def numbers(folder: Path) -> dict[str, Any]:
    """Every number and tensor of every finished record below the folder, but for the speed of this machine."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("record.json")):
        if "state" not in path.parts and "unfinished" not in path.parts:
            record = Record.load(path)
            tensors = {
                name: (str(t.dtype), tuple(t.shape), t.reshape(-1).view(torch.uint8).numpy().tobytes())
                for name, t in record.tensors.items()
            }
            found |= {
                f"{path.parent.relative_to(folder)} {n}": e
                for n, e in (dict(record.scalars) | tensors).items()
                if not n.endswith(("speed", "seconds"))
            }
    return found


def left(folder: Path) -> set[str]:
    """What is kept of unfinished work: nothing, but for a section of a report whose numbers have not converged."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("work")}
    assert found <= {"point/work"}
    return found


def take_plan(source: Path, target: Path) -> None:
    """Begin `target` with the plan of `source`: how many steps fit a budget is measured, and differs by the moment."""
    source, target = source / "work", target / "work"
    target.mkdir(parents=True)
    shutil.copy(source / "question.json", target)
    (plan,) = [line for line in (source / "pieces.jsonl").read_text().splitlines() if '"piece": "plan"' in line]
    (target / "pieces.jsonl").write_text(plan + "\n")


def begun(runner: Runner, command: list[str], cut: Path) -> tuple[list[str], Path, float]:
    """The words of a run into `cut`, the folder of the same run that was never killed, and the seconds that took."""
    resume = [] if command[0] == "reproduce" else ["--resume"]  # it always goes on where it was
    words = [*command, "--quiet", *resume, "--out"]
    if tuple(words) not in runner.whole:
        whole = runner.folder / str(len(runner.whole))
        if words[0] == "compare":
            runner.run([*words, str(planned_of(whole)), "--max-time", "0.001s"])
            take_plan(planned_of(whole), whole)
        _, took = runner.run([*words, str(whole)])
        runner.whole[tuple(words)] = whole, took
    whole, took = runner.whole[tuple(words)]
    if words[0] == "compare":
        take_plan(planned_of(whole), cut)
    return [*words, str(cut)], whole, took


def planned_of(whole: Path) -> Path:
    """Where a comparison was planned and no more."""
    return whole.with_name(f"{whole.name}-planned")


def moment(verb: str, killed: int) -> tuple[str, int]:
    """When the next run is killed."""
    if verb == "report":  # its stages are killed inside and after every piece by themselves
        return "after", 1 + killed % 5
    if verb == "spectrum":  # it keeps states of estimators and no pieces
        return "inside", 3 + killed % 3
    return ("after", 1) if killed % 2 else ("inside", 1 + killed % 3)


@pytest.mark.parametrize("verb", PIECES)
def test_killed_inside_and_after_every_piece(verb: str, runner: Runner, tmp_path: Path) -> None:
    """Killed inside the next piece, then as soon as it is kept, until none is left: the record of a whole run."""
    cut = tmp_path / "cut"
    words, whole, _ = begun(runner, [verb, *PIECES[verb]], cut)
    killed = 0
    while runner.run(words, moment(verb, killed))[0] == -9:
        killed += 1
        assert killed < MOST_KILLS, "no piece is ever finished"
    assert killed >= 4
    of_cut, of_whole = numbers(cut), numbers(whole)
    assert of_cut.keys() == of_whole.keys()
    assert not [name for name in of_cut if of_cut[name] != of_whole[name]]
    assert left(cut) == left(whole)


@pytest.mark.parametrize("verb", COMMANDS)
def test_killed_and_resumed_is_the_same(verb: str, runner: Runner, tmp_path: Path) -> None:
    """Killed twice at shares of the time the whole run takes; resumed, every number is equal to the last bit."""
    cut = tmp_path / "cut"
    words, whole, took = begun(runner, [verb, *COMMANDS[verb]], cut)
    killed = 0
    draw = random.Random(verb)
    for share in (draw.uniform(0.1, 0.5), draw.uniform(0.3, 0.7)):
        killed += runner.run(words, share * took)[0] == -9
    assert killed, "both runs were over before they were killed"
    runner.run(words)
    assert numbers(cut) == numbers(whole)
    assert len(numbers(cut)) > 5
    assert left(cut) == left(whole)
    if verb == "report":
        assert (cut / "report.html").read_text().rstrip().endswith("</html>")
