"""Answers: each owns the keys of its record, names its numbers, and judges them by limits that stand beside it."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Answer": ".answer",
        "Limits": ".verdict",
        "Spectrum": ".spectrum",
        "Taylor": ".taylor",
        "Verdict": ".verdict",
    },
)
