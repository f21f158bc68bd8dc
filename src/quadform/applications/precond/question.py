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
        4,
        "Number of batches; the loss is their mean. Adam, Adafactor, Shampoo and SOAP are built from"
        " the gradient of each batch.",
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class PrecondQuestion(ModelQuestion):
    """Which preconditioner conditions the Hessian best, and how much does one step with it gain?

    For each preconditioner P: extreme eigenvalues and density of P^-1/2 H P^-1/2, the effective number of directions
    of its curvature, the step ceiling 2 / lambda_max, and how much the best step along P^-1 g lowers the quadratic
    model and the loss itself. Each P is tried with several dampings and shown at the best.
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
        "Damping added to P, as shares of its mean eigenvalue, comma-separated; each P is shown at its best damping."
        " Adam and Adafactor have an epsilon of their own and are also tried without damping.",
        parse=shares_of,
        metavar="SHARES",
    )
    fit: int = option(60, "Number of products for a diagonal, and of steps of PSGD.", least=1)
    probes: int = option(
        4, "Number of random vectors for the density and for the effective number of directions.", least=2
    )
    steps: int = option(12, "Lanczos steps per random vector; each costs one product.", least=3)
    products: int = option(100, "Maximum number of Hessian-vector products for both extreme eigenvalues.", least=1)
    tol: float = option(1e-2, "Relative residual at which the extreme eigenvalues count as converged.", above=0)

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
