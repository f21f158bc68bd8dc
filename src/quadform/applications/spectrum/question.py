"""The question of `quadform spectrum` and `qf.spectrum`. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError
from ...core.question import option
from ..opening import ModelQuestion


@dataclass(frozen=True, kw_only=True)
class SpectrumQuestion(ModelQuestion):
    """Eigenvalues, trace, density and block norms of the Hessian of a model. Each number has an error."""

    verb = "spectrum"
    again = frozenset({"products", "route"})

    top: int = option(5, "Number of largest eigenvalues.", least=0)
    bottom: int = option(1, "Number of smallest (most negative) eigenvalues.", least=0)
    density: bool = option(False, "Also estimate the density of all eigenvalues, by Lanczos quadrature.")
    blocks: str | Sequence[str] | Mapping[str, Sequence[str]] = option(
        "auto",
        "Norms of all pairs of: query/key/value matrices, their heads, parts of layers, layers, all tensors; or none."
        " `auto` is qkv, or layer where there is no attention. In Python also names with wildcards, or {label: names}.",
        choices=("auto", "qkv", "heads", "parts", "layer", "all", "none"),
    )
    curvature: str = option(
        "hessian",
        "The Hessian H, its Gauss-Newton part H_o, or its functional part H_f = H - H_o.",
        choices=("hessian", "gauss_newton", "functional"),
    )
    products: int | None = option(
        None,
        "Maximum number of Hessian-vector products for the eigenvalues.",
        least=1,
        metavar="INT",
        shown="(default: 60, or 20 an eigenvalue)",
    )
    probes: int = option(4, "Number of random vectors for the density, and for the norm of each block.", least=2)
    steps: int = option(20, "Lanczos steps per random vector of the density.", least=2)
    tol: float = option(1e-3, "Relative residual at which an eigenvalue counts as converged.", above=0)
    route: str = option(
        "auto",
        "How products run: step by step, traced, compiled, block by block (`units`, least memory); `auto` takes what is"
        " predicted to end first.",
        choices=("auto", "eager", "traced", "compiled", "units", "compiled-units"),
    )

    def check(self) -> None:
        wanted = self.top + self.bottom
        if wanted < 1:
            raise InputError("top=0, bottom=0: ask for at least one eigenvalue.")
        if self.products is not None and self.products < wanted:
            raise InputError(f"products={self.products}: {wanted} eigenvalues need at least as many.")

    @property
    def most(self) -> int:
        """The largest number of products the eigenvalues may take."""
        return self.products or max(60, 20 * (self.top + self.bottom))

    def folder(self, opening: Any, out: str | None) -> str | None:
        return out or opening.usual_folder(self.verb)

    def measurement(self, subject: Any = None) -> Any:
        from .measure import SpectrumMeasurement

        return SpectrumMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.spectrum import Spectrum

        return Spectrum(record)
