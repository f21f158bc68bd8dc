"""Hessian products of a deep model at the memory of one block: the reverse loop over blocks is ours.

`torch.utils.checkpoint` refuses torch.func, so long contexts need this: keep each block's input and its tangent, then
walk back through the blocks with the jvp of each block's vjp, recomputing its inside.

    forward   x_{i+1} = f_i(p_i, x_i)                  with tangents (ṗ_i, ẋ_i)
    backward  (dp_i, dx_i) = vjp f_i(p_i, x_i; dx_{i+1})    with tangents (ṗ_i, ẋ_i, dẋ_{i+1}); dṗ_i is the product

Source: [own]; the recomputation is that of gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.func import jvp, vjp

from quadform.core.errors import InputError


def blockwise_hvp(
    blocks: Sequence[Callable], params: Sequence[Any], tangents: Sequence[Any], *, wrap: Callable | None = None
) -> tuple[list[Any], list[Any]]:
    """Gradient and Hessian product of L(p) = f_n(p_n, ... f_1(p_1, f_0(p_0))), one block in memory at a time.

    blocks     f_0(p_0) -> x, then f_i(p_i, x) -> x, last f_n(p_n, x) -> scalar. x may be a tree of tensors
    params     one tree per block; `tangents` likewise. A tensor used by two blocks (a tied embedding) is listed in
               both, with the same tangent, and its two results are to be added
    wrap       called as wrap(function, *example) for each different function and giving what is called instead; pass
               `program` to trace and compile each kind of block once. Blocks that are the same object share a program

    Returns (gradients, products), each a list of trees like `params`.
    """
    if not (len(blocks) == len(params) == len(tangents)) or len(blocks) < 2:
        raise InputError(
            f"blocks, params and tangents must have equal length of at least 2; got {len(blocks)}, {len(params)}, "
            f"{len(tangents)}."
        )
    programs: dict[tuple[str, int], Callable] = {}

    def run(kind: str, i: int, function: Callable, *args: Any) -> Any:
        if wrap is None:
            return function(*args)
        key = (kind, id(blocks[i]))
        if key not in programs:
            programs[key] = wrap(function, *args)
        return programs[key](*args)

    n = len(blocks) - 1
    x, tx = run("first", 0, lambda p, t: jvp(blocks[0], (p,), (t,)), params[0], tangents[0])
    saved = []
    for i in range(1, n):
        saved.append((x, tx))
        x, tx = run("forward", i, _forward(blocks[i]), params[i], x, tangents[i], tx)
    grads, products = [None] * (n + 1), [None] * (n + 1)
    grads[n], dx, products[n], tdx = run("last", n, _last(blocks[n]), params[n], x, tangents[n], tx)
    for i in range(n - 1, 0, -1):
        x, tx = saved.pop()
        args = (params[i], x, dx, tangents[i], tx, tdx)
        grads[i], dx, products[i], tdx = run("backward", i, _backward(blocks[i]), *args)
    grads[0], products[0] = run("first back", 0, _first_back(blocks[0]), params[0], dx, tangents[0], tdx)
    return grads, products


def _forward(f):
    return lambda p, x, tp, tx: jvp(f, (p, x), (tp, tx))


def _last(f):
    def run(p, x, tp, tx):
        (dp, dx), (tdp, tdx) = jvp(torch.func.grad(f, argnums=(0, 1)), (p, x), (tp, tx))
        return dp, dx, tdp, tdx

    return run


def _backward(f):
    def run(p, x, dx, tp, tx, tdx):
        (dp, dx), (tdp, tdx) = jvp(lambda p, x, g: vjp(f, p, x)[1](g), (p, x, dx), (tp, tx, tdx))
        return dp, dx, tdp, tdx

    return run


def _first_back(f):
    def run(p, dx, tp, tdx):
        (dp,), (tdp,) = jvp(lambda p, g: vjp(f, p)[1](g), (p, dx), (tp, tdx))
        return dp, tdp

    return run
