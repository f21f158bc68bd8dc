"""`qf.lr`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import StepSizeOpening, StepSizeQuestion

if TYPE_CHECKING:
    from ...answers.step_size import StepSize

lr: Door[StepSize] = Door(StepSizeQuestion, StepSizeOpening)
