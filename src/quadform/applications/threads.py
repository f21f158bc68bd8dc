"""How many threads a question runs on: one, where several are not faster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from ..curvature.operators import hessian
from ..curvature.outline import Outline
from ..curvature.risk import Risk
from ..distributed.processes import group_of

#: Below this many parameters one thread is the fastest: the matrices are too small to share, and on a busy machine
#: threads that wait for each other make the work ten times longer.
SHARED_FROM = 1000


@contextlib.contextmanager
def threads_for(parameters: int) -> Iterator[None]:
    """One thread where matrices of so many parameters are small."""
    before = torch.get_num_threads()
    if parameters < SHARED_FROM:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def fitting_threads(risk: Risk) -> Iterator[None]:
    """One thread where a product is not faster with several: small matrices, or a busy machine.

    Threads that wait for each other on busy cores have been seen to take a hundred times as long as one alone.
    """
    before = torch.get_num_threads()
    timed = risk.device.type == "cpu" and not isinstance(risk, Outline)
    if timed and before > 1 and group_of(risk.space).world == 1:
        many = _seconds(risk)
        torch.set_num_threads(1)
        if _seconds(risk) > many:
            torch.set_num_threads(before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(risk: Risk) -> float:
    """The faster of two products."""
    H = hessian(risk)
    v = {n: t[None] for n, t in risk.params.items()}
    times = []
    for _ in range(2):
        began = time.perf_counter()
        H.apply(v)
        times.append(time.perf_counter() - began)
    return min(times)
