"""A run folder opened again: the model, the data, the settings and the optimiser state of the last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quadform.core.errors import FileError
from quadform.core.record import JSON_NAME
from quadform.core.spec import ModelConfig
from quadform.nn.transformer import Transformer

from .checkpoint import load_checkpoint, restore
from .config import TrainConfig
from .datasets import Dataset
from .optimiser import Optimiser

CHECKPOINT = "checkpoint"


def is_run(folder: str | Path) -> bool:
    """Whether `folder` holds a training run."""
    return (Path(folder) / CHECKPOINT / JSON_NAME).exists()


@dataclass(frozen=True, eq=False)
class Run:
    """What a training run left: `model` at step `step`, and all that made it."""

    folder: Path
    model: Transformer
    data: Dataset
    config: TrainConfig
    step: int
    tensors: Mapping[str, Tensor]

    def optimiser(self) -> Optimiser:
        """The optimiser over `model` with the state of the checkpoint."""
        optimiser = Optimiser(self.model, self.config)
        restore(self.model, optimiser, self.tensors)
        return optimiser


def open_run(folder: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Run:
    """The run in `folder` as its last checkpoint has it."""
    found = load_checkpoint(Path(folder) / CHECKPOINT)
    if found is None:
        raise FileError(f"there is no training run at {folder}. `quadform train --out {folder}` makes one.")
    state, tensors = found
    try:
        identity = state["identity"]
        config = TrainConfig.from_dict(identity["train"])
        data = Dataset.from_dict(identity["data"])
        step = int(state["state"]["step"])
        weights = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
        kind = dtype or next(iter(weights.values())).dtype
        model = Transformer(ModelConfig.from_dict(identity["model"]), device=device, dtype=kind)
        model.load_state_dict(weights)
    except (KeyError, TypeError, AttributeError, StopIteration, RuntimeError) as error:
        raise FileError(f"{folder}/{CHECKPOINT} is not complete ({error}). Train it again.") from error
    return Run(Path(folder), model.eval(), data, config, step, tensors)
