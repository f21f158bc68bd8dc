"""Measuring the largest stable learning rate: the pieces, each computed once and written down."""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import CheckFailed
from ...core.operator import Operator
from ...core.progress import Progress, Report, clock, say
from ...core.record import Estimate, Provenance, Record
from ...core.space import Vector
from ...curvature.operators import hessian
from ...curvature.risk import Risk
from ...distributed import current, group_of, shard
from ...estimate.lanczos import ROWS, Eigenpairs, eigenpairs
from ..journal import Deadline, Journal, TimeUp
from ..machine import guard_kept, vectors_in_words
from ..meter import Meter
from ..probes import probe_of
from ..subject import weights_hash
from ..threads import fitting_threads
from .ceiling import ceiling_of, seconds_of_product
from .rules import FLOOR, Stepper, floor_share, sgd
from .trial import Pair, double_copy, trial_gradients, try_out

KIND = "step-size"
#: The momentum of the row for SGD with momentum, where the optimiser has none of its own.
MOMENTUM = 0.9
#: Products one eigenvalue takes, as a rule; the plan counts with it.
TYPICAL = 25
#: Relative residual of the eigenvalues of single batches.
BATCH_TOL = 1e-2


def measure(
    risk: Risk,
    stepper: Stepper,
    *,
    source: dict[str, Any],
    verify: int = 0,
    products: int = 60,
    tol: float = 1e-3,
    seed: int = 0,
    learning_rate: float | None = None,
    seconds: float | None = None,
    folder: str | Path | None = None,
    resume: bool = True,
    progress: bool | Report = True,
    first: Risk | None = None,
    unknown: str = "",
) -> Record:
    """The ceilings of a risk under SGD, SGD with momentum, and `stepper`.

    `first` is the same loss at step 0; `unknown` says why there is none where one might be expected.
    """
    guard_kept(verify, f"the course of {verify:,} steps on a copy")
    before, group, count = _hash(risk), current(), len(risk.batches)
    risk, first = shard(risk, group), first and shard(first, group)
    if not stepper.second and count > 1:
        stepper = stepper.after(each_gradient(risk))
    question = {
        "kind": KIND,
        "source": source,
        "optimizer": stepper.rule.name,
        "verify": verify,
        "tol": tol,
        "seed": seed,
        "batches": count,
        "coverage": risk.coverage,
        "weights": before,
    }
    journal = Journal(folder, question, resume=resume, group=group)
    with tempfile.TemporaryDirectory() as scratch, fitting_threads(risk):
        work = _Work(risk, stepper, journal, Path(scratch), products, tol, seed, Deadline(seconds, group))
        if progress is True:
            say(plan_of(risk, stepper, verify, first is not None)["text"])
        with Progress(planned(risk, stepper, verify, first is not None), "lr: products", show=progress) as bar:
            work.meter = Meter(bar, work.deadline)
            scalars, tensors, told = work.everything(verify, first)
    if _hash(risk) != before:
        raise CheckFailed("the model was changed while it was measured; please report this. Nothing was kept.")
    if not told["partial"]:
        journal.forget_state()
    inputs = {
        **question,
        **told,
        **probe_of(risk.whole.batches),
        **_rates(stepper, learning_rate),
        "notes": risk.notes,
    }
    inputs |= {"no_step_0": unknown} if unknown else {}
    return Record(
        kind=KIND,
        inputs=inputs,
        scalars=scalars,
        tensors=tensors,
        made=Provenance.collect(seed=seed, dtype=risk.dtype, device=risk.device),
    )


def _rates(stepper: Stepper, given: float | None) -> dict[str, Any]:
    """The rate that is held against the ceiling, what it is (`yours`, `in force`), and the peak of the schedule."""
    if given is not None:
        return {"lr": given, "lr_is": "yours"}
    peak = {"peak_lr": stepper.peak} if stepper.peak and stepper.peak != stepper.lr else {}
    return {"lr": stepper.lr, "lr_is": "in force", **peak}


