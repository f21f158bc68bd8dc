"""Preconditioners from saved optimizer states: plain tensors by parameter, as they lie in a file.

    Adafactor    torch: row_var, col_var, variance; transformers: exp_avg_sq_row, exp_avg_sq_col, exp_avg_sq
    Shampoo      pre_cond_i (pytorch-optimizer) or precond_i (torch-optimizer): L_i; P = L_1^(1/k) kron L_2^(1/k) ...

for a tensor of k axes. Both packages take the power -1/k of each factor where [GKS18] takes -1/(2k).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Space
from ..core.structured import Diagonal
from .moments import powered
from .operators import Blocks, Kronecker, whole_block
from .state import adafactor_root

State = Mapping[str, Any]


def kind_of(group: State, states: Mapping[str, State]) -> str:
    """Whose state this is: `adam`, `adafactor`, `shampoo`, or empty where it is another's."""
    keys = {key for state in states.values() for key in state}
    if keys & {"row_var", "variance", "exp_avg_sq_row"} or ("exp_avg_sq" in keys and "scale_parameter" in group):
        return "adafactor"
    if any(key.startswith(("pre_cond_", "precond_")) for key in keys):
        return "shampoo"
    return "adam" if "exp_avg_sq" in keys and "betas" in group and "GG" not in keys else ""


def adafactor_of(group: State, states: Mapping[str, State], space: Space, kind: Mapping[str, Any]) -> Blocks:
    """The root of the second moment that Adafactor of torch or of transformers has saved."""
    found = {n: _root(group, _own(states, n, "Adafactor")).to(**kind).reshape(shape) for n, shape in space}
    return Blocks([Diagonal(found, space)], space, ["Adafactor, its saved state"])


def shampoo_of(states: Mapping[str, State], space: Space, kind: Mapping[str, Any]) -> Blocks:
    """The Kronecker product of the factors that Shampoo has saved, each to the power of one over their number."""
    blocks: list[Operator] = []
    for name, shape in space:
        state = _own(states, name, "Shampoo")
        axes = range(len(shape))
        L = [next((state[k] for k in (f"pre_cond_{i}", f"precond_{i}") if k in state), None) for i in axes]
        if any(M is None or len(M) != n for M, n in zip(L, shape, strict=True)):
            raise InputError(f"the saved state of Shampoo has no factor for each axis of `{name}`, {tuple(shape)}.")
        factors = [powered(M.to(**kind), 1 / len(shape)) for M in L if M is not None]
        blocks.append(whole_block(name, Kronecker(factors), space))
    return Blocks(blocks, space, ["Shampoo, its saved factors"])


def _own(states: Mapping[str, State], name: str, what: str) -> State:
    if not states.get(name):
        raise InputError(f"the saved state of {what} has nothing for `{name}`; choose `params` that it trains.")
    return states[name]


def _root(group: State, state: State) -> Tensor:
    if "row_var" in state or "variance" in state:
        return adafactor_root(group, state, next(t for t in state.values() if isinstance(t, Tensor) and t.dim()))
    if "exp_avg_sq_row" in state:
        row, col = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
        return ((row / row.mean(-1, keepdim=True))[..., None] * col[..., None, :]).sqrt()
    return torch.as_tensor(state["exp_avg_sq"]).sqrt()
