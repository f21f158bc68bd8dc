"""Other libraries' models as subjects: `integrations.hf` for Hugging Face; trainers that a monitor watches."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "from_hf": ".weights",
        "hf": ".hf:",
        "lightning": ".lightning:",
        "register_hf": ".attention",
        "torchtitan": ".torchtitan:",
    },
)
