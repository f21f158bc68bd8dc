"""`qf.study`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from .question import ReportOpening, ReportQuestion

if TYPE_CHECKING:
    from .answer import Report

study: Door[Report] = Door(ReportQuestion, ReportOpening, "study")
