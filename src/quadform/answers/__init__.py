"""Answers: each owns the keys of its record, names its numbers, and judges them by limits that stand beside it."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Answer": ".answer",
        "AttentionAnswer": ".attention",
        "Compare": ".compare",
        "Flat": ".flat",
        "Landscape": ".landscape",
        "Limits": ".verdict",
        "MonitorAnswer": ".monitor",
        "Pruned": ".prune",
        "QuantizedModel": ".quantize",
        "Signal": ".signal",
        "Spectrum": ".spectrum",
        "StepSize": ".step_size",
        "Precond": ".precond",
        "PointKind": ".kind",
        "Taylor": ".taylor",
        "Training": ".training",
        "Verdict": ".verdict",
        "Why": ".why",
        "WhyStep": ".why_step",
    },
)
