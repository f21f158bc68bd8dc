"""The exact Hessian of one attention layer, its spectrum, how its blocks grow with the input."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "AttentionAnswer": "...answers.attention",
        "AttentionQuestion": ".question",
        "Sweep": ".growth",
        "Vary": ".question",
        "attention": ".call",
        "attention_hessian": ".growth",
        "toy": ".growth",
        "vary": ".growth",
    },
)
