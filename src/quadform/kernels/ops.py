"""The kernels of `fused` as torch operators `quadform::attend*`, under the names and signatures of `reference`.

As operators with fake kernels they appear as single nodes when a Hessian product is traced and compiled; their `vmap`
rules turn a batch of tangents into the kernels' tangent axis, so k products share one launch and the primal stays
unbatched. They also carry reverse rules of first and second order, which is what `torch.compile` of a training step
uses (it refuses an autograd.Function that defines `jvp`).

float32 inputs in "tf32" mode are multiplied as float16 scaled by powers of two: the same ten mantissa bits as TF32 at
twice its rate and half its shared memory. A second-order product is linear in its tangents and in dO, so two factors
(one for dO, one per tangent) keep every operand in range; results are float32 and scaled back. Source: [own].
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from . import fused
from .choice import interpreted


def tiles(kernel: str, dtype: torch.dtype, width: int, precision: str) -> tuple[int, int, int, int]:
    """Rows, columns per tile, warps, pipeline stages; measured on an H200 (benchmarks/kernels.py --tune)."""
    if interpreted():
        return 16, 32, 4, 1
    narrow, half = width <= 64, dtype != torch.float32
    if not half and precision == "ieee":
        return 16, 16, 4, 1
    if width > 128:
        return (32, 64, 8, 1) if kernel.endswith("columns") else (64, 32, 8, 1)
    if not half:
        return (32, 64, 4, 1) if kernel.endswith("columns") else (64, 32, 4, 1)
    table = {
        "forward": ((64, 64, 4, 3), (128, 64, 8, 3)),
        "forward_tangent": ((64, 64, 4, 3), (64, 64, 4, 2)),
        "grad_rows": ((128, 64, 8, 3), (64, 64, 4, 2)),
        "grad_columns": ((64, 128, 8, 3), (64, 64, 4, 2)),
        "tangent_rows": ((64, 64, 4, 2), (64, 32, 4, 1)),
        "tangent_columns": ((64, 128, 8, 3), (32, 64, 4, 1)),
    }
    return table[kernel][0 if narrow else 1]


def _dense(*tensors: Tensor) -> list[Tensor]:
    """Unit stride along the width, which the kernels assume."""
    return [t if t.stride(-1) == 1 else t.contiguous() for t in tensors]


def _in_halves(q: Tensor, precision: str) -> bool:
    """Whether the products are taken in scaled float16."""
    return q.dtype == torch.float32 and precision == "tf32"


def _unit(*largest: Tensor) -> Tensor:
    """The power of two that brings the largest magnitude to about 1/8, far from both ends of float16."""
    top = torch.stack(torch.broadcast_tensors(*largest)).amax(0).clamp_min(1e-30)
    return torch.exp2(-3 - top.log2().floor())


def _largest(t: Tensor) -> Tensor:
    """max |t|, one per entry of the leading tangent axis where there is one; shaped to multiply t."""
    return torch.linalg.vector_norm(t, float("inf"), tuple(range(t.dim() - 4, t.dim())), keepdim=True)


def _half(t: Tensor, unit: Tensor) -> Tensor:
    """unit t in float16, in one pass."""
    return torch.mul(t, unit, out=torch.empty_like(t, dtype=torch.float16))


def _rows_first(lead: tuple[int, ...], heads: int, tokens: int, width: int, like: Tensor) -> Tensor:
    """An uninitialised (*lead, heads, tokens, width) laid out token by token, as the next linear layer reads it."""
    return torch.empty(*lead, tokens, heads, width, dtype=like.dtype, device=like.device).transpose(-2, -3)


def _extras(q: Tensor, k: Tensor, bias: Tensor | None, mask: Tensor | None) -> tuple:
    """Pointers and strides of bias and mask, broadcast without a copy; q stands in for what is absent."""
    shape = (*q.shape[:3], k.shape[2])
    none = (0, 0, 0, 0)
    b = (q, none) if bias is None else (bias, bias.expand(shape).stride())
    m = (q, none) if mask is None else (mask.view(torch.uint8), mask.expand(shape).stride())
    return (*b, *m)


def _launch(kernel: str, args: tuple, q, k, v, bias, mask, causal, scale, precision, tangents: int | None = None):
    """Run one kernel over its grid; `tangents` is None for the functions of the primal."""
    heads, rows, columns = q.shape[1], q.shape[2], k.shape[2]
    group = heads // k.shape[1]
    BM, BN, warps, stages = tiles(kernel, q.dtype, max(q.shape[3], v.shape[3]), precision)
    BD, BDV = (max(16, triton.next_power_of_2(x.shape[3])) for x in (q, v))
    constants = {
        "GROUP": group,
        "CAUSAL": causal,
        "HAS_BIAS": bias is not None,
        "HAS_MASK": mask is not None,
        "EVEN_M": rows % BM == 0,
        "EVEN_D": q.shape[3] == BD and v.shape[3] == BDV,
        "PRECISION": precision,
    }
    columnwise = kernel.endswith("columns")
    if columnwise:
        constants["EVEN_N"] = columns % BN == 0
        grid = (triton.cdiv(columns, BN), q.shape[0] * k.shape[1], tangents or 1)
    else:
        grid = (triton.cdiv(rows, BM), q.shape[0] * heads, tangents or 1)
    if kernel in ("grad_rows", "grad_columns", "tangent_rows", "tangent_columns"):
        constants["TANGENT"] = kernel.startswith("tangent")
        program = fused._grad_columns if columnwise else fused._grad_rows
    else:
        program = fused._forward if kernel == "forward" else fused._forward_tangent
    sizes = (float(scale), rows, columns, heads, q.shape[3], v.shape[3])
    program[grid](*args, *sizes, **constants, BM=BM, BN=BN, BD=BD, BDV=BDV, num_warps=warps, num_stages=stages)


CUDNN = torch.nn.attention.SDPBackend.CUDNN_ATTENTION.value


def _stock(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, causal: bool) -> bool:
    """Whether torch would take cuDNN's attention: value and gradient then come from there, as it is the faster.

    It returns the same log-sum-exp, so the tangent kernels go on from it. Torch's own flash kernels are slower than
    ours on the machines measured. Where `torch.use_deterministic_algorithms` is on, ours computes.
    """
    plain = bias is None and mask is None and q.shape[1] == k.shape[1] and q.shape[3] == v.shape[3]
    if not (plain and q.is_cuda and q.dtype != torch.float32) or torch.are_deterministic_algorithms_enabled():
        return False
    if causal and q.shape[2] != k.shape[2]:
        return False
    return torch._fused_sdp_choice(q, k, v, None, 0.0, causal) == CUDNN


def _laid_out(t: Tensor, like: Tensor) -> Tensor:
    """`t` with the strides the fake kernel promised."""
    return t if t.stride() == like.stride() else like.copy_(t)


@torch.library.custom_op("quadform::attend", mutates_args=())
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    precision: str,
) -> tuple[Tensor, Tensor]:
    q, k, v = _dense(q, k, v)
    O = _rows_first(q.shape[:1], q.shape[1], q.shape[2], v.shape[3], q)
    if _stock(q, k, v, bias, mask, causal):
        out = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
        return _laid_out(out[0], O), out[1].reshape(q.shape[:3])
    if _in_halves(q, precision):
        q, k, v = (x.half() for x in (q, k, v))
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    args = (q, q.stride(), k, k.stride(), v, v.stride(), *_extras(q, k, bias, mask), O, O.stride(), lse)
    _launch("forward", args, q, k, v, bias, mask, causal, scale, precision)
    return O, lse


@_attend.register_fake
def _(q, k, v, bias, mask, causal, scale, precision):
    O = _rows_first(q.shape[:1], q.shape[1], q.shape[2], v.shape[3], q)
    return O, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


@torch.library.custom_op("quadform::attend_grad", mutates_args=())
def _attend_grad(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, O: Tensor, lse: Tensor, delta: Tensor,
    dO: Tensor, causal: bool, scale: float, precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, g = _dense(q, k, v, dO)
    lse, delta = lse.contiguous(), delta.contiguous()
    dq, dk, dv = _gradients(q, k, v, ())
    if _stock(q, k, v, bias, mask, causal):
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        sizes = (seed, seed, None, None, None, q.shape[2], k.shape[2], 0.0, causal)
        out = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, O, lse[..., None], *sizes, scale=scale
        )
        return tuple(_laid_out(a, b) for a, b in zip(out, (dq, dk, dv), strict=True))
    halves = _in_halves(q, precision)
    if halves:
        unit = _unit(_largest(g))
        q, k, v, g, delta = q.half(), k.half(), v.half(), _half(g, unit), delta * unit[..., 0]
    head = (q, q.stride(), k, k.stride(), v, v.stride(), *_extras(q, k, bias, mask), lse, delta, g, g.stride())
    unused = (q, (0, 0, 0, 0), k, (0, 0, 0, 0), v, (0, 0, 0, 0), lse, delta, g, (0, 0, 0, 0))
    rest = (q, k, v, bias, mask, causal, scale, precision)
    _launch("grad_columns", (*head, *unused, dk, (0, *dk.stride()), dv, (0, *dv.stride())), *rest)
    _launch("grad_rows", (*head, *unused, dq, (0, *dq.stride())), *rest)
    return tuple(x.div_(unit) for x in (dq, dk, dv)) if halves else (dq, dk, dv)


def _gradients(q, k, v, lead):
    return tuple(_rows_first((*lead, x.shape[0]), *x.shape[1:], x) for x in (q, k, v))


@_attend_grad.register_fake
def _(q, k, v, bias, mask, O, lse, delta, dO, causal, scale, precision):
    return _gradients(q, k, v, ())


@torch.library.custom_op("quadform::attend_tangent", mutates_args=())
def _attend_tangent(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, O: Tensor, lse: Tensor,
    tq: Tensor, tk: Tensor, tv: Tensor, causal: bool, scale: float, precision: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v, O, tq, tk, tv = _dense(q, k, v, O, tq, tk, tv)
    tO = _rows_first(tq.shape[:2], q.shape[1], q.shape[2], v.shape[3], q)
    tlse = torch.empty(tq.shape[:4], dtype=torch.float32, device=q.device)
    halves = _in_halves(q, precision)
    if halves:
        unit = _unit(*(_largest(t) for t in (tq, tk, tv)))
        q, k, v, tq, tk, tv = q.half(), k.half(), v.half(), *(_half(t, unit) for t in (tq, tk, tv))
    args = (q, q.stride(), k, k.stride(), v, v.stride(), *_extras(q, k, bias, mask), O, O.stride(), lse.contiguous())
    args += (tq, tq.stride(), tk, tk.stride(), tv, tv.stride(), tO, tO.stride(), tlse)
    _launch("forward_tangent", args, q, k, v, bias, mask, causal, scale, precision, tq.shape[0])
    return (tO.div_(unit), tlse.div_(unit[..., 0])) if halves else (tO, tlse)


@_attend_tangent.register_fake
def _(q, k, v, bias, mask, O, lse, tq, tk, tv, causal, scale, precision):
    tO = _rows_first(tq.shape[:2], q.shape[1], q.shape[2], v.shape[3], q)
    return tO, torch.empty(tq.shape[:4], dtype=torch.float32, device=q.device)


@torch.library.custom_op("quadform::attend_grad_tangent", mutates_args=())
def _attend_grad_tangent(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, lse: Tensor, delta: Tensor, dO: Tensor,
    tq: Tensor, tk: Tensor, tv: Tensor, tlse: Tensor, tdelta: Tensor, tdO: Tensor,
    causal: bool, scale: float, precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, g, tq, tk, tv, tg = _dense(q, k, v, dO, tq, tk, tv, tdO)
    lse, delta, tlse, tdelta = (x.contiguous() for x in (lse, delta, tlse, tdelta))
    tdq, tdk, tdv = _gradients(q, k, v, tq.shape[:1])
    halves = _in_halves(q, precision)
    if halves:
        first = _unit(_largest(g))
        unit = _unit(*(_largest(t) for t in (tq, tk, tv)), _largest(tg) * first)
        q, k, v, g, delta = q.half(), k.half(), v.half(), _half(g, first), delta * first[..., 0]
        tq, tk, tv = (_half(t, unit) for t in (tq, tk, tv))
        both = unit * first
        tg, tlse, tdelta = _half(tg, both), tlse * unit[..., 0], tdelta * both[..., 0]
    head = (q, q.stride(), k, k.stride(), v, v.stride(), *_extras(q, k, bias, mask), lse, delta, g, g.stride())
    head += (tq, tq.stride(), tk, tk.stride(), tv, tv.stride(), tlse, tdelta, tg, tg.stride())
    rest = (q, k, v, bias, mask, causal, scale, precision, tq.shape[0])
    _launch("tangent_columns", (*head, tdk, tdk.stride(), tdv, tdv.stride()), *rest)
    _launch("tangent_rows", (*head, tdq, tdq.stride()), *rest)
    return tuple(x.div_(both) for x in (tdq, tdk, tdv)) if halves else (tdq, tdk, tdv)


@_attend_grad_tangent.register_fake
def _(q, k, v, bias, mask, lse, delta, dO, tq, tk, tv, tlse, tdelta, tdO, causal, scale, precision):
    return _gradients(q, k, v, tq.shape[:1])


# The four functions, under the signatures of `reference`. The bias is constant here: `choose` sees to it.


def forward(q, k, v, bias, mask, causal: bool, scale: float, precision: str):
    """O and ℓ; see `reference.forward`."""
    return _attend(q, k, v, bias, mask, causal, scale, precision)


def backward(q, k, v, bias, mask, O, lse, delta, dO, causal: bool, scale: float, precision: str):
    """dQ, dK, dV and None for the bias; see `reference.backward`."""
    out = _attend_grad(q, k, v, bias, mask, O, lse, delta, dO, causal, scale, precision)
    return out if bias is None else (*out, torch.zeros_like(bias))


def forward_tangent(q, k, v, bias, mask, O, lse, tq, tk, tv, tbias, causal: bool, scale: float, precision: str):
    """Ȯ and ℓ̇; see `reference.forward_tangent`."""
    tangents = (t[None] for t in (tq, tk, tv))
    tO, tlse = _attend_tangent(q, k, v, bias, mask, O, lse, *tangents, causal, scale, precision)
    return tO[0], tlse[0]


def backward_tangent(
    q,
    k,
    v,
    bias,
    mask,
    lse,
    delta,
    dO,
    tq,
    tk,
    tv,
    tbias,
    tlse,
    tdelta,
    tdO,
    causal: bool,
    scale: float,
    precision: str,
):
    """dQ̇, dK̇, dV̇; see `reference.backward_tangent`."""
    tangents = (t[None] for t in (tq, tk, tv, tlse, tdelta, tdO))
    out = _attend_grad_tangent(q, k, v, bias, mask, lse, delta, dO, *tangents, causal, scale, precision)
    out = tuple(t[0] for t in out)
    return out if bias is None else (*out, torch.zeros_like(bias))


# vmap. A batch of tangents over one primal joins the tangent axis; a batched primal joins the batch axis.


def _vmap_rule(op, primal: int, extras: tuple[int, int]):
    """The vmap rule of an operator with `primal` primal tensors first, then tangents with a leading tangent axis."""

    def rule(info, in_dims, *args):
        n = info.batch_size
        tensors = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        new = list(args)
        over_primal = any(in_dims[i] is not None for i in tensors if i < primal)
        for i in tensors:
            if i < primal and not over_primal:
                continue
            dim = in_dims[i]
            new[i] = args[i].expand(n, *args[i].shape) if dim is None else args[i].movedim(dim, 0)
        batch = new[0].shape[1]
        for i in tensors:
            if not over_primal:
                new[i] = new[i] if i < primal else new[i].flatten(0, 1)
            elif i in extras:
                new[i] = new[i].expand(n, batch, *new[i].shape[2:]).flatten(0, 1)
            else:
                new[i] = new[i].flatten(0, 1) if i < primal else new[i].movedim(0, 1).flatten(1, 2)
        axis = 1 if over_primal and max(tensors) >= primal else 0
        out = tuple(o.unflatten(axis, (n, -1)) for o in op(*new))
        return out, tuple(axis for _ in out)

    return rule


for _op, _primal in ((_attend, 5), (_attend_grad, 9), (_attend_tangent, 7), (_attend_grad_tangent, 8)):
    torch.library.register_vmap(_op, _vmap_rule(_op, _primal, (3, 4)))


# Reverse rules for torch.compile: first order, then second order through the tangent operators.


def _save_attend(ctx, inputs, output):
    q, k, v, bias, mask, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, bias, mask, *output)


def _attend_backward(ctx, dO, dlse):
    q, k, v, bias, mask, O, lse = ctx.saved_tensors
    delta = (dO.float() * O.float()).sum(-1)
    if dlse is not None:
        delta = delta - dlse
    out = _attend_grad(q, k, v, bias, mask, O, lse, delta, dO, *ctx.options)
    return (*out, *[None] * 5)


def _save_grad(ctx, inputs, output):
    *tensors, causal, scale, precision = inputs
    ctx.options = (causal, scale, precision)
    ctx.save_for_backward(*tensors)


def _grad_backward(ctx, tq, tk, tv):
    q, k, v, bias, mask, O, lse, delta, dO = ctx.saved_tensors
    tangents = (tq[None], tk[None], tv[None])
    tO, tlse = _attend_tangent(q, k, v, bias, mask, O, lse, *tangents, *ctx.options)
    tdelta = (dO.float() * tO.float()).sum(-1)
    zero = torch.zeros_like(dO)[None]
    out = _attend_grad_tangent(q, k, v, bias, mask, lse, delta, dO, *tangents, tlse, tdelta, zero, *ctx.options)
    return (*(o[0] for o in out), None, None, None, None, None, tO[0], None, None, None)


torch.library.register_autograd("quadform::attend", _attend_backward, setup_context=_save_attend)
torch.library.register_autograd("quadform::attend_grad", _grad_backward, setup_context=_save_grad)
