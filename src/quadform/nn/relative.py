"""Relative positions: a learned number for every head and bucket of distances, added to the scores of a whole stack.

Near distances have a bucket each; the others share buckets that grow by a constant factor up to the largest distance.
Source: [RSR20, Sec. 2.1].
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from quadform.core.spec import ModelConfig

from .frame import Frame


class RelativePositions(nn.Module):
    """B[h, i, j] = W_R[bucket(j - i), h]; W_R (buckets, heads)."""

    def __init__(self, config: ModelConfig, **options: Any) -> None:
        super().__init__()
        self.buckets, self.most = config.relative
        self.W_R = nn.Parameter(torch.empty(self.buckets, config.heads, **options))

    def extra_repr(self) -> str:
        return f"{self.buckets} buckets, up to a distance of {self.most}"

    def forward(self, frame: Frame) -> Tensor:
        """(1 or batch, heads, n, keys): the rows of the frame's tokens."""
        at = frame.positions
        if frame.mask is None:
            window = frame.visible if frame.static else None  # of a static cache
            keys = frame.start + frame.tokens if window is None else window.shape[-1]
            apart = (torch.arange(keys, device=at.device) - at[:, None])[None]
        else:
            apart = at[:, None, :] - at[:, :, None]
        number = self._numbers(frame.causal)[apart.clamp(-self.most, self.most) + self.most]
        return self.W_R[number].movedim(-1, 1)

    @torch.compiler.disable
    def _numbers(self, causal: bool) -> Tensor:
        return bucket_numbers(self.buckets, self.most, causal, self.W_R.device)


@lru_cache(maxsize=64)
def bucket_numbers(buckets: int, most: int, causal: bool, device: torch.device) -> Tensor:
    """The bucket of every distance key - query from -most to most, (2 most + 1,); a causal stack looks back only.

    The logarithm is taken in float32, as T5 was trained: at the edge of a bucket the rounding decides. Built outside
    any torch.func transform and inference mode, since it outlives them.
    """
    with torch.inference_mode(False), torch._C._DisableFuncTorch(), torch.device("cpu"):
        apart = torch.arange(-most, most + 1)
        side = 0 if causal else (apart > 0) * (buckets // 2)
        buckets = buckets if causal else buckets // 2
        apart = -apart.clamp_max(0) if causal else apart.abs()
        single = buckets // 2
        far = (apart.clamp_min(1).float() / single).log() / math.log(most / single) * (buckets - single)
        far = (single + far.long()).clamp_max(buckets - 1)
        return (side + torch.where(apart < single, apart, far)).to(device)
