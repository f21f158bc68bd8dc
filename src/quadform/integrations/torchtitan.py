"""`integrations.torchtitan.watch`: a monitor inside the `Trainer` of torchtitan.

Written against the attributes of `torchtitan.train.Trainer`: `model_parts`, `optimizers`, `train_step`, `step` and
`metrics_processor.logger.log(metrics, step)`. torchtitan itself is not imported.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from ..core.errors import InputError
from ..core.lazy import public


def cross_entropy(out: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over tokens, as torchtitan's own loss for language models."""
    return F.cross_entropy(out.flatten(0, 1).float(), batch[1].flatten(0, 1))


def watch(trainer: Any, batches: Any, *, loss: Any = cross_entropy, **settings: Any) -> Any:
    """A `qf.Monitor` that reads after every `trainer.train_step`; call it before `trainer.train()`.

    `batches` are those of the trainer's data loader, `({"input": tokens}, labels)`, or `(tokens, labels)`. Readings go
    to the trainer's metric logger under names that begin with `curvature/`. One whole model is measured: pipeline
    stages and sharded weights are refused.
    """
    if len(trainer.model_parts) != 1:
        raise InputError(f"the model is cut into {len(trainer.model_parts)} pipeline stages; a monitor needs it whole.")
    optimizers = list(trainer.optimizers)
    if len(optimizers) != 1:
        raise InputError(f"the trainer has {len(optimizers)} optimizers; a monitor watches one. Use qf.Monitor itself.")
    held = [(x["input"] if isinstance(x, dict) else x, y) for x, y in _listed(batches)]
    monitor = public("Monitor")(trainer.model_parts[0], optimizers[0], held, loss=loss, **settings)
    monitor.steps = trainer.step
    own = trainer.train_step

    def train_step(*given: Any, **named: Any) -> Any:
        out = own(*given, **named)
        reading = monitor.step()
        if reading is not None:
            numbers = {f"curvature/{name}": value for name, value in reading.numbers().items()}
            trainer.metrics_processor.logger.log(numbers, trainer.step)
        return out

    trainer.train_step = train_step
    return monitor


def _listed(batches: Any) -> list[Any]:
    return [batches] if isinstance(batches, tuple) else list(batches)
