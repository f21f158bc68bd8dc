"""Sizes of drawn designs against the memory there is, before a stack is described block by block."""

from __future__ import annotations

import itertools

from ..configs.signal import SignalConfig
from ..machine import DTYPES, device_of, guard_design

#: Sizes of the alphabet that designs are measured on: tokens drawn uniformly.
VOCAB = 1024


def guard_designs(config: SignalConfig) -> None:
    """Refuse designs whose weights do not fit."""
    device, dtype = device_of(config.device), DTYPES[config.dtype]
    for subject, depth in itertools.product(config.designs, config.depth_list):
        guard_design(subject, depth, device, dtype, dim=config.dim, heads=config.heads, vocab=VOCAB)
