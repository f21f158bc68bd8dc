"""Preconditioners as operators: P with `P.inverse(damping=...)` and `P.sqrt_inverse(damping=...)` in closed form."""

from ..core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Blocks": ".operators",
        "Kronecker": ".operators",
        "Seen": ".operators",
        "Spectral": ".spectral",
        "adafactor": ".state",
        "adafactor_after": ".state",
        "adafactor_of": ".saved",
        "adam": ".state",
        "adam_after": ".state",
        "as_of_torch": ".eight_bits",
        "block_diagonal": ".exact",
        "diagonal": ".exact",
        "ekfac": ".factored",
        "kfac": ".factored",
        "factor_names": ".saved",
        "kind_of": ".saved",
        "mean_eigenvalue": ".operators",
        "of_eigenpairs": ".spectral",
        "psgd": ".fitted",
        "shampoo": ".moments",
        "shampoo_of": ".saved",
        "soap": ".moments",
        "soap_of": ".saved",
    },
)
