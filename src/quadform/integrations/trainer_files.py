"""What the trainer of Hugging Face leaves beside the weights: the step, learning rates, the optimizer's state.

`trainer_state.json` has the step and the rates that were logged, `scheduler.pt` the rate of the next step,
`optimizer.pt` the state. Files are read without running any code in them; one that cannot be read is as good as absent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class TrainerFiles:
    """`lr` is what the next step takes, or the last one took where the schedule is over; None where nothing tells."""

    step: int | None = None
    lr: float | None = None
    peak: float | None = None
    optimizer: Path | None = None


def trainer_files(folder: str | Path) -> TrainerFiles:
    """The files in `folder`, as far as they are there."""
    folder = Path(folder)
    state, schedule = _json(folder / "trainer_state.json"), _tensors(folder / "scheduler.pt")
    logged = [_rate(row.get("learning_rate")) for row in _list(state.get("log_history")) if isinstance(row, dict)]
    now, base = (max(map(_rate, _list(schedule.get(k))), default=0.0) for k in ("_last_lr", "base_lrs"))
    last = next((r for r in reversed(logged) if r > 0), 0.0)
    step = state.get("global_step")
    optimizer = folder / "optimizer.pt"
    return TrainerFiles(
        step=step if isinstance(step, int) and step >= 0 else None,
        lr=now or last or None,
        peak=max([base, *logged]) or None,
        optimizer=optimizer if optimizer.is_file() else None,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _tensors(path: Path) -> dict[str, Any]:
    try:
        body = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # no such file, or what torch's restricted reader refuses, in classes of its own
        return {}
    return body if isinstance(body, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _rate(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
