"""The one block module that runs every design: branches around a stream, as a `BlockSpec` says."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quadform.core.spec import GATED, BlockSpec, Gain, Mixing, ModelConfig, Projection

from .attend import linear, spa_strengths
from .attention import Attention
from .frame import Frame, LayerCache, Memory

GATE = {"geglu": "gelu", "geglu-tanh": "gelu-tanh", "swiglu": "silu"}
"""What a gated MLP does to its gate."""


def make_norm(kind: str, d: int, eps: float, **options: Any) -> nn.Module | None:
    """LayerNorm (gain and bias) or RMSNorm (gain), eps inside the root; None for "none".

    [HH24]'s code adds eps to the RMS outside the root: a difference of order eps.
    """
    if kind == "none":
        return None
    return nn.LayerNorm(d, eps=eps, **options) if kind == "layer" else nn.RMSNorm(d, eps=eps, **options)


class MLP(nn.Module):
    """act(X W_1 + b_1) W_2 + b_2. Gated: act(a) * b with [a, b] = X W_1, W_1 (d, 2 d_ff)."""

    def __init__(self, config: ModelConfig, spec: BlockSpec, **options: Any) -> None:
        super().__init__()
        self.activation, self.slope = spec.activation, spec.slope
        inner = config.d_ff * (2 if spec.activation in GATED else 1)
        self.W_1 = nn.Parameter(torch.empty(config.d_model, inner, **options))
        self.W_2 = nn.Parameter(torch.empty(config.d_ff, config.d_model, **options))
        biased = "mlp" in config.biases
        self.b_1 = nn.Parameter(torch.empty(inner, **options)) if biased else None
        self.b_2 = nn.Parameter(torch.empty(config.d_model, **options)) if biased else None

    def extra_repr(self) -> str:
        return f"{self.W_1.shape[0]} -> {self.W_2.shape[0]}, {self.activation}"

    def forward(self, X: Tensor) -> Tensor:
        return linear(activate(linear(X, self.W_1, self.b_1), self.activation, self.slope), self.W_2, self.b_2)


def activate(X: Tensor, name: str, slope: float = 0.0) -> Tensor:
    """The activation by name; the gated ones halve the width."""
    if name == "relu":
        return X.relu()
    if name == "gelu":
        return F.gelu(X)
    if name == "gelu-tanh":
        return F.gelu(X, approximate="tanh")
    if name == "leaky":
        return math.sqrt(2 / (1 + slope**2)) * F.leaky_relu(X, slope)
    if name == "silu":
        return F.silu(X)
    gate, value = X.chunk(2, dim=-1)
    return activate(gate, GATE[name]) * value


class Block(nn.Module):
    """One block of any design; the formulas are those of `BlockSpec`. Layer `index` of a stack of `depth`."""

    norm: nn.Module
    norm_attn: nn.Module
    norm_cross: nn.Module
    norm_mlp: nn.Module

    def __init__(self, config: ModelConfig, spec: BlockSpec, index: int, depth: int, **options: Any) -> None:
        super().__init__()
        self.spec, self.index, self.dropout = spec, index, config.dropout
        for name in spec.norms:
            self.add_module(name, make_norm(spec.norm, config.d_model, config.eps, **options))
        strengths = None
        if spec.mixing.bias is not None:
            before, after = spa_strengths(spec.mixing, depth)[index : index + 2]
            strengths = before, after
        self.attn = Attention(config, spec.mixing, spec.value, spec.proj, strengths=strengths, **options)
        self.cross = Attention(config, Mixing(), Projection(), Projection(), **options) if spec.cross else None
        self.mlp = MLP(config, spec, **options) if spec.mlp else None
        gains = {"attn": spec.attn, "cross": spec.cross, "mlp": None if spec.tie_gains else spec.mlp}
        for name, gain in gains.items():
            for scalar in gain.learn if gain else ():
                self.register_parameter(f"{name}_{scalar}", nn.Parameter(torch.empty((), **options)))

    def forward(self, X: Tensor, frame: Frame, memory: Memory | None = None, cache: LayerCache | None = None) -> Tensor:
        """X (batch, n, d) -> (batch, n, d)."""
        spec = self.spec
        branches: list[Any] = [("attn", spec.attn, lambda N: self.attn(N, frame, cache))]
        cross = self.cross
        if cross is not None:
            branches.append(("cross", spec.cross, lambda N: cross(N, frame, None, memory, self.index)))
        if self.mlp is not None:
            branches.append(("mlp", spec.mlp, self.mlp))
        if spec.layout == "parallel":
            N = X if spec.norm == "none" else self.norm(X)
            out = self._scaled("attn", "skip", spec.attn, X)
            for name, gain, branch in branches:
                out = _add(out, self._scaled(name, "branch", gain, self._drop(branch(N))))
            return torch.zeros_like(X) if out is None else out
        for name, gain, branch in branches:
            norm = getattr(self, f"norm_{name}", None)
            N = norm(X) if norm is not None and spec.norm_at == "pre" else X
            Y = self._scaled(name, "branch", gain, self._drop(branch(N)))
            out = _add(self._scaled(name, "skip", gain, X), Y)
            X = torch.zeros_like(X) if out is None else out
            if norm is not None and spec.norm_at == "post":
                X = norm(X)
        return X

    def _scaled(self, branch: str, scalar: str, gain: Gain, X: Tensor) -> Tensor | None:
        """gain X, the plain X for a fixed 1, None for a fixed 0."""
        if scalar in gain.learn:
            owner = "attn" if branch == "mlp" and self.spec.tie_gains else branch
            return getattr(self, f"{owner}_{scalar}") * X
        value = getattr(gain, scalar)
        return None if value == 0 else X if value == 1 else value * X

    def _drop(self, Y: Tensor) -> Tensor:
        return F.dropout(Y, self.dropout, self.training) if self.dropout else Y


def _add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
