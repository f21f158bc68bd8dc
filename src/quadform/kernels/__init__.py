"""Attention that can be differentiated twice at linear memory: torch reference, Triton twin, derivative rules."""

from quadform.core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "attention": ".rules",
        "visible_mean": ".mixing",
        "linear_cross_entropy": ".loss",
        "program": ".programs",
        "second_order_sdpa": ".sdpa",
        "Choice": ".choice",
        "last_choice": ".choice",
        "using": ".choice",
    },
)
