"""`qf.landscape`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import LandscapeQuestion

if TYPE_CHECKING:
    from ...answers.landscape import Landscape

landscape: Door[Landscape] = Door(LandscapeQuestion)
