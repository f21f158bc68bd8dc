"""Why Transformers need what they need: one part taken away at a time, the curvature measured before and after."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"Why": "...answers.why", "WhyQuestion": ".question", "why": ".call"})
