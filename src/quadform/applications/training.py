"""A training run as a Record: what its log says, redrawn without the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from ..core.errors import FileError
from ..core.record import Estimate, Provenance, Record
from ..train.folder import RunFolder
from ..train.runs import Run, open_run

KIND = "training"


def record_of_run(run: Run | str | Path) -> Record:
    """The log of a run (or of a folder's): loss, learning rate and gradient norm by step, validation, token cosines.

    tensors: `steps`, `loss`, `lr`, `gradient_norm` (n,); `valid_steps`, `valid_loss`, `valid_stderr`, `valid_exact`
    (m,), the last NaN where no questions were asked; `cosine_steps` (k,), `cosine` (k, depth).
    """
    run = run if isinstance(run, Run) else open_run(run)
    files = RunFolder(run.folder or "")
    lines = files.lines()
    steps = [line for line in lines if "loss" in line]
    valid = [line for line in lines if "valid" in line]
    watched = [line for line in lines if "cosine" in line]
    if not steps:
        raise FileError(f"{files.log} holds no step yet. Train it further first.")

    def column(rows: list[dict[str, Any]], *path: str) -> torch.Tensor:
        return torch.tensor([_at(row, path) for row in rows], dtype=torch.float64)

    tensors = {
        "steps": column(steps, "step"),
        "loss": column(steps, "loss"),
        "lr": column(steps, "lr"),
        "gradient_norm": column(steps, "gradient_norm"),
    }
    if valid:
        tensors |= {
            "valid_steps": column(valid, "step"),
            "valid_loss": column(valid, "valid", "loss", "value"),
            "valid_stderr": column(valid, "valid", "loss", "stderr"),
            "valid_exact": column(valid, "valid", "exact", "value"),
        }
    layers = list(watched[0]["cosine"]) if watched else []
    if layers:
        tensors["cosine_steps"] = column(watched, "step")
        tensors["cosine"] = torch.stack([column(watched, "cosine", layer) for layer in layers], dim=1)
    scalars = {"loss": Estimate(float(tensors["loss"][-1]), kind="exact", note="training loss of the last step")}
    if valid:
        last = valid[-1]["valid"]
        scalars |= {
            f"valid_{name}": Estimate(float(e["value"]), error=float(e["stderr"]), kind="estimate")
            for name, e in last.items()
        }
    if layers:
        cosine = float(tensors["cosine"][-1, -1])
        scalars["cosine"] = Estimate(cosine, kind="exact", note="token cosine after the last block, one batch")
    warmup = run.config.schedule.warmup_steps(run.config.steps)
    config: Any = run.model.config
    stopped = str(files.described()["inputs"]["state"]["stopped"])
    inputs = {
        "design": config.design,
        "depth": config.depth,
        "model": config.to_dict(),
        "data": run.data.to_dict(),
        "train": run.config.to_dict(),
        "step": run.step,
        "stopped": stopped,
        "partial": run.step < run.config.steps and not stopped,
        "warmup_steps": warmup,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "layers": layers,
    }
    made = Provenance.collect(seed=run.config.seed, dtype=next(run.model.parameters()).dtype, device="cpu")
    return Record(kind=KIND, inputs=inputs, scalars=scalars, tensors=tensors, made=made)


def _at(row: Any, path: tuple[str, ...]) -> float:
    for key in path:
        row = row.get(key) if isinstance(row, dict) else None
    return math.nan if row is None else float(row)
