"""Measuring what pruning costs: a piece for each method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ...answers.prune import Pruned, PruneDraft, best_of
from ...compress.maps import linear_maps, zeros_of
from ...compress.pruning import Chosen, curvature_of_rows, one_by_one, partly, select
from ...compress.together import step
from ...core.errors import InputError
from ...core.memory import in_words
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Provenance
from ...core.work import Work
from ...curvature.operators import gauss_newton, hessian
from ...distributed import current
from ...estimate.diagonals import diagonal
from ..probes import probe_of
from ..room import Room, note_of, seconds_of_value
from ..subject import Subject
from ..threads import fitting_threads
from .question import PruneQuestion
from .writing import Kept, scored, write

#: Time of a product with H or H_o, in evaluations of the loss, as a rule.
PRODUCT = 9
#: Wanted relative residual of the compensation.
TOL = 1e-3


class PruneMeasurement:
    """The methods of one question on one model, ready to be measured."""

    def __init__(self, asked: PruneQuestion, subject: Subject) -> None:
        self.asked, self.subject = asked, subject
        if current().world > 1:
            raise InputError("pruning is measured in one process; start it in one.")
        if not isinstance(subject.batches, list) or not subject.batches:
            raise InputError("pruning needs data: one batch, or a list of batches.")
        count = len(subject.batches)
        held = count // 4 if asked.held_out is None else asked.held_out
        if held >= count:
            raise InputError(
                f"held_out={held} of {count} batches leave none to calibrate on; give fewer, or more batches."
            )
        self.seen = dataclasses.replace(subject, batches=subject.batches[: count - held])
        self.unseen = dataclasses.replace(subject, batches=subject.batches[count - held :]) if held else None
        self.whole = self.seen.risk(asked)
        self.ways = {m: asked.compensation(m) for m in asked.method}

    def plan(self) -> Plan:
        """Time and memory; one evaluation of the loss is timed for it."""
        whole, asked = self.whole, self.asked
        matrices = [t for t in whole.params.values() if t.dim() == 2]
        n, size = sum(t.numel() for t in matrices), whole.dtype.itemsize
        moments = sum(max(t.shape) ** 2 for t in matrices) * size  # (in, in); which axis is which is not known yet
        room = Room.of(whole, moments + (6 + len(self.ways)) * n * size).require(whole)
        each = seconds_of_value(whole) * self.subject.scale
        products = len(self.ways) + self._solved * asked.rounds * asked.products + self._diagonal * asked.products
        seconds = each * (PRODUCT * products + 4 + 2 * len(self.ways))
        text = (
            f"{note_of(whole)}plan: {', '.join(self.ways)} at {asked.sparsity:g}, at most {products} products,"
            f" {clock(seconds)} in all; {room}; {in_words(moments)} of it for the inputs of matrices, {n:,} weights;"
            " the model is not touched"
        )
        return Plan(text, products, seconds, room.bytes, {"room": dataclasses.asdict(room)})

    @property
    def _solved(self) -> int:
        """Methods that solve with H_o."""
        return sum(way == "hessian" for way in self.ways.values())

    @property
    def _diagonal(self) -> bool:
        return bool(self._solved) or "obd" in self.ways

    def measure(self, work: Work) -> Pruned:
        """All methods, or as many as the time allows, marked partial."""
        asked, draft = self.asked, PruneDraft()
        self.work, self.kept = work, Kept(work)
        p = asked.products
        expected = {m: 1 + asked.rounds * p * (way == "hessian") for m, way in self.ways.items()}
        with (
            fitting_threads(self.whole),
            work.bar(sum(expected.values()) + p * self._diagonal, "prune"),
            work.in_time(),
        ):
            draft.take_before(work.piece("before", self._before, 0))
            if self._diagonal and not all(m in work for m in self.ways):
                with work.counting("diagonal", p):
                    self.diagonal = self._diagonal_of()
            for method in self.ways:
                draft.take(method, work.piece(method, partial(self._method, method), expected[method]))
        best = best_of(draft.scalars, self.ways)
        weights = self.kept.read(best) if best else {}
        inputs = {
            "source": dict(self.subject.source),
            "coverage": self.whole.coverage,
            "notes": [*self.whole.notes, *self._notes(), *draft.notes],
            **probe_of(self.seen.batches),
            "held_out": len(self.unseen.batches) if self.unseen else 0,
            "sparsity": asked.sparsity,
            "structure": asked.structure,
            "compensate": self.ways,
            "damping": asked.damping,
            "matrices": list(self.maps),
            "score": draft.score,
            "best": best,
            "partial": work.partial,
        }
        made = Provenance.collect(seed=asked.seed, dtype=self.whole.dtype, device=self.whole.device)
        found = Pruned(draft.record(Pruned.kind, inputs, made))
        found.weights = weights
        if weights and work.folder is not None:
            found.folder = write(work.folder, self.subject, weights)
        return found

    def _notes(self) -> list[str]:
        n = sum(self.risk.params[m].numel() for m in self.maps)
        left = len(self.whole.params) - len(self.maps)
        return [
            f"{n:,} weights of {len(self.maps)} linear maps are pruned; embeddings, norms, biases and other tensors"
            f" ({left}) are not"
        ]

    # --- what is measured once --------------------------------------------------------------------------------------
    @cached_property
    def maps(self) -> Any:
        return linear_maps(self.whole)

    @cached_property
    def risk(self) -> Any:
        """The loss over the pruned matrices alone."""
        return self._over(self.seen)

    def _over(self, subject: Subject) -> Any:
        own = subject.params
        return subject.risk(self.asked, params=list(self.maps) if own is None else {n: own[n] for n in self.maps})

    @cached_property
    def others(self) -> Any:
        return None if self.unseen is None else self._over(self.unseen)

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        return self.risk.gradient()

    def _turned(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: self.maps[n].matrix(t) for n, t in tensors.items()}

    def _before(self) -> dict[str, Any]:
        return self._losses(self.risk.params)

    def _diagonal_of(self) -> dict[str, Tensor]:
        """The diagonal of H_o."""
        size = 3 * self.risk.space.size * self.risk.dtype.itemsize
        found = diagonal(
            gauss_newton(self.risk),
            self.asked.products,
            seed=self.asked.seed,
            resume=self.work.state("diagonal", size),
            progress=self.work.report(),
        )
        return {n: t.to(self.risk.dtype) for n, t in found.value.items()}

    # --- one method -------------------------------------------------------------------------------------------------
    def _method(self, method: str) -> dict[str, Any]:
        asked, risk, way = self.asked, self.risk, self.ways[method]
        found: dict[str, Any] = {}
        if way == "hessian":
            weights, found["note"] = self._together(method)
        else:
            W = self._turned(risk.params)
            weights = self._turned(one_by_one(way, self.maps, W, self._select(method, W), asked.damping))
        d = {n: weights[n] - t for n, t in risk.params.items()}
        Hd = hessian(risk) @ d
        parts = {n: float((d[n] * (self.gradient[n] + Hd[n] / 2)).sum()) for n in d}
        self.work.spend(1)
        self.kept.write(method, weights)
        return found | {
            "predicted": sum(parts.values()),
            "sparsity": zeros_of(weights),
            "parts": torch.tensor(list(parts.values()), dtype=torch.float64),
            "zeros": torch.tensor([zeros_of({n: t}) for n, t in weights.items()], dtype=torch.float64),
            **self._losses(weights),
        }

    def _select(self, method: str, W: Mapping[str, Tensor]) -> Chosen:
        asked = self.asked
        structure: Any = asked.structure
        obd = self._turned(self.diagonal) if method == "obd" else None
        return select(method, self.maps, W, asked.sparsity, structure, diagonal=obd, damping=asked.damping)

    def _together(self, method: str) -> tuple[dict[str, Tensor], str]:
        """In rounds: a part of what is to go is removed, the others move, and the curvature is taken anew."""
        asked, risk, weights = self.asked, self.risk, dict(self.risk.params)
        mean = sum(float(t.sum()) for t in self.diagonal.values()) / risk.space.size
        rows = {n: curvature_of_rows(self.maps[n].matrix(t), self.maps[n].S) for n, t in self.diagonal.items()}
        for k in range(1, asked.rounds + 1):
            W = self._turned(weights)
            keep = partly(self._select(method, W).keep, W, k / asked.rounds)
            at = risk.moved(weights)
            d, solved = step(
                gauss_newton(at),
                at.gradient(),
                weights,
                self._turned(keep),
                damping=asked.damping * max(mean, torch.finfo(risk.dtype).tiny),
                diagonal=self._turned(rows),
                method="cg",
                tol=TOL,
                max_products=asked.products,
                resume=self.work.state(f"solve-{method}-{k}", 5 * risk.space.size * risk.dtype.itemsize),
                progress=self.work.report(),
            )
            weights = {n: weights[n] + t for n, t in d.items()}
        return weights, f"H_o + {asked.damping:g} of its mean diagonal; last round {solved}"

    def _losses(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The loss on the batches that were seen, on those held out, and the score of the task."""
        with torch.no_grad():
            found: dict[str, Any] = {"loss": float(self.risk.value(weights))}
            if self.others is not None:
                found["held"] = float(self.others.value(weights))
        return found | scored(self.subject, weights, self.asked.score)
