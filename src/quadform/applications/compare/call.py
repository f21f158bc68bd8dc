"""`qf.compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import CompareQuestion

if TYPE_CHECKING:
    from ...answers.compare import Compare

compare: Door[Compare] = Door(CompareQuestion, None)
