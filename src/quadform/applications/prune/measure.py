"""Measuring what pruning costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...answers.prune import Pruned
from ...compress.fisher import RowFisher, singles
from ...compress.heads import head_names, heads_of
from ...compress.maps import zeros_of
from ...compress.masks import choose
from ...compress.pruning import Chosen, curvature_of_rows, one_by_one, partly, select
from ...compress.surgeon import Surgeon
from ...compress.together import damped_step
from ...core.errors import InputError
from ...core.memory import in_words
from ...core.progress import clock
from ...core.question import Plan
from ...curvature.operators import gauss_newton, hessian
from ...estimate.solvers.solution import Solution
from ..compressing.measuring import PRODUCT, CompressMeasurement
from ..compressing.writing import write
from ..room import note_of, seconds_of_value

#: The damping of SparseGPT as its authors have it.
PUBLISHED = 0.01
#: Wanted relative residual of the compensation.
TOL = 1e-3
#: Most weights whose Hessian is taken as a matrix.
WHOLE = 5000
#: Its columns that are taken at once: the bar moves after each of these parts.
COLUMNS = 64
#: The folder of the best model, inside that of the results.
PRUNED = "pruned"


class PruneMeasurement(CompressMeasurement[Pruned]):
    """The methods of one question on one model, ready to be measured."""

    doing = "pruning", "pruned"
    answer = Pruned
    flat = "magnitude,wanda,sparsegpt,woodfisher"

    def plan(self) -> Plan:
        """Time and memory; one evaluation of the loss is timed for it."""
        self.require()
        whole, asked, moments = self.whole, self.asked, self.moments
        n, size = sum(t.numel() for t in self.matrices.values()), whole.dtype.itemsize
        fisher = n * size * sum(len(singles(b)) for b in self.seen.batches) if self._fisher else 0
        square = 3 * min(n, WHOLE) ** 2 * size if self._square else 0
        room = self.room(moments + fisher + square + (6 + len(self.ways)) * n * size)
        each = seconds_of_value(whole) * self.subject.scale
        products = self.before + sum(map(self.expected, self.ways))
        seconds = each * (PRODUCT * products + 4 + 2 * len(self.ways) + self._each)
        seconds += self.seconds_of_walk() * ([*self.ways.values()].count("sweep") + len(self._walks))
        how = ", ".join(self.ways) or "one matrix at a time"
        text = (
            f"{note_of(whole)}plan: {how} at {asked.sparsity:g}, at most {products} products,"
            f" {clock(seconds)} in all; {room}; {in_words(moments)} of it for the inputs of matrices, {n:,} weights;"
            " the model is not touched"
        )
        return Plan(text, products, seconds, room.bytes, {"room": dataclasses.asdict(room)})

    @cached_property
    def ways(self) -> dict[str, str]:
        """How the kept weights make up for the others, by method."""
        return {m: self.asked.compensation(m) for m in self.asked.methods}

    @property
    def _diagonal(self) -> bool:
        return "hessian" in self.ways.values() or "obd" in self.ways

    @property
    def _fisher(self) -> bool:
        return "woodfisher" in self.ways or "fisher" in self.ways.values()

    @property
    def _square(self) -> bool:
        return "obs" in (*self.ways, *self.ways.values())

    def require_sizes(self) -> None:
        if self._square and (n := self.risk.space.size) > WHOLE:
            raise InputError(
                f"obs needs the whole Hessian, of {n:,} weights here; at most {WHOLE:,} are taken. Choose fewer"
                " parameters (params), or the method hessian, which needs products alone."
            )

    @property
    def before(self) -> int:
        return super().before + self._each

    @property
    def _each(self) -> int:
        """Matrices and heads that go one at a time."""
        return self.asked.each * (len(self.matrices) + len(head_names(self.whole.space.views)))

    def expected(self, method: str) -> int:
        n = sum(t.numel() for t in self.matrices.values())
        whole = n * (self.ways[method] == "obs" or method == "obs")
        steps = self.asked.rounds + len(self._walks) * (method == "hessian")
        return 1 + steps * self.asked.products * (self.ways[method] == "hessian") + whole

    def inputs(self) -> dict[str, Any]:
        return {"sparsity": self.asked.sparsity, "structure": self.asked.structure}

    def finish(self, found: Pruned, method: str, folder: Path | None) -> None:
        found.weights = self.kept.read(method)
        if folder is not None:
            found.folder = write(folder / PRUNED, self.subject, found.weights)

    def alone(self, best: str | None) -> dict[str, Callable[[], dict[str, Tensor]]]:
        """The smallest weights of one matrix, not compensated; all of one head: without its part of W_O it is gone."""
        parts = {n: {n: None} for n in self.maps} | heads_of(self.risk.space.views, self.maps, self.risk.params, "O")
        return {name: partial(self._without, of) for name, of in parts.items()}

    def _without(self, parts: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """Tensors without what is marked (out, in); where nothing is, without the share of the smallest."""
        W = self.turned({n: self.risk.params[n] for n in parts})
        keep = {
            n: choose({n: w.abs()}, self.asked.sparsity)[n] if (m := parts[n]) is None else ~m for n, w in W.items()
        }
        return self.turned({n: w * keep[n] for n, w in W.items()})

    # --- one method -------------------------------------------------------------------------------------------------
    def method(self, method: str) -> dict[str, Any]:
        risk, way = self.risk, self.ways[method]
        found: dict[str, Any] = {}
        W = self.turned(risk.params)
        if way == "hessian":
            weights, found["note"] = self._together(method)
        elif way == "obs":
            weights, found["note"] = self._whole(self._select(method, W).keep)
        elif way == "fisher":
            keep = self._select(method, W).keep
            weights = self.turned({n: self.fisher[n].compensate(w, keep[n]) for n, w in W.items()})
            found["note"] = f"{len(next(iter(self.fisher.values())).G)} gradients of single sequences"
        else:
            weights = self.turned(one_by_one(way, self.maps, W, self._select(method, W), self.asked.damping))
        self.kept.write(method, weights)
        return found | {
            "sparsity": zeros_of(weights),
            "zeros": torch.tensor([zeros_of({n: t}) for n, t in weights.items()], dtype=torch.float64),
            **self.compared(weights),
        }

    def _select(self, method: str, W: Mapping[str, Tensor]) -> Chosen:
        asked, diagonal = self.asked, None
        if method == "obs":
            count = round(asked.sparsity * self.risk.space.size)
            gone = torch.zeros(self.risk.space.size, dtype=torch.bool)
            gone[self.surgeon.order(count).cpu()] = True
            keep = self.risk.space.unflatten(~gone.to(self.risk.device))
            return Chosen(self.turned(keep))
        if method == "obd":
            diagonal = self.turned(self.diagonal)
        elif method == "woodfisher":
            diagonal = {n: f.inverse_diagonal() for n, f in self.fisher.items()}
        heads = self.heads if asked.structure == "heads" else None
        if heads is not None and not heads:
            raise InputError("this model has no attention heads that are known by name; choose another structure.")
        return select(
            method, self.maps, W, asked.sparsity, asked.structure, diagonal=diagonal, heads=heads, damping=asked.damping
        )

    @cached_property
    def heads(self) -> dict[str, dict[str, Tensor]]:
        return heads_of(self.risk.space.views, self.maps, self.risk.params)

    @cached_property
    def fisher(self) -> dict[str, RowFisher]:
        """The Fisher matrices of all rows, from the gradients of single sequences; damped by a share of their mean."""
        risk, ones = self.risk, [one for batch in self.risk.batches for one in singles(batch)]
        with risk.context():
            gradients = [risk.batch_gradient(risk.params, one) for one in ones]
        G = {n: torch.stack([self.maps[n].matrix(g[n]) for g in gradients]) for n in self.maps}
        mean = sum(float(t.square().sum()) for t in G.values()) / len(gradients) / self.risk.space.size
        return {n: RowFisher(t, self.asked.damping * max(mean, torch.finfo(t.dtype).tiny)) for n, t in G.items()}

    @cached_property
    def surgeon(self) -> Surgeon:
        """The quadratic model with the whole |H|."""
        risk, n = self.risk, self.risk.space.size
        flat = {"w": risk.space.flatten(risk.params), "g": risk.space.flatten(self.gradient)}
        H, columns, told = hessian(risk), [], self.work.report()
        for start in range(0, n, COLUMNS):
            columns.append(H.columns(start, stop := min(start + COLUMNS, n)))
            told(stop, n, 0.0, "columns of H")
        return Surgeon.of_absolute(flat["w"], torch.cat(columns, 1), flat["g"], damping=self.asked.damping)

    def _whole(self, keep: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
        """All matrices together with the whole |H|, in one step."""
        space, surgeon = self.risk.space, self.surgeon
        d = surgeon.step(torch.nonzero(~space.flatten(self.turned(keep)))[:, 0])
        moved = space.unflatten(surgeon.w + d)
        note = f"|H| + {self.asked.damping:g} of its mean diagonal"
        return {n: t * self.maps[n].matrix(keep[n]) for n, t in moved.items()}, note

    def _together(self, method: str) -> tuple[dict[str, Tensor], str]:
        """In rounds: a part of what is to go is removed, the others move, and the curvature is taken anew.

        The slope is left out: following it would train on the calibration.
        """
        rounds, weights, damping = self.asked.rounds, dict(self.risk.params), self._damping
        for k in range(1, rounds + 1):
            W = self.turned(weights)
            keep = partly(self._select(method, W).keep, W, k / rounds)
            d, solved, damping = self._step(weights, keep, damping, f"solve-{method}-{k}")
            weights = {n: weights[n] + t for n, t in d.items()}
        note = f"{rounds} {'round' if rounds == 1 else 'rounds'} with {self._damped(damping)}, {_brief(solved)}"
        return self._or_from_layers(weights, note) if method == "hessian" and self._walks else (weights, note)

    def _or_from_layers(self, weights: dict[str, Tensor], note: str) -> tuple[dict[str, Tensor], str]:
        """The weights; where SparseGPT loses less, its weights, moved by one step of all matrices if that helps."""
        starts = {c: self._layerwise(c) for c in self._walks}
        if min(self._value(theirs) for _, theirs in starts.values()) >= self._value(weights):
            return weights, note
        return min((self._from(*start, c) for c, start in starts.items()), key=lambda found: self._value(found[0]))

    def _from(self, chosen: Chosen, theirs: dict[str, Tensor], c: float) -> tuple[dict[str, Tensor], str]:
        own = self.risk.params
        start = {n: theirs[n] - t for n, t in own.items()}
        d, solved, damping = self._step(own, chosen.keep, self._damping, f"solve-layers-{c:g}", start=start)
        moved = {n: t + d[n] for n, t in own.items()}
        helps = self._value(moved) < self._value(theirs)
        how = f"one step with {self._damped(damping)}, {_brief(solved)}" if helps else "no step of all matrices helped"
        begun = f"started from the weights of SparseGPT (damping {c:g}), which lose less"
        return moved if helps else theirs, f"{begun}; {how}"

    def _layerwise(self, damping: float) -> tuple[Chosen, dict[str, Tensor]]:
        """What SparseGPT keeps, and its weights."""
        chosen = select(
            "sparsegpt", self.maps, self.turned(self.risk.params), self.asked.sparsity, self.asked.structure,
            damping=damping,
        )  # fmt: skip
        assert chosen.weights is not None
        return chosen, self.turned(chosen.weights)

    @property
    def _walks(self) -> list[float]:
        """Dampings of the SparseGPT that `hessian` may begin at: as asked, and as published."""
        layers = self.asked.structure in ("none", "2:4") and self.ways.get("hessian") == "hessian"
        return sorted({self.asked.damping, PUBLISHED}) if layers else []

    @cached_property
    def _damping(self) -> float:
        mean = sum(float(t.sum()) for t in self.diagonal.values()) / self.risk.space.size
        return self.asked.damping * max(mean, torch.finfo(self.risk.dtype).tiny)

    def _damped(self, damping: float) -> str:
        return f"H_o + {self.asked.damping * damping / self._damping:g} of its mean diagonal"

    def _value(self, weights: Mapping[str, Tensor]) -> float:
        with torch.no_grad():
            return float(self.risk.value(weights))

    def _step(
        self, w: Mapping[str, Tensor], keep: Mapping[str, Tensor], damping: float, name: str, **options: Any
    ) -> tuple[dict[str, Tensor], Solution, float]:
        """The step of all matrices from some weights, with the curvature there."""
        risk = self.risk
        rows = {n: curvature_of_rows(self.maps[n].matrix(t), self.maps[n].S) for n, t in self.diagonal.items()}
        return damped_step(
            gauss_newton(risk.moved(w)),
            w,
            self.turned(keep),
            damping=damping,
            diagonal=self.turned(rows),
            method="cg",
            tol=TOL,
            max_products=self.asked.products,
            resume=self.work.state(name, 5 * risk.space.size * risk.dtype.itemsize),
            progress=self.work.report(),
            **options,
        )


def _brief(solved: Solution) -> str:
    end = "" if solved.converged else f", above {TOL:g}: more products may help"
    return f"residual {float(solved.residual.max()):.1e} after {solved.products} products{end}"
