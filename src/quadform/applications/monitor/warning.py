"""When a monitor warns: three scores of a reading among those before it, each with a limit.

    rate     the learning rate over its ceiling
    logit    the largest logit of any head, where it is larger than one reading before
    growth   lambda_max of the optimizer's operator over its median in the readings before

The limits say that something is out of the ordinary, not that a spike will come: in the experiment `spikes` no limits
of these scores foretold more than simple baselines did.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from .reading import Reading

#: Readings whose median lambda_max is compared with, at most and at least: the first ones still rise to the top.
BEFORE, ENOUGH = 5, 3


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Limits of the three scores; `math.inf` switches one off."""

    rate: float = 1.0
    logit: float = 30.0
    growth: float = 4.0

    def warnings(self, history: Sequence[Reading]) -> Iterator[str]:
        """Sentences about the last reading: a score that passes its limit is told, not again while it stays above."""
        now, last = scores(history), scores(history[:-1])
        for name, value in now.items():
            if value > getattr(self, name) >= last[name]:
                yield f"step {history[-1].step}: {_said(name, value, history)}"


def scores(history: Sequence[Reading]) -> dict[str, float]:
    """The scores of the last reading; 0 where one is not known."""
    if not history:
        return {"rate": 0.0, "logit": 0.0, "growth": 0.0}
    last, known = history[-1], before(history)
    logit = _largest(last.logits)
    rising = len(history) > 1 and logit > _largest(history[-2].logits)
    usual = statistics.median(known) if len(known) >= ENOUGH else math.inf
    lam = 0.0 if last.lambda_P is None else last.lambda_P.value
    return {"rate": last.ratio or 0.0, "logit": logit if rising else 0.0, "growth": lam / usual if usual > 0 else 0.0}


def before(history: Sequence[Reading]) -> list[float]:
    """lambda_max of the optimizer's operator in the readings that the last one is compared with."""
    return [r.lambda_P.value for r in history[-1 - BEFORE : -1] if r.lambda_P is not None]


def _largest(logits: Tensor | None) -> float:
    return 0.0 if logits is None else float(logits.nan_to_num(nan=-math.inf).max())


def _said(name: str, value: float, history: Sequence[Reading]) -> str:
    reading = history[-1]
    where = max(reading.direction, key=reading.direction.__getitem__, default=None)
    most = "" if where is None else f"; {100 * reading.direction[where]:.0f} % of that direction in {where}"
    if name == "rate":
        return f"the learning rate is {value:.2g} times the ceiling{most}"
    if name == "growth":
        return (
            f"lambda_max of P^-1 H is {value:.2g} times its median of the {len(before(history))} readings before{most}"
        )
    assert reading.logits is not None
    layer, head = divmod(int(reading.logits.nan_to_num(nan=-math.inf).argmax()), reading.logits.shape[1])
    at = f", learning rate at {reading.ratio:.2g} of its ceiling" if reading.ratio is not None else ""
    return f"layer {layer} head {head}: largest logit {value:.3g} and rising{at}"
