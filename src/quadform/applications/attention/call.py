"""`qf.attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import AttentionQuestion

if TYPE_CHECKING:
    from ...answers.attention import AttentionAnswer

attention: Door[AttentionAnswer] = Door(AttentionQuestion, opening=None)
