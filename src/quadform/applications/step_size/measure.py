"""Measuring the largest stable learning rate: the pieces, each computed once and written down."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from typing import Any

import torch
from torch import Tensor

from ...answers.course import Stop
from ...answers.step_size import FLOOR, StepSize, StepSizeDraft
from ...answers.trial import packed
from ...core.errors import CheckFailed
from ...core.operator import Operator
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Estimate, Provenance
from ...core.space import Vector
from ...core.work import TimeUp, Work
from ...curvature.operators import hessian
from ...curvature.outline import Outline
from ...curvature.risk import Risk
from ...curvature.share import share_of
from ...curvature.taylor import Line, measured_radius
from ...distributed import current, shared
from ...distributed.processes import holders
from ...estimate.lanczos import ROWS, Eigenpairs, eigenpairs
from ..machine import guard_kept
from ..probes import probe_of
from ..room import Room, note_of, parameters_of
from ..subject import Subject
from ..threads import fitting_threads
from .ceiling import ceiling_of, seconds_of_product
from .chosen import at_step_0, opened
from .course import Path, Waypoint, path_of
from .fresh import held, one_batch
from .question import StepSizeQuestion
from .rules import Rule, Stepper, floor_share, sgd
from .trial import Pair, double_copy, trial_gradients, try_out

#: The momentum of the row for SGD with momentum, where the optimizer has none of its own.
MOMENTUM = 0.9
#: Products one eigenvalue takes, as a rule; the plan counts with it.
TYPICAL = 25
#: Relative residual of the eigenvalues of single batches, and along a run.
BATCH_TOL = 1e-2
#: Products that the search for the Taylor radius takes the time of, as a rule.
SEARCH = 8


class StepSizeMeasurement:
    """One optimizer at one point of one loss, ready to be measured."""

    def __init__(self, asked: StepSizeQuestion, subject: Subject) -> None:
        guard_kept(asked.verify, f"the course of {asked.verify:,} steps on a copy")
        self.asked, self.subject = asked, subject
        risk, self.stepper = opened(asked, subject)
        first, self.unknown = at_step_0(subject, risk)
        self.risk, self.first = shared(risk, current()), first and shared(first, current())
        alone = current().world == 1 and not isinstance(risk, Outline)
        self.path = path_of(asked, subject) if alone else None
        self._plan: Plan | None = None

    @property
    def searches(self) -> int:
        """Eigenvalues that are looked for; those of all single batches, and two along a run, count as one."""
        own = 1 if is_plain(self.stepper) else 2
        along = 0 if self.path is None else (self.path.count + 1) // 2
        return own + (self.risk.batch_count > 1) + (self.first is not None) + along

    # --- the cost ---------------------------------------------------------------------------------------------------
    def plan(self) -> Plan:
        """Products, time and memory; one product is timed for it, and one gradient of the copy the trial runs on."""
        if self._plan is None:
            room = self._room().require(self.risk)
            with fitting_threads(self.risk):
                self._plan = self._cost(room)
        return self._plan

    def _room(self) -> Room:
        size, copied = self.risk.space.size, trial_gradients(self.asked.verify) > 0
        return Room.of(self.risk, (ROWS + 6) * size * max(self.risk.dtype.itemsize, 4) + copied * 10 * size * 8)

    def _cost(self, room: Room) -> Plan:
        risk, scale, size = self.risk, self.subject.scale, parameters_of(self.risk)
        count, each = TYPICAL * self.searches, scale * seconds_of_product(risk)
        gradients, seconds, tried = trial_gradients(self.asked.verify), count * each, ""
        if gradients:
            one = scale * _seconds_of_gradient(risk)
            seconds += gradients * one
            tried = f" and up to {gradients} gradients of {one:.2g} s on a copy"
        text = (
            f"{note_of(risk)}"
            f"plan: about {count} products of {each:.2g} s{tried}, {clock(seconds)} in all;"
            f" {room}; {size:,} parameters; the model is not touched"
        )
        details: dict[str, Any] = {"parameters": size, "room": dataclasses.asdict(room)}
        if self.subject.world > 1:
            share = share_of(risk, "hessian", self.subject.world)
            text, details = f"{text}\n{share}", details | {"share": dataclasses.asdict(share)}
        return Plan(text, count, seconds, room.bytes, details)

    # --- the work ---------------------------------------------------------------------------------------------------
    def measure(self, work: Work) -> StepSize:
        """The ceilings under SGD, SGD with momentum and the optimizer; with too little time bounds, marked partial."""
        asked, risk = self.asked, self.risk
        stepper = held(self.stepper, risk)
        total = TYPICAL * self.searches + SEARCH + trial_gradients(asked.verify)
        with fitting_threads(risk), work.bar(total, "lr: products"):
            pieces = _Pieces(asked, risk, stepper, work)
            lam, found = pieces.ceilings()
            with work.in_time():
                pieces.rest(lam, self.first, found)
                if self.path is not None and not work.partial:
                    found.take_course(pieces.course(self.path))
        if self.subject.changed:
            raise CheckFailed("the model was changed while it was measured; please report this. Nothing was kept.")
        return found.answer(
            Provenance.collect(seed=asked.seed, dtype=risk.dtype, device=risk.device),
            source=dict(self.subject.source),
            rule=stepper.rule.name,
            formula=_formula(stepper),
            rows=[[k, r.name, _formula(stepper) if k == "yours" else r.formula] for k, r in _rows(stepper)],
            P=stepper.source,
            decay=stepper.decay,
            coverage=risk.coverage,
            notes=list(risk.notes),
            **probe_of(risk.whole.batches, risk.batch_count),
            **_rates(stepper, asked.lr),
            partial=work.partial,
            **({"no_step_0": self.unknown} if self.unknown else {}),
            **({"along": self.path.told} if self.path is not None else {}),
        )


def _seconds_of_gradient(risk: Risk) -> float:
    """Time of one gradient of the copy in double precision, the second of two; without weights from its work."""
    if isinstance(risk, Outline):
        return len(risk.batches) * risk.cost.gradient.seconds(torch.float64)
    copy = double_copy(risk)
    copy.gradient()
    began = time.perf_counter()
    copy.gradient()
    return time.perf_counter() - began


def _rates(stepper: Stepper, given: float | None) -> dict[str, Any]:
    """The rate that is held against the ceiling, what it is (`yours`, `in force`), and the peak of the schedule."""
    if given is not None:
        return {"lr": given, "lr_is": "yours"}
    peak = {"peak_lr": stepper.peak} if stepper.peak and stepper.peak != stepper.lr else {}
    return {"lr": stepper.lr, "lr_is": "in force", **peak}


def _rows(stepper: Stepper) -> list[tuple[str, Rule]]:
    """The optimizers of the table; yours replaces one that is the same."""
    rows = [("sgd", sgd()), ("momentum", sgd(MOMENTUM))]
    if not is_plain(stepper):
        return [*rows, ("yours", stepper.rule)]
    rows[1 if stepper.rule.b else 0] = ("yours", stepper.rule)
    return rows


def _first_row(vectors: Vector) -> dict[str, Tensor]:
    return {n: t[0] for n, t in vectors.items()}


def is_plain(stepper: Stepper) -> bool:
    """Whether its operator is H itself."""
    return not stepper.rule.adaptive and not stepper.decay and set(stepper.rates.values()) <= {1.0}


class _Pieces:
    """The pieces of one measurement. An eigenvalue is kept once it has converged; else the next run goes on with it."""

    def __init__(self, asked: StepSizeQuestion, risk: Risk, stepper: Stepper, work: Work) -> None:
        self.asked, self.risk, self.stepper, self.work = asked, risk, stepper, work
        self.pairs: dict[str, Eigenpairs] = {}
        self.H = hessian(risk)
        self.gradient = risk.gradient()
        self.P = stepper.preconditioner(self.gradient, risk.params)
        self.A = stepper.operator(self.H, self.P)
        self.yours = "H" if is_plain(stepper) else "yours"

    def _options(self, name: str) -> dict[str, Any]:
        return {"top": 1, "tol": self.asked.tol, "seed": self.asked.seed, "resume": self.work.state(name)}

    def search(self, A: Operator, name: str, **more: Any) -> Eigenpairs:
        """The largest eigenvalue of A. At the end of the time `pairs` has the best so far."""
        told, reached, options = self.work.report(), 0, self._options(name) | more

        def report(done: int, total: int, left: float, text: str) -> None:
            nonlocal reached
            reached = done
            told(done, total, left, text)

        try:
            found = eigenpairs(A, max_products=self.asked.products, progress=report, **options)
        except TimeUp:
            self.pairs[name] = eigenpairs(A, max_products=max(reached, 1), **options)
            raise
        self.pairs[name] = found
        return found

    def largest(self, A: Operator, name: str, label: str) -> Estimate:
        """lambda_max of A; at the end of the time a lower bound."""
        work = self.work
        if name in work:
            work.skip(TYPICAL)
            found: Estimate = work[name]
            return found
        with work.in_time(), work.counting(label, TYPICAL):
            found = self.search(A, name).top[0]
            if found.converged:
                work.keep(name, found)
        return self.pairs[name].top[0]

    @functools.cached_property
    def top(self) -> Vector:
        """The top direction of the optimizer's operator."""
        name, A = self.yours, self.H if is_plain(self.stepper) else self.A
        if name not in self.pairs:  # found in an earlier run: its state has the vector, no product is needed
            self.pairs[name] = eigenpairs(A, max_products=self.asked.products, **self._options(name))
        return _first_row(self.pairs[name].vectors)

    def ceilings(self) -> tuple[Estimate, StepSizeDraft]:
        """lambda_max of the optimizer's operator, and what the answer has however short the time is."""
        stepper, adaptive = self.stepper, self.stepper.rule.adaptive
        plain = self.largest(self.H, "H", "H")
        lam = plain if is_plain(stepper) else self.largest(self.A, "yours", "P^-1 H" if adaptive else "H + D")
        found = StepSizeDraft()
        found.take_point(float(self.risk.value().detach()), self.risk.space.norm(self.gradient))
        found.take_curvature(plain, lam)
        for key, row in _rows(stepper):
            found.take_ceiling(key, ceiling_of(row.factor, lam if key == "yours" else plain))
        shares = self.shares()
        found.take_shares(shares["pull"] / lam.value if lam.value > 0 else 0.0, shares["floor"] if adaptive else None)
        return lam, found

    def shares(self) -> dict[str, float]:
        """How much of lambda_max is weight decay, and how much of its direction lies where Adam has seen nothing."""
        if "shares" in self.work:
            return dict(self.work["shares"])
        u, held = self.top, holders(self.risk.space)
        here = sum(float((self.A.shift[n] * u[n].square()).sum()) for n in u)
        pull = float(held.sum(torch.tensor(here, dtype=torch.float64)))
        floor = floor_share(self.P, self.stepper.eps, u, held) if self.stepper.rule.adaptive else 0.0
        if self.yours in self.work:
            self.work.keep("shares", {"pull": pull, "floor": floor})
        return {"pull": pull, "floor": floor}

    def rest(self, lam: Estimate, first: Risk | None, found: StepSizeDraft) -> None:
        """The ceilings on single batches and at step 0, and the trial: what the time allows after the ceiling."""
        if self.work.partial:
            return
        if self.risk.batch_count > 1:
            found.take_batches(self.single())
        if first is not None:
            found.take_first(self.at_first(first))
        if 0 < lam.value < math.inf:
            found.take_reach(self.work.piece("reach", functools.partial(self.reach, lam.value), SEARCH))
        verify = self.asked.verify
        if verify and 0 < lam.value < math.inf:
            tried = self.work.piece("verify", lambda: self.tried(verify, lam.value), trial_gradients(verify))
            found.take_trials(tried)

    def reach(self, lam: float) -> Estimate | None:
        """The rate at which the update leaves the Taylor radius, sought up to twice the ceiling; None at a standstill.

        Of the step of a steady gradient, with the momentum that has gathered. Of a model that is cut it is not known.
        """
        risk, rule = self.risk, self.stepper.rule
        step = self.stepper.update(self.gradient, risk.params)
        length = risk.space.norm(step)
        if length == 0 or risk.shards is not None:
            return None
        v, size = {n: t / length for n, t in step.items()}, rule.steady * length
        slope, curve = (float(risk.space.inner(v, w)) for w in (self.gradient, self.H @ v))
        line = Line(float(risk.value().detach()), slope, curve, 0.0)
        e = measured_radius(risk, v, line, far=2 * size * rule.factor / lam)
        return dataclasses.replace(e, value=e.value / size, error=None if e.error is None else e.error / size)

    def course(self, path: Path) -> list[Stop]:
        """The ceiling at every point of the way, on the batch of its next step."""
        return [
            Stop(*self.work.piece(f"along {i + 1} of {path.count}", functools.partial(self.stop, at, i), TYPICAL / 2))
            for i, at in enumerate(path.points)
        ]

    def stop(self, point: Waypoint, i: int) -> list[Any]:
        P = point.stepper.preconditioner(point.risk.gradient(), point.risk.params)
        pairs = self.search(point.stepper.operator(hessian(point.risk), P), f"along-{i}", tol=BATCH_TOL)
        return [point.step, point.rate, ceiling_of(point.stepper.rule.factor, pairs.top[0])]

    def single(self) -> list[float]:
        """The ceiling on each probe batch alone, P and the start from the whole probe."""
        count = self.risk.batch_count
        return [
            self.work.piece(f"batch {i + 1} of {count}", functools.partial(self.alone, i), TYPICAL / count, 1 / count)
            for i in range(count)
        ]

    def alone(self, i: int) -> float:
        A = self.stepper.operator(hessian(one_batch(self.risk, i)), self.P)
        pairs = self.search(A, f"batch-{i}", tol=BATCH_TOL, start=self.top)
        return ceiling_of(self.stepper.rule.factor, pairs.top[0]).value

    def at_first(self, risk: Risk) -> Estimate | None:
        """The ceiling of the same optimizer at step 0; None where Adam has seen no gradient along its direction yet."""
        name, work = "step 0", self.work
        if name in work:
            work.skip(TYPICAL)
            known: Estimate | None = work[name]
            return known
        stepper = held(dataclasses.replace(self.stepper, second={}, steps={}), risk)
        P = stepper.preconditioner(risk.gradient(), risk.params)
        with work.counting(name, TYPICAL):
            pairs = self.search(stepper.operator(hessian(risk), P), name)
        unseen = stepper.rule.adaptive and floor_share(P, stepper.eps, _first_row(pairs.vectors)) > FLOOR
        found = None if unseen else ceiling_of(stepper.rule.factor, pairs.top[0])
        if pairs.top[0].converged:
            work.keep(name, found)
        return found

    def tried(self, verify: int, lam: float) -> dict[str, Tensor]:
        """The trial on a copy. One that is cut begins anew, so its gradients are no advance."""
        pair = Pair(double_copy(self.risk), self.stepper, self.A.S, self.top)
        spend = functools.partial(self.work.spend, advanced=False)
        return packed(try_out(pair, self.stepper.rule.factor / lam, lam, verify, spend))


def _formula(stepper: Stepper) -> str:
    """The rule in words, with what weight decay adds."""
    if stepper.coupled:
        return stepper.rule.formula.replace("H)", "(H + D))" if stepper.rule.adaptive else "H + D)")
    if stepper.decoupled:
        return stepper.rule.formula.replace("H)", f"H + {1 / stepper.rule.kappa:.4g} W)")
    return stepper.rule.formula
