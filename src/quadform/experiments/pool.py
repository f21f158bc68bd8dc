"""Parts of several experiments in several processes: for presets that take an hour on one core, on a machine with many.

Parts are kept where a single process would keep them, so either can go on with what the other left.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.progress import say
from ..core.work import Deadline, TimeUp, Work
from .catalog import experiment
from .experiment import Experiment, P, Units
from .runner import work_of

Compute = Callable[[], Mapping[str, Tensor]]


class _Nothing(float):
    """Not a number, and neither is any part of it: stands for a part that has not been computed."""

    __iter__ = None  # with __getitem__ alone it would go on for ever

    def __getitem__(self, key: Any) -> _Nothing:
        return self


class _Names(Units):
    """Hears what a run would compute, and computes nothing."""

    def __init__(self) -> None:
        super().__init__(Work(progress=False), "")
        self.jobs: list[tuple[str, Compute]] = []

    def __call__(
        self, name: str, compute: Callable[P, Mapping[str, Tensor]], *given: P.args, **named: P.kwargs
    ) -> dict[str, Tensor]:
        self.jobs.append((name, partial(compute, *given, **named)))
        nothing: Any = _Nothing(math.nan)
        return nothing


def parts_of(e: Experiment, config: Any) -> list[tuple[str, Compute]]:
    """(name, how to compute it) of every part of a run, in its order.

    What follows the last part has nothing to work with and may stop where it likes. A run that looks into one part
    before it asks for the next shows only those asked for so far; the rest is then left to `Experiment.measure`.
    """
    names = _Names()
    with contextlib.suppress(Exception):
        e.run(config, names)
    return names.jobs


_JOBS: list[tuple[Units, str, Compute]] = []  # the processes are forked and find it here


def _one(i: int) -> str:
    units, name, compute = _JOBS[i]
    began = time.monotonic()
    try:
        units(name, compute)
    except TimeUp as stopped:
        return str(stopped)
    return f"{units.what}: {name}, {time.monotonic() - began:.0f} s"


def measure(runs: Path, preset: str, processes: int, seconds: float, names: Sequence[str]) -> list[str]:
    """Run presets into `runs`, a folder for each experiment; the ids that were finished in time. No figures."""
    torch.set_num_threads(1)
    deadline = Deadline(seconds)
    _JOBS.clear()
    for name in names:
        e, work = experiment(name), _work(runs, preset, name, deadline)
        work.begin(e.inputs(preset, e.config(preset)))
        units = Units(work, name)
        _JOBS.extend((units, part, compute) for part, compute in parts_of(e, e.config(preset)) if part not in work)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for told in pool.imap_unordered(_one, range(len(_JOBS))):
            say(told)
    finished = []
    for name in names:
        with contextlib.suppress(TimeUp):
            experiment(name).measure(preset, work=_work(runs, preset, name, deadline)).save(runs / name)
            finished.append(name)
    return finished


def _work(runs: Path, preset: str, name: str, deadline: Deadline) -> Work:
    work = work_of(experiment(name), preset, runs / name, None, False)
    work.deadline = deadline
    return work
