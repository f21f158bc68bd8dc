"""The question of `quadform precond` and `qf.precond`. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.question import option, words_of
from ..opening import ModelQuestion, Opening

#: Preconditioners by name; `blocks` are exact blocks of H_o, one for each tensor.
METHODS = ("none", "diagonal", "adam", "adafactor", "shampoo", "soap", "kfac", "ekfac", "psgd", "blocks")
#: Those whose P can be read from the state of an optimizer.
SAVED = ("adam", "adafactor", "shampoo", "soap")


def shares_of(text: str) -> tuple[float, ...]:
    """`0.01,0.1` as numbers."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise InputError(f"{text!r}: give numbers with commas between, such as 0.01,0.1.") from error


@dataclass(frozen=True, kw_only=True)
class PrecondOpening(Opening):
    """A model and several batches, so that what is made of gradients sees more than one."""

    batches: int = option(
        4, "Batches; their mean is the loss, and Adam, Adafactor, Shampoo and SOAP see the gradient of each.", least=1
    )


@dataclass(frozen=True, kw_only=True)
class PrecondQuestion(ModelQuestion):
    """Which preconditioner makes the Hessian round, and how far does one step with it go?

    For each P: both ends and the density of P^-1/2 H P^-1/2, in how many directions its curvature lies, the step
    ceiling 2 / lambda_max, and by how much the best step along P^-1 g lowers the quadratic model, beside what
    it does to the loss itself. Each P is damped by every share of a grid, and shown at the best.
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
        "Optimizer state that Adam, Adafactor, Shampoo or SOAP is read from: a run folder, torch's optimizer.pt, a"
        " checkpoint that holds one, or the folder of a Hugging Face checkpoint (no code in it is run).",
        metavar="FILE",
        shown="(default: the run's, else the gradients of the probe)",
    )
    damping: tuple[float, ...] = option(
        (1e-3, 1e-2, 1e-1, 1.0),
        "Shares of its mean eigenvalue that are added to P, commas between; each P is shown at the best of them. Adam"
        " and Adafactor, which have an epsilon of their own, are tried without as well.",
        parse=shares_of,
        metavar="SHARES",
    )
    fit: int = option(60, "Products for a diagonal, and steps of PSGD.", least=1)
    probes: int = option(
        4, "Random vectors that see the density, and the directions that carry the curvature.", least=2
    )
    steps: int = option(12, "Lanczos steps of each of them, a product each.", least=3)
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
        if isinstance(self.damping, int | float):  # one share
            object.__setattr__(self, "damping", (float(self.damping),))
        if not self.damping or not all(0 <= share < math.inf for share in self.damping):
            raise InputError(f"damping={self.damping}: give at least one share, none below 0.")
        object.__setattr__(self, "damping", tuple(sorted(set(self.damping))))
        if self.optimizer_state is not None:
            if not set(SAVED) & set(self.methods):
                raise InputError(f"an optimizer state is read for {', '.join(SAVED)}; name one among the methods.")
            object.__setattr__(self, "optimizer_state", str(self.optimizer_state))  # a Path in Python

    def identity(self, subject: Any = None) -> dict[str, Any]:
        """Where the P of an optimizer comes from belongs to it."""
        own = super().identity(subject)
        if subject is None or not set(SAVED) & set(self.methods):
            return own
        from .saved import identity_of

        return own | identity_of(self, subject)

    def measurement(self, subject: Any = None) -> Any:
        from .measure import PrecondMeasurement

        return PrecondMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.precond import Precond

        return Precond(record)
