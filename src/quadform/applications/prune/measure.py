"""Measuring what pruning costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...answers.prune import Pruned
from ...compress.maps import zeros_of
from ...compress.pruning import Chosen, curvature_of_rows, one_by_one, partly, select
from ...compress.together import step
from ...core.memory import in_words
from ...core.progress import clock
from ...core.question import Plan
from ...curvature.operators import gauss_newton
from ..compressing.measuring import PRODUCT, CompressMeasurement
from ..compressing.writing import write
from ..room import Room, note_of, seconds_of_value

#: Wanted relative residual of the compensation.
TOL = 1e-3
#: The folder of the best model, inside that of the results.
PRUNED = "pruned"


class PruneMeasurement(CompressMeasurement[Pruned]):
    """The methods of one question on one model, ready to be measured."""

    doing = "pruning", "pruned"
    answer = Pruned

    def plan(self) -> Plan:
        """Time and memory; one evaluation of the loss is timed for it."""
        whole, asked = self.whole, self.asked
        matrices = [t for t in whole.params.values() if t.dim() == 2]
        n, size = sum(t.numel() for t in matrices), whole.dtype.itemsize
        moments = sum(max(t.shape) ** 2 for t in matrices) * size  # (in, in); which axis is which is not known yet
        room = Room.of(whole, moments + (6 + len(self.ways)) * n * size).require(whole)
        each = seconds_of_value(whole) * self.subject.scale
        products = self.before + sum(map(self.expected, self.ways))
        seconds = each * (PRODUCT * products + 4 + 2 * len(self.ways))
        text = (
            f"{note_of(whole)}plan: {', '.join(self.ways)} at {asked.sparsity:g}, at most {products} products,"
            f" {clock(seconds)} in all; {room}; {in_words(moments)} of it for the inputs of matrices, {n:,} weights;"
            " the model is not touched"
        )
        return Plan(text, products, seconds, room.bytes, {"room": dataclasses.asdict(room)})

    @cached_property
    def ways(self) -> dict[str, str]:
        """How the kept weights make up for the others, by method."""
        return {m: self.asked.compensation(m) for m in self.asked.method}

    @property
    def _diagonal(self) -> bool:
        return "hessian" in self.ways.values() or "obd" in self.ways

    def expected(self, method: str) -> int:
        return 1 + self.asked.rounds * self.asked.products * (self.ways[method] == "hessian")

    def inputs(self) -> dict[str, Any]:
        return {"sparsity": self.asked.sparsity, "structure": self.asked.structure}

    def finish(self, found: Pruned, method: str, folder: Path | None) -> None:
        found.weights = self.kept.read(method)
        if folder is not None:
            found.folder = write(folder / PRUNED, self.subject, found.weights)

    # --- one method -------------------------------------------------------------------------------------------------
    def method(self, method: str) -> dict[str, Any]:
        risk, way = self.risk, self.ways[method]
        found: dict[str, Any] = {}
        if way == "hessian":
            weights, found["note"] = self._together(method)
        else:
            W = self.turned(risk.params)
            weights = self.turned(one_by_one(way, self.maps, W, self._select(method, W), self.asked.damping))
        self.kept.write(method, weights)
        return found | {
            "sparsity": zeros_of(weights),
            "zeros": torch.tensor([zeros_of({n: t}) for n, t in weights.items()], dtype=torch.float64),
            **self.compared(weights),
        }

    def _select(self, method: str, W: Mapping[str, Tensor]) -> Chosen:
        asked = self.asked
        obd = self.turned(self.diagonal) if method == "obd" else None
        return select(method, self.maps, W, asked.sparsity, asked.structure, diagonal=obd, damping=asked.damping)

    def _together(self, method: str) -> tuple[dict[str, Tensor], str]:
        """In rounds: a part of what is to go is removed, the others move, and the curvature is taken anew."""
        asked, risk, weights = self.asked, self.risk, dict(self.risk.params)
        mean = sum(float(t.sum()) for t in self.diagonal.values()) / risk.space.size
        rows = {n: curvature_of_rows(self.maps[n].matrix(t), self.maps[n].S) for n, t in self.diagonal.items()}
        for k in range(1, asked.rounds + 1):
            W = self.turned(weights)
            keep = partly(self._select(method, W).keep, W, k / asked.rounds)
            at = risk.moved(weights)
            d, solved = step(
                gauss_newton(at),
                at.gradient(),
                weights,
                self.turned(keep),
                damping=asked.damping * max(mean, torch.finfo(risk.dtype).tiny),
                diagonal=self.turned(rows),
                method="cg",
                tol=TOL,
                max_products=asked.products,
                resume=self.work.state(f"solve-{method}-{k}", 5 * risk.space.size * risk.dtype.itemsize),
                progress=self.work.report(),
            )
            weights = {n: weights[n] + t for n, t in d.items()}
        return weights, f"H_o + {asked.damping:g} of its mean diagonal; last round {solved}"
