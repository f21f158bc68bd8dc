"""The largest stable learning rate: rules of the optimizers, measured ceilings, trials on a copy of the model."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "StepSize": "...answers.step_size",
        "StepSizeOpening": ".question",
        "StepSizeQuestion": ".question",
        "lr": ".call",
    },
)
