"""`qf.precond`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import PrecondOpening, PrecondQuestion

if TYPE_CHECKING:
    from ...answers.precond import Precond

precond: Door[Precond] = Door(PrecondQuestion, PrecondOpening)
