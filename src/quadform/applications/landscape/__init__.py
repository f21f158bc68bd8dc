"""The loss on a line or a plane through the model, beside its quadratic model."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"LandscapeQuestion": ".question", "landscape": ".call"})
