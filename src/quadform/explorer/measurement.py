"""`measure`: a state becomes a Record of kind `attention`, by the closed forms of theory/ or, for a stack, by autodiff.

Everything the page shows is in the record; nothing behind it computes a number again.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..answers.attention_draft import ExploredDraft
from ..applications.attention.growth import PARTS, Sweep, block_norms, entropy, paper_exponents
from ..applications.attention.measure import autodiff_error, problem_of, spectrum_numbers
from ..applications.attention.question import BLOCKS, MERGED_BLOCKS, AttentionQuestion
from ..applications.problem import Problem
from ..core.errors import InputError
from ..core.record import Estimate, Provenance, Record
from ..propagation.collapse import effective_rank, token_cosine
from ..theory.moments import moment_norms
from .data import Uploads, labels_of, tokens_of
from .stack import Stack
from .state import RANGES, ControlError, State

#: Live slopes are fitted over the input scale times exp(-reach), 1 and exp(reach). A closed form is smooth; in a stack
#: the ReLUs switch every half per cent, and a slope between two switches says nothing of growth.
REACH = {"closed": 0.005, "autodiff": 0.1}
#: Scales at which the attention's entropy is looked at, to know where it saturates.
LOOKED_AT = 25


def measure(state: State, uploads: Uploads | None = None) -> Record:
    """The Hessian of the state's layer, its parts and spectrum, block norms and how they grow, its attention."""
    L, d, given = tokens_of(state, Uploads() if uploads is None else uploads)
    try:
        asked = AttentionQuestion(
            tokens=L,
            d_model=d,
            d_k=given["W_Q"].shape[1] if "W_Q" in given else None,
            d_v=given["W_V"].shape[1] if "W_V" in given else None,
            attention=state.attention if state.closed else "softmax",
            factor=state.factor,
            scale=state.scale,
            temperature=state.temperature,
            sink=0.0 if state.attention == "linear" else state.sink,
            seed=state.seed,
            vary=None,
        )
    except InputError as error:
        raise ControlError("attention", "other", text=str(error)) from error
    problem = replace(problem_of(asked), **given)  # type: ignore[arg-type]  # fields by name
    subject: _Closed | _Stacked = _Closed(problem) if state.closed else _Stacked(Stack.of(state, problem, given))
    record = _record(subject, state)
    inputs = asked.inputs() | {
        "attention": state.attention,
        "vary": None,
        "fit_range": _grid(subject, state)[::2],
        "space": [[name, list(shape)] for name, shape in subject.space.parts],
        "route": subject.route,
        "labels": labels_of(state, L),
        "state": state.json(),
    }
    return replace(record, inputs=inputs)


def _grid(subject: Any, state: State) -> list[float]:
    """The three scales of a slope."""
    reach = REACH[subject.route]
    return [state.scale * math.exp(-reach), state.scale, state.scale * math.exp(reach)]


def _record(subject: Any, state: State) -> Record:
    started = time.perf_counter()
    H_o, H_f = subject.parts()
    seconds = time.perf_counter() - started
    H = H_o + H_f
    if not bool(torch.isfinite(H).all()):
        raise ControlError("scale", "finite")
    blocks = subject.blocks
    found, (A, keys) = ExploredDraft(), subject.pattern()
    found.layer(subject.loss(), H_o, H_f, A)
    for part, M in (("functional", H_f), ("outer", H_o), ("total", H)):
        eigenvalues = torch.linalg.eigvalsh(M)
        found.eigenvalues(part, eigenvalues)
    found.numbers(spectrum_numbers(eigenvalues, H))
    found.numbers({subject.check_name: subject.check(H), "seconds": Estimate(seconds, note="one run, wall clock")})
    grid = _grid(subject, state)
    norms = [subject.norms(scale, (H_o, H_f) if scale == state.scale else None) for scale in grid]
    sweep = Sweep.of("scale", blocks, grid, norms)
    found.norms(norms[1])
    for part in PARTS:
        found.slopes(part, sweep.fits(part, (grid[0], grid[-1])))
    found.exponents(subject.paper())
    if state.attention == "softmax":
        found.numbers({"entropy": Estimate(entropy(A))})
        found.pattern(float(A[:, 0].mean()), moment_norms(A, keys).tolist())
        if len(A) > 1:
            low, high = RANGES["scale"]
            scales = torch.logspace(math.log10(low), math.log10(high), LOOKED_AT, dtype=torch.float64)
            found.growth(scales, {})
            found.softened({"entropy": [subject.entropy_at(s) for s in scales.tolist()]})
    found.ingredients(subject.ingredients())
    if len(A) > 1:
        streams = subject.streams()
        found.depth(
            cosine=torch.stack([token_cosine(X) for X in streams]),
            effective_rank=torch.stack([effective_rank(X) for X in streams]),
        )
    made = replace(_here(), seed=state.seed, made_at=datetime.now(UTC).isoformat(timespec="seconds"))
    return found.unread({}, made)


