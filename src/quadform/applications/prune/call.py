"""`qf.prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from ..compressing.question import CalibrationOpening
from .question import PruneQuestion

if TYPE_CHECKING:
    from ...answers.prune import Pruned

prune: Door[Pruned] = Door(PruneQuestion, CalibrationOpening)
