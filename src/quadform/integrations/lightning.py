"""`integrations.lightning.CurvatureCallback`: a monitor inside the Trainer of Lightning."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from ..core.errors import InputError
from ..core.lazy import public
from ..core.showing import MissingPackage

Callback: Any = object
for package in ("lightning.pytorch", "pytorch_lightning"):  # the same under its two names
    with contextlib.suppress(ModuleNotFoundError):
        Callback = importlib.import_module(package).Callback
        break


class CurvatureCallback(Callback):
    """Curvature on held batches while a Lightning `Trainer` trains.

    trainer = Trainer(..., callbacks=[CurvatureCallback(batches, loss=loss, every=50)])

    `settings` are those of `qf.Monitor`; `monitor` is that monitor once training has begun. `inside(module)` is the
    model to be measured; by default the LightningModule itself, whose method `loss(batch)` is the loss where none is
    given. Readings go to all loggers of the trainer under names that begin with `curvature/`.
    """

    def __init__(self, batches: Any, *, inside: Callable[[Any], Any] = lambda module: module, **settings: Any) -> None:
        if Callback is object:
            raise MissingPackage("CurvatureCallback needs Lightning: `pip install lightning`.")
        super().__init__()
        self.batches, self.inside, self.settings = batches, inside, settings
        self.monitor: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if len(trainer.optimizers) != 1:
            raise InputError(
                f"the trainer has {len(trainer.optimizers)} optimizers; a monitor watches one. Use qf.Monitor itself."
            )
        model = self.inside(pl_module)
        self.monitor = public("Monitor")(model, trainer.optimizers[0], self.batches, **self.settings)
        self.monitor.steps = trainer.global_step  # a run that goes on from a checkpoint

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.monitor.steps:  # gradients are being accumulated
            return
        reading = self.monitor.step()
        if reading is not None:
            numbers = {f"curvature/{name}": value for name, value in reading.numbers().items()}
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)
