"""Measuring a spectrum: eigenvalues, trace, density and block norms of one operator, matrix-free.

The estimators are those of `estimate`; this module plans them, runs them under one clock, and puts the numbers into one
Record.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...answers.spectrum import Spectrum
from ...answers.spectrum_draft import SpectrumDraft
from ...core.memory import in_words
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Provenance
from ...core.work import TimeUp, Work
from ...curvature.groups import groups
from ...curvature.masses import masses, rows_of_embeddings
from ...curvature.operators import functional, gauss_newton, hessian
from ...curvature.outline import Outline
from ...curvature.prediction import fastest, predict
from ...curvature.prediction import measure as seconds_by_route
from ...curvature.risk import Risk
from ...curvature.share import share_of
from ...curvature.strategies import Route
from ...distributed import current, group_of, shared
from ...estimate import block_norms, density, eigenpairs, trace
from ...estimate.lanczos import ROWS
from ..machine import vector_seconds
from ..probes import probe_of
from ..room import Room
from ..subject import Subject
from ..threads import fitting_threads
from .exact_parts import functional_norms
from .question import SpectrumQuestion

_MAKE: dict[str, Callable[..., Any]] = {"hessian": hessian, "gauss_newton": gauss_newton, "functional": functional}
#: Forward passes of matrix work in one product, where it is not counted.
PASSES = {"gauss_newton": 6.0, "functional": 12.0}
#: Products of the trace where no density is measured.
TRACE_PRODUCTS = 24
#: Work with vectors beside a product of each piece, by that of orthogonalising to half a full basis (measured).
VECTOR_WORK = {"eigenvalues": 0.75, "density": 0.75, "trace": 0.6, "blocks": 0.25}


class SpectrumMeasurement:
    """One operator of one model, ready to be measured."""

    def __init__(self, asked: SpectrumQuestion, subject: Subject) -> None:
        self.asked, self.subject = asked, subject
        self.risk = shared(subject.risk(asked), current())
        self.group = group_of(self.risk.space)
        self.n = self.group.size(self.risk.space.size)
        self.blocks = _blocks(self.risk, asked.blocks)
        self.expected = self._expected()
        self.A: Any = None  # without weights nothing is measured
        if not isinstance(self.risk, Outline):
            self.A = _MAKE[asked.curvature](
                self.risk, route=cast(Route, asked.route), products=sum(self.expected.values())
            )
        self._plan: Plan | None = None

    def _expected(self) -> dict[str, int]:
        """Products of each piece of work: the usual number for the eigenvalues, the fixed number for the rest."""
        asked, n = self.asked, self.n
        found = {"eigenvalues": min(asked.most, n, 20 + 5 * (asked.top + asked.bottom))}
        found |= {"density": min(n, asked.probes * asked.steps)} if asked.density else {"trace": min(n, TRACE_PRODUCTS)}
        return found | ({"blocks": asked.probes * len(self.blocks)} if self.blocks else {})

    # --- the cost ---------------------------------------------------------------------------------------------------
    def plan(self) -> Plan:
        """Coverage, products, time and memory, by the route that will be taken; a product is timed for it."""
        if self._plan is None:
            room = self._room().require(self.risk)
            with fitting_threads(self.risk):
                self._plan = self._cost(room)
        return self._plan

    def _room(self) -> Room:
        asked, n = self.asked, self.risk.space.size
        longest = self.group.longest(n)
        basis = max(ROWS, 2 * (asked.top + asked.bottom) + 24)
        rows = max(basis, asked.steps * asked.probes + asked.top if asked.density else 0) + 8
        return Room.of(self.risk, min(rows, self.n) * longest * self.risk.dtype.itemsize)

    def _cost(self, room: Room) -> Plan:
        asked, risk, expected = self.asked, self.risk, self.expected
        longest = self.group.longest(risk.space.size)
        seconds = self._seconds()
        route = fastest(seconds) if asked.route == "auto" else cast(Route, asked.route)
        vectors = vector_seconds(longest, risk.dtype, risk.device, ROWS // 2)
        took = seconds[route] + vectors * sum(VECTOR_WORK[piece] * count for piece, count in expected.items())
        products = sum(expected.values())
        most = products - expected["eigenvalues"] + min(asked.most, self.n)
        more = f", at most {most}" if most > products else ""
        split = " + ".join(f"{n} {name}" for name, n in expected.items())
        text = (
            f"{'; '.join([risk.coverage, *risk.notes])}\nplan: about {products} products{more} ({split}),"
            f" {clock(took)} by the {route} route, {room}"
        )
        details = {"coverage": risk.coverage, "notes": list(risk.notes), "planned": expected, "most": most}
        details |= {"route": route, "room": dataclasses.asdict(room)}
        if self.subject.world > 1:
            share = share_of(risk, asked.curvature, self.subject.world)
            vectors = room.vectors / share.world
            text += f"\n{share}, {in_words(vectors)} for vectors"
            details["share"] = dataclasses.asdict(share) | {"vectors": vectors}
        return Plan(text, products, took, room.bytes, details)

    def _seconds(self) -> dict[Route, float]:
        """Seconds of all products by each route: from timed ones, or without weights from the work of one."""
        risk, curvature = self.risk, self.asked.curvature
        if not isinstance(risk, Outline):
            return seconds_by_route(self.A.run, _vector(risk), self.subject.scale)
        each, products = risk.seconds(PASSES.get(curvature)), sum(self.expected.values())
        return predict(risk.cost.forward.operators, each, products, "cpu", retained=curvature not in PASSES)

    # --- the work ---------------------------------------------------------------------------------------------------
    def measure(self, work: Work) -> Spectrum:
        """Everything that was asked, or as much of it as the time allows, marked partial."""
        asked, risk, began = self.asked, self.risk, time.monotonic()
        plan, found = self.plan(), SpectrumDraft()
        if asked.route == "auto":
            self.A = self.A.by(plan.details["route"])
        with fitting_threads(risk), work.bar(plan.products, "spectrum"), work.in_time():
            self._measure(work, found)
        with torch.no_grad():
            loss = float(risk.value())
        found.take_point(loss, risk.space.norm(risk.gradient()), asked.curvature)
        if self.blocks and not work.partial and not self.group.cut:
            for path, norms in functional_norms(risk.whole).items():
                found.take_functional(path, norms)
        if found.vectors is not None:
            rows = {} if self.group.cut else rows_of_embeddings(risk.model, found.vectors)
            found.take_masses(masses(risk.space, found.vectors), rows)
        if self.group.cut:  # no process has them whole
            found.vectors = None
        spent = {"products": found.products, "seconds": time.monotonic() - began}
        return found.answer(
            Provenance.collect(seed=asked.seed, dtype=risk.dtype, device=risk.device),
            source=dict(self.subject.source),
            curvature=asked.curvature,
            coverage=risk.coverage,
            notes=list(risk.notes),
            parameters=self.n,
            **probe_of(risk.whole.batches, risk.batch_count),
            cost=spent | {"route": self.A.route, "bytes": plan.bytes},
            top=asked.top,
            bottom=asked.bottom,
            blocks=tuple(self.blocks),
            partial=work.partial,
        )

    def _measure(self, work: Work, found: SpectrumDraft) -> None:
        asked, A, state = self.asked, self.A, work.state("estimators")
        common: dict[str, Any] = {"seed": asked.seed, "resume": state}
        pairs = self._eigenpairs(work, state, found)
        if asked.density:
            with work.counting("density", self.expected["density"]):
                d = density(A, asked.probes, asked.steps, known=pairs, progress=work.report(), **common)
            found.take_density(d)
        else:
            with work.counting("trace", self.expected["trace"]):
                e = trace(A, TRACE_PRODUCTS, progress=work.report(), **common)
            found.take_trace(e)
        if self.blocks:
            with work.counting("blocks", self.expected["blocks"]):
                norms = block_norms(A, self.blocks, asked.probes, progress=work.report(), **common)
            sizes = [self.group.size(A.domain.select(*globs).size) for globs in self.blocks.values()]
            found.take_blocks(norms, sizes)

    def _eigenpairs(self, work: Work, state: Path | None, found: SpectrumDraft) -> Any:
        """The eigenvalues; at the end of the time, what the products so far say, without new ones."""
        asked, told, reached = self.asked, work.report(), 0

        def report(done: int, total: int, left: float, text: str) -> None:
            nonlocal reached
            reached = done
            told(done, total, left, text)

        options: dict[str, Any] = {"top": asked.top, "bottom": asked.bottom, "tol": asked.tol, "seed": asked.seed}
        options |= {"resume": state}
        try:
            with work.counting("eigenvalues", self.expected["eigenvalues"]):
                most = min(asked.most, self.n)
                pairs = eigenpairs(self.A, **options, max_products=most, progress=report)
        except TimeUp:
            most = max(reached, asked.top, asked.bottom, 1)
            found.take_pairs(eigenpairs(self.A, **options, max_products=most))
            raise
        found.take_pairs(pairs)
        return pairs


def _vector(risk: Risk) -> dict[str, Tensor]:
    generator = torch.Generator(risk.device).manual_seed(0)
    return risk.space.random(1, dtype=risk.dtype, device=risk.device, generator=generator)


def _blocks(risk: Risk, blocks: str | Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """A kind of blocks, names with wildcards, or {label: names} as {label: names}."""
    if blocks == "none" or not blocks:
        return {}
    if isinstance(blocks, str):
        return groups(risk.space, blocks)
    if isinstance(blocks, Mapping):
        named = {str(label): (globs,) if isinstance(globs, str) else tuple(globs) for label, globs in blocks.items()}
    else:
        named = {glob: (glob,) for glob in blocks}
    for globs in named.values():
        risk.space.select(*globs)
    return named
