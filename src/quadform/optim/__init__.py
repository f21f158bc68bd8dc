"""Optimizers that use the Hessian: Newton, Gauss-Newton, saddle-free Newton. Matrix-free, shaped like torch.optim."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "NewtonCG": ".newton",
        "GaussNewtonCG": ".newton",
        "SaddleFreeNewton": ".newton",
        "Step": ".newton",
    },
)
