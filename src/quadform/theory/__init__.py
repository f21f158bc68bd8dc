"""Closed forms on explicit tensors: the exact Hessian of attention and of what it is compared with."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "AttentionLayer": ".attention",
        "MultiHeadAttentionLayer": ".multihead",
        "ScoreAttentionLayer": ".scores",
        "Moments": ".moments",
        "attention_moments": ".moments",
        "Term": ".terms",
    },
)
