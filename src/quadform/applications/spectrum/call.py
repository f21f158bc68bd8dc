"""`qf.spectrum`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..asking import Door
from ..opening import CutOpening
from .question import SpectrumQuestion

if TYPE_CHECKING:
    from ...answers.spectrum import Spectrum

spectrum: Door[Spectrum] = Door(SpectrumQuestion, CutOpening)
