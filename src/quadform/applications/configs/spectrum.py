"""The question of `quadform spectrum`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from ...core.errors import InputError
from .shared import ModelQuestion


@dataclass(frozen=True, kw_only=True)
class SpectrumConfig(ModelQuestion):
    """Eigenvalues, trace, density and block norms of a model's Hessian, matrix-free, each number with its error."""

    top: int = 5
    """Largest eigenvalues."""
    bottom: int = 1
    """Smallest (most negative) eigenvalues."""
    density: bool = False
    """The density of all eigenvalues too, by Lanczos quadrature."""
    blocks: Literal["qkv", "heads", "parts", "layer", "all", "none"] = "qkv"
    """Norms of all pairs of: query/key/value matrices, their heads, parts of layers, layers, all tensors; or none."""
    curvature: Literal["hessian", "ggn", "functional"] = "hessian"
    """The Hessian H, its Gauss-Newton part H_o, or its functional part H_f = H - H_o."""
    products: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 60, or 20 an eigenvalue)")] = None
    """Most Hessian-vector products for the eigenvalues."""
    probes: int = 4
    """Random vectors of the density, and for each block."""
    steps: int = 20
    """Lanczos steps of each vector of the density."""
    tol: float = 1e-3
    """Wanted relative residual of an eigenvalue."""
    route: Literal["auto", "eager", "traced", "compiled"] = "auto"
    """How products run: step by step, traced, compiled; `auto` takes what is predicted to end first."""

    def __post_init__(self) -> None:
        ModelQuestion.__post_init__(self)
        if self.top < 0 or self.bottom < 0 or self.top + self.bottom < 1:
            raise InputError(f"`--top {self.top} --bottom {self.bottom}`: ask for at least one eigenvalue.")
        if self.probes < 2 or self.steps < 2:
            raise InputError(f"`--probes {self.probes} --steps {self.steps}`: give at least 2 of each.")
        if self.products is not None and self.products < self.top + self.bottom:
            raise InputError(
                f"`--products {self.products}`: {self.top + self.bottom} eigenvalues need as many at least."
            )
        if not self.tol > 0:
            raise InputError(f"`--tol {self.tol:g}`: give a positive number.")
