"""Room for the work: what a product and the vectors take beside each other, held against what is free."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import TooLarge
from ..core.memory import free_bytes, in_words
from ..curvature.outline import Outline, cost_of
from ..curvature.risk import Risk
from ..nn.transformer import Transformer
from .machine import least_seconds

#: Bytes at the peak of an eager product, by those its graph keeps (measured: 1.8 to 2.6); vectors: v, gradient, image.
PEAK, VECTORS = 2.5, 3
#: Parameters times tokens below which a product takes too little to be counted.
WORTH_COUNTING = 1e9


@dataclass(frozen=True)
class Room:
    """Bytes of the weights that are still to be loaded, at the peak of a product, and of the basis of vectors; bytes
    that are free. Estimators take at most half of what is free for their basis."""

    weights: float
    product: float
    vectors: float
    free: float

    @classmethod
    def of(cls, risk: Risk, vectors: float) -> Room:
        """Where `risk` will be measured, with so many bytes of vectors."""
        weights = risk.weight_bytes if isinstance(risk, Outline) else 0.0
        return cls(weights, product_bytes(risk), float(vectors), free_bytes(risk.device))

    @property
    def bytes(self) -> float:
        return self.weights + self.product + self.vectors

    @property
    def least(self) -> float:
        """What is taken at least, at one time."""
        return self.weights + self.product + min(self.vectors, (self.free - self.weights) / 2)

    def __str__(self) -> str:
        """`8 MB for vectors`, `7 GB for vectors, 12 GB for a product`; beside what is free where that is less."""
        parts = [(self.vectors, "vectors"), (self.product, "a product"), (self.weights, "the weights")]
        text = ", ".join(f"{in_words(size)} for {what}" for size, what in parts if size or what == "vectors")
        if self.least > self.free:
            return f"{text}: {in_words(self.least)} at least, and {in_words(self.free)} free: take {ADVICE}"
        if self.vectors > (self.free - self.weights) / 2:
            return f"{text}, and {in_words(self.free)} free (the basis is kept to half of that and takes more products)"
        return text

    def require(self, risk: Risk) -> Room:
        """Refuse before the work what does not fit; a plan without weights only says so."""
        if self.least > self.free and not isinstance(risk, Outline):
            raise TooLarge(
                f"products of {parameters_of(risk):,} parameters on this batch and vectors for them need"
                f" {in_words(self.least)} at least; {in_words(self.free)} are free. Take {ADVICE}."
            )
        return self


def short_of(rooms: Iterable[Mapping[str, float]]) -> str:
    """What a plan of several parts says where one of them does not fit."""
    most = max((Room(**r) for r in rooms), key=lambda r: r.least - r.free, default=None)
    if most is None or most.least <= most.free:
        return ""
    return f": {in_words(most.least)} at least, and {in_words(most.free)} free: take {ADVICE}"


#: What a plan without weights says of where its numbers come from.
NOTE = "estimated from the configuration, no weights were read"
ADVICE = "smaller batches, shorter sequences, fewer eigenvalues or fewer parameters"


def note_of(risk: Risk) -> str:
    """The line before a plan that was made without weights."""
    return f"{NOTE}\n" if isinstance(risk, Outline) else ""


def parameters_of(risk: Risk) -> int:
    """How many parameters are measured, of a sharded model all shards together."""
    if risk.shards is None or not isinstance(risk.model, nn.Module):
        return risk.space.size
    return sum(p.numel() for n, p in risk.model.named_parameters() if n in risk.params)


def product_bytes(risk: Risk) -> float:
    """Bytes at the peak of one eager product on one batch; 0 where it is small, or cannot be counted without numbers.

    Counted are models whose code is known, ours and those of transformers, on the processor: of a GPU torch itself says
    that its memory is short, and the work goes on with less.
    """
    if risk.shards is not None:  # units are run without FSDP's hooks, not without numbers
        return 0.0
    if not isinstance(risk, Outline) and not (risk.device.type == "cpu" and _known(risk.model) and _large(risk)):
        return 0.0
    try:
        kept = risk.cost.kept if isinstance(risk, Outline) else cost_of(risk).kept
    except Exception:  # whatever a model has against running without numbers
        return 0.0
    return PEAK * kept + VECTORS * risk.space.size * risk.dtype.itemsize


def counted(subject: Any) -> bool:
    """Whether a product of a subject is large and can be counted, so that it is held against memory before the work."""
    return _known(getattr(subject, "model", None)) and isinstance(subject.batches, list) and _large(subject)


def _known(model: Any) -> bool:
    return isinstance(model, Transformer) or type(model).__module__.startswith("transformers.")


def _large(risk: Any) -> bool:
    assert isinstance(risk.model, nn.Module)
    batch: Any = risk.batches[0] if risk.batches else {}
    held = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [batch]
    sizes = [math.prod(t.shape[:2]) for t in held if isinstance(t, Tensor)]
    return max(sizes, default=0) * sum(p.numel() for p in risk.model.parameters()) >= WORTH_COUNTING


def seconds_of_value(risk: Any) -> float:
    """Time of one evaluation of the loss; without weights from its work."""
    if isinstance(risk, Outline):
        return risk.seconds(1.0)
    with torch.no_grad():
        risk.value()
        return least_seconds(risk.value, risk.device)
