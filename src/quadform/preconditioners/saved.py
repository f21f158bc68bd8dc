"""Preconditioners from saved optimizer states: plain tensors by parameter, as they lie in a file.

    Adafactor    torch: row_var, col_var, variance; transformers: exp_avg_sq_row, exp_avg_sq_col, exp_avg_sq
    Shampoo      pre_cond_i (pytorch-optimizer) or precond_i (torch-optimizer): L_i; P = L_1^(1/k) kron L_2^(1/k) ...
    SOAP         Q (bases U_i, an empty list for none), exp_avg_sq (v in them): P = U diag(sqrt(v_hat) + eps) U^T

for a tensor of k axes. Both packages take the power -1/k of each factor where [GKS18] takes -1/(2k). SOAP counts its
steps in the group (pytorch-optimizer, from the second gradient on) or in the state of a parameter (its authors').
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Space
from ..core.structured import Diagonal, KroneckerDiagonal
from .moments import powered
from .operators import Blocks, Kronecker, whole_block
from .state import adafactor_root

State = Mapping[str, Any]


def kind_of(group: State, states: Mapping[str, State]) -> str:
    """Whose state this is: `adam`, `adafactor`, `shampoo`, `soap`, or empty where it is another's."""
    keys = {key for state in states.values() for key in state}
    if keys & {"row_var", "variance", "exp_avg_sq_row"} or ("exp_avg_sq" in keys and "scale_parameter" in group):
        return "adafactor"
    if keys.intersection(factor_names(0)):
        return "shampoo"
    if {"GG", "Q", "exp_avg_sq"} <= keys:
        return "soap"
    return "adam" if "exp_avg_sq" in keys and "betas" in group else ""


def factor_names(axis: int) -> tuple[str, str]:
    """What packages call the factor of an axis in the state of Shampoo."""
    return f"pre_cond_{axis}", f"precond_{axis}"


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
        L = [next((state[k] for k in factor_names(i) if k in state), None) for i in axes]
        if any(M is None or len(M) != n for M, n in zip(L, shape, strict=True)):
            raise InputError(f"the saved state of Shampoo has no factor for each axis of `{name}`, {tuple(shape)}.")
        factors = [powered(M.to(**kind), 1 / len(shape)) for M in L if M is not None]
        blocks.append(whole_block(name, Kronecker(factors), space))
    return Blocks(blocks, space, ["Shampoo, its saved factors"])


def soap_of(group: State, states: Mapping[str, State], space: Space, kind: Mapping[str, Any]) -> Blocks:
    """Adam in the bases that SOAP has saved; a vector has none."""
    blocks: list[Operator] = []
    for name, shape in space:
        state = _own(states, name, "SOAP")
        steps = int(state["step"] if "step" in state else group["step"] - 1)
        if steps < 1:
            raise InputError(f"SOAP has seen one gradient of `{name}`, which makes its basis alone; step it again.")
        bases = [None if U is None or not len(U) else U.to(**kind) for U in state["Q"]]
        if [n if U is None else len(U) for U, n in zip(bases, shape, strict=False)] != list(shape):
            raise InputError(f"the saved bases of SOAP do not fit `{name}`, {tuple(shape)}: its axes were merged.")
        root = (1 - float(group["betas"][1]) ** steps) ** 0.5 if group.get("correct_bias", True) else 1.0
        s = (state["exp_avg_sq"].to(**kind).sqrt() + float(group["eps"])) / root
        blocks.append(KroneckerDiagonal(bases, s, space.select(name)))
    return Blocks(blocks, space, ["SOAP, its saved bases and moments"])


def _own(states: Mapping[str, State], name: str, what: str) -> State:
    if not states.get(name):
        raise InputError(f"the saved state of {what} has no entry for `{name}`; choose `params` that it trains.")
    return states[name]


def _root(group: State, state: State) -> Tensor:
    if "row_var" in state or "variance" in state:
        return adafactor_root(group, state, next(t for t in state.values() if isinstance(t, Tensor) and t.dim()))
    if "exp_avg_sq_row" in state:
        row, col = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
        return ((row / row.mean(-1, keepdim=True))[..., None] * col[..., None, :]).sqrt()
    return torch.as_tensor(state["exp_avg_sq"]).sqrt()
