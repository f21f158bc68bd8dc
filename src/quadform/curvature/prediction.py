"""How long products take by each route: from the time of an eager one and the operators of one forward pass."""

from __future__ import annotations

import time
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


def measure(products: Products, v: Vector, scale: float = 1.0) -> dict[Route, float]:
    """Seconds of the expected products by each route, from eager ones, `scale` times as long, and one forward pass."""
    run, risk = products.by("eager"), products.kind.risk
    eager = run.group.most(scale * min(timed(run, v) for _ in range(2)))  # the first also loads and warms up
    if run.group.most(float(run.route == "units")):  # nothing else fits the memory, whatever is asked for
        return dict.fromkeys(_SMALL_FIRST, products.expected * eager)
    counting = Count()  # type: ignore[no-untyped-call]  # torch's
    with risk.context(), torch.no_grad(), counting as counted:
        for batch in risk.batches[:1]:
            risk.run(risk.params, batch)
    operators = int(run.group.most(counted.operators))  # the slowest process decides
    return predict(operators, eager, products.expected, risk.device.type, retained=run.retained)


def timed(run: Products, v: Vector) -> float:
    """Seconds of one product."""
    begun = time.perf_counter()
    run(v)
    if run.kind.risk.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


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
