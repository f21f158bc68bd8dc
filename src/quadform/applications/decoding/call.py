"""`qf.decode`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import DecodeTask

if TYPE_CHECKING:
    from .done import Decodings

decode: Door[Decodings] = Door(DecodeTask, opening=None)
