"""How flat the loss is around a model, as it stands and at its best among equal models."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"FlatQuestion": ".question", "flat": ".call"})
