"""A recurrence: what a Krylov method keeps between two products, for k right-hand sides at once.

It starts from x = 0 and the residuals given, and is finished when every right-hand side is at its target or has failed.
`step` changes nothing before the last product has come back, so that what is saved when the operator fails is whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

#: Why a right-hand side was given up, by its number in `why`.
REASONS = (
    "",
    "negative curvature: A + damping I is not positive definite; use minres or a larger damping",
    "the operator is singular along a direction of b; use a damping, minres or lsmr",
    "b has a part outside the range of the operator; x makes the residual smallest",
)
NEGATIVE, SINGULAR, OUTSIDE = 1, 2, 3


class Recurrence(ABC):
    """`vectors` are rows, `X` the solutions among them; `scalars` are numbers for each right-hand side on the host."""

    #: Rows kept for each right-hand side, for the budget of memory.
    kept = 4
    #: Whether the error falls in every step even where the residual rises: x is then kept when products run out.
    error_falls = False

    def __init__(self, system: Any, vectors: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> None:
        self.system, self.vectors, self.scalars = system, dict(vectors), dict(scalars)

    @classmethod
    @abstractmethod
    def start(cls, system: Any, R: Tensor, target: Tensor) -> Recurrence:
        """The recurrence for residuals R that are to fall to `target` (k,)."""

    @abstractmethod
    def step(self) -> None:
        """One step of every right-hand side that is open."""

    @property
    def open(self) -> Tensor:
        """Which right-hand sides go on, `(k,)`."""
        s = self.scalars
        return (s["size"] > s["target"]) & (s["why"] == 0)

    @property
    def cost(self) -> int:
        """Products of the next step."""
        return int(self.open.sum())

    def _taken(self, on: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Vectors and scalars of some right-hand sides; of all without a copy."""
        if len(on) == len(self.scalars["size"]):
            return self.vectors, self.scalars
        vectors = {name: t[on.to(t.device)] for name, t in self.vectors.items()}
        return vectors, {name: t[on] for name, t in self.scalars.items()}

    def _put(self, on: Tensor, vectors: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> None:
        """New vectors and scalars of some right-hand sides."""
        for own, new in ((self.vectors, vectors), (self.scalars, scalars)):
            for name, value in new.items():
                if len(on) == len(own[name]):
                    own[name] = value.to(own[name].dtype)
                else:
                    own[name][on.to(own[name].device)] = value.to(own[name].dtype)


def numbers(size: Tensor, target: Tensor, **more: Tensor) -> dict[str, Tensor]:
    """The scalars every recurrence has, and its own."""
    return {"size": size, "target": target.clone(), "why": torch.zeros(len(size), dtype=torch.int64), **more}
