"""Matrix products of 16-bit operands with float32 results, and float32 products taken that way.

TF32 and float16 have the same ten mantissa bits, but a Hopper GPU multiplies float16 at twice the rate, from half the
bytes. A power of two per operand brings its largest magnitude near 2^14, so neither end of float16's range is near; the
scales are taken out of the float32 result exactly:

    A B = 2^{-a} 2^{-b} half(2^a A) half(2^b B)

An entry smaller than 2^-28 of its operand's largest loses mantissa bits. Source: [own].
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch import Tensor

from .choice import has_triton

LEAST = 256
"""Products with a side shorter than this stay as they are: scaling would cost more than it saves."""
ALIGN = 8
"""Rows of float16 are padded to a multiple of this: 16 bytes."""


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
    done: dict[tuple, tuple] = {}
    count = 0
    for node in list(graph.nodes):
        if node.target not in (aten.mm.default, aten.bmm.default, aten.addmm.default):
            continue
        a, b = node.args[-2:]
        (m, k), n = a.meta["val"].shape[-2:], b.meta["val"].shape[-1]
        if a.meta["val"].dtype != torch.float32 or min(m, k, n) < LEAST or node.kwargs:
            continue
        extra_m, extra_k, extra_n = _extra(a.meta["val"], b.meta["val"])
        x, x_back = _operand(graph, a, (extra_m, extra_k), done)
        y, y_back = _operand(graph, b, (extra_k, extra_n), done)
        with graph.inserting_before(node):
            new = _call(graph, torch.ops.quadform.wide_product.default, x, y)
            for dim, extra, size in ((-2, extra_m, m), (-1, extra_n, n)):
                new = _call(graph, aten.slice.Tensor, new, dim, 0, size) if extra else new
            for back in (x_back, y_back):
                new = _call(graph, aten.mul.Tensor, new, back)
            if node.target is aten.addmm.default:
                new = _call(graph, aten.add.Tensor, new, node.args[0])
        node.replace_all_uses_with(new)
        new.meta = dict(node.meta)
        graph.erase_node(node)
        count += 1
    return count


def _extra(a: Tensor, b: Tensor) -> tuple[int, int, int]:
    """Zeros to append to the rows of a, to what a and b share and to the columns of b.

    Rows of an operand, or of the result, that start off a 16-byte boundary keep a GPU's products from their fast path:
    those with GPT-2's 50,257 logits then take six times as long.
    """
    along_rows = [x.stride(-1) != 1 for x in (a, b)]  # numbers of a column are neighbours in memory
    shared = not along_rows[0] or along_rows[1]
    return (
        -a.shape[-2] % ALIGN if along_rows[0] else 0,
        -a.shape[-1] % ALIGN if shared else 0,
        -b.shape[-1] % ALIGN,
    )


def _operand(graph: torch.fx.Graph, node: Any, extra: tuple[int, int], done: dict) -> tuple:
    """(the operand in scaled float16, the factor that undoes the scale), made once, right after the operand itself.

    `extra` rows and columns of zeros are appended.
    """
    if (node, extra) in done:
        return done[node, extra]
    if node.target in _VIEWS and (extra == (0, 0) or _swaps(node)):
        half, back = _operand(graph, node.args[0], extra[::-1], done)
        with graph.inserting_after(max(node, half)):
            done[node, extra] = _call(graph, node.target, half, *node.args[1:], **node.kwargs), back
        return done[node, extra]
    after = node
    if node.op == "placeholder":  # after all of them: calls may not stand between the inputs
        after = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(after):
        whole = _call(graph, aten.constant_pad_nd.default, node, [0, extra[1], 0, extra[0]]) if any(extra) else node
    with graph.inserting_after(whole if any(extra) else after):
        pair = _call(graph, torch.ops.quadform.halve.default, whole)
    with graph.inserting_after(pair):
        back = _call(graph, getitem, pair, 1)
        done[node, extra] = _call(graph, getitem, pair, 0), back
    return done[node, extra]


def _swaps(node: torch.fx.Node) -> bool:
    """Whether a view turns rows into columns and nothing else."""
    if node.target not in (aten.t.default, aten.transpose.int, aten.permute.default):
        return False
    of: Any = node.args[0]
    turned, base = node.meta["val"].mT, of.meta["val"]
    return (turned.shape, turned.stride()) == (base.shape, base.stride())


def _call(graph: torch.fx.Graph, target: Callable[..., Any], *args: Any, **options: Any) -> torch.fx.Node:
    """A new node with what it will be: a tensor without values."""
    node = graph.call_function(target, args, options)
    node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]), **options)
    return node
