"""The model a training run began with: drawn again, and held against the first loss the run wrote down.

A checkpoint has the seed of the training, not the weights it began with. `quadform train` draws the model with that
seed; in Python any model may be trained. The checkpoint also has the loss of the first step, before any update: a model
drawn again is the one that was trained if it has that loss on the batches of that step, and others do not.
"""

from __future__ import annotations

from typing import Any

import torch

from ...core.rng import stream
from ...nn.transformer import Transformer
from ...train.feed import Meal, meals
from ...train.folder import RunFolder
from ...train.runs import Run

#: How close, of itself, a loss must come to the one written down: one computed again elsewhere, or under bf16.
SAME, SAME_BF16 = 1e-4, 3e-3
#: Models of other seeds that must not come as close; at a design whose output starts at 0 all losses are equal.
OTHERS = 3


def first_model(run: Run) -> tuple[Transformer | None, str]:
    """The model of a run before its first step, and where it cannot be known None and why."""
    files = None if run.folder is None else RunFolder(run.folder)
    if files is not None and files.scores().get("start_from"):
        return None, "the run began with the weights of another"
    state = {} if files is None else files.described()["inputs"]
    written, world = state.get("state", {}).get("first_loss"), int(state.get("identity", {}).get("processes", 1))
    if not isinstance(written, float):
        return None, "the checkpoint does not tell the loss of the first step"
    near = abs(written) * (SAME if run.config.precision == "full" else SAME_BF16)
    fresh = _drawn(run, run.config.seed)
    food = _first_meals(fresh, run, world)
    found = _first_loss(fresh, run, food)
    if not abs(found - written) <= near:
        return None, (
            f"the run's first loss was {written:.6g}, that of its model drawn with seed {run.config.seed} is"
            f" {found:.6g}"
        )
    for other in range(run.config.seed + 1, run.config.seed + 1 + OTHERS):
        if abs(_first_loss(_drawn(run, other), run, food) - written) <= near:
            return None, "at its start models of all seeds have the same loss"
    return fresh.eval(), ""


def _drawn(run: Run, seed: int) -> Transformer:
    described: Any = run.model.config
    weight = run.model.embed.W_E
    return Transformer(described, seed=seed, device=weight.device, dtype=weight.dtype)


def _first_meals(model: Transformer, run: Run, world: int) -> list[Meal]:
    """What each process of the training ate at its first step."""
    c = run.config
    sizes = {"batch_size": c.batch_size, "accumulate": c.accumulate, "bucket": c.bucket, "seed": c.seed}
    return [next(meals(model, run.data, **sizes, rank=rank, world=world)) for rank in range(world)]


def _first_loss(model: Transformer, run: Run, food: list[Meal]) -> float:
    """The loss of the first step as `train` computes it, dropout of that step included."""
    c, device = run.config, model.embed.W_E.device
    total = torch.zeros((), dtype=torch.float64)
    model.train()
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for rank, meal in enumerate(food):
            torch.manual_seed(stream(c.seed, "step/0" + (f"/{rank}" if rank else "")).initial_seed())
            for batch in meal.batches:
                total += model.loss(batch, smoothing=c.smoothing, reduction="sum").double().cpu()
    return float(total) / max(sum(meal.targets for meal in food), 1)
