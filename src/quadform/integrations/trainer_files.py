"""What trainers leave beside the weights: the step, learning rates, the optimizer's state.

Of the trainer of Hugging Face and of accelerate: `trainer_state.json` has the step and the rates that were logged,
`scheduler.pt` the rate of the next step, `optimizer.pt` the state (`.bin` of accelerate). Of Lightning: one file
`*.ckpt` with all of it. Of loops of one's own: a state dict under a name such as `optimizer` in a file of torch.
Files are read without running any code in them; what is beside the weights and cannot be read is as good as absent.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import FileError
from ..core.files import checkpoints_in


@dataclass(frozen=True)
class TrainerFiles:
    """`lr` is what the next step takes, or the last one took where the schedule is over; None where nothing tells."""

    step: int | None = None
    lr: float | None = None
    peak: float | None = None
    optimizer: Path | None = None
    log: tuple[dict[str, Any], ...] = ()


#: Under which names files of torch hold the state of an optimizer; Lightning has a list of them.
_HELD = ("optimizer", "optimizer_state_dict", "optimizer_states", "optimizer_state", "optim")


def trainer_files(folder: str | Path) -> TrainerFiles:
    """The files in `folder`, as far as they are there."""
    folder = Path(folder)
    state, schedule = _json(folder / "trainer_state.json"), _first(folder, "scheduler.pt", "scheduler.bin")
    optimizer = next((folder / n for n in ("optimizer.pt", "optimizer.bin") if (folder / n).is_file()), None)
    step = state.get("global_step")
    if optimizer is None and (ckpt := _newest(folder)) is not None and (body := contents(ckpt)):
        optimizer, step, schedule = ckpt, body.get("global_step"), _dict(_list(body.get("lr_schedulers")))
    log = tuple(row for row in _list(state.get("log_history")) if isinstance(row, dict))
    logged = [_rate(row.get("learning_rate")) for row in log]
    now, base = (max(map(_rate, _list(schedule.get(k))), default=0.0) for k in ("_last_lr", "base_lrs"))
    last = next((r for r in reversed(logged) if r > 0), 0.0)
    return TrainerFiles(
        step=step if isinstance(step, int) and step >= 0 else None,
        lr=now or last or None,
        peak=max([base, *logged]) or None,
        optimizer=optimizer,
        log=log,
    )


def state_file(where: str | Path) -> Path:
    """The file with the optimizer's state that is meant by a file, a folder, or a folder with many checkpoints."""
    path = Path(where)
    if path.is_dir():
        found = trainer_files([path, *checkpoints_in(path)][-1]).optimizer
        path = path / "optimizer.pt" if found is None else found
    if not path.is_file():
        raise FileError(
            f"there is no optimizer state at `{where}`. Give a run folder, torch's optimizer.pt, a Lightning .ckpt, or"
            " a file with the state under `optimizer`."
        )
    return path


def optimizer_state(path: Path) -> dict[str, Any]:
    """`param_groups` and `state` of the optimizer in a file of torch, wherever they lie in it."""
    try:
        body = torch.load(path, map_location="cpu", weights_only=True)  # tensors and numbers only; code is refused
    except Exception as error:  # torch's restricted reader: its own classes of error, and odd bytes
        needs = re.search(r"GLOBAL (\S+)", str(error))
        if needs is None:
            raise FileError(
                f"`{path}` is no file of torch.save, or it is damaged ({type(error).__name__}). Give a file that"
                " `torch.save(optimizer.state_dict(), ...)` wrote."
            ) from error
        raise FileError(
            f"`{path}` cannot be read without running code in it (it holds {needs[1]}). Where you trust it, convert it:"
            f" `body = torch.load('{path.name}', weights_only=False)`, then `torch.save(body['optimizer'],"
            " 'optimizer.pt')` (of Lightning: `body['optimizer_states'][0]`)."
        ) from error
    held = body
    while isinstance(held, dict) and "param_groups" not in held:
        held = next((held[n] for n in _HELD if n in held), None)
        held = held[0] if isinstance(held, list) and held else held
    if not isinstance(held, dict) or "state" not in held:
        names = ", ".join(map(str, body)) if isinstance(body, dict) else type(body).__name__
        raise FileError(f"`{path}` is not the state dict of a torch optimizer, and holds none (it has {names[:80]}).")
    return held


def _newest(folder: Path) -> Path | None:
    """The Lightning checkpoint of a folder that was written last."""
    return max(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime, default=None)


def _first(folder: Path, *names: str) -> dict[str, Any]:
    return next((body for n in names if (body := contents(folder / n))), {})


def _dict(values: list[Any]) -> dict[str, Any]:
    return values[0] if values and isinstance(values[0], dict) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def contents(path: Path) -> dict[str, Any]:
    """A file of torch that holds a mapping, read without running code; empty where there is none or it is refused."""
    try:
        body = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # no such file, or what torch's restricted reader refuses, in classes of its own
        return {}
    return body if isinstance(body, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _rate(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
