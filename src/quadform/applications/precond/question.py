"""The question of `quadform precond` and `qf.precond`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.question import option, words_of
from ..opening import ModelQuestion, Opening

#: Preconditioners by name; `blocks` are exact blocks of H_o, one for each tensor.
METHODS = ("none", "diagonal", "adam", "adafactor", "shampoo", "soap", "kfac", "ekfac", "psgd", "blocks")


@dataclass(frozen=True, kw_only=True)
class PrecondOpening(Opening):
    """A model and several batches, so that what is made of gradients sees more than one."""

    batches: int = option(
        4, "Batches; their mean is the loss, and Adam, Adafactor, Shampoo and SOAP see the gradient of each.", least=1
    )


@dataclass(frozen=True, kw_only=True)
class PrecondQuestion(ModelQuestion):
    """Which preconditioner makes the Hessian round, and how far does one step with it go?

    For each P: both ends of P^-1/2 H P^-1/2, in how many directions its curvature lies, the step ceiling
    2 / lambda_max, and by how much the best step along P^-1 g lowers the quadratic model, beside what
    it does to the loss itself.
    """

    verb = "precond"
    again = frozenset({"products"})

    methods: tuple[str, ...] = option(
        METHODS,
        f"Preconditioners: {', '.join(METHODS)}.",
        parse=words_of,
        metavar="LIST",
        shown="(default: all)",
    )
    optimizer_state: str | None = option(
        None,
        "Optimizer state that Adam is read from: a run folder, or torch's optimizer.pt (no code in it is run).",
        metavar="FILE",
        shown="(default: the run's, else the gradients of the probe)",
    )
    damping: float = option(
        0.1, "Added to P, by its mean eigenvalue; Adam and Adafactor have an epsilon of their own.", least=0
    )
    fit: int = option(60, "Products for a diagonal, and steps of PSGD.", least=1)
    probes: int = option(
        8, "Random vectors, two products each, that count the directions which carry the curvature.", least=2
    )
    products: int = option(100, "Most Hessian-vector products for both ends.", least=1)
    tol: float = option(1e-2, "Wanted relative residual of the ends.", above=0)

    def check(self) -> None:
        if not self.methods:
            raise InputError("methods=(): name at least one preconditioner.")
        for name in self.methods:
            if name not in METHODS:
                raise UnknownName(
                    f"unknown preconditioner {name!r}; there are {', '.join(METHODS)}.{did_you_mean(name, METHODS)}"
                )
        if self.optimizer_state is not None:
            if "adam" not in self.methods:
                raise InputError("an optimizer state is read for Adam alone; name adam among the methods.")
            object.__setattr__(self, "optimizer_state", str(self.optimizer_state))  # a Path in Python

    def identity(self, subject: Any = None) -> dict[str, Any]:
        """Where Adam's P comes from belongs to it."""
        own = super().identity(subject)
        if subject is None or "adam" not in self.methods:
            return own
        from .methods import adam_identity

        return own | adam_identity(self, subject)

    def measurement(self, subject: Any = None) -> Any:
        from .measure import PrecondMeasurement

        return PrecondMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.precond import Precond

        return Precond(record)
