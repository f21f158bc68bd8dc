"""Matrix products of 16-bit operands with float32 results, and float32 products taken that way.

TF32 and float16 have the same ten mantissa bits, but a Hopper GPU multiplies float16 at twice the rate, from half the
bytes. A power of two per operand brings its largest magnitude near 2^14, so neither end of float16's range is near; the
scales are taken out of the float32 result exactly:

    A B = 2^{-a} 2^{-b} half(2^a A) half(2^b B)

An entry smaller than 2^-28 of its operand's largest loses mantissa bits. Source: [own].
"""

from __future__ import annotations

from operator import getitem

import torch
from torch import Tensor

from .choice import has_triton

LEAST = 256
"""Products with a side shorter than this stay as they are: scaling would cost more than it saves."""


@torch.library.custom_op("quadform::wide_product", mutates_args=())
def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32 for float16 or bfloat16 operands, (m, k) (k, n) or (batch, m, k) (batch, k, n)."""
    if a.is_cuda:
        return (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


@wide_product.register_fake
def _(a, b):
    return torch.empty(*a.shape[:-1], b.shape[-1], dtype=torch.float32, device=a.device)


@wide_product.register_vmap
def _(info, in_dims, a, b):
    n = info.batch_size
    a, b = (x if d is None else x.movedim(d, 0) for x, d in zip((a, b), in_dims, strict=True))
    if in_dims[1] is None and b.dim() == 2:
        return wide_product(a.flatten(0, 1), b).unflatten(0, (n, -1)), 0
    a, b = (x.expand(n, *x.shape) if d is None else x for x, d in zip((a, b), in_dims, strict=True))
    if a.dim() == 3:
        return wide_product(a, b), 0
    return wide_product(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, (n, -1)), 0


@torch.library.custom_op("quadform::halve", mutates_args=())
def halve(x: Tensor) -> tuple[Tensor, Tensor]:
    """(half(2^a x), 2^-a): x in float16 with its largest magnitude between 2^14 and 2^15, and what undoes the scale."""
    half = torch.empty_like(x, dtype=torch.float16)
    x = x if x.stride() == half.stride() else torch.empty_like(x).copy_(x)  # dense, as the kernel reads it
    if x.is_cuda and has_triton():
        from . import scaling

        return scaling.halve(x, half)
    power = torch.linalg.vector_norm(x, float("inf")).clamp_min(1e-30).log2().floor()
    return torch.mul(x, torch.exp2(14 - power), out=half), torch.exp2(power - 14)


@halve.register_fake
def _(x):
    return torch.empty_like(x, dtype=torch.float16), torch.empty((), dtype=torch.float32, device=x.device)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b for matrices, in float32 where the operands have 16 bits."""
    return wide_product(a, b) if a.dtype in (torch.float16, torch.bfloat16) else a @ b


aten = torch.ops.aten
_VIEWS = (
    aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default, aten._unsafe_view.default,
    aten.reshape.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.expand.default,
    aten.alias.default, aten.detach.default,
)  # fmt: skip


def in_halves(graph: torch.fx.Graph) -> int:
    """Take every large float32 product of a traced graph in scaled float16; how many were rewritten.

    An operand used by several products is scaled once, whichever way round it is read. One tensor has one scale, so
    vectors multiplied together should be of like size (mantissa bits are lost below 2^-28 of the largest entry).
    """
    done: dict[torch.fx.Node, tuple] = {}
    count = 0
    for node in list(graph.nodes):
        if node.target not in (aten.mm.default, aten.bmm.default, aten.addmm.default):
            continue
        a, b = node.args[-2:]
        sides = (*a.meta["val"].shape[-2:], b.meta["val"].shape[-1])
        if a.meta["val"].dtype != torch.float32 or min(sides) < LEAST or node.kwargs:
            continue
        (x, x_back), (y, y_back) = (_operand(graph, n, done) for n in (a, b))
        with graph.inserting_before(node):
            new = graph.call_function(torch.ops.quadform.wide_product.default, (x, y))
            for back in (x_back, y_back):
                new = graph.call_function(aten.mul.Tensor, (new, back))
            if node.target is aten.addmm.default:
                new = graph.call_function(aten.add.Tensor, (new, node.args[0]))
        node.replace_all_uses_with(new)
        new.meta = dict(node.meta)
        graph.erase_node(node)
        count += 1
    return count


def _operand(graph: torch.fx.Graph, node: torch.fx.Node, done: dict) -> tuple:
    """(the operand in scaled float16, the factor that undoes the scale), made once, right after the operand itself."""
    if node in done:
        return done[node]
    if node.target in _VIEWS:
        half, back = _operand(graph, node.args[0], done)
        with graph.inserting_after(max(node, half)):
            done[node] = graph.call_function(node.target, (half, *node.args[1:]), node.kwargs), back
        return done[node]
    after = node
    if node.op == "placeholder":  # after all of them: calls may not stand between the inputs
        after = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(after):
        pair = graph.call_function(torch.ops.quadform.halve.default, (node,))
    with graph.inserting_after(pair):
        back = graph.call_function(getitem, (pair, 1))
        done[node] = graph.call_function(getitem, (pair, 0)), back
    return done[node]
