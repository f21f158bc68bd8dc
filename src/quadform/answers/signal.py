"""Limits of signals through depth."""

from __future__ import annotations

from .verdict import Limits

#: Mean token cosine after the last block: green up to the limit of the shaped activations.
COSINE = Limits(0.9, 0.99)
#: Norm growth and gradient ratio, either way.
FACTOR = Limits(10.0, 100.0, either_way=True)
