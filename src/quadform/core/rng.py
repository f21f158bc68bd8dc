"""Randomness is an argument. One seed gives independent named streams, so adding a draw never moves another."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def stream(seed: int, name: str = "", device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that depends on the seed and on the name of what it is used for."""
    digest = hashlib.sha256(f"{int(seed)}/{name}".encode()).digest()
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return generator


def by_place(seed: int, name: str, at: Tensor) -> Tensor:
    """Numbers in (0, 1) that depend on the seed, a name and a place alone: whoever holds entry `at` draws the same.

    Source: splitmix64 (Steele, Lea and Flood, 2014), one number for each value of its counter.
    """
    key = int.from_bytes(hashlib.sha256(f"{int(seed)}/{name}".encode()).digest()[:8], "little", signed=True)
    z = (at + 1) * _signed(0x9E3779B97F4A7C15) + key  # 64 bits, which wrap around
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return (_shifted(z ^ _shifted(z, 31), 11).double() + 0.5) * 2.0**-53


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def _shifted(z: Tensor, by: int) -> Tensor:
    """To the right, zeros coming in."""
    return (z >> by) & ((1 << (64 - by)) - 1)
