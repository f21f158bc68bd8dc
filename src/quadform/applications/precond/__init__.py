"""The X-ray of optimizers: the Hessian as each preconditioner sees it."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"PrecondQuestion": ".question", "precond": ".call"})
