"""`qf.Monitor`: curvature along a training run of your own loop."""

from __future__ import annotations

import csv
import dataclasses
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...answers.monitor import MonitorAnswer, MonitorDraft
from ...core.errors import InputError, QuadformError
from ...core.record import Provenance, Record
from ...curvature.calling import Loss
from .measuring import Measuring
from .pace import Clock, Every, Pace, Share
from .reading import Reading
from .warning import Rules

USUAL = Rules()


class Monitor:
    """Measures curvature on held batches while a model trains; call `step()` after `optimizer.step()`.

    Args:
        model, optimizer: Those that train.
        batches, loss: As for `Risk`; the same batches for every reading.
        every: Steps between readings. Give this or `overhead`.
        overhead: Share of the time that readings may take (default 0.02).
        traces: Random products per reading for the share of the trace by layer.
        part: Share of the batches that readings between full searches take; what they say of all has its error.
        rules: When a reading is a warning.
        log: `log(numbers, step)` gets every reading as plain numbers.
        csv: A file that gets them as lines.
        out: A folder that keeps the record up to date; `quadform explore` shows it live.
        clock: Tells the time in seconds.

    Dropout is off while measuring. Weights, gradients, optimizer state, training mode and random state are left as they
    are, so training goes on bit for bit as without it. Of several processes the first measures. What cannot be measured
    is a sentence in `warnings`; it does not stop training.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Any,
        *,
        loss: Loss | None = None,
        every: int | None = None,
        overhead: float | None = None,
        traces: int = 0,
        part: float = 1.0,
        rules: Rules = USUAL,
        log: Callable[[dict[str, float], int], Any] | None = None,
        csv: str | Path | None = None,
        out: str | Path | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        if every is not None and overhead is not None:
            raise InputError("a monitor takes every= (steps) or overhead= (a share of the time), not both.")
        self._measuring = Measuring(model, optimizer, batches, loss, traces, part)
        self._pace: Pace = Share(0.02 if overhead is None else overhead, clock) if every is None else Every(every)
        self._clock, self._log, self._file = clock, log, _File(csv) if csv is not None else None
        self._out = out
        self._spent, self._start = 0.0, clock()
        self.steps, self.rules = 0, rules
        self.history: list[Reading] = []
        self.warnings: list[str] = []

    @property
    def last(self) -> Reading | None:
        """The latest reading; None before the first."""
        return self.history[-1] if self.history else None

    @property
    def share(self) -> float:
        """The share of the time since this monitor was made that went into measuring."""
        passed = self._clock() - self._start
        return self._spent / passed if passed > 0 else 0.0

    def step(self) -> Reading | None:
        """Count one step of the optimizer, and measure if it is time; the reading, or None."""
        self.steps += 1
        full = self._pace.full(len(self.history))
        if not _first_process() or not self._pace.due(self.steps, full):
            return None
        self._wait()
        began = self._clock()
        found: Reading | None = None
        try:
            with torch.autocast(self._measuring.risk.device.type, enabled=False), torch.enable_grad():
                found = self._measuring.read(self.steps, full)
        except (QuadformError, torch.OutOfMemoryError) as error:
            self.warnings.append(f"step {self.steps}: nothing was measured: {str(error).splitlines()[0]}")
        self._wait()
        if found is not None:
            found = self._keep(dataclasses.replace(found, seconds=self._clock() - began))
        seconds = self._clock() - began
        self._spent += seconds
        self._pace.took(seconds, full)
        return found

    def _keep(self, reading: Reading) -> Reading:
        self.history.append(reading)
        self.warnings += self.rules.warnings(self.history)
        if self._log is not None:
            self._log(reading.numbers(), reading.step)
        if self._file is not None:
            self._file.write(reading)
        if self._out is not None:
            try:
                self.record().save(self._out)
            except QuadformError as error:
                self.warnings.append(f"step {self.steps}: the record was not written: {str(error).splitlines()[0]}")
        return reading

    def _wait(self) -> None:
        """Wait for the device, so that work of the training is not counted as ours."""
        device = self._measuring.risk.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def record(self) -> Record:
        """All readings as a Record, which `quadform report` draws."""
        return self.answer().record

    def answer(self) -> MonitorAnswer:
        """All readings as an answer: table, figures, a page."""
        if not self.history:
            raise InputError("nothing has been measured yet; call step() after each step of the optimizer.")
        risk, m = self._measuring.risk, self._measuring
        draft = MonitorDraft()
        for r in self.history:
            draft.take(r.numbers() | {"step": float(r.step)})
        last = self.history[-1]
        draft.take_last(last.lambda_max, last.lambda_P)
        for name in ("logits", "entropy", "qk"):
            draft.take_heads(name, [getattr(r, name) for r in self.history])
        about = {
            "source": {"model": type(m.model).__name__},
            "coverage": risk.coverage,
            "notes": [n for n in (m.note, *risk.notes) if n],
            "rule": m.rule,
            "warnings": list(self.warnings),
            "steps": self.steps,
            "share": self.share,
        }
        return draft.answer(about, self._made)

    @cached_property
    def _made(self) -> Provenance:
        """Versions and machine, collected once: it asks git."""
        risk = self._measuring.risk
        return Provenance.collect(dtype=risk.dtype, device=risk.device)


class _File:
    """Readings as lines of a CSV file; its columns are those of the first reading."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.columns = Path(path), list[str]()

    def write(self, reading: Reading) -> None:
        row = {"step": reading.step, **reading.numbers()}
        first = not self.columns
        if first:
            self.columns = ["step", *COLUMNS, *(n for n in row if n not in COLUMNS and n != "step")]
        with self.path.open("w" if first else "a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            if first:
                writer.writeheader()
            writer.writerow(row)


#: Numbers every line has a place for, known at the first reading or not.
COLUMNS = (
    "loss",
    "lr",
    "lambda_max",
    "residual",
    "lambda_P",
    "residual_P",
    "ceiling",
    "ratio",
    "largest_logit",
    "smallest_entropy",
    "largest_qk",
    "functional_share",
    "seconds",
)


def _first_process() -> bool:
    d = torch.distributed
    return not (d.is_available() and d.is_initialized()) or d.get_rank() == 0
