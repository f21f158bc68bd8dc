"""Measuring what quantization costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...answers.compressed import BUDGET
from ...answers.quantize import QuantizedModel, QuantizeDraft
from ...compress.allocation import allocate, choices_of
from ...compress.layerwise import Quantized
from ...compress.pruning import curvature_of_rows
from ...compress.quantizing import bits_a_weight, in_rounds, one_by_one, sizes
from ...compress.together import step
from ...core.errors import InputError
from ...core.memory import in_words
from ...core.packed import BITS, Layout
from ...core.progress import clock
from ...core.question import Plan
from ...core.work import Work
from ...curvature.operators import gauss_newton
from ..compressing.measuring import PRODUCT, CompressMeasurement
from ..compressing.writing import write_packed
from ..room import note_of, seconds_of_value
from .question import USUAL

#: The folder of the best model, inside that of the results.
FOLDER = "quantized"
#: Wanted relative residual of a Gauss-Newton step.
TOL = 1e-2
#: Operations a second of one step of OBQ on a processor, which moves memory; as a rule.
OBQ_SPEED = 2e9


class QuantizeMeasurement(CompressMeasurement[QuantizedModel]):
    """The methods of one question on one model, ready to be measured."""

    doing = "quantization", "quantized"
    answer = QuantizedModel
    flat = "rtn,gptq"

    def plan(self) -> Plan:
        """Time and memory; one evaluation of the loss is timed for it."""
        self.require()
        whole, asked, moments, matrices = self.whole, self.asked, self.moments, self.matrices.values()
        n, size = sum(t.numel() for t in matrices), whole.dtype.itemsize
        choices = 3 * len(BITS) * n * size if asked.budget is not None else 0
        room = self.room(moments + choices + (6 + len(self.ways)) * n * size)
        products = sum(map(self.expected, self.ways)) + self._diagonal * asked.products
        products += len(matrices) * (asked.each + len(BITS) * (asked.budget is not None))
        seconds = seconds_of_value(whole) * self.subject.scale * (PRODUCT * products + 4 + 2 * len(self.ways))
        walks = sum({"gptq": 1, "hessian": 2}.get(m, 0) for m in self.ways) + len(BITS) * (asked.budget is not None)
        seconds += self.seconds_of_walk() * walks
        if "obq" in self.ways:
            seconds += sum(3 * t.numel() * max(t.shape) ** 2 for t in matrices) / OBQ_SPEED
        wanted = f"{asked.bits or USUAL} bits" if asked.budget is None else f"{asked.budget:g} bits a weight"
        text = (
            f"{note_of(whole)}plan: {', '.join(self.ways)} with {wanted}, groups of {asked.group}, at most"
            f" {products} products, {clock(seconds)} in all; {room}; {in_words(moments)} of it for the inputs of"
            f" matrices, {n:,} weights; the model is not touched"
        )
        return Plan(text, products, seconds, room.bytes, {"room": dataclasses.asdict(room)})

    @cached_property
    def ways(self) -> dict[str, str]:
        alone = {"rtn": "nearest", "gptq": "sweep", "obq": "greedy", "hessian": "together"}
        return {m: alone[m] for m in self.asked.method}

    @property
    def _diagonal(self) -> bool:
        return "hessian" in self.ways

    @property
    def curved(self) -> list[str]:
        return [*super().curved, *["a budget"] * (self.asked.budget is not None)]

    @property
    def before(self) -> int:
        return super().before + len(self.maps) * (self.asked.each + len(BITS) * (self.asked.budget is not None))

    def expected(self, method: str) -> int:
        return 1 + (1 + (self.asked.rounds - 1) * self.asked.products) * (method == "hessian")

    def inputs(self) -> dict[str, Any]:
        asked = self.asked
        return {"bits": asked.bits or (None if asked.budget else USUAL), "budget": asked.budget, "group": asked.group}

    def finish(self, found: QuantizedModel, method: str, folder: Path | None) -> None:
        found.weights = self._weights(method)
        if folder is not None:
            found.folder = write_packed(folder / FOLDER, self.subject, self.kept.read(method), self.layouts)

    def prepare(self, work: Work, draft: QuantizeDraft) -> None:  # type: ignore[override]  # its own draft
        self.bits = self._allocated(work, draft) if self.asked.budget is not None else self._uniform
        draft.take_bits(self.bits, bits_a_weight(self.sizes, self.bits, self.risk.space.size))

    def require_sizes(self) -> None:
        if self.asked.budget is None:
            return
        least = bits_a_weight(self.sizes, dict.fromkeys(self.maps, BITS[0]), self.risk.space.size)
        if self.asked.budget < least:
            raise InputError(
                f"budget={self.asked.budget:g}: {BITS[0]} bits everywhere take {least:.4g} a weight with groups of"
                f" {self.asked.group}; give at least that, or larger groups."
            )

    # --- bits -------------------------------------------------------------------------------------------------------
    @cached_property
    def W(self) -> dict[str, Tensor]:
        """The matrices (out, in)."""
        return self.turned(self.risk.params)

    @cached_property
    def sizes(self) -> dict[str, dict[int, float]]:
        return sizes({n: (w.shape[0], w.shape[1]) for n, w in self.W.items()}, self.asked.group)

    @property
    def _uniform(self) -> dict[str, int]:
        return dict.fromkeys(self.maps, self.asked.bits or USUAL)

    @property
    def layouts(self) -> dict[str, Layout]:
        group = self.asked.group
        return {
            n: Layout(self.bits[n], min(group, w.shape[1]), w.shape[1], self.maps[n].transposed)
            for n, w in self.W.items()
        }

    def _allocated(self, work: Work, draft: QuantizeDraft) -> dict[str, int]:
        """Bits for each matrix under the budget, from GPTQ's changes and H_o with terms between matrices.

        The quadratic model may not hold for the fewest bits. So it is asked once with all numbers of bits, once with
        those above 2, and so on up to the same for all; what loses least (`_lost`) is taken.
        """
        n = self.risk.space.size
        changes = {b: self._changes(b) for b in BITS}
        rows = [
            work.piece(f"curve {name}", partial(self._curves, name, changes), len(BITS)).double() for name in self.maps
        ]
        curve = torch.cat(rows)
        choices = choices_of(self.sizes, (curve + curve.T) / 2)
        fit = [b for b in BITS if bits_a_weight(self.sizes, dict.fromkeys(self.maps, b), n) <= self.asked.budget]
        tried = [
            *(allocate(choices.at_least(b), self.asked.budget * n) for b in fit),
            dict.fromkeys(self.maps, fit[-1]),
        ]
        with torch.no_grad():
            own = float(self.risk.value())
        rises = [self._lost(self._moved(changes, bits), own) for bits in tried]
        best = min(range(len(tried)), key=rises.__getitem__)
        lowest, same = min(tried[best].values()), tried[best] == tried[-1]
        chosen = f"{fit[-1]} for all" if same else f"{lowest} to {max(tried[best].values())} a matrix"
        beside = "" if same else f", with {fit[-1]} for all {rises[-1]:.3g}"
        draft.notes.append(
            f"{BUDGET}{chosen}, the best of {len(tried)} choices measured: dL {rises[best]:.3g} by GPTQ, a falling"
            f" slope left out{beside}"
        )
        return tried[best]

    def _lost(self, weights: dict[str, Tensor], own: float) -> float:
        """What the loss rises by from `own` on the calibration, no less for its slope.

        Of a trained model g is mostly noise of the batches seen. A change that happens to follow it, g.d < 0, is no
        better on others (docs/decisions/0834).
        """
        with torch.no_grad():
            rise = float(self.risk.value(weights)) - own
        slope = sum(float((g * (weights[n] - self.risk.params[n])).sum()) for n, g in self.gradient.items())
        return rise - min(slope, 0.0)

    def _moved(self, changes: dict[int, dict[str, Tensor]], bits: dict[str, int]) -> dict[str, Tensor]:
        return {n: t + changes[bits[n]][n] for n, t in self.risk.params.items()}

    def _changes(self, bits: int) -> dict[str, Tensor]:
        found = one_by_one(
            "gptq", self.maps, self.W, dict.fromkeys(self.maps, bits), self.asked.group, self.asked.damping
        )
        return {n: self.maps[n].matrix(q.values) - self.risk.params[n] for n, q in found.items()}

    def _curves(self, name: str, changes: dict[int, dict[str, Tensor]]) -> Tensor:
        """d.H_o e for the changes d of one matrix and all changes e, (bits, matrices x bits)."""
        zero = {n: t.new_zeros(len(BITS), *t.shape) for n, t in self.risk.params.items()}
        image = gauss_newton(self.risk) @ {**zero, name: torch.stack([changes[b][name] for b in BITS])}
        self.work.spend(len(BITS))
        columns = [(image[n] * changes[c][n]).flatten(1).sum(1) for n in self.maps for c in BITS]
        return torch.stack(columns, 1).double()

    # --- one method -------------------------------------------------------------------------------------------------
    def method(self, method: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if method == "hessian":
            codes, found["note"] = self._together()
        else:
            codes = one_by_one(method, self.maps, self.W, self.bits, self.asked.group, self.asked.damping)
        parts = {n: q.grid.stored(q.codes, turned=self.maps[n].transposed)[0] for n, q in codes.items()}
        self.kept.write(method, {f"{n}.{k}": t for n, part in parts.items() for k, t in part.items()})
        return found | self.compared({n: self.maps[n].matrix(q.values) for n, q in codes.items()})

    def _together(self) -> tuple[dict[str, Quantized], str]:
        """In rounds: the most sensitive matrices are rounded, the others move to where d.(H_o + damping) d is least
        with the changes so far, and so on; the last ones are rounded as they come. Moves that raise the loss are left
        out."""
        asked, risk, H_o = self.asked, self.risk, gauss_newton(self.risk)
        own, weights, found = risk.params, dict(risk.params), dict[str, Quantized]()
        mean = sum(float(t.sum()) for t in self.diagonal.values()) / risk.space.size
        rows = {n: curvature_of_rows(self.maps[n].matrix(t), self.maps[n].S) for n, t in self.diagonal.items()}
        parts, used = in_rounds(self._sensitive(), asked.rounds), 0
        for k, names in enumerate(parts):
            W = self.turned({n: weights[n] for n in names})
            found |= one_by_one("gptq", self.maps, W, self.bits, asked.group, asked.damping)
            weights |= {n: self.maps[n].matrix(found[n].values) for n in names}
            if len(found) == len(self.maps):
                break
            d, _ = step(
                H_o,
                {n: torch.zeros_like(t) for n, t in own.items()},
                {n: own[n] - t for n, t in weights.items()},
                {n: torch.full_like(t, n not in found, dtype=torch.bool) for n, t in own.items()},
                damping=asked.damping * max(mean, torch.finfo(risk.dtype).tiny),
                diagonal=self.turned(rows),
                method="cg",
                tol=TOL,
                max_products=asked.products,
                resume=self.work.state(f"solve-{k}", 5 * risk.space.size * risk.dtype.itemsize),
                progress=self.work.report(),
            )
            moved = {n: weights[n] if n in found else own[n] + t for n, t in d.items()}
            with torch.no_grad():
                better = bool(risk.value(moved) < risk.value(weights))
            weights, used = (moved, used + 1) if better else (weights, used)
        note = f"H_o + {asked.damping:g} of its mean diagonal; {used} of {len(parts) - 1} moves lowered the loss"
        return {n: found[n] for n in self.maps}, note

    def _sensitive(self) -> list[str]:
        """The matrices by what GPTQ's change of each costs with H_o, most first; terms between matrices included."""
        codes = one_by_one("gptq", self.maps, self.W, self.bits, self.asked.group, self.asked.damping)
        d = {n: self.maps[n].matrix(q.values) - self.risk.params[n] for n, q in codes.items()}
        image = gauss_newton(self.risk) @ d
        return sorted(d, key=lambda n: -float((d[n] * image[n]).sum()))

    def _weights(self, method: str) -> dict[str, Tensor]:
        """The matrices of a method as the model stores them, from the codes that were kept."""
        kept, dtype = self.kept.read(method), self.risk.dtype
        return {n: layout.values(kept, n, dtype) for n, layout in self.layouts.items()}

    def alone(self, best: str | None) -> dict[str, Callable[[], dict[str, Tensor]]]:
        """One matrix rounded as the best method did."""
        if best is None:
            return {}
        weights = {n: t.to(self.risk.device) for n, t in self._weights(best).items()}
        return {n: partial(dict[str, Tensor], {n: t}) for n, t in weights.items()}
