"""A layer written out in plain torch: the problem the closed forms answer, and the independent way to the same answer.

Nothing here uses a closed form. The Hessian comes from double backward, never from `torch.func.hessian` (wrong through
a LayerNorm weight on current torch), and from central differences of the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.rng import stream
from ..core.space import Space
from .attention.question import BLOCKS, MERGED_BLOCKS

Scalar = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Problem:
    """F = softmax(scale^2 X W_Q W_K^T X^T / (t sqrt(d_K))) (scale X) W_V and its mean squared error against Y.

    X (L, d), W_Q and W_K (d, d_K), W_V (d, d_V), Y (L, d_V); `attention="linear"` leaves out the softmax,
    `factor="single"` takes W_QK = W_Q W_K^T (d, d) as one parameter: the same function, another Hessian. `sink` is
    added to every score of the first token.
    Source: [ODS25, section 2].
    """

    X: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    Y: Tensor
    scale: float = 1.0
    attention: str = "softmax"
    temperature: float = 1.0
    mask: str = "none"
    factor: str = "qk"
    sink: float = 0.0

    @property
    def weights(self) -> dict[str, Tensor]:
        if self.factor == "single":
            return {"W_QK": self.W_Q @ self.W_K.T, "W_V": self.W_V}
        return {"W_Q": self.W_Q, "W_K": self.W_K, "W_V": self.W_V}

    @property
    def blocks(self) -> tuple[str, ...]:
        return MERGED_BLOCKS if self.factor == "single" else BLOCKS

    @property
    def space(self) -> Space:
        return Space.of(self.weights)

    def at(self, scale: float) -> Problem:
        """The same problem with tokens of another scale."""
        return replace(self, scale=scale)

    def layer(self) -> Any:
        """The closed form: `theory.AttentionLayer`, `MergedLayer` or `LinearAttentionLayer`."""
        arguments = (self.scale * self.X, *self.weights.values(), self.Y)
        if self.attention == "linear":
            from ..theory.linear_attention import LinearAttentionLayer

            return LinearAttentionLayer(*arguments, temperature=self.temperature)
        options: dict[str, Any] = {
            "temperature": self.temperature,
            "mask": self.bias if self.sink else "causal" if self.mask == "causal" else None,
        }
        if self.factor == "single":
            from ..theory.merged_qk import MergedLayer

            return MergedLayer(*arguments, d_K=self.W_Q.shape[1], **options)
        from ..theory.attention import AttentionLayer

        return AttentionLayer(*arguments, **options)

    @property
    def bias(self) -> Tensor:
        """What is added to the scores, (L, L): -inf where a token is not seen, the sink on the first."""
        L = len(self.X)
        B = self.X.new_full((L, L), -math.inf if self.mask == "causal" else 0.0).triu(1)
        B[:, 0] = B[:, 0] + self.sink
        return B

    def pattern(self, W: dict[str, Tensor]) -> Tensor:
        """The attention matrix A (L, L)."""
        X = self.scale * self.X
        left, right = (X @ W["W_QK"], X) if "W_QK" in W else (X @ W["W_Q"], X @ W["W_K"])
        T = left @ right.T / (self.temperature * math.sqrt(self.W_Q.shape[1]))
        if self.attention == "linear":
            return T
        if self.mask == "causal":
            unseen = torch.ones_like(T, dtype=torch.bool).triu(1)
            T = T.masked_fill(unseen, -math.inf)
        if self.sink:
            first = torch.arange(T.shape[-1], device=T.device) == 0
            T = T + self.sink * first
        return T.softmax(dim=-1)

    def output(self, W: dict[str, Tensor]) -> Tensor:
        """F (L, d_V)."""
        return self.pattern(W) @ (self.scale * self.X) @ W["W_V"]

    def loss(self, W: dict[str, Tensor]) -> Tensor:
        """||F - Y||^2 / (L d_V)."""
        return (self.output(W) - self.Y).square().mean()

    # --- the independent way ----------------------------------------------------------------------------------------
    def gradient(self, w: Tensor) -> Tensor:
        """dL/dw at the flat weights w (P,)."""
        return _gradient(self.loss, self.space, w).detach()

    def autodiff(self, columns: Tensor | None = None) -> Tensor:
        """Columns of H (all of them by default), (P, k), by double backward."""
        return _second(self.loss, self.space, self.space.flatten(self.weights), columns)

    def product(self, v: Tensor) -> Tensor:
        """H v (P,) by double backward."""
        w = self.space.flatten(self.weights).detach().requires_grad_()
        return torch.autograd.grad(_gradient(self.loss, self.space, w), w, v)[0]

    def autodiff_functional(self) -> Tensor:
        """H_f (P, P): the second derivative of <dl/dF, F> with dl/dF held fixed, by double backward."""
        F = self.output(self.weights)
        g = 2 * (F - self.Y) / F.numel()
        return _second(lambda W: (g * self.output(W)).sum(), self.space, self.space.flatten(self.weights))

    def difference(self, direction: Tensor, step: float = 1e-5) -> Tensor:
        """H v (P,) by central differences of the gradient; accurate to about step^2."""
        w = self.space.flatten(self.weights)
        return (self.gradient(w + step * direction) - self.gradient(w - step * direction)) / (2 * step)


def _gradient(scalar: Scalar, space: Space, w: Tensor) -> Tensor:
    if not w.requires_grad:
        w = w.detach().requires_grad_()
    return torch.autograd.grad(scalar(space.unflatten(w)), w, create_graph=True)[0]


def _second(scalar: Scalar, space: Space, w: Tensor, columns: Tensor | None = None, chunk: int = 256) -> Tensor:
    """Columns of the second derivative of `scalar` at w, (P, k)."""
    w = w.detach().requires_grad_()
    gradient = _gradient(scalar, space, w)
    units = torch.eye(len(w), dtype=w.dtype, device=w.device)
    if columns is not None:
        units = units[columns]
    rows = [
        torch.autograd.grad(gradient, w, part, is_grads_batched=True, retain_graph=True)[0]
        for part in units.split(chunk)
    ]
    return torch.cat(rows).T


def toy_problem(
    *,
    tokens: int,
    d_model: int,
    d_k: int | None = None,
    d_v: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Problem:
    """A seeded problem: X and Y ~ N(0, 1), weights ~ N(0, 1/d_model). Drawn on the CPU in float64, so every device and
    number format gets the same one; each tensor has its own stream, so changing d_v moves only W_V and Y."""
    d_k, d_v = d_k or d_model, d_v or d_model

    def draw(name: str, *shape: int, std: float = 1.0) -> Tensor:
        t = torch.randn(shape, generator=stream(seed, f"toy/{name}"), dtype=torch.float64)
        return (std * t).to(device=device, dtype=dtype)

    std = d_model**-0.5
    return Problem(
        X=draw("X", tokens, d_model),
        W_Q=draw("W_Q", d_model, d_k, std=std),
        W_K=draw("W_K", d_model, d_k, std=std),
        W_V=draw("W_V", d_model, d_v, std=std),
        Y=draw("Y", tokens, d_v),
        **options,
    )
