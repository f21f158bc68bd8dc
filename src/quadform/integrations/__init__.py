"""Other libraries' models as subjects: `integrations.hf` for Hugging Face."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "from_hf": ".weights",
        "hf": ".hf:",
        "register_hf": ".attention",
    },
)
