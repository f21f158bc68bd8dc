"""The lecture: its steps in order."""

from __future__ import annotations

from .step import Step
from .steps import attention, block, curvature, decoding, seeing, stacks, tokens, training

STEPS: tuple[Step, ...] = (
    tokens.TOKENS,
    attention.PROJECTIONS,
    attention.HEAD,
    seeing.HEADS,
    seeing.MASKS,
    block.RESIDUAL,
    block.FFN,
    stacks.ENCODER,
    stacks.DECODER,
    training.TRAINING,
    decoding.DECODING,
    curvature.HESSIAN,
    curvature.SIGNAL,
    curvature.CEILING,
)
"""The steps of the lecture, in order."""