@cache
def _here() -> Provenance:
    """Versions and machine, looked up once: it takes as long as the Hessian."""
    return Provenance.collect(dtype=torch.float64, device=torch.device("cpu"))


class _Closed:
    """One attention layer: every number by the closed forms."""

    route = "closed"
    check_name = "autodiff_error"

    def __init__(self, problem: Problem) -> None:
        self.problem, self.blocks, self.space = problem, problem.blocks, problem.space
        self.layer = problem.layer()

    def parts(self) -> tuple[Tensor, Tensor]:
        layer = self.problem.layer()
        return layer.outer_operator().dense(), layer.functional_operator().dense()

    def norms(self, scale: float, parts: Any) -> dict[str, float]:
        return block_norms(self.layer if parts else self.problem.at(scale).layer(), self.blocks)

    def loss(self) -> float:
        return float(self.problem.loss(self.problem.weights))

    def pattern(self) -> tuple[Tensor, Tensor]:
        return self.problem.pattern(self.problem.weights), self.problem.scale * self.problem.X

    def entropy_at(self, scale: float) -> float:
        at = self.problem.at(scale)
        return entropy(at.pattern(at.weights))

    def paper(self) -> dict[str, Estimate]:
        return paper_exponents("single" if self.problem.factor == "single" else self.problem.attention)

    def check(self, H: Tensor) -> Estimate:
        return autodiff_error(self.problem, H)

    def ingredients(self) -> dict[str, float]:
        """What the formulas are made of, as numbers."""
        p = self.problem
        W, X = p.weights, p.scale * p.X
        g = 2 * (p.output(W) - p.Y) / p.Y.numel()
        per_token = {"x": X, "g": g, "m": p.pattern(W) @ X}
        found = {name: float(t.norm(dim=1).mean()) for name, t in per_token.items()}
        found["sc"] = 1 / (p.temperature * math.sqrt(p.W_Q.shape[1]))
        found |= {name: float(w.norm()) for name, w in W.items()}
        if p.attention == "linear":
            found["G2"] = float((X.T @ X).norm())
        return found

    def streams(self) -> list[Tensor]:
        return [self.problem.scale * self.problem.X, self.problem.output(self.problem.weights)]


class _Stacked:
    """One layer of a stack of blocks: every number by automatic differentiation."""

    route = "autodiff"
    check_name = "difference_error"

    def __init__(self, stack: Stack) -> None:
        self.stack, self.space = stack, stack.space
        names = self.space.names
        self.blocks = tuple(
            block for block in (MERGED_BLOCKS if "W_QK" in names else BLOCKS) if set(block.split(",")) <= set(names)
        )

    def parts(self) -> tuple[Tensor, Tensor]:
        return self.stack.parts()

    def norms(self, scale: float, parts: Any) -> dict[str, float]:
        H_o, H_f = parts or self.stack.at(scale).parts()
        at, found = self.space.slices(), {}
        for part, M in (("outer", H_o), ("functional", H_f), ("total", H_o + H_f)):
            for block in self.blocks:
                row, col = block.split(",")
                found[f"{part}/{block}"] = float(M[at[row], at[col]].norm())
        return found

    def loss(self) -> float:
        return float(self.stack.loss())

    def pattern(self) -> tuple[Tensor, Tensor]:
        return self.stack.pattern()

    def entropy_at(self, scale: float) -> float:
        return entropy(self.stack.at(scale).pattern()[0])

    def paper(self) -> dict[str, Estimate]:
        return {}

    def check(self, H: Tensor) -> Estimate:
        return Estimate(self.stack.difference(H), note="one direction, central differences of the gradient")

    def ingredients(self) -> dict[str, float]:
        return {name: float(w.norm()) for name, w in self.stack.weights.items()}

    def streams(self) -> list[Tensor]:
        return self.stack.streams()
