"""Are the closed forms right here and now? Random layers, three ways to the same numbers."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__, {"Verification": ".answer", "VerifyQuestion": ".question", "verify": ".call"}
)
