"""How long products take by each route: from the time of an eager one and the operators of one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.space import Vector
from .strategies import Route

if TYPE_CHECKING:
    from .routes import Products

#: Calibration (CPU: `benchmarks/curvature.py route`; CUDA: records units-h200 and units-switch-h200). Seconds to load
#: torch's tracer and its compiler, to trace and to compile for each operator of one forward pass; and the time of a
#: product over that of an eager one, for retained gradients and for `jvp`-based products.
LOAD_TRACER_S, LOAD_COMPILER_S = 1.0, 3.0
TRACE_S = {"cpu": 0.022, "cuda": 0.02}
COMPILE_S = {"cpu": 0.17, "cuda": 0.05}
TRACED = {"cpu": (1.0, 0.38), "cuda": (0.9, 0.5)}
COMPILED = {"cpu": (0.72, 0.29), "cuda": (0.4, 0.3)}
UNITS = {"cpu": (2.0, 1.0), "cuda": (2.0, 1.0)}
#: A product by compiled units over one by units (GPT-2 124M 0.68, Llama 7B 0.57 on an H200). A block has two programs;
#: to prepare both takes as long as to prepare so many of its forward pass.
COMPILED_UNITS = {"cpu": 0.75, "cuda": 0.65}
PROGRAMS = {"cpu": 2, "cuda": 4}

#: So many products are eager without a prediction, which takes two eager ones itself.
FEW = 2
#: Seconds of eager products below which no other route is thought of.
WORTH_LOOKING = 0.2
_LARGE: tuple[Route, ...] = ("eager", "traced", "compiled")


def predict(
    operators: int, eager: float, products: int, device: str, *, retained: bool = False, blocks: int = 1
) -> dict[Route, float]:
    """Seconds that `products` products take by each route, preparation included.

    `operators` of one forward pass in so many `blocks`, `eager` seconds of one eager product, by a retained gradient or
    by `jvp`.
    """
    kind, way = _known(device), 0 if retained else 1
    traced, compiled = _preparing(operators, kind)
    units = predict_units(operators, eager * UNITS[kind][way], products, device, blocks=blocks)
    return {
        "eager": products * eager,
        "traced": traced + products * eager * TRACED[kind][way],
        "compiled": compiled + products * eager * COMPILED[kind][way],
        **units,
    }


def predict_units(operators: int, each: float, products: int, device: str, *, blocks: int) -> dict[Route, float]:
    """The same of products by units, of which one takes `each` seconds, and by compiled ones."""
    kind = _known(device)
    compiled = _preparing(PROGRAMS[kind] * operators / blocks, kind)[1]
    return {"units": products * each, "compiled-units": compiled + products * each * COMPILED_UNITS[kind]}


def _known(device: str) -> str:
    return device if device in TRACE_S else "cuda"


def _preparing(operators: float, kind: str) -> tuple[float, float]:
    """Seconds to trace so many operators, and to trace and compile them."""
    traced = LOAD_TRACER_S + TRACE_S[kind] * operators
    return traced, traced + LOAD_COMPILER_S + COMPILE_S[kind] * operators


def slower(wanted: Route, taken: Route, device: str, *, retained: bool) -> float:
    """How many times longer a product takes by one route than by another, as a rule; without preparing."""
    kind, way = _known(device), 0 if retained else 1
    each = {"traced": TRACED[kind][way], "compiled": COMPILED[kind][way], "units": UNITS[kind][way]}
    each["compiled-units"] = COMPILED_UNITS[kind] * each["units"]
    return each.get(taken, 1.0) / each.get(wanted, 1.0)


def measure(products: Products, v: Vector, scale: float = 1.0) -> dict[Route, float]:
    """Seconds of the expected products by each route, from eager ones, `scale` times as long, and one forward pass."""
    run, risk = products.by("eager"), products.kind.risk
    eager = run.group.most(
        scale * min(timed(partial(run, v), risk.device) for _ in range(2))
    )  # the first also loads and warms up
    count, operators, device = products.expected or 1, operators_of(run), risk.device.type
    blocks = max(1, len(risk.units))
    if run.group.most(float(run.route == "units")):  # nothing else fits the memory, whatever is asked for
        units = predict_units(operators, eager, count, device, blocks=blocks)
        return units | dict.fromkeys(_LARGE, count * eager)
    return predict(operators, eager, count, device, retained=run.retained, blocks=blocks)


def operators_of(run: Products) -> int:
    """Operators of one forward pass; of several processes the one that has most decides."""
    risk, counting = run.kind.risk, Count()  # type: ignore[no-untyped-call]  # torch's
    with risk.context(), torch.no_grad(), counting as counted:
        for batch in risk.batches[:1]:
            risk.run(risk.params, batch)
    return int(run.group.most(counted.operators))


class Rent:
    """Products so far, eager or by units, and when they would have paid for preparing a faster route.

    A route with preparation B and c seconds a product is taken after m eager ones of c_0 seconds, the first m with
    m c_0 >= B + m c. All n products then take m c_0 + B + (n - m) c = 2 B + n c, at most twice what that route alone
    would have taken, and before that the eager ones are the best; up to two eager products, as m is a whole number and
    the very first, which warms up, is not counted.
    """

    def __init__(self) -> None:
        self.products, self.seconds = 0, 0.0
        self._operators: int | None = None

    def add(self, products: int, seconds: float) -> None:
        self.products, self.seconds = self.products + products, self.seconds + seconds

    def best(self, run: Products) -> Route:
        """The route that would have been best so far."""
        if self.seconds < WORTH_LOOKING:
            return run.route
        if self._operators is None:
            self._operators = operators_of(run)
        risk, each, count = run.kind.risk, self.seconds / self.products, self.products
        blocks, device = max(1, len(risk.units)), risk.device.type
        if run.route == "units":
            return fastest(predict_units(self._operators, each, count, device, blocks=blocks))
        return fastest(predict(self._operators, each, count, device, retained=run.retained, blocks=blocks))


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of some work."""
    begun = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - begun


def fastest(predicted: dict[Route, float]) -> Route:
    """The route with the fewest seconds."""
    return min(predicted, key=lambda route: predicted[route])


class Count(TorchDispatchMode):
    """Counts the operators that run inside it."""

    operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


def in_time(seconds: float) -> str:
    """`3.2 s`, `8:52`, `1.5 h`."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}" if seconds < 3600 else f"{seconds / 3600:.1f} h"
