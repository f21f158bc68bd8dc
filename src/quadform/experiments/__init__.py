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
        "Units": ".experiment",
        "Verdict": ".claims",
        "at_least": ".claims",
        "at_most": ".claims",
        "between": ".claims",
        "charts": ".charts:",
        "committed": ".catalog",
        "near": ".claims",
        "reproduce": ".call",
        "write_gallery": ".gallery",
    },
)