def _hash(risk: Risk) -> str:
    return weights_hash(risk.model) if isinstance(risk.model, nn.Module) else "function"


def one_batch(risk: Risk, i: int) -> Risk:
    """The same loss on one batch of the probe alone."""
    whole = risk.whole
    alone = Risk(
        whole.model,
        whole.loss,
        [whole.batches[i]],
        list(whole.params) if isinstance(whole.model, nn.Module) else whole.params,
        include_frozen=True,
        train_mode=whole.train_mode,
        quiet=True,
    )
    return shard(alone, group_of(risk.space))


def each_gradient(risk: Risk) -> Iterator[dict[str, Tensor]]:
    """The gradient on each batch of the probe alone."""
    return (one_batch(risk, i).gradient() for i in range(len(risk.whole.batches)))


def _first_row(vectors: Vector) -> dict[str, Tensor]:
    return {n: t[0] for n, t in vectors.items()}


def is_plain(stepper: Stepper) -> bool:
    """Whether its operator is H itself."""
    return not stepper.rule.adaptive and not stepper.decay and set(stepper.rates.values()) <= {1.0}


def planned(risk: Risk, stepper: Stepper, verify: int, first: bool = False) -> int:
    """Products of the whole risk that are to be expected; a gradient of the trial, in float64, counts as one."""
    searches = (1 if is_plain(stepper) else 2) + (len(risk.whole.batches) > 1) + first
    return TYPICAL * searches + trial_gradients(verify)


def plan_of(risk: Risk, stepper: Stepper, verify: int, first: bool = False, scale: float = 1.0) -> dict[str, Any]:
    """The plan and its cost: one product is timed, and one gradient of the copy the trial runs on.

    `scale`: how many times longer both take than on the probe of `risk`.
    """
    count, each = planned(risk, stepper, 0, first), scale * seconds_of_product(risk)
    gradients, size, seconds, tried = trial_gradients(verify), risk.space.size, count * each, ""
    if gradients:
        copy = double_copy(risk)
        copy.gradient()
        began = time.perf_counter()
        copy.gradient()
        one = scale * (time.perf_counter() - began)
        seconds += gradients * one
        tried = f" and up to {gradients} gradients of {one:.2g} s on a copy"
    memory = (ROWS + 6) * size * max(risk.dtype.itemsize, 4) + (verify > 0) * 10 * size * 8
    text = (
        f"plan: about {count} products of {each:.2g} s{tried}, {clock(seconds)} in all;"
        f" {vectors_in_words(memory, risk.device)} of {size:,} parameters; the model is not touched"
    )
    return {"text": text, "products": count, "seconds": seconds, "bytes": memory, "parameters": size}


