"""Measuring the exact Hessian of one attention layer: its parts, their spectra, block norms and their growth."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from typing import Any

import torch
from torch import Tensor

from ...answers.attention import AttentionAnswer
from ...answers.attention_draft import AttentionDraft
from ...core.errors import InputError
from ...core.memory import in_words
from ...core.progress import clock
from ...core.question import Plan
from ...core.record import Estimate, Provenance
from ...core.work import Work
from ...theory.kronecker import kronecker_errors
from ...theory.moments import moment_norms
from ..machine import DTYPES, MATRICES, device_of, guard, guard_tokens
from ..problem import Problem, toy_problem
from ..threads import threads_for
from .growth import PARTS, Sweep, block_norms, entropy, paper_exponents
from .question import AttentionQuestion

#: Above this many parameters the closed form is compared with autodiff on some columns only.
_FULL_CHECK = 800
_COLUMNS = 64
#: A whole answer without its sweep takes about as long as this many Hessians: spectra, the autodiff twin, the timing.
AS_MANY = 60


def problem_of(asked: AttentionQuestion) -> Problem:
    """The seeded problem a question is about."""
    tokens, d_model, d_k, d_v = asked.shape
    return toy_problem(
        tokens=tokens,
        d_model=d_model,
        d_k=d_k,
        d_v=d_v,
        seed=asked.seed,
        dtype=DTYPES[asked.dtype],
        device=device_of(asked.device),
        scale=asked.scale,
        attention=asked.attention,
        temperature=asked.temperature,
        mask=asked.mask,
        factor=asked.factor,
        sink=asked.sink,
    )


class AttentionMeasurement:
    """One layer and its sweep; what does not fit in memory is refused here."""

    def __init__(self, asked: AttentionQuestion) -> None:
        self.asked, self.sweep = asked, asked.vary
        self.device, self.dtype = device_of(asked.device), DTYPES[asked.dtype]
        guard(asked.parameters, self.device, self.dtype)
        guard_tokens(1, asked.tokens, asked.d_model, 1, self.device, self.dtype)
        self.problem = problem_of(asked)

    def plan(self) -> Plan:
        """Memory, and time from one Hessian made now, the second of two."""
        P, points = self.asked.parameters, self.sweep.points if self.sweep else 0
        with threads_for(P):
            self.problem.layer().hessian().dense()
            start = time.perf_counter()
            self.problem.layer().hessian().dense()
            seconds = (AS_MANY + points) * (time.perf_counter() - start)
        size = float(MATRICES * self.dtype.itemsize * P**2)
        text = (
            f"plan: the exact Hessian of {P:,} parameters, three dense spectra, {points} scales;"
            f" {in_words(size)}, about {clock(seconds)} in all"
        )
        return Plan(text, seconds=seconds, bytes=size, details={"parameters": P})

    def measure(self, work: Work) -> AttentionAnswer:
        """The Hessian and its parts, their spectra, block norms, and their growth along the sweep."""
        asked, problem = self.asked, self.problem
        points = self.sweep.points if self.sweep else 0
        with threads_for(asked.parameters), work.bar(5 + points, "attention", each=1):
            with work.counting("Hessian", 1):
                layer, H_o, H_f = _finite(problem)
            found, A = AttentionDraft(), problem.pattern(problem.weights)
            found.layer(float(problem.loss(problem.weights)), H_o, H_f, A)
            for part, matrix in (("functional", H_f), ("outer", H_o), ("total", H_o + H_f)):
                with work.counting("eigenvalues", 1):
                    eigenvalues = torch.linalg.eigvalsh(matrix)
                found.eigenvalues(part, eigenvalues)
            found.numbers(spectrum_numbers(eigenvalues, H_o + H_f))
            with work.counting("checked against autodiff", 1):
                found.numbers({"autodiff_error": autodiff_error(problem, H_o + H_f), "seconds": _seconds(problem)})
            found.norms(block_norms(layer, problem.blocks))
            if asked.precond != "none":
                found.kronecker(kronecker_family(layer, asked.precond))
            if asked.attention == "softmax":
                found.numbers({"entropy": Estimate(entropy(A))})
            inputs = asked.inputs()
            points_of = self._grown(work)
            if len(points_of) >= 2:
                at = list(points_of.values())
                grown = Sweep.of("scale", problem.blocks, list(points_of), [each["norms"] for each in at])
                inputs["fit_range"] = list(grown.fit_range)
                for part in PARTS[:2]:
                    found.slopes(part, grown.fits(part))
                found.exponents(paper_exponents("single" if asked.factor == "single" else asked.attention))
                found.growth(grown.values, grown.norms)
                found.softened({n: [each["attention"][n] for each in at] for n in at[0].get("attention", ())})
        return found.answer(inputs, Provenance.collect(seed=asked.seed, dtype=self.dtype, device=self.device))

    def _grown(self, work: Work) -> dict[float, dict[str, Any]]:
        """What is found at every scale of the sweep, as far as the time allows."""
        found = {}
        with work.in_time():
            for i, scale in enumerate(self.sweep.grid if self.sweep else ()):
                found[scale] = work.piece(f"scale {i + 1}, {scale:.3g}", functools.partial(self._at, scale))
        return found

    def _at(self, scale: float) -> dict[str, Any]:
        """Block norms at a scale; of a softmax there its entropy, the weight its least decided query gives to all but
        one token, and norms of its moments."""
        at = self.problem.at(scale)
        A = at.pattern(at.weights)
        norms: dict[str, float] = {}
        with contextlib.suppress(OverflowError, torch.linalg.LinAlgError, InputError):  # the scale alone is new here
            norms = block_norms(at.layer(), at.blocks)
        if not norms or not all(map(math.isfinite, norms.values())):
            raise InputError(
                f"at scale {scale:.3g} the curvature exceeds the range of {A.dtype}. End the sweep below it."
            )
        if at.attention != "softmax":
            return {"norms": norms}
        undecided = A.sort(-1).values[:, :-1].sum(-1).max()
        found: dict[str, Any] = {"entropy": entropy(A), "undecided": float(undecided)}
        if len(A) > 1:  # one token has one key: nothing spreads
            found["moments"] = moment_norms(A, at.scale * at.X)
        return {"norms": norms, "attention": found}


def _finite(problem: Problem) -> tuple[Any, Tensor, Tensor]:
    """The layer with H_o and H_f (P, P); numbers that leave floating point on the way are refused."""
    try:
        layer = problem.layer()
        H_o, H_f = layer.outer_operator().dense(), layer.functional_operator().dense()
        if bool((H_o + H_f).isfinite().all()):
            return layer, H_o, H_f
    except OverflowError:
        pass
    raise InputError(
        f"the curvature exceeds the range of {problem.X.dtype} at scale {problem.scale:g}, temperature"
        f" {problem.temperature:g} and sink {problem.sink:g}. Choose values nearer to 1."
    )


def kronecker_family(layer: Any, precond: str) -> dict[str, dict[str, float]]:
    """W -> kind -> |K - H_o(W, W)| / |H_o(W, W)| of one family, and of the nearest of all."""
    family = {"kfac": "K-FAC", "shampoo": "Shampoo"}[precond]
    return {
        name: {kind: error for kind, error in errors.items() if kind.startswith(family) or kind == "nearest"}
        for name, errors in kronecker_errors(layer).items()
    }


def spectrum_numbers(eigenvalues: Tensor, H: Tensor) -> dict[str, Estimate]:
    """Extreme eigenvalues, share of negative ones, trace and step ceiling, from the eigenvalues in ascending order."""
    low, high = float(eigenvalues[0]), float(eigenvalues[-1])
    sure = eigenvalues.dtype == torch.float64  # in float32 small eigenvalues are rounding: a share of the others
    tolerance = 1e-10 if sure else 10 * math.sqrt(len(H)) * torch.finfo(eigenvalues.dtype).eps
    negative = eigenvalues < -tolerance * max(abs(low), abs(high))
    return {
        "lambda_max": Estimate(high),
        "lambda_min": Estimate(low),
        "negative_share": Estimate(
            float(negative.double().mean()),
            kind="exact" if sure else "bound",
            note=f"eigenvalues below -{tolerance:.2g} |lambda|max",
        ),
        "trace": Estimate(float(H.diagonal().sum())),
        "ceiling_sgd": Estimate(2 / high if high > 0 else math.inf, note="2 / lambda_max; a ceiling, no advice"),
    }


def autodiff_error(problem: Problem, H: Tensor) -> Estimate:
    """max |closed form - autodiff| / max |H|, on every column or, for a large H, on some of them."""
    P = len(H)
    columns = None
    if P > _FULL_CHECK:
        columns = torch.linspace(0, P - 1, _COLUMNS, device=H.device).round().long()
    closed = H if columns is None else H[:, columns]
    error = float((closed - problem.autodiff(columns)).abs().max() / H.abs().max().clamp_min(1e-300))
    return Estimate(error, note="all columns" if columns is None else f"{_COLUMNS} of {P:,} columns")


def _seconds(problem: Problem) -> Estimate:
    """Time of one exact Hessian, from the tensors to the dense matrix: median of the runs of half a second."""
    problem.layer().hessian().dense()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 0.5 and len(times) < 20):
        start = time.perf_counter()
        problem.layer().hessian().dense()
        if problem.X.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    runs = torch.tensor(times, dtype=torch.float64)
    return Estimate(
        float(runs.median()), error=float(runs.std() / len(times) ** 0.5), kind="estimate", note=f"{len(times)} runs"
    )
