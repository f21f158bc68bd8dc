"""A model with a chosen block, made and trained: `quadform train`, `qf.fit`."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"Fitted": ".done", "TrainTask": ".question", "fit": ".call"})
