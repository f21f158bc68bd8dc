"""`qf.reproduce`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..applications.asking import Door
from .question import ReproduceTask

if TYPE_CHECKING:
    from .runner import Reproduction

reproduce: Door[Reproduction] = Door(ReproduceTask, opening=None)
