"""Estimates of any operator from products with it: eigenpairs, spectral density, trace, diagonal, norms."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Eigenpairs": ".lanczos",
        "eigenpairs": ".lanczos",
        "Curve": ".spectral_density",
        "Density": ".spectral_density",
        "density": ".quadrature",
        "trace": ".traces",
        "Diagonal": ".diagonals",
        "diagonal": ".diagonals",
        "BlockNorms": ".blocks",
        "block_norms": ".blocks",
        "Heterogeneity": ".heterogeneity",
        "js_distance": ".heterogeneity",
        "condition_number": ".norms",
        "frobenius": ".blocks",
        "nuclear_norm": ".norms",
        "singular_ends": ".norms",
        "spectral_norm": ".norms",
        "stable_rank": ".norms",
    },
)
