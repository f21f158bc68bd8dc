"""`qf.fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import TrainTask

if TYPE_CHECKING:
    from .done import Fitted

fit: Door[Fitted] = Door(TrainTask, opening=None, name="fit")
