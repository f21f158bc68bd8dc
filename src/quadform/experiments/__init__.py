"""The papers' figures and tables, one module each: what is measured, how it is drawn, which claims it decides."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CATALOG": ".catalog",
        "Claim": ".claims",
        "Experiment": ".experiment",
        "Outcome": ".runner",
        "ReproduceTask": ".question",
        "Reproduction": ".runner",
        "Verdict": ".claims",
        "committed": ".catalog",
        "reproduce": ".call",
        "write_gallery": ".gallery",
    },
)