class _Work:
    """The pieces of one measurement, each computed once."""

    def __init__(
        self,
        risk: Risk,
        stepper: Stepper,
        journal: Journal,
        scratch: Path,
        products: int,
        tol: float,
        seed: int,
        deadline: Deadline,
    ) -> None:
        self.risk, self.stepper, self.journal, self.scratch = risk, stepper, journal, scratch
        self.products, self.tol, self.seed, self.deadline = products, tol, seed, deadline
        self.meter: Meter
        self.pairs: dict[str, Eigenpairs] = {}
        self.partial = False
        self.H = hessian(risk)
        self.gradient = risk.gradient()
        self.P = stepper.preconditioner(self.gradient, risk.params)
        self.A = stepper.operator(self.H, self.P)

    def search(self, A: Operator, name: str, tol: float, start: Vector | None = None) -> Eigenpairs:
        """The largest eigenvalue of A; at the end of the time given, the best so far."""
        folder, reached = self.journal.state(name) or self.scratch / name, 0
        shown = self.meter.of_estimator()

        def told(done: int, total: int, left: float, text: str) -> None:
            nonlocal reached
            reached = done
            shown(done, total, left, text)

        options: dict[str, Any] = {"tol": tol, "seed": self.seed, "resume": folder, "start": start}
        try:
            found = eigenpairs(A, top=1, max_products=self.products, progress=told, **options)
        except TimeUp:
            self.partial = True
            found = eigenpairs(A, top=1, max_products=max(reached, 1), **options)
        self.pairs[name] = found
        return found

    @functools.cached_property
    def top(self) -> Vector:
        """The top direction of the stepper's operator."""
        name, A = ("H", self.H) if is_plain(self.stepper) else ("yours", self.A)
        if name not in self.pairs:  # found in an earlier run: its state has the vector, no product is needed
            state = self.journal.state(name)
            self.pairs[name] = eigenpairs(
                A, top=1, max_products=self.products, tol=self.tol, seed=self.seed, resume=state
            )
        return _first_row(self.pairs[name].vectors)

    def largest(self, A: Operator, name: str) -> Estimate:
        """lambda_max of A, written down once it is found."""
        if name in self.journal:
            self.meter.skip(TYPICAL)
            return Estimate.read(self.journal.done[name])
        label = "H" if name == "H" else "P^-1 H" if self.stepper.rule.adaptive else "H + D"
        with self.meter.piece(label, TYPICAL):
            found = self.search(A, name, self.tol).top[0]
        if found.converged and not self.partial:  # else it goes on another time
            self.journal.write(name, dataclasses.asdict(found))
        return found

    def everything(
        self, verify: int, first: Risk | None = None
    ) -> tuple[dict[str, Estimate], dict[str, Tensor], dict[str, Any]]:
        risk, stepper, rule = self.risk, self.stepper, self.stepper.rule
        plain = self.largest(self.H, "H")
        lam = plain if is_plain(stepper) else self.largest(self.A, "yours")
        rows = [("sgd", sgd()), ("momentum", sgd(MOMENTUM))]
        if is_plain(stepper):
            rows[1 if rule.b else 0] = ("yours", rule)
        else:
            rows.append(("yours", rule))
        slope = math.sqrt(sum(float(g.double().square().sum()) for g in self.gradient.values()))
        scalars = {
            "loss": Estimate(float(risk.value().detach())),
            "gradient_norm": Estimate(slope),
            "lambda_max": plain,
            "lambda_max_P": lam,
        }
        for key, row in rows:
            scalars[f"ceiling/{key}"] = ceiling_of(row.factor, lam if key == "yours" else plain)
        shares = self.shares() if self.partial else self.journal.piece("shares", self.shares)
        share = shares["pull"] / lam.value if lam.value > 0 else 0.0
        scalars["decay_share"] = Estimate(share, note="of lambda_max, to first order")
        if rule.adaptive:
            scalars["floor_share"] = Estimate(shares["floor"], note="of the top direction, where P is near eps")
        tensors: dict[str, Tensor] = {}
        if len(risk.whole.batches) > 1 and not self.partial:
            each = self.single()
            if len(each) == len(risk.whole.batches):
                tensors["ceilings"] = torch.tensor(each, dtype=torch.float64)
        if first is not None and not self.partial:
            found_first = self.at_first(first)
            if found_first is not None:
                scalars["first_ceiling"] = found_first
        if verify and not self.partial and 0 < lam.value < math.inf:
            found = self.journal.piece("verify", lambda: self.tried(verify, lam.value))
            names = [n for n in ("fractions", "measured", "predicted", "losses", "tolerance", "fine") if n in found]
            tensors |= {f"verify/{n}": torch.tensor(found[n], dtype=torch.float64) for n in names}
        told = {
            "rule": rule.name,
            "formula": _formula(stepper),
            "rows": [[k, r.name, _formula(stepper) if k == "yours" else r.formula] for k, r in rows],
            "P": stepper.source,
            "decay": stepper.decay,
            "partial": self.partial,
        }
        return scalars, tensors, told

    def shares(self) -> dict[str, float]:
        """How much of lambda_max is weight decay, and how much of its direction lies where Adam has seen nothing."""
        u = self.top
        pull = sum(float((self.A.shift[n] * u[n].square()).sum()) for n in u)
        return {"pull": pull, "floor": floor_share(self.P, self.stepper.eps, u) if self.stepper.rule.adaptive else 0.0}

    def single(self) -> list[float]:
        """The ceiling on each probe batch alone, P and the start from the whole probe."""
        found: list[float] = []
        count = len(self.risk.whole.batches)
        for i in range(count):
            if f"batch/{i}" in self.journal:
                self.meter.skip(TYPICAL / count)
            try:
                found.append(self.journal.piece(f"batch/{i}", functools.partial(self.one, i)))
            except TimeUp:
                self.partial = True
                break
        return found

    def at_first(self, risk: Risk) -> Estimate | None:
        """The ceiling of the same optimiser at step 0; None where Adam has seen no gradient along its direction yet."""
        if "first" in self.journal:
            self.meter.skip(TYPICAL)
        else:
            stepper = dataclasses.replace(self.stepper, second={}, steps={})
            stepper = stepper.after(each_gradient(risk)) if len(risk.whole.batches) > 1 else stepper
            P = stepper.preconditioner(risk.gradient(), risk.params)
            with self.meter.piece("step 0", TYPICAL):
                pairs = self.search(stepper.operator(hessian(risk), P), "first", self.tol)
            if self.partial:
                return None
            unseen = stepper.rule.adaptive and floor_share(P, stepper.eps, _first_row(pairs.vectors)) > FLOOR
            lam = pairs.top[0]
            self.journal.write("first", None if unseen else dataclasses.asdict(ceiling_of(stepper.rule.factor, lam)))
        known = self.journal.done["first"]
        return None if known is None else Estimate.read(known)

    def one(self, i: int) -> float:
        self.deadline.check(advanced=False)
        count = len(self.risk.whole.batches)
        with self.meter.piece(f"batch {i + 1} of {count}", TYPICAL / count, weight=1 / count):
            return self.alone(i)

    def alone(self, i: int) -> float:
        risk = one_batch(self.risk, i)
        A = self.stepper.operator(hessian(risk), self.P)
        pairs = self.search(A, f"batch-{i}", BATCH_TOL, start=self.top)
        if self.partial:
            raise TimeUp("the time given with `--max-time` is over.")
        return ceiling_of(self.stepper.rule.factor, pairs.top[0]).value

    def spend(self, gradients: int, text: str) -> None:
        """A trial is short and is not cut: the deadline is not looked at."""
        self.meter.bar.step(gradients, text)

    def tried(self, verify: int, lam: float) -> dict[str, Any]:
        pair = Pair(double_copy(self.risk), self.stepper, self.A.S, self.top)
        ceiling = self.stepper.rule.factor / lam
        with self.meter.piece("tried on a copy", trial_gradients(verify)):
            trials = try_out(pair, ceiling, lam, verify, self.spend)
        length = max(len(t.losses) for t in trials)
        return {
            "fractions": [t.fraction for t in trials],
            "measured": [t.measured for t in trials],
            "predicted": [t.predicted for t in trials],
            "tolerance": [t.tolerance for t in trials],
            "fine": [float(t.as_expected) for t in trials],
            "losses": [[*t.losses, *[math.nan] * (length - len(t.losses))] for t in trials],
        }


def _formula(stepper: Stepper) -> str:
    """The rule in words, with what weight decay adds."""
    if stepper.coupled:
        return stepper.rule.formula.replace("H)", "(H + D))" if stepper.rule.adaptive else "H + D)")
    if stepper.decoupled:
        return stepper.rule.formula.replace("H)", f"H + {1 / stepper.rule.kappa:.4g} W)")
    return stepper.rule.formula
