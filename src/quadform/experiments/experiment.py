"""Experiment: one figure or table of a paper as a value, and the store that lets a long one go on where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.codec import encode
from ..core.errors import FileError, QuadformError
from ..core.progress import Progress, Report
from ..core.record import Estimate, Provenance, Record, write_atomically
from ..core.spec import choose
from ..report.figure import Figure
from .claims import PRESETS, Claim, Verdict

_SPENT = "__seconds__"  # kept with a part: the processor time it took


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is measured (`run`), with which settings (`presets`), how it is drawn (`figure`), what it decides.

    A config is a frozen dataclass with a `seed`. `run(config, units)` returns scalars and tensors; it neither draws nor
    prints nor writes. `needs(config)` names fetched data without which it cannot run; `trains` says that its nets are
    trained on a GPU, in bfloat16, where there is one.
    """

    id: str
    title: str
    source: str
    presets: Mapping[str, Any]
    run: Callable[[Any, Units], tuple[dict[str, Estimate], dict[str, Tensor]]]
    figure: Callable[[Record], Figure]
    claims: tuple[Claim, ...]
    needs: Callable[[Any], tuple[str, ...]] = lambda config: ()
    trains: bool = False

    def config(self, preset: str, seed: int | None = None) -> Any:
        """The settings of a preset, with another seed where one is given."""
        config = self.presets[choose("preset", preset, self.presets)]
        return config if seed is None else dataclasses.replace(config, seed=seed)

    def inputs(self, preset: str, config: Any) -> dict[str, Any]:
        """What a record of this experiment says it was asked."""
        return {"experiment": self.id, "preset": preset, "config": encode(config)}

    def measure(
        self,
        preset: str,
        *,
        seed: int | None = None,
        work: Path | None = None,
        until: float = math.inf,
        progress: bool | Report = True,
    ) -> Record:
        """Run a preset; with `work` a run that was stopped goes on there. `until` is a time of `time.monotonic`."""
        config = self.config(preset, seed)
        inputs = self.inputs(preset, config)
        gpu = self.trains and torch.cuda.is_available()
        where: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16} if gpu else {"dtype": torch.float64}
        made = Provenance.collect(seed=config.seed, **where)
        units = Units(work, inputs, self.id, progress, until)
        began = time.process_time()
        scalars, tensors = self.run(config, units)
        units.seconds += max(0.0, time.process_time() - began - units.here)  # parts, and what lies between them
        scalars["cpu_seconds"] = Estimate(units.seconds, note="processor time of all parts")
        return Record(kind="experiment", inputs=inputs, scalars=scalars, tensors=tensors, made=made)

    def verdicts(self, record: Record) -> tuple[Verdict, ...]:
        """Every claim against a record."""
        return tuple(c.verdict(record.scalars, str(record.inputs["preset"])) for c in self.claims)

    def __post_init__(self) -> None:
        for preset in self.presets:
            choose("preset", preset, PRESETS)


class OutOfTime(QuadformError):
    """`--max-time` is over; the finished parts are kept and the same command goes on."""

    exit_code = 130


class Units:
    """The parts of a run, each computed once: `units("depth 3", compute)` is what `compute()` gave, now or before.

    A part is a dict of tensors. With a folder each part is kept in one safetensors file until the run is finished and
    saved; the folder is named after the settings, so parts of other settings are never taken up.
    """

    def __init__(
        self,
        work: Path | None,
        inputs: Mapping[str, Any],
        what: str,
        progress: bool | Report = True,
        until: float = math.inf,
    ) -> None:
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]
        self.folder = None if work is None else work / f"parts-{digest}"
        self.what, self.show, self.until = what, progress, until
        self.seconds = self.here = 0.0  # processor time of all parts, and of those computed here
        self._bar: Progress | None = None

    def plan(self, total: int) -> contextlib.AbstractContextManager[Any]:
        """Say how many parts there will be: `with units.plan(12): ...` shows progress."""
        self._bar = Progress(total, self.what, show=self.show)
        return self._bar

    def __call__(self, name: str, compute: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        found = self._load(name)
        if found is None:
            if time.monotonic() > self.until:
                raise OutOfTime(f"the time is up in {self.what}, before part {name!r}; what was done is kept.")
            began = time.process_time()
            found = {key: torch.as_tensor(t).detach().cpu() for key, t in compute().items()}
            found[_SPENT] = torch.tensor(time.process_time() - began, dtype=torch.float64)
            self.here += float(found[_SPENT])
            self._save(name, found)
        self.seconds += float(found.pop(_SPENT, 0.0))
        if self._bar is not None:
            self._bar.step(text=name)
        return found

    def kept(self, name: str) -> bool:
        """Whether a part was computed before."""
        return self._load(name) is not None

    def sub(self, name: str) -> Path | None:
        """A folder inside the store for work that has its own way of going on (a training run)."""
        return None if self.folder is None else self.folder / _file_name(name)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{_file_name(name)}.safetensors"

    def _load(self, name: str) -> dict[str, Tensor] | None:
        path = self._path(name)
        if path is None or not path.exists():
            return None
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError):  # a damaged part is computed again
            return None

    def _save(self, name: str, part: Mapping[str, Tensor]) -> None:
        path = self._path(name)
        if path is None:
            return
        from safetensors.torch import save

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, save({key: t.contiguous().clone() for key, t in part.items()}))
        except OSError as error:
            raise FileError(
                f"cannot keep a part of the run in {path.parent}: {error}. Choose another --out."
            ) from error


class Lines(Units):
    """Parts as lines of one JSON file, for machines that have torch and numpy alone; `made` says by what and where."""

    def __init__(self, path: Path, what: str, until: float = math.inf) -> None:
        super().__init__(None, {}, what, True, until)
        self.path = path
        self.done: dict[str, dict[str, Tensor]] = {}
        self.made: list[dict[str, Any]] = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError, KeyError):  # a line that was cut off
                body = json.loads(line)
                if "made" in body:
                    self.made.append(body["made"])
                    continue
                self.done[body["part"]] = {k: torch.tensor(v) for k, v in body["values"].items()}

    def _load(self, name: str) -> dict[str, Tensor] | None:
        return self.done.get(name)

    def _save(self, name: str, part: Mapping[str, Tensor]) -> None:
        self.done[name] = {k: t for k, t in part.items() if k != _SPENT}
        self.write({"part": name, "values": {k: t.tolist() for k, t in part.items() if k != _SPENT}})

    def write(self, line: dict[str, Any]) -> None:
        """One line more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(line) + "\n")


def _file_name(name: str) -> str:
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    return f"{plain[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
