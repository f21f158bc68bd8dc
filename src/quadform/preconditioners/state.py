"""Adam and Adafactor as diagonals: what the state of a torch optimizer divides the next gradient by.

    Adam, AdamW    P = sqrt(v / (1 - b2^t)) + eps
    Adafactor      P = max(sqrt(r c^T / mean(r)), eps_1), r and c the means of g^2 over columns and rows

Source: [KB15], [SS18], as torch writes them (epsilon outside the root and after the bias correction; no bias correction
in Adafactor, whose averages begin with weight 1). The state is that after the last step; one step later Adam would have
added the new gradient first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.space import Space, Vector
from ..core.structured import Diagonal
from ..curvature.risk import Risk
from .operators import Blocks

Denominator = Callable[[Mapping[str, Any], Mapping[str, Any], Tensor], Tensor]


def adam(optimizer: torch.optim.Optimizer, risk: Risk) -> Blocks:
    """sqrt(v_hat) + eps of Adam or AdamW for the parameters of a risk, from the optimizer that trains its model."""
    return _read(optimizer, risk, (torch.optim.Adam, torch.optim.AdamW), "exp_avg_sq", _adam)


def adafactor(optimizer: torch.optim.Optimizer, risk: Risk) -> Blocks:
    """The root of Adafactor's second moment for the parameters of a risk, rank one for a matrix."""
    return _read(optimizer, risk, (torch.optim.Adafactor,), "step", adafactor_root)


def adam_after(gradients: Iterable[Vector]) -> Blocks:
    """P of torch's Adam with its defaults once it has seen these gradients, the weights held."""
    return _held(torch.optim.Adam, gradients, _adam)


def adafactor_after(gradients: Iterable[Vector]) -> Blocks:
    """P of torch's Adafactor with its defaults once it has seen these gradients, the weights held."""
    return _held(torch.optim.Adafactor, gradients, adafactor_root)


def _held(kind: Callable[..., torch.optim.Optimizer], gradients: Iterable[Vector], denominator: Denominator) -> Blocks:
    """The optimizer itself, at learning rate 0, on tensors of its own."""
    params: dict[str, torch.nn.Parameter] = {}
    optimizer: torch.optim.Optimizer | None = None
    for g in gradients:
        if optimizer is None:
            params = {n: torch.nn.Parameter(torch.zeros_like(t)) for n, t in g.items()}
            optimizer = kind(list(params.values()), lr=0.0, weight_decay=0.0)
        for n, p in params.items():
            p.grad = g[n].detach().clone()
        optimizer.step()
    if optimizer is None:
        raise InputError("a preconditioner of gradients needs at least one; got none.")
    (group,), space = optimizer.param_groups, Space.of(params)
    found = {n: denominator(group, optimizer.state[p], p.detach()).detach() for n, p in params.items()}
    count = int(optimizer.state[params[space.names[0]]]["step"])
    return Blocks(
        [Diagonal(found, space)], space, [f"{type(optimizer).__name__} after {count} gradients, weights held"]
    )


def _adam(group: Mapping[str, Any], state: Mapping[str, Any], p: Tensor) -> Tensor:
    v = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    return (v / (1 - float(group["betas"][1]) ** float(state["step"]))).sqrt() + float(group["eps"])


def adafactor_root(group: Mapping[str, Any], state: Mapping[str, Any], p: Tensor) -> Tensor:
    """The root of torch's Adafactor's second moment."""
    eps = group["eps"][0]
    eps = torch.finfo(p.dtype).eps if eps is None else float(eps)
    if "row_var" in state:
        row, col = state["row_var"], state["col_var"]
        v = row @ col / row.mean(dim=-2, keepdim=True).clamp_min(eps)
    else:
        v = state["variance"]
    return v.clamp_min(eps**2).sqrt()


def _read(
    optimizer: torch.optim.Optimizer, risk: Risk, kinds: tuple[type, ...], key: str, denominator: Denominator
) -> Blocks:
    kind = type(optimizer).__name__
    if not isinstance(optimizer, kinds):
        raise InputError(f"the state of {' or '.join(k.__name__ for k in kinds)} was asked for; got {kind}.")
    if not isinstance(risk.model, torch.nn.Module):
        raise InputError("an optimizer belongs to a module; this risk is of a function.")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    params = dict(risk.model.named_parameters())
    found, steps = {}, set()
    for name in risk.space.names:
        p = params[name]
        if id(p) not in groups:
            raise InputError(f"this {kind} does not train `{name}`; leave it out of the risk (`params=`).")
        state = optimizer.state.get(p, {})
        if key not in state or not float(state["step"]):
            raise InputError(f"this {kind} has not stepped `{name}` yet, so it has no preconditioner; step it first.")
        steps.add(int(state["step"]))
        found[name] = denominator(groups[id(p)], state, p.detach()).detach().to(risk.dtype)
    at = f"step {max(steps)}" if len(steps) == 1 else f"steps {min(steps)} to {max(steps)}"
    return Blocks([Diagonal(found, risk.space)], risk.space, [f"{kind} at {at}"])
