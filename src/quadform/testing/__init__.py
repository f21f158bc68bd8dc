"""Contract checks that users can run on their own operators and designs, and that all of the project's pass."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Finding": ".operators",
        "check_inverse": ".operators",
        "check_operator": ".operators",
        "check_design": ".designs",
    },
)
