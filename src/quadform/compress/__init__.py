"""Pruning and quantization: which weights can go, how the others make up for them, what it costs the loss."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Grid": ".grid",
        "pack": "..core.packed",
        "unpack": "..core.packed",
        "dequantized": "..core.packed",
        "choose": ".masks",
        "LinearMap": ".maps",
        "linear_maps": ".maps",
        "Masked": ".together",
        "step": ".together",
        "compensate": ".layerwise",
        "least_squares": ".layerwise",
        "sparsegpt": ".layerwise",
        "gptq": ".layerwise",
        "obq": ".surgeon",
        "Surgeon": ".surgeon",
        "allocate": ".allocation",
    },
)
