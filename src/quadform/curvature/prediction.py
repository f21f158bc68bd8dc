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

#: Calibration (benchmarks/curvature.py route): seconds to trace and to compile for each operator of one forward pass,
#: and the time of a product over that of an eager one, for retained gradients and for `jvp`-based products.
TRACE_S = {"cpu": 0.022, "cuda": 0.03}
COMPILE_S = {"cpu": 0.17, "cuda": 0.12}
TRACED = {"cpu": (1.0, 0.38), "cuda": (0.9, 0.5)}
COMPILED = {"cpu": (0.72, 0.29), "cuda": (0.4, 0.3)}
UNITS = {"cpu": (2.0, 1.0), "cuda": (2.0, 1.0)}

#: Seconds of eager products below which no other route is thought of.
WORTH_LOOKING = 0.2
_SMALL_FIRST: tuple[Route, ...] = ("units", "compiled-units", "eager", "traced", "compiled")


def predict(operators: int, eager: float, products: int, device: str, *, retained: bool = False) -> dict[Route, float]:
    """Seconds that `products` products take by each route, preparation included.

    `operators` of one forward pass, `eager` seconds of one eager product, by a retained gradient or by `jvp`.
    """
    kind, way = device if device in TRACE_S else "cuda", 0 if retained else 1
    trace = TRACE_S[kind] * operators
    return {
        "eager": products * eager,
        "traced": trace + products * eager * TRACED[kind][way],
        "compiled": trace + COMPILE_S[kind] * operators + products * eager * COMPILED[kind][way],
        "units": products * eager * UNITS[kind][way],
        "compiled-units": trace + products * eager * UNITS[kind][way],
    }


def slower(wanted: Route, taken: Route, device: str, *, retained: bool) -> float:
    """How many times longer a product takes by one route than by another, as a rule; without preparing."""
    kind, way = device if device in TRACE_S else "cuda", 0 if retained else 1
    routes: tuple[Route, ...] = ("traced", "compiled", "units", "compiled-units")
    each = dict(zip(routes, (t[kind][way] for t in (TRACED, COMPILED, UNITS, UNITS)), strict=True))
    return each.get(taken, 1.0) / each.get(wanted, 1.0)


def measure(products: Products, v: Vector, scale: float = 1.0) -> dict[Route, float]:
    """Seconds of the expected products by each route, from eager ones, `scale` times as long, and one forward pass."""
    run, risk = products.by("eager"), products.kind.risk
    eager = run.group.most(
        scale * min(timed(partial(run, v), risk.device) for _ in range(2))
    )  # the first also loads and warms up
    if run.group.most(float(run.route == "units")):  # nothing else fits the memory, whatever is asked for
        return dict.fromkeys(_SMALL_FIRST, (products.expected or 1) * eager)
    return predict(operators_of(run), eager, products.expected or 1, risk.device.type, retained=run.retained)


def operators_of(run: Products) -> int:
    """Operators of one forward pass; of several processes the one that has most decides."""
    risk, counting = run.kind.risk, Count()  # type: ignore[no-untyped-call]  # torch's
    with risk.context(), torch.no_grad(), counting as counted:
        for batch in risk.batches[:1]:
            risk.run(risk.params, batch)
    return int(run.group.most(counted.operators))


class Rent:
    """Eager products so far, and when they would have paid for preparing a faster route.

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
            return "eager"
        if self._operators is None:
            self._operators = operators_of(run)
        each, device = self.seconds / self.products, run.kind.risk.device.type
        return fastest(predict(self._operators, each, self.products, device, retained=run.retained))


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
