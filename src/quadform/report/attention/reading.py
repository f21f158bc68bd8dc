"""What an attention record says, asked by name: blocks, matrices, norms, slopes; or an error saying what is missing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...core.errors import InputError, UnknownName
from ...core.record import Estimate, Record
from ...core.space import Space

PARTS = ("total", "outer", "functional")
#: Attention whose mean row entropy is below this share of its maximum is called saturated (one-hot).
SATURATED = 0.1


@dataclass(frozen=True)
class Reading:
    """A record of kind `attention`, read and checked once."""

    record: Record

    def __post_init__(self) -> None:
        if self.record.kind != "attention":
            raise UnknownName(
                f"this figure shows records of kind 'attention'; got one of kind {self.record.kind!r}."
                " Make one with `quadform attention --out DIR`."
            )
        for name in ("H_o", "H_f", "eigenvalues", "eigenvalues_outer", "eigenvalues_functional"):
            self.tensor(name)
        size = self.space.size
        for name in ("H_o", "H_f"):
            if tuple(self.tensor(name).shape) != (size, size):
                raise InputError(
                    f"the record names {size} parameters but its {name} has shape {tuple(self.tensor(name).shape)}."
                    " Make the record again."
                )

    def tensor(self, name: str) -> Tensor:
        try:
            return self.record.tensors[name]
        except KeyError as error:
            raise InputError(f"the record holds no tensor {name!r}. Make it again with this quadform.") from error

    def scalar(self, name: str) -> Estimate:
        try:
            return self.record.scalars[name]
        except KeyError as error:
            raise InputError(f"the record holds no number {name!r}. Make it again with this quadform.") from error

    @cached_property
    def space(self) -> Space:
        try:
            return Space(tuple((str(name), tuple(shape)) for name, shape in self.record.inputs["space"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the record does not say which parameters it covers (`inputs.space`).") from error

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The unique blocks, `"W_Q,W_K"` = row, column, in the order of the record."""
        names = tuple(key.split("/", 2)[2] for key in self.record.scalars if key.startswith("norm/total/"))
        if not names:
            raise InputError("the record holds no block norms (`norm/total/...`). Make it again with this quadform.")
        return names

    def matrix(self, part: str) -> Tensor:
        """`total`, `outer` or `functional`: (P, P)."""
        H_o, H_f = self.tensor("H_o"), self.tensor("H_f")
        return {"total": H_o + H_f, "outer": H_o, "functional": H_f}[part]

    def block(self, part: str, name: str) -> Tensor:
        row, col = name.split(",")
        at = self.space.slices()
        return self.matrix(part)[at[row], at[col]]

    def eigenvalues(self, part: str) -> Tensor:
        return self.tensor("eigenvalues" if part == "total" else f"eigenvalues_{part}")

    def norm(self, part: str, block: str) -> float:
        return self.scalar(f"norm/{part}/{block}").value

    def whole_norm(self, part: str) -> float:
        """The Frobenius norm of the whole matrix: every off-diagonal block is there twice."""
        total = 0.0
        for block in self.blocks:
            row, col = block.split(",")
            total += (1 if row == col else 2) * self.norm(part, block) ** 2
        return math.sqrt(total)

    @property
    def diagonal(self) -> tuple[str, ...]:
        return tuple(b for b in self.blocks if len(set(b.split(","))) == 1)

    @property
    def varied(self) -> bool:
        """Whether the record holds a sweep of the input scale."""
        return all(name in self.record.tensors for name in ("scales", "growth_outer", "growth_functional"))

    def zero_tolerance(self, part: str) -> float:
        """Below this an eigenvalue is zero as far as float64 can tell: P eps max |lambda|."""
        lam = self.eigenvalues(part).double()
        return len(lam) * torch.finfo(torch.float64).eps * float(lam.abs().max())

    def saturates_at(self) -> float | None:
        """The input scale at which the entropy of the attention falls below SATURATED, or None."""
        entropy = self.record.tensors.get("growth_entropy")
        if entropy is None or not bool(torch.isfinite(entropy).all()):
            return None
        scales = self.tensor("scales").double().log()
        for i in range(len(entropy)):
            if bool((entropy[i:] < SATURATED).all()):
                if i == 0:
                    return float(scales[0].exp())
                high, low = float(entropy[i - 1]), float(entropy[i])
                part = (high - SATURATED) / (high - low)
                return float((scales[i - 1] + part * (scales[i] - scales[i - 1])).exp())
        return None
