"""`qf.verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import VerifyQuestion

if TYPE_CHECKING:
    from .answer import Verification

verify: Door[Verification] = Door(VerifyQuestion, opening=None)
