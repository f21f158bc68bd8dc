"""`qf.why`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import WhyQuestion

if TYPE_CHECKING:
    from .answer import Why

why: Door[Why] = Door(WhyQuestion)
