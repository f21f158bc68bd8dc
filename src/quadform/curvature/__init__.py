"""Exact second-order operators of any model's empirical risk: Hessian, Gauss-Newton, functional part, Fisher."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Risk": ".risk",
        "hessian": ".operators",
        "gauss_newton": ".operators",
        "functional": ".operators",
        "fisher": ".fisher_matrix",
        "activation_hessian": ".operators",
    },
)
