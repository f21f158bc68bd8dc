"""`qf.flat`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import FlatOpening, FlatQuestion

if TYPE_CHECKING:
    from ...answers.flat import Flat

flat: Door[Flat] = Door(FlatQuestion, FlatOpening)
