"""Curvature while a model trains: eigenvalues from the last ones, the rate over its ceiling, attention by head."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Monitor": ".watch",
        "Reading": ".reading",
        "Rules": ".warning",
    },
)
