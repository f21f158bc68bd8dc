"""quadform: the second-order shape of a Transformer's loss.

Names are imported when first used: `import quadform` loads neither torch nor the figure and web libraries.
"""

from .core.lazy import attach

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Space": ".core.space",
        "Operator": ".core.operator",
        "Dense": ".core.operator",
        "Estimate": ".core.record",
        "Record": ".core.record",
        "Provenance": ".core.record",
        "attention_hessian": ".applications.attention",
        "toy": ".applications.attention",
        "vary": ".applications.attention",
        "theory": ".theory:",
        "testing": ".testing:",
    },
)
