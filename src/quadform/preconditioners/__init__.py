"""Preconditioners as operators: P with `P.inverse(damping=...)` and `P.sqrt_inverse(damping=...)` in closed form."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Blocks": ".operators",
        "Kronecker": ".operators",
        "Seen": ".operators",
        "adafactor": ".state",
        "adafactor_after": ".state",
        "adam": ".state",
        "adam_after": ".state",
        "block_diagonal": ".exact",
        "diagonal": ".exact",
        "ekfac": ".factored",
        "kfac": ".factored",
        "mean_eigenvalue": ".operators",
        "psgd": ".fitted",
        "shampoo": ".moments",
        "soap": ".moments",
    },
)
