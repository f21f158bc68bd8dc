"""`quadform verify`: are the closed forms right here and now? Random layers, three ways to the same numbers.

Closed form (theory), double backward and finite differences of the gradient share no code beyond torch itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import CheckFailed
from ..core.progress import Progress, Report
from ..core.record import Estimate, Provenance, Record
from ..core.rng import stream
from ..testing import check_operator
from .configs.checks import VerifyConfig
from .machine import DTYPES, device_of, guard, guard_tokens
from .problem import Problem, toy_problem

#: Relative to max|H|. Rounding leaves 1e-15 for tokens ~ N(0, 1); a central difference of the gradient is good to 1e-8.
CLOSED_FORM, DIFFERENCE, CONTRACT = 1e-12, 1e-6, 1e-10

KINDS = (
    {"attention": "softmax"},
    {"attention": "softmax", "mask": "causal"},
    {"attention": "linear"},
    {"attention": "softmax", "factor": "single"},
)


@dataclass
class Check:
    """One identity: its statement, the largest relative error over all layers, the layer it came from, the limit."""

    name: str
    tolerance: float
    error: float = 0.0
    worst: str = ""
    count: int = 0

    @property
    def ok(self) -> bool:
        return self.count > 0 and self.error <= self.tolerance

    def add(self, error: float, where: str) -> None:
        self.count += 1
        if math.isnan(error):
            error = math.inf
        if error > self.error or not self.worst:
            self.error, self.worst = max(error, self.error), where


def run(config: VerifyConfig, progress: bool | Report = True) -> tuple[Record, list[Check]]:
    """Every identity on `config.shapes` random layers; the checks say which hold."""
    device, dtype = device_of(config.device), DTYPES[config.dtype]
    guard(3 * config.largest**2, device, dtype)
    guard_tokens(1, config.largest, config.largest, 1, device, dtype)
    checks: dict[str, Check] = {}

    def add(where: str, name: str, tolerance: float, error: float) -> None:
        checks.setdefault(name, Check(name, tolerance)).add(error, where)

    with Progress(config.shapes, "verify", show=progress) as bar:
        for i in range(config.shapes):
            problem, where = draw(config, i, device, dtype)
            examine(problem, functools.partial(add, where))
            bar.step(text=where)
    found = list(checks.values())
    record = Record(
        kind="verify",
        inputs={"shapes": config.shapes, "largest": config.largest, "seed": config.seed, "device": config.device},
        scalars={
            c.name: Estimate(c.error, kind="bound", converged=c.ok, note=f"limit {c.tolerance:g}; worst at {c.worst}")
            for c in found
        },
        tensors={},
        made=Provenance.collect(seed=config.seed, dtype=dtype, device=device),
    )
    return record, found


def draw(config: VerifyConfig, index: int, device: torch.device, dtype: torch.dtype) -> tuple[Problem, str]:
    """Layer number `index`: independent sizes from 1 to `largest`; the kinds of `KINDS` in turn."""
    generator = stream(config.seed, f"verify/{index}")
    tokens, dim, d_k, d_v = (
        int(torch.randint(1, config.largest + 1, (), generator=generator)) for _ in ("tokens", "dim", "d_k", "d_v")
    )
    temperature = 0.5 + float(torch.rand((), generator=generator))
    kind = KINDS[index % len(KINDS)]
    problem = toy_problem(
        tokens=tokens,
        dim=dim,
        d_k=d_k,
        d_v=d_v,
        seed=config.seed + index,
        dtype=dtype,
        device=device,
        temperature=temperature,
        **kind,
    )
    return problem, f"{' '.join(kind.values())}, {tokens} tokens, dim {dim}, d_k {d_k}, d_v {d_v}"


def examine(problem: Problem, add: Callable[[str, float, float], None]) -> None:
    """Compare the three ways on one layer; `add(name, tolerance, error)` receives every finding."""
    layer = problem.layer()
    H, H_f = problem.autodiff(), problem.autodiff_functional()
    whole = {"outer": H - H_f, "functional": H_f, "block": H}
    scale = float(H.abs().max().clamp_min(1e-300))
    rows = problem.space.slices()
    for part, label in (("outer", "H_o"), ("functional", "H_f"), ("block", "H")):
        for block in problem.blocks:
            a, b = block.split(",")
            got = getattr(layer, part)(a, b)
            want = whole[part][rows[a], rows[b]]
            add(f"{label}, every block: closed form = autodiff", CLOSED_FORM, _distance(got, want) / scale)
    direction = torch.ones(len(H), dtype=H.dtype, device=H.device) / len(H) ** 0.5
    product = layer.hessian() @ direction
    size = float((H @ direction).abs().max().clamp_min(scale * 1e-3))
    add("H v: analytic product = autodiff", CLOSED_FORM, _distance(product, H @ direction) / size)
    add(
        "H v: analytic product = finite difference",
        DIFFERENCE,
        _distance(product, problem.difference(direction)) / size,
    )
    gradients = torch.cat([layer.gradients()[name].reshape(-1) for name in rows])
    want = problem.gradient(problem.space.flatten(problem.weights))
    add(
        "gradient: closed form = autodiff",
        CLOSED_FORM,
        _distance(gradients, want) / float(want.abs().max().clamp_min(scale)),
    )
    for name, operator in (
        ("H", layer.hessian()),
        ("H_o", layer.outer_operator()),
        ("H_f", layer.functional_operator()),
    ):
        try:
            error = max(f.error for f in check_operator(operator))
        except CheckFailed:
            error = math.inf
        add(f"{name}: operator contract", CONTRACT, error)


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())
