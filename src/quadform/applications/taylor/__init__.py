"""How far the quadratic model of the loss holds, along directions that matter."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"TaylorQuestion": ".question", "taylor": ".call"})
