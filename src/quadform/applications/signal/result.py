"""What a measurement of the signal leaves: curves while it runs, one Record of them, and the `Signal` people hold.

Record "signal": `inputs["curves"]` describes curve i; its tensors are `i/MEASURE` and `i/MEASURE/stderr` (depth + 1,),
`i/predicted/MEASURE` (depth + 1,), `i/heads/MEASURE` (depth, heads), `i/kernel/LAYER` (T, T) and
`i/jacobian/NAME` (levels of the singular values); scalars are `LABEL/MEASURE` after the last block.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.record import Estimate, Provenance, Record, strict_json
from ...propagation.observe import Stack
from .jacobian import LEVELS, Isometry

#: A prediction agrees when it is this close to the measured cosine: absolutely, or relative to it.
WITHIN = (0.02, 0.05)
#: Kernels of longer sequences are left out of the record.
KERNELS_UP_TO = 256
_NAN = math.nan


@dataclass
class Curve:
    """What is known about one stack: its profile, its prediction, its Jacobians."""

    label: str
    stack: Stack
    unit: str  # what the error bars are over: sequences, networks
    measured: dict[str, list[Estimate]]
    heads: dict[str, list[list[Estimate]]]
    dim: int
    tokens: int | None
    fresh: bool  # whether the weights are as drawn, so that the prediction is meant for them
    sequences: int = 0  # how many the kernels are means of
    Sigma: dict[int, Tensor] = field(default_factory=dict)
    predicted: dict[str, Tensor] = field(default_factory=dict)
    isometry: dict[str, Isometry] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def judged(self) -> bool:
        """Whether the prediction is held against the measurement: fresh weights, a known spread of networks."""
        return self.fresh and self.unit == "networks" and bool(self.predicted)


@dataclass(frozen=True, eq=False)
class Signal:
    """Does the signal survive depth? The answer, as a Record with ways to look at it."""

    record: Record

    @classmethod
    def of(
        cls,
        curves: Sequence[Curve],
        asked: Mapping[str, Any],
        *,
        partial: bool = False,
        seed: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> Signal:
        """The record of measured curves."""
        labels = [c.label for c in curves]
        if len(set(labels)) < len(labels):
            raise InputError(f"two curves have one name: {', '.join(labels)}.")
        scalars: dict[str, Estimate] = {}
        tensors: dict[str, Tensor] = {}
        for i, curve in enumerate(curves):
            _put(curve, f"{i}/", scalars, tensors)
        inputs = {"asked": json.loads(strict_json(asked)), "curves": [_describe(c) for c in curves], "partial": partial}
        made = Provenance.collect(seed=seed, dtype=dtype, device=device)
        return cls(Record("signal", inputs, scalars, tensors, made))

    # --- reading -----------------------------------------------------------------------------------------------------
    @property
    def labels(self) -> list[str]:
        return [c["label"] for c in self.record.inputs["curves"]]

    @property
    def partial(self) -> bool:
        """Whether the time was up before everything was measured."""
        return bool(self.record.inputs["partial"])

    def layers(self, measure: str = "cosine", curve: int | str = 0) -> list[Estimate]:
        """After 0, ..., depth blocks: cosine, participation, effective_rank, residual, rms, growth or gradient."""
        i = self._index(curve)
        known = sorted(n.split("/")[1] for n in self.record.tensors if n.startswith(f"{i}/") and n.endswith("/stderr"))
        if measure not in known:
            raise UnknownName(
                f"{measure!r} was not measured; there are {', '.join(known)}.{did_you_mean(measure, known)}"
            )
        values, errors = (self.record.tensors[f"{i}/{measure}{tail}"].tolist() for tail in ("", "/stderr"))
        return [Estimate(v, s, "estimate", converged=math.isfinite(s)) for v, s in zip(values, errors, strict=True)]

    def predicted(self, measure: str = "cosine", curve: int | str = 0) -> Tensor | None:
        """The mean-field profile (depth + 1,) of cosine, participation or growth; None where there is none."""
        return self.record.tensors.get(f"{self._index(curve)}/predicted/{measure}")

    def heads(self, measure: str = "entropy_share", curve: int | str = 0) -> Tensor:
        """entropy, entropy_share or sink of every head, (depth, heads); NaN where no attention was seen."""
        return self.record.tensors[f"{self._index(curve)}/heads/{measure}"]

    def _index(self, curve: int | str) -> int:
        if isinstance(curve, int):
            if not 0 <= curve < len(self.labels):
                raise InputError(f"there are curves 0 to {len(self.labels) - 1}; got {curve}.")
            return curve
        if curve not in self.labels:
            raise UnknownName(
                f"no curve {curve!r}; there are {', '.join(self.labels)}.{did_you_mean(curve, self.labels)}"
            )
        return self.labels.index(curve)

    # --- showing -----------------------------------------------------------------------------------------------------
    def table(self) -> str:
        """One line a curve: the state after the last block, prediction in brackets."""
        from ...report.signal import lines

        return "\n".join(lines(self.record))

    def plot(self) -> Any:
        """Cosine, rank and norm per layer, an Altair chart: predicted as a line, measured as points."""
        from ...report.depth import through_depth

        return through_depth(self.record).chart

    def report(self, path: str | Path, lang: str = "en") -> Path:
        """One self-contained HTML file."""
        from ...report.html import write_report

        return write_report(self.record, path, lang=lang)

    def save(self, folder: str | Path) -> Path:
        return self.record.save(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Signal:
        record = Record.load(folder)
        if record.kind != "signal":
            raise InputError(f"{folder} holds a record of kind {record.kind!r}, not 'signal'.")
        return cls(record)

    def json(self) -> str:
        """Everything as strict JSON."""
        from dataclasses import asdict

        body = {
            "kind": self.record.kind,
            "inputs": self.record.inputs,
            "scalars": {name: asdict(e) for name, e in self.record.scalars.items()},
            "tensors": {name: t.tolist() for name, t in self.record.tensors.items()},
            "made": asdict(self.record.made),
        }
        return strict_json(body)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from ...report.depth import through_depth

        return through_depth(self.record)._repr_html_()


# ------------------------------------------------------------------------------------------------ curves into a record
def _describe(curve: Curve) -> dict[str, Any]:
    heads = max((len(row) for row in curve.heads["sink"]), default=0)
    note = curve.measured["cosine"][-1].note
    return {
        "label": curve.label,
        "stack": curve.stack.name,
        "blocks": list(curve.stack.calls),
        "depth": curve.stack.depth,
        "dim": curve.dim,
        "heads": heads,
        "tokens": curve.tokens,
        "unit": curve.unit,
        "over": note,
        "fresh": curve.fresh,
        "judged": curve.judged,
        "notes": curve.notes,
        "jacobians": list(curve.isometry),
    }


def _put(curve: Curve, at: str, scalars: dict[str, Estimate], tensors: dict[str, Tensor]) -> None:
    f64 = torch.float64
    for measure, layers in curve.measured.items():
        tensors[f"{at}{measure}"] = torch.tensor([e.value for e in layers], dtype=f64)
        tensors[f"{at}{measure}/stderr"] = torch.tensor([e.stderr for e in layers], dtype=f64)
        scalars[f"{curve.label}/{measure}"] = layers[0] if measure == "gradient" else layers[-1]
    heads = max((len(row) for row in curve.heads["sink"]), default=0)
    for measure, rows in curve.heads.items():
        filled = [[e.value for e in row] + [_NAN] * (heads - len(row)) for row in rows]
        tensors[f"{at}heads/{measure}"] = torch.tensor(filled, dtype=f64).reshape(len(rows), heads)
    for measure, profile in curve.predicted.items():
        tensors[f"{at}predicted/{measure}"] = profile.to(f64)
    for layer, Sigma in curve.Sigma.items():
        if len(Sigma) <= KERNELS_UP_TO:
            tensors[f"{at}kernel/{layer}"] = Sigma
    for name, found in curve.isometry.items():
        tensors[f"{at}jacobian/{name}"] = torch.tensor(found.quantiles, dtype=f64)
        ends = {"largest": found.largest, "smallest": found.smallest, "mean_square": found.mean_square}
        scalars |= {f"{curve.label}/jacobian/{name}/{end}": e for end, e in ends.items()}
    if curve.isometry:
        tensors["levels"] = torch.tensor(LEVELS, dtype=f64)
    if curve.predicted:
        scalars[f"{curve.label}/difference"] = difference(curve)


def difference(curve: Curve) -> Estimate:
    """The largest |predicted - measured| cosine over the layers, with the measurement's error there.

    A layer agrees within 0.02 or 5 % of the measured value (`WITHIN`). `converged` is false where one is beyond that by
    more than two standard errors; nothing is judged for trained weights or for one network, whose spread is unknown.
    """
    measured = torch.tensor([e.value for e in curve.measured["cosine"]], dtype=torch.float64)
    error = torch.tensor([e.stderr or 0.0 for e in curve.measured["cosine"]], dtype=torch.float64)
    gap = (curve.predicted["cosine"] - measured).abs()
    beyond = gap - torch.maximum(torch.tensor(WITHIN[0], dtype=torch.float64), WITHIN[1] * measured.abs())
    worst = int(gap.argmax())
    surely = bool((beyond > 2 * error).any())
    said = (
        "beyond"
        if surely
        else "beyond, but by less than two standard errors,"
        if bool((beyond > 0).any())
        else "within"
    )
    note = f"at layer {worst}: {said} 0.02 or 5 %"
    return Estimate(
        float(gap[worst]), float(error[worst]), "estimate", converged=not (surely and curve.judged), note=note
    )
