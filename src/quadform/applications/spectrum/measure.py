"""`quadform spectrum`, `qf.spectrum`: eigenvalues, trace, density and block norms of a model, matrix-free.

The estimators are those of `estimate`; this module plans them, says the cost first, runs them on one operator under one
clock, keeps what is unfinished in a folder, and puts the numbers into one Record.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.memory import in_words
from ...core.operator import Operator
from ...core.progress import Progress, Report, clock, say
from ...core.record import Estimate, Provenance, Record
from ...curvature.groups import groups
from ...curvature.operators import functional, gauss_newton, hessian
from ...curvature.risk import Risk
from ...curvature.routes import Route, fastest
from ...distributed import current, group_of, shard
from ...estimate import block_norms, density, eigenpairs, trace
from ...estimate.lanczos import ROWS
from ...report.point import descent
from ..configs.spectrum import SpectrumConfig
from ..journal import Deadline, Journal, TimeUp
from ..machine import vector_seconds
from ..probes import probe_of
from ..subject import open_subject
from .answer import KIND, Spectrum
from .exact_parts import functional_norms

_MAKE = {"hessian": hessian, "ggn": gauss_newton, "functional": functional}
#: Products of the trace where no density is measured.
TRACE_PRODUCTS = 24
#: Work with vectors beside a product of each piece, by that of orthogonalising to half a full basis (measured).
VECTOR_WORK = {"eigenvalues": 0.75, "density": 0.75, "trace": 0.6, "blocks": 0.25}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be measured of an operator."""

    top: int
    bottom: int
    density: bool
    blocks: Mapping[str, tuple[str, ...]]
    curvature: str = "hessian"
    products: int | None = None
    probes: int = 4
    steps: int = 20
    tol: float = 1e-3
    seed: int = 0
    route: Route = "auto"

    @property
    def most(self) -> int:
        """The largest number of products the eigenvalues may take."""
        return self.products or max(60, 20 * (self.top + self.bottom))

    def plan(self, n: int) -> dict[str, int]:
        """Products of each piece of work: the usual number for the eigenvalues, the fixed number for the rest."""
        found = {"eigenvalues": min(self.most, n, 20 + 5 * (self.top + self.bottom))}
        found |= {"density": min(n, self.probes * self.steps)} if self.density else {"trace": min(n, TRACE_PRODUCTS)}
        if self.blocks:
            found["blocks"] = self.probes * len(self.blocks)
        return found


def question(wish: Wish, source: Mapping[str, Any]) -> dict[str, Any]:
    """What a resumed run must find again. More products may be asked for, and another route taken."""
    asked = {k: v for k, v in asdict(wish).items() if k not in ("products", "route")}
    return asked | {"weights": source["weights"], "blocks": list(wish.blocks)}


# --- the verb -------------------------------------------------------------------------------------------------------
def run(config: SpectrumConfig, folder: str | Path | None = None, progress: bool | Report = True) -> Record:
    """Answer `quadform spectrum`; `folder` keeps unfinished work."""
    risk, wish, source = _open(config)
    group = group_of(risk.space)
    journal = Journal(folder, question(wish, source), resume=config.resume, group=group)
    return measure(risk, wish, source, journal, Deadline(config.seconds, group), progress).record


def plan(config: SpectrumConfig) -> dict[str, Any]:
    """What `quadform spectrum --dry-run` tells: coverage, products, memory, time."""
    risk, wish, _ = _open(config)
    A = _operator(risk, wish)
    with _threads(A, risk):
        return cost_of(A, risk, wish)


def _open(config: SpectrumConfig) -> tuple[Risk, Wish, dict[str, Any]]:
    subject = open_subject(config)
    risk = shard(subject.risk(config, quiet=True), current())
    wish = Wish(
        blocks={} if config.blocks == "none" else groups(risk.space, config.blocks),
        **{n: getattr(config, n) for n in ("top", "bottom", "density", "curvature", "products", "probes", "steps")},
        **{n: getattr(config, n) for n in ("tol", "seed", "route")},
    )
    return risk, wish, dict(subject.source)


# --- measuring ------------------------------------------------------------------------------------------------------
def _operator(risk: Risk, wish: Wish) -> Operator:
    if wish.curvature not in _MAKE:
        raise InputError(f"curvature {wish.curvature!r} is not one of {', '.join(_MAKE)}.")
    expected = sum(wish.plan(risk.space.size).values())
    return _MAKE[wish.curvature](risk, route=wish.route, products=expected)


