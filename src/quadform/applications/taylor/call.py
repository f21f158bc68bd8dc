"""`qf.taylor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import TaylorQuestion

if TYPE_CHECKING:
    from ...answers.taylor import Taylor

taylor: Door[Taylor] = Door(TaylorQuestion)
