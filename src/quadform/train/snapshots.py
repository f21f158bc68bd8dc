"""The mean of a run's last snapshots: the last steps wiggle less, for the price of a few files. [VSP17, Sec. 6.1]"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from quadform.core.errors import FileError, InputError
from quadform.nn.transformer import Transformer

from .folder import RunFolder


@torch.no_grad()
def average(folders: Sequence[str | Path], *, device: torch.device | str | None = None) -> Transformer:
    """The model whose every parameter and buffer is the mean of those saved in `folders`, taken in float64."""
    if not folders:
        raise InputError("an average needs at least one saved model; got none.")
    model = Transformer.load(folders[0], device=device)
    sums = {name: t.double() for name, t in model.state_dict().items()}
    for folder in folders[1:]:
        other = Transformer.load(folder, device=device)
        if other.config != model.config:
            raise InputError(f"{folder} and {folders[0]} are models of different shape; they have no average.")
        for name, t in other.state_dict().items():
            sums[name] += t
    for name, t in model.state_dict().items():
        t.copy_(sums[name] / len(folders))
    return model


def average_run(folder: str | Path, last: int, *, device: torch.device | str | None = None) -> Transformer:
    """The mean of the last so many snapshots of the run in `folder`."""
    found = RunFolder(folder).kept()
    if len(found) < last:
        raise FileError(
            f"{folder} has {len(found)} snapshot{'s' * (len(found) != 1)} to average; {last} were asked for. Training "
            f"with `average` = {last} keeps them, one every `save_every` steps."
        )
    return average(found[-last:], device=device)
