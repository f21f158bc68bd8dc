"""`qf.point`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import PointOpening, PointQuestion

if TYPE_CHECKING:
    from ...answers.kind import PointKind

point: Door[PointKind] = Door(PointQuestion, PointOpening)
