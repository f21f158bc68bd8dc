"""Exact functional parts of the attention layers inside a model: closed forms where `theory` covers the layer.

    H_f(a, b) = <g, d2F/da db>,   F the output of the attention module, g = dl/dF at the model's own weights and data

A layer is covered when `theory.MultiHeadAttentionLayer`, fed with the module's own input and weights, gives the
module's own output; this is measured, not assumed from names. Biases, rotary positions or shaped mixing make the
outputs differ, and the layer is then left to the estimators. Source of the norms: [ODS25, Thm 3.2], without the blocks
[own].
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from ...core.operator import Operator
from ...core.record import Estimate
from ...core.space import Space, Vector
from ...curvature.operators import output_gradient
from ...curvature.risk import Risk
from ...theory.multihead import MultiHeadAttentionLayer

#: The module's output and that of the closed form may differ by this much, relative to the largest entry.
SAME = {torch.float64: 1e-9, torch.float32: 1e-4}
#: Tokens of a batch beyond which the sums over pairs of tokens are left out.
TOKENS = 2048

Norms = dict[tuple[str, str], Estimate]


def functional_norms(risk: Risk) -> dict[str, Norms]:
    """`{module: {(a, b): |H_f(a, b)|_F}}` of every covered attention layer, by names `W_Q ... W_O`; one batch only."""
    if not isinstance(risk.model, nn.Module) or len(risk.batches) != 1 or risk.dtype not in SAME:
        return {}
    found = {}
    for path, weights, heads in _attention_modules(risk):
        layer = _layer(risk, path, weights, heads)
        if layer is not None:
            found[path] = _whole(layer.norms("functional"))
    return found


def _whole(heads: Norms) -> Norms:
    """Norms of whole matrices from those of their heads: squares add up."""
    square: dict[tuple[str, str], float] = {}
    for (a, b), e in heads.items():
        pair = (a.partition("[")[0], b.partition("[")[0])
        square[pair] = square.get(pair, 0.0) + e.value**2
    return {
        pair: Estimate(total**0.5, note="closed form, split at the layer's output") for pair, total in square.items()
    }


@final
class _Zero(Operator):
    """d2l/dF2 = 0: the functional part does not see it."""

    def __init__(self, space: Space, **kind: Any) -> None:
        super().__init__(space, symmetric=True, psd=True, **kind)

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return {name: torch.zeros_like(t) for name, t in V.items()}


def _attention_modules(risk: Risk) -> list[tuple[str, dict[str, Tensor], int]]:
    """Modules with W_Q, W_K, W_V and W_O: their path, weights as `X @ W`, number of heads."""
    named = dict(risk.params)
    for view in risk.space.views:
        named.setdefault(view.name, view.read(risk.params[view.of], 0))
    stored = {v.name: v.of for v in risk.space.views}
    modules = dict(risk.model.named_modules())  # type: ignore[union-attr]  # a module, not a function
    out = []
    for name in named:
        path, _, last = name.rpartition(".")
        four = [f"{path}.{w}".lstrip(".") for w in ("W_Q", "W_K", "W_V", "W_O")]
        if last != "W_Q" or any(n not in named for n in four):
            continue
        weights = {}
        for full, paper in zip(four, ("W_Q", "W_K", "W_V", "W_O"), strict=True):
            owner = modules.get(stored.get(full, full).rpartition(".")[0])
            turned = isinstance(owner, nn.Linear) or "in_proj_weight" in stored.get(full, "")
            weights[paper] = named[full].T if turned else named[full]
        heads = sum(f"{path}.W_Q[{h}]".lstrip(".") in named for h in range(weights["W_Q"].shape[1]))
        if heads and weights["W_Q"].shape[1] == weights["W_K"].shape[1]:
            out.append((path, weights, heads))
    return out


def _layer(risk: Risk, path: str, weights: dict[str, Tensor], heads: int) -> MultiHeadAttentionLayer | None:
    """The closed form of a module on its own input, or None where it is another function."""
    batch = risk.batches[0]
    inputs: list[Tensor] = []

    def look(module: nn.Module, args: Any, options: Any) -> None:
        inputs.extend(t for t in (*args, *options.values()) if isinstance(t, Tensor) and t.is_floating_point())

    module = risk.model.get_submodule(path)  # type: ignore[union-attr]  # a module, not a function
    handle = module.register_forward_pre_hook(look, with_kwargs=True)
    try:
        with torch.no_grad(), risk.context():
            _, F = risk.run(risk.params, batch, path)
    finally:
        handle.remove()
    X = inputs[0] if inputs else None
    if F is None or X is None or X.dim() != 3 or F.shape[:2] != X.shape[:2] or X.shape[0] * X.shape[1] > TOKENS:
        return None
    if X.shape[2] != weights["W_Q"].shape[0] or F.shape[2] != weights["W_O"].shape[1]:
        return None
    with risk.context():
        g = output_gradient(risk, risk.params, batch, path)
    loss = (g.flatten(0, 1), _Zero(Space((("F", (g[..., 0].numel(), g.shape[-1])),)), dtype=F.dtype, device=F.device))
    for mask in ("causal", None):
        layer = MultiHeadAttentionLayer(X, **weights, heads=heads, mask=mask, loss=loss)  # type: ignore[arg-type]  # weights by name
        if float((layer.F.reshape(F.shape) - F).abs().max()) <= SAME[F.dtype] * float(F.abs().max()):
            return layer
    return None
