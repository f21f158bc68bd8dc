"""The lecture: its steps in order."""

from __future__ import annotations

from .step import Step
from .steps import attention, tokens

STEPS: tuple[Step, ...] = (tokens.TOKENS, attention.PROJECTIONS, attention.HEAD)
"""The steps of the lecture, in order."""
