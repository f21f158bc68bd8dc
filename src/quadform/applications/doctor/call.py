"""`qf.doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import DoctorQuestion

if TYPE_CHECKING:
    from .answer import Diagnosis

doctor: Door[Diagnosis] = Door(DoctorQuestion, opening=None)
