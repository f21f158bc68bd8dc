"""Block designs side by side under a budget: health at the start, cost, and the loss of a short training."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__, {"Compare": "...answers.compare", "CompareQuestion": ".question", "compare": ".call"}
)
