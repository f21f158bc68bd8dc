"""The spectrum of a model's curvature: eigenvalues, density, traces and norms of the whole and of named blocks."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Spectrum": "...answers.spectrum",
        "SpectrumQuestion": ".question",
        "spectrum": ".call",
    },
)