def cost_of(A: Any, risk: Risk, wish: Wish) -> dict[str, Any]:
    """Products, seconds and bytes before the work, by the route that will be taken; one product is run for it."""
    n, planned = risk.space.size, wish.plan(risk.space.size)
    seconds = A.run.predict(_vector(risk))
    route = fastest(seconds) if wish.route == "auto" else wish.route
    basis = max(ROWS, 2 * (wish.top + wish.bottom) + 24)
    rows = max(basis, wish.steps * wish.probes + wish.top if wish.density else 0) + 8
    total = sum(planned.values())
    vectors = vector_seconds(group_of(risk.space).longest(n), risk.dtype, risk.device, ROWS // 2)
    return {
        "coverage": risk.coverage,
        "notes": list(risk.notes),
        "products": total,
        "planned": planned,
        "most": total - planned["eigenvalues"] + min(wish.most, n),
        "route": route,
        "seconds": seconds[route] + vectors * sum(VECTOR_WORK[piece] * count for piece, count in planned.items()),
        "bytes": float(min(rows, n) * group_of(risk.space).longest(n) * risk.dtype.itemsize),
    }


def _vector(risk: Risk) -> dict[str, Tensor]:
    generator = torch.Generator(risk.device).manual_seed(0)
    return risk.space.random(1, dtype=risk.dtype, device=risk.device, generator=generator)


class _Clock:
    """One progress bar and one deadline over several estimators: hand `of(name)` to each as its `progress`."""

    def __init__(self, planned: Mapping[str, int], deadline: Deadline, show: bool | Report) -> None:
        self.planned, self.deadline = dict(planned), deadline
        self.bar = Progress(sum(planned.values()), "spectrum", show=show)
        self.before, self.last = 0, 0  # products of the estimators before, and of this one

    def of(self, name: str) -> Report:
        self.before, self.last = self.before + self.last, 0
        del self.planned[name]
        later = sum(self.planned.values())
        told: list[int] = []

        def report(done: int, total: int, left: float, text: str) -> None:
            expected = total if name != "eigenvalues" else self.bar.total - self.before - later
            self.bar.total = self.before + max(done, expected) + later
            self.bar.step(self.before + done - self.bar.done, text if name == "eigenvalues" else name)
            self.last = done
            if told:  # the first step of each estimator may be what it found on disk: one product more always passes
                self.deadline.check()
            told.append(done)

        return report


@contextlib.contextmanager
def _threads(A: Any, risk: Risk) -> Iterator[None]:
    """One thread where a product is not faster with several: small matrices, or a busy machine."""
    before = torch.get_num_threads()
    if risk.device.type == "cpu" and before > 1 and group_of(risk.space).world == 1:
        v = _vector(risk)
        many = A.run.predict(v)["eager"]
        torch.set_num_threads(1)
        if A.run.predict(v)["eager"] > many:
            torch.set_num_threads(before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    risk: Risk, wish: Wish, source: Mapping[str, Any], journal: Journal, deadline: Deadline, progress: bool | Report
) -> Spectrum:
    """Everything the wish names, or as much of it as the time allows, marked partial."""
    A: Any = _operator(risk, wish)
    with _threads(A, risk):
        return _in_time(A, risk, wish, source, journal, deadline, progress)


def _in_time(
    A: Any,
    risk: Risk,
    wish: Wish,
    source: Mapping[str, Any],
    journal: Journal,
    deadline: Deadline,
    progress: bool | Report,
) -> Spectrum:
    begun = time.monotonic()
    cost = cost_of(A, risk, wish)
    if wish.route == "auto":
        A.run.route = cost["route"]
    if progress:
        say(cost_line(cost))
    found = _Found()
    with tempfile.TemporaryDirectory() as scratch:
        state = journal.state("") or (Path(scratch) if deadline.until is not None else None)
        with (clock := _Clock(cost["planned"], deadline, progress)).bar:
            try:
                _measure(A, wish, state, clock, found)
            except TimeUp:
                found.partial = True
                if not found.pairs:  # what the products so far say, without new ones
                    pairs = eigenpairs(A, **_eigen(wish, state, clock.last))
                    found.take_pairs(pairs)
    found.scalars |= _point(risk, wish, found.scalars.get("top/0"))
    if wish.blocks and not found.partial:
        for path, norms in functional_norms(risk.whole).items():
            found.scalars |= {f"functional/{path}/{a},{b}": e for (a, b), e in norms.items()}
    if found.pairs and found.pairs.converged and not found.partial:
        journal.forget_state()
    spent = {"products": found.products, "seconds": time.monotonic() - begun, "route": A.route, "bytes": cost["bytes"]}
    inputs = {
        "source": dict(source),
        "curvature": wish.curvature,
        "coverage": risk.coverage,
        "notes": list(risk.notes),
        "parameters": risk.space.size,
        **probe_of(risk.whole.batches),
        "cost": spent,
        "top": wish.top,
        "bottom": wish.bottom,
        "blocks": list(wish.blocks) if "blocks/value" in found.tensors else [],
        "partial": found.partial,
    }
    made = Provenance.collect(seed=wish.seed, dtype=risk.dtype, device=risk.device)
    record = Record(KIND, inputs, found.scalars, found.tensors, made)
    return Spectrum(record, vectors=found.pairs.vectors if found.pairs else None)


def _point(risk: Risk, wish: Wish, top: Estimate | None) -> dict[str, Estimate]:
    """Loss and slope, and what a step of gradient descent takes off at least: whether the point is stationary."""
    with torch.no_grad():
        out = {"loss": Estimate(float(risk.value()))}
    slope = sum(float(g.double().square().sum()) for g in risk.gradient().values()) ** 0.5
    out["gradient_norm"] = Estimate(slope)
    known = top is not None and top.converged and wish.curvature == "hessian"
    drop = descent(slope, top.value + (top.error or 0.0)) if top is not None and known else None
    if drop is not None:
        out["descent"] = Estimate(drop, kind="bound", note="to second order, one step at 1 / lambda_max, at least")
    return out


class _Found:
    """What has been measured so far."""

    def __init__(self) -> None:
        self.scalars: dict[str, Estimate] = {}
        self.tensors: dict[str, Tensor] = {}
        self.pairs: Any = None
        self.products = 0
        self.partial = False

    def take_pairs(self, pairs: Any) -> None:
        self.pairs = pairs
        self.products += pairs.products
        self.scalars |= {f"top/{i}": e for i, e in enumerate(pairs.top)}
        self.scalars |= {f"bottom/{i}": e for i, e in enumerate(pairs.bottom)}


def _eigen(wish: Wish, state: Path | None, most: int) -> dict[str, Any]:
    options: dict[str, Any] = {"top": wish.top, "bottom": wish.bottom, "tol": wish.tol, "seed": wish.seed}
    return options | {"max_products": max(most, wish.top, wish.bottom, 1), "resume": state}


def _measure(A: Any, wish: Wish, state: Path | None, clock: _Clock, found: _Found) -> None:
    pairs = eigenpairs(A, **_eigen(wish, state, min(wish.most, A.domain.size)), progress=clock.of("eigenvalues"))
    found.take_pairs(pairs)
    common: dict[str, Any] = {"seed": wish.seed, "resume": state}
    if wish.density:
        d = density(A, wish.probes, wish.steps, known=pairs, progress=clock.of("density"), **common)
        found.products += d.products
        found.scalars |= {"trace": d.sum(lambda x: x), "negative_share": d.negative_mass()}
        found.scalars["negative_curvature"] = d.negative_curvature()
        found.scalars["rms"] = _root(d.moment(2))
        curve = d.curve()
        found.tensors |= {f"density/{n}": getattr(curve, n) for n in ("x", "u", "density", "stderr")}
        found.scalars["linear"] = Estimate(curve.linear, note="where the axis turns from linear to logarithmic")
    else:
        found.scalars["trace"] = trace(A, TRACE_PRODUCTS, progress=clock.of("trace"), **common)
        found.products += found.scalars["trace"].matvecs
    if wish.blocks:
        norms = block_norms(A, wish.blocks, wish.probes, progress=clock.of("blocks"), **common)
        found.products += norms.matvecs
        sizes = [A.domain.select(*globs).size for globs in wish.blocks.values()]
        found.tensors |= {"blocks/value": norms.value, "blocks/stderr": norms.stderr}
        found.tensors |= {"blocks/exact": norms.exact.to(torch.uint8), "blocks/sizes": torch.tensor(sizes)}
        if len(wish.blocks) > 1:
            found.scalars["heterogeneity"] = norms.heterogeneity(sizes)


def _root(square: Estimate) -> Estimate:
    value = max(square.value, 0.0) ** 0.5
    spread = None if square.error is None else square.error / (2 * value) if value else 0.0
    return Estimate(value, spread, square.kind, square.matvecs, note="root mean square eigenvalue, |H|_F / sqrt(n)")


def cost_line(cost: Mapping[str, Any]) -> str:
    """Coverage and cost in one line, before the work."""

    more = f", at most {cost['most']}" if cost["most"] > cost["products"] else ""
    parts = "; ".join([cost["coverage"], *cost["notes"]])
    split = " + ".join(f"{n} {name}" for name, n in cost["planned"].items())
    return (
        f"{parts}\nabout {cost['products']} products{more} ({split}), {clock(cost['seconds'])} by the {cost['route']}"
        f" route, {in_words(cost['bytes'])} for vectors; cheaper: `--top 1`, `--blocks none`, `--params`"
    )
