"""Checkpoints: weights, optimizer state and the loop's own state, as one `Record` (JSON + safetensors, atomic).

A process killed at any moment, also while it writes, leaves the last whole checkpoint. Random numbers need no place in
it: batch i and the dropout of step t are functions of the seed and of i and t.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from quadform.core.errors import FileError, pass_on_memory
from quadform.core.files import is_file
from quadform.core.record import JSON_NAME, Provenance, Record
from quadform.nn.transformer import Transformer

from .optimizer import Optimizer

KIND = "checkpoint"


def save_checkpoint(
    folder: str | Path, model: Transformer, optimizer: Optimizer, state: Mapping[str, Any], made: Provenance
) -> Path:
    """Write a checkpoint to `folder` in place of the one before."""
    tensors = {f"model/{name}": t for name, t in model.state_dict().items()}
    tensors |= {f"optimizer/{name}": t for name, t in optimizer.tensors().items()}
    return Record(kind=KIND, inputs=state, scalars={}, tensors=tensors, made=made).save(folder)


def load_checkpoint(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """(state, tensors) of the checkpoint in `folder`; None where there is none yet."""
    if not is_file(Path(folder) / JSON_NAME):
        return None
    record = Record.load(folder)
    if record.kind != KIND:
        raise FileError(f"{folder} holds a record of kind {record.kind!r}, not a checkpoint. Choose another folder.")
    tensors = {
        n.replace("optimiser/", "optimizer/", 1): t for n, t in record.tensors.items()
    }  # as version 0.1 wrote it
    return dict(record.inputs), tensors


def restore(model: Transformer, optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the weights and the optimizer state of a checkpoint in their places."""
    own = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
    try:
        model.load_state_dict(own)
    except RuntimeError as error:
        pass_on_memory(error)
        raise FileError(f"the checkpoint does not fit this model: {error}.") from error
    optimizer.load({n.removeprefix("optimizer/"): t for n, t in tensors.items() if n.startswith("optimizer/")})
