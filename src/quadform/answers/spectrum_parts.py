"""Parts of a spectrum: a diagonal block, the curve of a density."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.record import Estimate
from .texts import Texts


@dataclass(frozen=True)
class Block:
    """One diagonal block: its norm with error, and the root mean square of its eigenvalues."""

    name: str
    norm: Estimate
    rms: float

    @property
    def layer(self) -> str:
        """`transformer.h.3.attn.W_Q` -> `transformer.h.3`."""
        return self.name.rpartition(".")[0].removesuffix(".attn").removesuffix(".self_attn")

    @property
    def part(self) -> str:
        """`W_Q`; a name without dots is its own part."""
        return self.name.rpartition(".")[2]

    def label(self, texts: Texts) -> str:
        """`transformer.h.3.query`; `layer 3` of a `nn.Sequential`."""
        if self.name.isdigit():
            return texts("line_layer", number=self.name)
        return f"{self.layer}.{texts.parameter(self.part)}".lstrip(".")


@dataclass(frozen=True)
class Curve:
    """The density at eigenvalues `x`, on the axis u = asinh(x / linear), with its standard error."""

    x: Tensor
    u: Tensor
    density: Tensor
    stderr: Tensor
    linear: float
