"""Models that the experiments on pruning and quantization share: fetched ones, and a small Transformer trained here."""

from __future__ import annotations

import functools
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..applications.fitting import fit
from ..core.record import Estimate, Record
from ..core.work import Work


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A model by name (`own` is trained here for `steps`), the matrices that are changed, and the calibration."""

    name: str
    params: str = "*"
    batch_size: int = 4
    batches: int = 4
    steps: int = 0

    @property
    def short(self) -> str:
        return self.name.partition(":")[0]

    def opened(self, work: Work) -> dict[str, Any]:
        """The arguments that open it in every verb. The run of `own` lies in the folder of the work, if any."""
        given = {"params": self.params, "batch_size": self.batch_size, "batches": self.batches, "progress": False}
        if self.name != "own":
            return {"model": self.name, **given}
        folder = work.state("own") or Path(_scratch().name) / f"own-{self.steps}"
        if not (folder / "checkpoint").exists():
            shape: dict[str, Any] = {"data": "add:digits=2", "depth": 2, "d_model": 32, "heads": 4}
            fit(**shape, steps=self.steps, batch_size=32, test=2, out=folder, progress=False)
        return {"model": str(folder), "score": 0, **given}


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder that lasts as long as the process."""
    return tempfile.TemporaryDirectory()


ANARCII = Chosen(name="anarcii", batch_size=2)
OWN = Chosen(name="own", batch_size=32, steps=1200)


def fetched(models: tuple[Chosen, ...]) -> tuple[str, ...]:
    """The names of those that have to be fetched."""
    return tuple(m.short for m in models if m.name != "own")


def rises(found: Any) -> dict[str, Tensor]:
    """The rise of the loss by method, (methods,): predicted, measured and held out; and the loss before."""
    methods = found.methods
    table = {name: [getattr(m, name) for m in methods] for name in ("predicted", "measured", "held")}
    return {n: torch.tensor(v, dtype=torch.float64) for n, v in table.items()} | {
        "loss": torch.tensor(found.loss, dtype=torch.float64)
    }


def ratio(a: Tensor, b: Tensor, note: str) -> Estimate:
    """a / b, two rises; no number where the loss has not risen by b."""
    return Estimate(float(a / b) if float(b) > 0 else math.nan, note=note)


def panels(record: Record) -> list[str]:
    """The short names of the models of a record, in order."""
    return [m["name"].partition(":")[0] for m in record.inputs["config"]["models"]]
