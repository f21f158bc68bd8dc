"""How long a state will take and how much memory, said before anything is computed; the size guard of the page.

The seconds are those of the machine it was measured on, times a factor learnt from every answer given since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ..applications.machine import MATRICES
from ..core.memory import free_bytes, in_words
from .data import Uploads
from .state import ALONE, RANGES, ControlError, State

#: Longer than this, a drag is answered when the control is let go; longer than the second, only when asked for.
ON_RELEASE, ASK = 0.3, 3.0
#: Share of the free memory one answer may take, and bytes every machine has: asking for them takes a millisecond.
SHARE, UNASKED = 0.5, 64e6

Verdict = Literal["now", "release", "ask"]


@dataclass(frozen=True)
class Size:
    """Tokens, width and number of parameters a state asks for."""

    tokens: int
    dim: int
    parameters: int

    @classmethod
    def of(cls, state: State, uploads: Uploads) -> Size:
        if state.data == "upload":
            given = uploads.get(state.upload)
            L, d = given.shape
            d_k = given.tensors["W_Q"].shape[1] if "W_Q" in given.tensors else d
            d_v = given.tensors["W_V"].shape[1] if "W_V" in given.tensors else d
        else:
            L, d = state.tokens, state.dim
            L = min(L, len(state.text.split())) if state.data == "text" else L
            d_k = d_v = d
        return cls(L, d, (d * d if state.factor == "single" else 2 * d * d_k) + d * d_v)

    @property
    def bytes(self) -> float:
        return MATRICES * 8.0 * self.parameters**2


def reference_seconds(state: State, size: Size) -> float:
    """Processor seconds of one answer on the reference machine: spectra ~ P^3, blocks ~ P^2, norms ~ L^2 d^2, and for
    a stack three passes over the blocks from the layer on."""
    P, L, d = size.parameters, size.tokens, size.dim
    seconds = 0.02 + 2.0e-10 * P**3 + 3.0e-8 * P**2 + 2.3e-7 * L**2 * d**2
    if not state.closed:
        blocks = state.depth - state.layer + 1
        width = 0.3 if state.design == ALONE else 1.0
        seconds += 3 * blocks * (0.006 + 6.0e-7 * width * P * L * d) + 0.006 * state.depth
    return seconds


@dataclass
class Cost:
    """The factor between this machine and the reference, learnt as answers are given."""

    factor: float = 1.0

    def predict(self, state: State, size: Size) -> float:
        return self.factor * reference_seconds(state, size)

    def learn(self, state: State, size: Size, seconds: float) -> None:
        """Half way towards what was seen; one busy moment does not close the page."""
        seen = seconds / reference_seconds(state, size)
        self.factor = min(max(0.5 * (self.factor + seen), 0.1), 20.0)

    def verdict(self, state: State, size: Size, final: bool, confirmed: bool) -> Verdict:
        """Whether to answer now, when the control is let go, or when the user says so; too large is an error."""
        if size.bytes > UNASKED and size.bytes > (free := SHARE * free_bytes(torch.device("cpu"))):
            widest = max(d for d in range(1, int(RANGES["dim"][1]) + 1) if d == 1 or MATRICES * 72.0 * d**4 <= free)
            said = {"parameters": f"{size.parameters:,}", "need": in_words(size.bytes), "free": in_words(free)}
            raise ControlError("upload" if state.data == "upload" else "dim", "memory", **said, widest=widest)
        seconds = self.predict(state, size)
        if seconds > ASK and not confirmed:
            return "ask"
        return "release" if seconds > ON_RELEASE and not final else "now"
