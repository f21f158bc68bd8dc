"""The live page: a state in, an exact Hessian, its pictures and their meaning out. `quadform explore` serves it."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "State": ".state",
        "ControlError": ".state",
        "measure": ".measurement",
        "words_as_tokens": ".data",
        "explore": ".notebook",
        "Page": ".notebook",
    },
)
