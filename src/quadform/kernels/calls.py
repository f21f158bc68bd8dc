"""Calls of torch's functions without a right second derivative, answered by others in one thread."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Attention = Callable[..., Tensor]


class AttentionBy(TorchFunctionMode):
    """A scope in which `instead` answers `F.scaled_dot_product_attention`, under whatever name code has imported it.

    It belongs to the thread that enters it; nothing of torch changes. `calls` counts. `nn.MultiheadAttention` takes no
    fused step inside, which would have no derivative. Embeddings with a padding token, weight norms, squared and Huber
    losses are answered by `embedding`, `weight_norm`, `mse_loss` and `huber_loss`.
    """

    def __init__(self, instead: Attention) -> None:
        super().__init__()
        self.instead = instead
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if func is functional.multi_head_attention_forward:  # Python code, which would call torch's own: no mode here
            return _with(func, has_torch_function=_none, scaled_dot_product_attention=self._attend)(*args, **kwargs)
        if func is functional.embedding:
            return embedding(*args, **kwargs)
        if func is torch._weight_norm:
            return weight_norm(*args, **kwargs)
        if func is functional.mse_loss:
            return mse_loss(*args, **kwargs)
        if func is functional.huber_loss:
            return huber_loss(*args, **kwargs)
        return func(*args, **kwargs)

    def _attend(self, *args: Any, **kwargs: Any) -> Tensor:
        self.calls += 1
        return self.instead(*args, **kwargs)


def math_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's math path, which it differentiates twice, whatever backends are enabled; memory grows with tokens^2."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    attend = torch._scaled_dot_product_attention_math
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """`F.embedding` whose padding token is a constant in every mode of derivatives: torch's reverse mode gives its row
    no gradient, its forward mode would move it."""
    found = functional.embedding(input, weight, None, *args, **kwargs)
    if padding_idx is None:
        return found
    padding = input == padding_idx % weight.shape[0]
    return torch.where(padding[..., None], found.detach(), found)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """g v / |v|, the norm over all axes but `dim`; torch's own has a wrong second derivative (2.13) and no forward."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def mse_loss(*args: Any, **kwargs: Any) -> Tensor:
    """`F.mse_loss` whose mean is taken outside; the gradient of torch's own mean has no forward derivative (2.13)."""
    given = {name: option for name, option in kwargs.items() if option is not None}
    if len(args) != 2 or given.keys() - {"reduction"} or given.get("reduction", "mean") != "mean":
        return functional.mse_loss(*args, **kwargs)
    return functional.mse_loss(*args, reduction="none").mean()


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, **more: Any) -> Tensor:
    """`F.huber_loss` by `F.smooth_l1_loss`, delta times which it is; its own gradient has no forward derivative."""
    if any(option is not None for option in more.values()):  # weights
        return functional.huber_loss(input, target, reduction, delta, **more)
    return delta * functional.smooth_l1_loss(input, target, reduction=reduction, beta=delta)


def _none(tensors: Any) -> bool:
    return False


def _with(function: Any, **names: Any) -> Any:
    """A copy of a Python function in which some global names mean something else."""
    copy = FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
