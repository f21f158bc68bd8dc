"""What can be asked: one frozen value per verb. Torch-free, so the command line reads its flags from here at no cost.

A config holds the question only; where the answer goes (`--out`, `--json`, ...) is the command line's business. Every
config checks itself when it is made, so Python and the command line refuse the same values with the same text.
"""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "LongWork": ".shared",
        "Numerics": ".shared",
        "Output": ".shared",
    },
)
