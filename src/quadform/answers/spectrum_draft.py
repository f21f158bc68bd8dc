"""A spectrum while it is measured: what the estimators give goes into the record as `Spectrum` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Provenance
from .answer import Draft
from .point import descent
from .spectrum import Spectrum


class SpectrumDraft(Draft):
    """A spectrum while it is measured: pairs, density, norms and point go into the record as `Spectrum` reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors: Any = None
        self.where: dict[str, list[str]] = {}
        self.products = 0

    def take_pairs(self, pairs: Any) -> None:
        """Eigenpairs of `estimate.eigenpairs`."""
        self.vectors = pairs.vectors
        self.products += pairs.products
        self.scalars |= {f"top/{i}": e for i, e in enumerate(pairs.top)}
        self.scalars |= {f"bottom/{i}": e for i, e in enumerate(pairs.bottom)}

    def take_trace(self, e: Estimate) -> None:
        self.scalars["trace"], self.products = e, self.products + e.matvecs

    def take_density(self, d: Any) -> None:
        """A density of `estimate.density`."""
        self.products += d.products
        self.scalars |= {"trace": d.sum(lambda x: x), "negative_share": d.negative_mass()}
        self.scalars["negative_curvature"] = d.negative_curvature()
        self.scalars["rms"] = root(d.moment(2))
        curve = d.curve()
        self.tensors |= {f"density/{n}": getattr(curve, n) for n in ("x", "u", "density", "stderr")}
        self.scalars["linear"] = Estimate(curve.linear, note="where the axis turns from linear to logarithmic")

    def take_blocks(self, norms: Any, sizes: list[int]) -> None:
        """Norms of `estimate.block_norms`, and the number of weights of each block."""
        self.products += norms.matvecs
        self.tensors |= {"blocks/value": norms.value, "blocks/stderr": norms.stderr}
        self.tensors |= {"blocks/exact": norms.exact.to(torch.uint8), "blocks/sizes": torch.tensor(sizes)}
        if len(sizes) > 1:
            self.scalars["heterogeneity"] = norms.heterogeneity(sizes)

    def take_masses(self, masses: Mapping[str, Any], rows: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Shares of the eigenvectors by layer, matrix and head, and the embedding whose rows hold most of them."""
        self.where = {kind: list(found.labels) for kind, found in masses.items()}
        self.tensors |= {f"where/{kind}": found.share for kind, found in masses.items()}
        if rows:
            name = max(rows, key=lambda n: float(rows[n][1].sum()))
            self.where["token"] = [name]
            self.tensors |= {"where/token_row": rows[name][0], "where/token": rows[name][1]}

    def take_functional(self, path: str, norms: Mapping[tuple[str, str], Estimate]) -> None:
        """Norms of H_f inside the layer `path`, in closed form."""
        self.scalars |= {f"functional/{path}/{a},{b}": e for (a, b), e in norms.items()}

    def take_point(self, loss: float, slope: float, curvature: str) -> None:
        """Loss and slope, and what a step of gradient descent takes off at least: whether the point is stationary."""
        self.scalars |= {"loss": Estimate(loss), "gradient_norm": Estimate(slope)}
        top = self.scalars.get("top/0")
        drop = None if top is None or curvature != "hessian" else descent(slope, top)
        if drop is not None:
            self.scalars["descent"] = drop

    def answer(self, made: Provenance, *, blocks: Sequence[str], **inputs: Any) -> Spectrum:
        """The finished answer; blocks whose norms were not measured are left out."""
        known = list(blocks) if "blocks/value" in self.tensors else []
        return Spectrum(
            self.record(Spectrum.kind, {**inputs, "blocks": known, "where": self.where}, made), vectors=self.vectors
        )


def root(square: Estimate) -> Estimate:
    """sqrt(x +- s) = sqrt(x) +- s / (2 sqrt(x))."""
    value = max(square.value, 0.0) ** 0.5
    spread = None if square.error is None else square.error / (2 * value) if value else 0.0
    return Estimate(value, spread, square.kind, square.matvecs, note="root mean square eigenvalue, |H|_F / sqrt(n)")
