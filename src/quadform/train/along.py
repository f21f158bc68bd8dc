"""Checkpoints that are kept along a run, so that its curvature can be measured at every one of them afterwards."""

from __future__ import annotations

from .config import TrainConfig

#: Checkpoints of a run besides the last, and the bytes that all of them may take; a large model keeps fewer, or none.
KEPT, BYTES = 6, 2**30


def marks(config: TrainConfig, size: int) -> frozenset[int]:
    """Steps after which a checkpoint of `size` bytes is kept: where the rate is largest, halfway there, then evenly."""
    count, steps = min(KEPT, BYTES // max(size, 1)), config.steps
    factors = [config.schedule.factor(step, steps) for step in range(min(steps, 10**6))]
    peak = factors.index(max(factors))
    even = [peak + round((steps - peak) * i / max(count - 1, 1)) for i in range(1, count - 1)]
    found = [peak, peak // 2, *even][:count]
    return frozenset(step for step in found if 0 < step < steps)
