"""Randomness is an argument. One seed gives independent named streams, so adding a draw never moves another."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, name: str = "", device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that depends on the seed and on the name of what it is used for."""
    digest = hashlib.sha256(f"{int(seed)}/{name}".encode()).digest()
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return generator
