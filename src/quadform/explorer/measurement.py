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

import numpy as np
import torch
from scipy.linalg import eigvalsh
from scipy.linalg.lapack import dpstrf as pstrf
from torch import Tensor

from ..answers.attention_draft import ExploredDraft, with_eigenvalues
from ..answers.live import LiveAnswer
from ..applications.attention.growth import PARTS, Sweep, entropy, paper_exponents
from ..applications.attention.measure import problem_of, spectrum_numbers
from ..applications.attention.question import BLOCKS, MERGED_BLOCKS, AttentionQuestion
from ..applications.problem import Problem
from ..core.errors import InputError
from ..core.record import Estimate, Provenance, Record
from ..core.rng import stream
from ..core.space import Space
from ..propagation.collapse import effective_rank, token_cosine
from ..theory.kronecker import kronecker_errors
from ..theory.moments import moment_norms
from .data import Uploads, labels_of, tokens_of
from .stack import Stack
from .state import RANGES, ControlError, State

#: Live slopes are fitted over the input scale times exp(-reach), 1 and exp(reach). A closed form is smooth; in a stack
#: the ReLUs switch every half per cent, and a slope between two switches says nothing of growth.
REACH = {"closed": 0.005, "autodiff": 0.1}
#: Scales at which the attention's entropy is looked at, to know where it saturates.
LOOKED_AT = 25
#: Rows up to which SciPy takes a matrix apart.
LOCKED_UP_TO = 1000


def measure(state: State, uploads: Uploads | None = None) -> Record:
    """The Hessian of the state's layer, its parts and its spectrum, block norms and how they grow, its attention.

    Spectra of the parts are added where they are looked at (`with_spectrum`)."""
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
    if not math.isfinite(float(H.sum())):  # one entry that is not finite is enough
        raise ControlError("scale", "finite")
    blocks = subject.blocks
    found, (A, keys) = ExploredDraft(), subject.pattern()
    found.layer(subject.loss(), H_o, H_f, A)
    eigenvalues = _eigenvalues(H)
    found.eigenvalues("total", eigenvalues)
    found.numbers(spectrum_numbers(eigenvalues, H))
    found.numbers({subject.check_name: subject.check(H), "seconds": Estimate(seconds, note="one run, wall clock")})
    grid = _grid(subject, state)
    norms = [
        _norms(blocks, subject.space, (H_o, H_f) if scale == state.scale else subject.at(scale).parts())
        for scale in grid
    ]
    sweep = Sweep.of("scale", blocks, grid, norms)
    found.norms(norms[1])
    for part in PARTS:
        found.slopes(part, sweep.fits(part, (grid[0], grid[-1])))
    found.exponents(subject.paper())
    found.kronecker(subject.kronecker())
    if state.attention == "softmax":
        found.numbers({"entropy": Estimate(entropy(A))})
        found.pattern(float(A[:, 0].mean()), moment_norms(A, keys).tolist())
        if len(A) > 1:
            low, high = RANGES["scale"]
            scales = torch.logspace(math.log10(low), math.log10(high), LOOKED_AT, dtype=torch.float64)
            found.growth(scales, {})
            found.softened({"entropy": subject.entropies(scales)})
    found.ingredients(subject.ingredients())
    if len(A) > 1:
        streams = subject.streams()
        found.depth(
            cosine=torch.stack([token_cosine(X) for X in streams]),
            effective_rank=torch.stack([effective_rank(X) for X in streams]),
        )
    made = replace(_here(), seed=state.seed, made_at=datetime.now(UTC).isoformat(timespec="seconds"))
    return found.unread({}, made)


def with_spectrum(record: Record, part: str) -> Record:
    """The record with the eigenvalues of a part; those of the whole H are always there."""
    read = LiveAnswer(record)
    if part in read.spectra:
        return record
    M = read.matrix(part)
    return with_eigenvalues(record, part, low_rank_eigenvalues(M) if part == "outer" else _eigenvalues(M))


def _eigenvalues(M: Tensor) -> Tensor:
    """Of a symmetric matrix on the CPU, by SciPy's LAPACK: at 432 rows half the processor time of torch's. SciPy holds
    Python's lock meanwhile, so that nothing hears a Ctrl-C: of large matrices torch's."""
    if len(M) > LOCKED_UP_TO:
        return torch.linalg.eigvalsh(M)
    return torch.from_numpy(eigvalsh(M.numpy(), check_finite=False))


