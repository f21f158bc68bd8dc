"""`hf.CurvatureCallback`: a monitor inside the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ..core.lazy import public


class CurvatureCallback(TrainerCallback):
    """Curvature on held batches while a `transformers.Trainer` trains.

    callback = CurvatureCallback(batches, every=50)
    trainer = Trainer(..., callbacks=[callback])
    callback.trainer = trainer        # its log gets every reading, and so do TensorBoard, Weights & Biases, ...

    `batches` have `labels`, as the model takes them. `settings` are those of `qf.Monitor`; `monitor` is that monitor
    once training has begun. Names in the log begin with `curvature/`.
    """

    def __init__(self, batches: Any, *, trainer: Any = None, **settings: Any) -> None:
        self.batches, self.trainer, self.settings = batches, trainer, settings
        self.monitor: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.monitor = public("Monitor")(given["model"], given["optimizer"], self.batches, **self.settings)
        self.monitor.steps = state.global_step  # a run that goes on from a checkpoint

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        reading = self.monitor.step()
        if reading is not None and self.trainer is not None:
            self.trainer.log({f"curvature/{name}": value for name, value in reading.numbers().items()})
