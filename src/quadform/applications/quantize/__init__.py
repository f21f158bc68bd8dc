"""How few bits the weights need, and what it costs the loss."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"QuantizeQuestion": ".question", "quantize": ".call"})
