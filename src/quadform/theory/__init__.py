"""Closed forms on explicit tensors: the exact Hessian of attention and of what it is compared with."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "AttentionLayer": ".attention",
        "Moments": ".moments",
        "moments": ".moments",
        "Term": ".terms",
    },
)
