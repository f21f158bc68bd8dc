"""`qf.quantize`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from ..compressing.question import CalibrationOpening
from .question import QuantizeQuestion

if TYPE_CHECKING:
    from ...answers.quantize import QuantizedModel

quantize: Door[QuantizedModel] = Door(QuantizeQuestion, CalibrationOpening)
