"""`qf.signal`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import SignalOpening, SignalQuestion

if TYPE_CHECKING:
    from ...answers.signal import Signal

signal: Door[Signal] = Door(SignalQuestion, SignalOpening)
