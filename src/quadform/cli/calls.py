"""`qf.ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..applications.asking import Door
from .listing import LsTask

if TYPE_CHECKING:
    from ..core.question import Listing

ls: Door[Listing] = Door(LsTask, opening=None)
