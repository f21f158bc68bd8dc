"""Tailored Activation Transformation for leaky ReLUs: the one equation that designs and propagation both solve.

Torch-free. Source: Zhang et al. 2022 (TAT), as used by [HMZ23, Sec. 3.3]; the bisection is [own].
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .errors import InputError


def leaky_cosine_map(c: float, slope: float) -> float:
    """C(c) = c + (1-s)^2 / (pi (1+s^2)) (sqrt(1-c^2) - c arccos c) of a leaky ReLU with slope s."""
    c = min(1.0, max(-1.0, c))
    return c + (1 - slope) ** 2 / (math.pi * (1 + slope**2)) * (math.sqrt(1 - c * c) - c * math.acos(c))


def tat_slope(
    layers: int, eta: float = 0.9, network: Callable[[Callable[[float], float]], float] | None = None
) -> float:
    """The slope s in [0, 1) of a leaky ReLU whose network, fed orthogonal tokens, ends at cosine eta.

    `network(C)` gives the network's cosine for input cosine 0 from the local map C; None: `layers` maps in a chain.
    0, the plain ReLU, where even that stays at or below eta: for eta = 0.9 a chain of up to 12 layers.
    """
    if not 0 < eta < 1:
        raise InputError(f"TAT needs 0 < eta < 1 (the cosine orthogonal tokens may reach); got {eta}.")

    def chain(C: Callable[[float], float]) -> float:
        c = 0.0
        for _ in range(layers):
            c = C(c)
        return c

    reach = chain if network is None else network

    def end(slope: float) -> float:
        return reach(lambda c: leaky_cosine_map(c, slope))

    if end(0.0) <= eta:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if end(middle) > eta else (low, middle)
    return high
