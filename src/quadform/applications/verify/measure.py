"""Three ways to one Hessian that share no code but torch itself: closed form, double backward, finite differences."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...core.errors import CheckFailed
from ...core.question import Plan
from ...core.record import Estimate, Provenance, Record
from ...core.rng import stream
from ...core.work import Work
from ...testing import check_operator
from ..machine import device_of, guard, guard_tokens
from ..problem import Problem, toy_problem
from ..threads import threads_for
from .answer import Verification
from .question import VerifyQuestion

#: Identity -> largest error, relative to max|H|. Rounding leaves 1e-15 for tokens ~ N(0, 1); a central difference of
#: the gradient is good to 1e-8.
LIMITS = {
    "H_o, every block: closed form = autodiff": 1e-12,
    "H_f, every block: closed form = autodiff": 1e-12,
    "H, every block: closed form = autodiff": 1e-12,
    "H v: analytic product = autodiff": 1e-12,
    "H v: analytic product = finite difference": 1e-6,
    "gradient: closed form = autodiff": 1e-12,
    "H: operator contract": 1e-10,
    "H_o: operator contract": 1e-10,
    "H_f: operator contract": 1e-10,
}

KINDS: tuple[dict[str, Any], ...] = (
    {"attention": "softmax"},
    {"attention": "softmax", "mask": "causal"},
    {"attention": "linear"},
    {"attention": "softmax", "factor": "single"},
)


class VerifyMeasurement:
    """Every identity on random layers: independent sizes from 1 to `largest`, the kinds of `KINDS` in turn."""

    def __init__(self, asked: VerifyQuestion) -> None:
        self.asked, self.device = asked, device_of(asked.device)
        guard(3 * asked.largest**2, self.device, torch.float64)
        guard_tokens(1, asked.largest, asked.largest, 1, self.device, torch.float64)

    def plan(self) -> Plan:
        return Plan(f"plan: {self.asked.shapes:,} random layers with sizes up to {self.asked.largest}")

    def measure(self, work: Work) -> Verification:
        """The largest error of every identity, and the layer it came from."""
        asked, layers = self.asked, []
        with threads_for(3 * asked.largest**2), work.bar(asked.shapes, "verify", each=1), work.in_time():
            for i in range(asked.shapes):
                layers.append(work.piece(f"layer {i + 1}", functools.partial(self.layer, i)))
        checks, scalars = {}, {}
        for name, limit in LIMITS.items():
            error, worst = max((errors[name], where) for where, errors in layers)
            checks[name] = {"limit": limit, "tries": len(layers), "worst": worst}
            scalars[name] = Estimate(error, kind="bound", converged=error <= limit, note=f"worst at {worst}")
        inputs = {"shapes": asked.shapes, "largest": asked.largest, "seed": asked.seed, "device": asked.device}
        inputs |= {"tried": len(layers), "checks": checks}
        made = Provenance.collect(seed=asked.seed, dtype=torch.float64, device=self.device)
        return Verification(Record(kind="verify", inputs=inputs, scalars=scalars, tensors={}, made=made))

    def layer(self, index: int) -> tuple[str, dict[str, float]]:
        """Layer number `index` in words, and the error of every identity there."""
        problem, words = draw(self.asked, index, self.device)
        return words, dict(zip(LIMITS, examine(problem), strict=True))


def draw(asked: VerifyQuestion, index: int, device: torch.device) -> tuple[Problem, str]:
    """Layer number `index`: independent sizes from 1 to `largest`; the kinds of `KINDS` in turn."""
    generator = stream(asked.seed, f"verify/{index}")
    names = ("tokens", "d_model", "d_k", "d_v")
    sizes: dict[str, Any] = {name: int(torch.randint(1, asked.largest + 1, (), generator=generator)) for name in names}
    temperature = 0.5 + float(torch.rand((), generator=generator))
    kind: dict[str, Any] = KINDS[index % len(KINDS)]
    problem = toy_problem(**sizes, seed=asked.seed + index, device=device, temperature=temperature, **kind)
    told = "{tokens} tokens, d_model {d_model}, d_k {d_k}, d_v {d_v}".format(**sizes)
    return problem, f"{' '.join(kind.values())}, {told}"


def examine(problem: Problem) -> Iterator[float]:
    """The errors on one layer, in the order of LIMITS."""
    layer = problem.layer()
    H, H_f = problem.autodiff(), problem.autodiff_functional()
    scale = float(H.abs().max().clamp_min(1e-300))
    rows = problem.space.slices()
    pairs = [block.split(",") for block in problem.blocks]
    for part, whole in (("outer", H - H_f), ("functional", H_f), ("block", H)):
        yield max(_error(getattr(layer, part)(a, b), whole[rows[a], rows[b]], scale) for a, b in pairs)
    direction = torch.ones(len(H), dtype=H.dtype, device=H.device) / len(H) ** 0.5
    product = layer.hessian() @ direction
    size = float((H @ direction).abs().max().clamp_min(scale * 1e-3))
    yield _error(product, H @ direction, size)
    yield _error(product, problem.difference(direction), size)
    gradients = torch.cat([layer.gradients()[name].reshape(-1) for name in rows])
    want = problem.gradient(problem.space.flatten(problem.weights))
    yield _error(gradients, want, float(want.abs().max().clamp_min(scale)))
    for operator in (layer.hessian(), layer.outer_operator(), layer.functional_operator()):
        try:
            yield max(f.error for f in check_operator(operator))
        except CheckFailed:
            yield math.inf


def _error(got: Tensor, want: Tensor, scale: float) -> float:
    """max|got - want| / scale; infinite where it is no number, so that it never passes."""
    error = float((got - want).abs().max()) / scale
    return math.inf if math.isnan(error) else error
