"""What a trained run writes: greedy, beam or sampled."""

from ...core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {"DecodeTask": ".question", "Decodings": ".done", "decode": ".call"})
