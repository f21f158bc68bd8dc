"""Estimates of any operator from products with it: eigenpairs, spectral density, trace, diagonal, norms, solves."""

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
        "solve": ".solvers.driver",
        "Solution": ".solvers.solution",
        "Inverse": ".solvers.inverse",
        "MatrixFunction": ".solvers.inverse",
        "matrix_function": ".solvers.functions",
        "FunctionValue": ".solvers.functions",
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
