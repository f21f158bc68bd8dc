"""The answer of `quadform signal`: curves by name, the lines of the terminal, the table. The record: `curve`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...answers.answer import Answer, Grid
from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.record import Estimate
from .curve import ENDS, KIND, MEASURES

#: What the end of a stack is called, by the cosine after its last block.
_WORDS = ((0.99, "collapsed"), (0.9, "nearly collapsed"), (-math.inf, "alive"))


class Signal(Answer):
    """Does the signal survive depth? A curve is one stack of blocks, of a model or of a design at one depth."""

    kind = KIND

    # --- numbers ----------------------------------------------------------------------------------------------------
    @property
    def labels(self) -> list[str]:
        """The names of the curves."""
        return [c["label"] for c in self._curves]

    @property
    def disagreeing(self) -> list[str]:
        """The curves whose prediction is off by more than the tolerance and the error of the measurement."""
        scalars = self.record.scalars
        return [c["label"] for c in self._curves if c["judged"] and not scalars[f"{c['label']}/difference"].converged]

    @property
    def complete(self) -> bool:
        return not self.partial

    @property
    def ok(self) -> bool:
        """Whether nothing is missing and every prediction that is judged agrees."""
        return not self.partial and not self.disagreeing

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

    @property
    def _curves(self) -> list[dict[str, Any]]:
        return list(self.record.inputs["curves"])

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        """One row for each number after the last block; the gradient is that at the input over the last layer."""
        rows = []
        for i, about in enumerate(self._curves):
            ends = [f"jacobian/{name}/{end}" for name in about["jacobians"] for end in ENDS]
            for name in (*MEASURES, "difference", *ends):
                e, line = self.record.scalars.get(f"{about['label']}/{name}"), self.predicted(name, i)
                if e is not None:
                    last = None if line is None else float(line[-1])
                    rows.append((about["label"], name, e.value, e.error, last, e.kind))
        return Grid(("curve", "what", "value", "+-", "predicted", "tag"), tuple(rows))

    def lines(self) -> Sequence[str]:
        """One line a curve with its prediction in brackets, the verdict of each, what was not done and why."""
        from ...report.signal import lines

        out = [
            "after the last block: mean token cosine, participation ratio, norm over input; prediction in [ ]"
            "   [estimate]",
            "gradient: at the input over the last layer; entropy: of its maximum, least to most head; sink: largest"
            " head",
            *lines(self.record),
        ]
        for about in self._curves:
            out += [self._verdict(about), *self._jacobian_lines(about)]
        if self.disagreeing:
            out.append(
                f"prediction and measurement differ by more than 0.02 and 5 % for {', '.join(self.disagreeing)}."
            )
        if self.partial:
            out.append("stopped before everything was measured: partial")
        return out

    def _verdict(self, about: dict[str, Any]) -> str:
        cosine = self.record.scalars[f"{about['label']}/cosine"].value
        word = next((word for limit, word in _WORDS if cosine > limit), "undefined")
        size = f"{about['depth']} blocks of width {about['dim']}, {about['tokens'] or 'varying'} tokens"
        notes = "; ".join(about["notes"])
        return f"{about['label']}: {word} ({size}, {about['over']}, {self.record.made.dtype}; {notes})"

    def _jacobian_lines(self, about: dict[str, Any]) -> list[str]:
        out = []
        for name in about["jacobians"]:
            head = f"{about['label']}/jacobian/{name}"
            low, high, square = (self.record.scalars[f"{head}/{n}"] for n in ENDS)
            least = f"{'<= ' if low.kind == 'bound' else ''}{low.value:.3g}"
            out.append(f"  Jacobian of {name}: singular values {least} to {high.value:.3g}, mean square {square}")
        return out

    def _repr_html_(self) -> str:
        from ...report.depth import through_depth

        return through_depth(self.record)._repr_html_()
