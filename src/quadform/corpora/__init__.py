"""Data sets and trained models: made by our own code, fetched by name, or built from own text."""

from quadform.core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Dataset": ".datasets",
        "DATASETS": ".datasets",
        "dataset": ".datasets",
        "Addition": ".datasets",
        "Letters": ".datasets",
        "NumberWords": ".datasets",
        "StandardLibrary": ".running",
        "ParallelText": ".opened",
        "Text": ".opened",
        "Masked": ".objectives",
        "Packages": ".objectives",
        "fetch": ".fetch:",
    },
)
