"""The checkpoints of a run of another trainer, in the order of their steps: weights, optimizer state and log.

    Hugging Face   checkpoint-500/, ...: safetensors or pytorch_model.bin, optimizer.pt, trainer_state.json
    Lightning      *.ckpt: state_dict, global_step, optimizer_states
    plain torch    *.pt, *.pth: weights under `model`, `state_dict` or `model_state_dict`, `optimizer`, `step`

Files are read without running any code in them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from ..core.errors import FileError, InputError
from ..core.files import checkpoints_in
from .trainer_files import contents, trainer_files

_WEIGHTS = ("state_dict", "model_state_dict", "model")
_STEPS = ("global_step", "step", "iteration", "iter")


@dataclass(frozen=True)
class Checkpoint:
    """`path` is a folder or a file; `optimizer` the file with the optimizer's state, None where there is none."""

    step: int
    path: Path
    optimizer: Path | None

    def model(self, like: nn.Module) -> nn.Module:
        """A copy of a model with the weights of the checkpoint."""
        found = copy.deepcopy(like)
        held = _weights(self.path)
        names = [n for n, _ in found.named_parameters()]  # of tied weights the first, which files keep
        prefix = next(
            (p for k in held if (p := k.removesuffix(names[0])) != k and all(p + n in held for n in names)), None
        )
        if prefix is None:
            raise InputError(f"the weights in `{self.path}` are not those of this {type(like).__name__}.")
        found.load_state_dict({n: held[prefix + n] for n in found.state_dict() if prefix + n in held}, strict=False)
        return found


def checkpoints_along(folder: str | Path) -> list[Checkpoint]:
    """All checkpoints in a folder, by step; none where there are none."""
    path = Path(folder)
    found = {}
    for inside in checkpoints_in(path):
        about = trainer_files(inside)
        step = about.step if about.step is not None else int(inside.name.rpartition("-")[2])
        found[step] = Checkpoint(step, inside, about.optimizer)
    for file in sorted(p for end in ("ckpt", "pt", "pth") for p in path.glob(f"*.{end}")):
        body = contents(file)
        at = next((body[n] for n in _STEPS if isinstance(body.get(n), int)), None)
        if at is not None and any(isinstance(body.get(n), Mapping) for n in _WEIGHTS):
            found[at] = Checkpoint(at, file, file)
    return [found[step] for step in sorted(found)]


def logged(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The lines of the trainer's log that have a loss and a step, up to a checkpoint."""
    lines = trainer_files(checkpoint.path).log if checkpoint.path.is_dir() else ()
    return [line for line in lines if isinstance(line.get("loss"), float | int) and isinstance(line.get("step"), int)]


def _weights(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        held = {n: t for f in files for n, t in load_file(f).items()} if files else contents(path / "pytorch_model.bin")
    else:
        body = contents(path)
        held = next((dict(body[n]) for n in _WEIGHTS if isinstance(body.get(n), Mapping)), {})
    if not held:
        raise FileError(f"there are no weights in `{path}` that can be read without running code.")
    return held
