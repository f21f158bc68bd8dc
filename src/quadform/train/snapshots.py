"""The mean of a run's last snapshots: fewer wiggles of the last steps for the price of a few files. [VSP17, Sec. 6.1]

out/snapshots/00001500/    the model after step 1500, kept every `save_every` steps where `TrainConfig.average` says so
out/averaged/              their mean, at the end of the run
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from quadform.core.errors import FileError, InputError
from quadform.core.files import is_dir
from quadform.nn.transformer import Transformer

SNAPSHOTS, AVERAGED = "snapshots", "averaged"


def snapshots(folder: str | Path) -> list[Path]:
    """The snapshots of the run in `folder`, oldest first."""
    kept = Path(folder) / SNAPSHOTS
    return sorted(p for p in kept.iterdir() if p.name.isdigit()) if is_dir(kept) else []


def keep_snapshot(folder: Path, model: Transformer, step: int, most: int) -> None:
    """Save the model of a step, and remove the oldest so that `most` remain."""
    model.save(folder / SNAPSHOTS / f"{step:08d}")
    for old in snapshots(folder)[:-most]:
        shutil.rmtree(old, ignore_errors=True)


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
    found = snapshots(folder)
    if len(found) < last:
        raise FileError(
            f"{folder} has {len(found)} snapshot{'s' * (len(found) != 1)} to average; {last} were asked for. Training "
            f"with `average` = {last} keeps them, one every `save_every` steps."
        )
    return average(found[-last:], device=device)