def low_rank_eigenvalues(M: Tensor) -> Tensor:
    """Of a positive semi-definite matrix whose rank r is well below its size n: O(n r^2) instead of O(n^3).

    A pivoted Cholesky factor L (n, r) leaves out what is below n eps max(diag M); M and L^T L have the same eigenvalues
    but for zeros. H_o = J^T (d2l/dF2) J has at most the rank of the outputs. Where the factor does not carry the whole
    trace, M was not positive semi-definite, and the eigenvalues are those of M itself.
    """
    n = len(M)
    if n > LOCKED_UP_TO:
        return _eigenvalues(M)
    factor, _, rank, _ = pstrf(M.numpy(), lower=1)
    if 2 * rank > n:
        return _eigenvalues(M)
    L = np.tril(factor[:, :rank])
    if abs(np.vdot(L, L) - float(M.trace())) > n * n * np.finfo(L.dtype).eps * float(M.diagonal().abs().max()):
        return _eigenvalues(M)
    found = eigvalsh(L.T @ L, check_finite=False).clip(min=0.0)
    return torch.from_numpy(np.concatenate([np.zeros(n - rank), found]))


def _norms(blocks: tuple[str, ...], space: Space, parts: tuple[Tensor, Tensor]) -> dict[str, float]:
    """`outer/W_Q,W_K` -> Frobenius norm of that block."""
    (H_o, H_f), at = parts, space.slices()
    found = {}
    for part, M in (("outer", H_o), ("functional", H_f), ("total", H_o + H_f)):
        for block in blocks:
            row, col = block.split(",")
            found[f"{part}/{block}"] = float(torch.linalg.vector_norm(M[at[row], at[col]]))
    return found


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

    def at(self, scale: float) -> _Closed:
        return _Closed(self.problem.at(scale))

    def parts(self) -> tuple[Tensor, Tensor]:
        H_o, H_f = self.problem.X.new_empty((2, self.space.size, self.space.size)).unbind()  # the size guard has looked
        return self.layer.matrix("outer", out=H_o), self.layer.matrix("functional", out=H_f)

    def loss(self) -> float:
        return float(self.problem.loss(self.problem.weights))

    def pattern(self) -> tuple[Tensor, Tensor]:
        return self.problem.pattern(self.problem.weights), self.problem.scale * self.problem.X

    def entropies(self, scales: Tensor) -> list[float]:
        """At every scale; scores grow as its square."""
        T = replace(self.problem, attention="linear", scale=1.0).pattern(self.problem.weights)
        A = (scales.square()[:, None, None] * T + self.problem.bias).softmax(-1)
        return (torch.special.entr(A).sum(-1).mean(-1) / math.log(len(T))).tolist()

    def paper(self) -> dict[str, Estimate]:
        return paper_exponents("single" if self.problem.factor == "single" else self.problem.attention)

    def kronecker(self) -> dict[str, dict[str, float]]:
        """W -> K-FAC, Shampoo, ... -> |K - H_o(W, W)| / |H_o(W, W)|; nothing where they are not known."""
        try:
            return kronecker_errors(self.layer)
        except InputError:
            return {}

    def check(self, H: Tensor) -> Estimate:
        """max |H v - double backward| / max |H v| along one random direction."""
        v = torch.randn(len(H), generator=stream(0, "explorer/check"), dtype=H.dtype)
        Hv = H @ v
        error = float((Hv - self.problem.product(v)).abs().max() / Hv.abs().max().clamp_min(1e-300))
        return Estimate(error, note="one direction, double backward")

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

    def at(self, scale: float) -> Stack:
        return self.stack.at(scale)

    def loss(self) -> float:
        return float(self.stack.loss())

    def pattern(self) -> tuple[Tensor, Tensor]:
        return self.stack.pattern()

    def entropies(self, scales: Tensor) -> list[float]:
        return [entropy(self.stack.at(scale).pattern()[0]) for scale in scales.tolist()]

    def paper(self) -> dict[str, Estimate]:
        return {}

    def kronecker(self) -> dict[str, dict[str, float]]:
        return {}

    def check(self, H: Tensor) -> Estimate:
        return Estimate(self.stack.difference(H), note="one direction, central differences of the gradient")

    def ingredients(self) -> dict[str, float]:
        return {name: float(w.norm()) for name, w in self.stack.weights.items()}

    def streams(self) -> list[Tensor]:
        return self.stack.streams()
