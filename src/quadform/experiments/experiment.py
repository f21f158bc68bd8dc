"""Experiment: one figure or table of a paper as a value."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec

import torch
from torch import Tensor

from ..core.codec import encode
from ..core.record import Estimate, Provenance, Record
from ..core.spec import choose
from ..core.work import Work
from ..report.figure import Figure
from .claims import PRESETS, Claim, Verdict


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is measured (`run`), with which settings (`presets`), how it is drawn (`figure`), what it decides.

    A config is a frozen dataclass with a `seed`. `run(config, units)` returns scalars and tensors; it neither draws nor
    prints nor writes. `asked` is the question in one sentence; the headline of the figure answers it. `needs(config)`
    names fetched data without which it cannot run, `ready()` imports the optional packages it needs; `gpu` is the dtype
    in which it computes on a GPU where there is one ("": it stays on the CPU, in float64).
    """

    id: str
    title: str
    source: str
    presets: Mapping[str, Any]
    run: Callable[[Any, Units], tuple[dict[str, Estimate], dict[str, Tensor]]]
    figure: Callable[[Record], Figure]
    claims: tuple[Claim, ...]
    needs: Callable[[Any], tuple[str, ...]] = lambda config: ()
    gpu: Literal["", "bfloat16", "float32", "float64"] = ""
    asked: str = ""
    ready: Callable[[], object] = lambda: None

    def config(self, preset: str, seed: int | None = None) -> Any:
        """The settings of a preset, with another seed where one is given."""
        config = self.presets[choose("preset", preset, self.presets)]
        return config if seed is None else dataclasses.replace(config, seed=seed)

    def inputs(self, preset: str, config: Any) -> dict[str, Any]:
        """What a record of this experiment says it was asked."""
        return {"experiment": self.id, "preset": preset, "config": encode(config)}

    def made(self, seed: int) -> Provenance:
        """By what and where a run of now is made."""
        if self.gpu and torch.cuda.is_available():
            return Provenance.collect(seed=seed, device="cuda", dtype=getattr(torch, self.gpu))
        return Provenance.collect(seed=seed, dtype=torch.float64)

    def measure(self, preset: str, *, seed: int | None = None, work: Work | None = None) -> Record:
        """Run a preset. `work` says where parts are kept, how long it may take, and what is shown."""
        config = self.config(preset, seed)
        inputs = self.inputs(preset, config)
        made = self.made(config.seed)
        work = Work() if work is None else work
        work.begin(inputs)
        before, began = work.seconds, time.process_time()
        scalars, tensors = self.run(config, Units(work, self.id))
        between = max(0.0, time.process_time() - began - (work.seconds - before))  # what lies between the parts
        scalars["cpu_seconds"] = Estimate(work.seconds + between, note="processor time of all parts")
        return Record(kind="experiment", inputs=inputs, scalars=scalars, tensors=tensors, made=made)

    def verdicts(self, record: Record) -> tuple[Verdict, ...]:
        """Every claim against a record."""
        return tuple(c.verdict(record.scalars, str(record.inputs["preset"])) for c in self.claims)

    def __post_init__(self) -> None:
        for preset in self.presets:
            choose("preset", preset, PRESETS)


P = ParamSpec("P")


class Units:
    """The parts of a run, each computed once: `units("depth 3", compute, 3)` is `compute(3)`, made now or before.

    A part is a dict of tensors.
    """

    def __init__(self, work: Work, what: str) -> None:
        self.work, self.what = work, what

    def plan(self, total: int) -> contextlib.AbstractContextManager[Any]:
        """Say how many parts there will be: `with units.plan(12): ...` shows progress."""
        return self.work.bar(total, self.what, each=1)

    def __call__(
        self, name: str, compute: Callable[P, Mapping[str, Tensor]], *given: P.args, **named: P.kwargs
    ) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.work.piece(
            name, lambda: {key: torch.as_tensor(t) for key, t in compute(*given, **named).items()}
        )
        return found
