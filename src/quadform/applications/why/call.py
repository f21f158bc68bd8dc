"""`qf.why`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import WhyQuestion

if TYPE_CHECKING:
    from ...answers.why import Why

why: Door[Why] = Door(WhyQuestion)
