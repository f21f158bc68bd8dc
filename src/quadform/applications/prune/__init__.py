"""Which weights can go, how the others make up for them, and what it costs the loss."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"PruneQuestion": ".question", "prune": ".call"})
