"""What a record of the live page says, beside what every record of an attention layer does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..core.record import Estimate
from .attention import MOMENTS, PARTS, AttentionAnswer, spectrum_key
from .kronecker import HEAD


class LiveAnswer(AttentionAnswer):
    """What the live page measures beside: numbers of a layer in a stack, of its tokens, and of its formulas.

    Scalars `first_key`, `moment/M1, M2, M3`, `ingredient/NAME`, `difference_error` (in place of `autodiff_error` where
    autodiff is what is checked); tensors `cosine`, `effective_rank` (one number a layer).
    """

    @property
    def spectra(self) -> tuple[str, ...]:
        """The parts whose eigenvalues are there."""
        return tuple(part for part in PARTS if spectrum_key(part) in self.record.tensors)

    @cached_property
    def kronecker(self) -> dict[str, dict[str, float]]:
        """Block `W,W` -> kind of preconditioner -> its relative error against H_o(W, W)."""
        found: dict[str, dict[str, float]] = {}
        for key, e in self.record.scalars.items():
            if key.startswith(HEAD):
                name, kind = key.removeprefix(HEAD).split("/", 1)
                found.setdefault(f"{name},{name}", {})[kind] = e.value
        return found

    @property
    def closed(self) -> bool:
        """Whether the Hessian is a closed form; else it is from automatic differentiation."""
        return self.route == "closed"

    @property
    def route(self) -> str:
        return str(self.record.inputs["route"])

    @property
    def state(self) -> dict[str, Any]:
        """Where the controls of the page stand."""
        return dict(self.record.inputs["state"])

    @property
    def labels(self) -> list[str]:
        """The names of the tokens."""
        return list(self.record.inputs["labels"])

    @property
    def check_error(self) -> Estimate:
        """The closed form against autodiff, or autodiff against differences."""
        return self.scalar("autodiff_error" if self.closed else "difference_error")

    @property
    def first_key(self) -> Estimate:
        """Mean attention on the first token."""
        return self.scalar("first_key")

    @property
    def moments(self) -> dict[str, Estimate]:
        return {m: self.scalar(f"moment/{m}") for m in MOMENTS}

    @property
    def symbols(self) -> Mapping[str, Estimate]:
        """What stands in the formulas of the blocks: `ingredient/x`, `moment/M2`."""
        return {n: e for n, e in self.record.scalars.items() if n.startswith(("ingredient/", "moment/"))}

    @property
    def cosine(self) -> list[float]:
        """Mean token cosine after 0, 1, ... layers; empty for one token."""
        return self.record.tensors["cosine"].tolist() if "cosine" in self.record.tensors else []

    @property
    def effective_rank(self) -> list[float]:
        return self.tensor("effective_rank").tolist()
