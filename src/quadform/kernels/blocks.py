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
from torch.func import vjp
from torch.utils._pytree import tree_leaves

from quadform.core.errors import InputError

jvp: Callable[..., Any] = torch.func.jvp  # typed as pairs or triples; without has_aux it gives pairs


class Blockwise:
    """Gradient and Hessian product of L(p) = f_n(p_n, ... f_1(p_1, f_0(p_0))), one block in memory at a time.

    blocks     f_0(p_0) -> x, then f_i(p_i, x) -> x, last f_n(p_n, x) -> scalar. x may be a tree of tensors
    wrap       called as wrap(function, *example) once for each kind of block and shape, giving what is called instead;
               pass `program` to trace and compile. Blocks that are the same object share a program, and programs are
               kept from call to call

    Called with one tree of parameters and one of tangents per block; a tensor used by two blocks (a tied embedding) is
    listed in both, with the same tangent, and its two results are to be added. Gives (gradients, products), each a list
    of trees like the parameters.
    """

    def __init__(self, blocks: Sequence[Callable], wrap: Callable | None = None) -> None:
        if len(blocks) < 2:
            raise InputError(f"a first block and a last block (the loss) are needed; got {len(blocks)} blocks.")
        self.blocks, self.wrap = tuple(blocks), wrap
        self._programs: dict[tuple, Callable] = {}

    def _run(self, kind: Callable, i: int, *args: Any) -> Any:
        block = self.blocks[i]
        if self.wrap is None:
            return kind(block)(*args)
        key = (kind.__name__, id(block), *((t.shape, t.dtype) for t in tree_leaves(args)))
        if key not in self._programs:
            self._programs[key] = self.wrap(kind(block), *args)
        return self._programs[key](*args)

    def __call__(self, params: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        n = len(self.blocks) - 1
        if not len(params) == len(tangents) == n + 1:
            raise InputError(
                f"params and tangents must have equal length to the {n + 1} blocks; got {len(params)}, {len(tangents)}."
            )
        x, tx = self._run(_first, 0, params[0], tangents[0])
        saved = []
        for i in range(1, n):
            saved.append((x, tx))
            x, tx = self._run(_forward, i, params[i], x, tangents[i], tx)
        grads, products = [None] * (n + 1), [None] * (n + 1)
        grads[n], dx, products[n], tdx = self._run(_last, n, params[n], x, tangents[n], tx)
        for i in range(n - 1, 0, -1):
            x, tx = saved.pop()
            grads[i], dx, products[i], tdx = self._run(_backward, i, params[i], x, dx, tangents[i], tx, tdx)
        grads[0], products[0] = self._run(_first_backward, 0, params[0], dx, tangents[0], tdx)
        return grads, products


def blockwise_hvp(
    blocks: Sequence[Callable], params: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Gradient and Hessian product, once and without compiling; see `Blockwise`."""
    return Blockwise(blocks)(params, tangents)


def _first(f):
    return lambda p, tp: jvp(f, (p,), (tp,))


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


def _first_backward(f):
    def run(p, dx, tp, tdx):
        (dp,), (tdp,) = jvp(lambda p, g: vjp(f, p)[1](g), (p, dx), (tp, tdx))
        return dp, tdp

    return run
