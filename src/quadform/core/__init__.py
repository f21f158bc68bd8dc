"""The vocabulary of the project: named spaces, linear operators, estimates, records. Imports no other room."""

from .lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Space": ".space",
        "View": ".space",
        "Operator": ".operator",
        "Dense": ".operator",
        "Sum": ".operator",
        "Scaled": ".operator",
        "Product": ".operator",
        "Block": ".operator",
        "Diagonal": ".structured",
        "KroneckerDiagonal": ".structured",
        "KroneckerSum": ".structured",
        "BlockSpec": ".spec",
        "Gain": ".spec",
        "Mixing": ".spec",
        "ModelConfig": ".spec",
        "Projection": ".spec",
        "SPA": ".spec",
        "count_parameters": ".parameters",
        "design": ".designs",
        "Estimate": ".record",
        "Record": ".record",
        "Provenance": ".record",
        "progress": ".progress:",
    },
)
