"""How a signal crosses a model: token cosines, norms and gradients after every block, Jacobians, theory beside them."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Signal": "...answers.signal",
        "SignalOpening": ".question",
        "SignalQuestion": ".question",
        "signal": ".call",
    },
)
