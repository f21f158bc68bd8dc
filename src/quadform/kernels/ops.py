"""The kernels of `fused` as torch operators `quadform::attend*`, under the names and signatures of `reference`.

As operators with fake kernels they appear as single nodes when a Hessian product is traced and compiled; their `vmap`
rules turn a batch of tangents into the kernels' tangent axis, so k products share one launch and the primal stays
unbatched. They also carry reverse rules of first and second order, which is what `torch.compile` of a training step
uses (it refuses an autograd.Function that defines `jvp`).

float32 inputs in "tf32" mode are multiplied as float16 scaled by powers of two (`scaling`): the same ten mantissa bits
as TF32 at twice its rate and half its shared memory; results are float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.core.errors import InputError

from . import ahead
from .choice import interpreted, second_order
from .launch import _dense, _extras, _in_halves, _launch, _rows_first, _weights
from .scaling import AS_IS, BOTH, COTANGENT, TANGENT, operands

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


def _absent(lead: torch.Size, like: Tensor) -> Tensor:
    """Stands for an output that only shaped mixing has."""
    return like.new_empty(*lead, 0)


def _outputs(q: Tensor, v: Tensor, mix: Tensor | None, lead: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised out, O (absent where it is out) and ℓ, or their tangents."""
    new = lambda: _rows_first(lead, q.shape[1], q.shape[2], v.shape[3], q)  # noqa: E731
    lse = torch.empty(*lead, *q.shape[1:3], dtype=torch.float32, device=q.device)
    return new(), _absent(lead, q) if mix is None else new(), lse


@torch.library.custom_op("quadform::attend", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, mix: Tensor | None,
    causal: bool, scale: float, precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v = _dense(q, k, v)
    out, O, lse = _outputs(q, v, mix, q.shape[:1])
    stock = mix is None and _stock(q, k, v, bias, mask, causal)
    if second_order.get() and mix is None and not interpreted():
        _begin(q, k, v, bias, mask, causal, scale, precision, stock)
    if stock:
        soft = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
        return _laid_out(soft[0], out), O, soft[1].reshape(q.shape[:3])
    if _in_halves(q, precision):
        (q, k, v), _ = operands((q, k, v), (AS_IS,) * 3)
    soft = out if mix is None else O
    args = (q, q.stride(), k, k.stride(), v, v.stride(), *_extras(q, k, bias, mask, mix))
    args += (soft, soft.stride(), lse, out, out.stride())
    _launch("forward", args, q, k, v, bias, mask, mix, causal, scale, precision)
    return out, O, lse


def _begin(q, k, v, bias, mask, causal: bool, scale: float, precision: str, stock: bool) -> None:
    """Begin to compile what second derivatives launch; `stock`: value and gradient are not ours."""
    extras = [None if x is None else (tuple(x.shape), x.stride(), x.dtype) for x in (bias, mask)]
    sizes = [(tuple(x.shape), x.stride()) for x in (q, k, v)]
    key = (q.device, q.dtype, *sizes, *extras, causal, precision, stock)

    def rehearsal() -> None:
        hollow = [_hollow(x) for x in (q, k, v)]
        primal = *hollow, *(None if x is None else _hollow(x) for x in (bias, mask)), None
        rest = causal, scale, precision
        out, _, lse = _outputs(hollow[0], hollow[2], None, q.shape[:1])
        tq, tk, tv, _ = _gradients(hollow[0], hollow[1], hollow[2], None, (1,))
        dO, tlse = torch.empty_like(out), lse[None]
        if not stock:
            _attend._init_fn(*primal, *rest)
            _attend_grad._init_fn(*primal, out, lse, lse, dO, *rest)
        _attend_tangent._init_fn(*primal, out, lse, tq, tk, tv, None, *rest)
        _attend_grad_tangent._init_fn(*primal, lse, lse, dO, tq, tk, tv, None, tlse, tlse, out[None], *rest)

    ahead.begin(key, rehearsal, q.device)


def _hollow(x: Tensor) -> Tensor:
    """A tensor like another, laid out as it is, without storage."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


@_attend.register_fake
def _(q, k, v, bias, mask, mix, causal, scale, precision):
    return _outputs(q, v, mix, q.shape[:1])


@torch.library.custom_op("quadform::attend_grad", mutates_args=())
def _attend_grad(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, mix: Tensor | None,
    O: Tensor, lse: Tensor, delta: Tensor, dO: Tensor, causal: bool, scale: float, precision: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, g = _dense(q, k, v, dO)
    lse, delta = lse.contiguous(), delta.contiguous()
    dq, dk, dv, c = _gradients(q, k, v, mix, ())
    if mix is None and _stock(q, k, v, bias, mask, causal):
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        sizes = (seed, seed, None, None, None, q.shape[2], k.shape[2], 0.0, causal)
        out = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, O, lse[..., None], *sizes, scale=scale
        )
        return (*(_laid_out(a, b) for a, b in zip(out, (dq, dk, dv), strict=True)), c)
    units = None
    if _in_halves(q, precision):
        (q, k, v, g), units = operands((q, k, v, g), (AS_IS, AS_IS, AS_IS, COTANGENT))
    none = (0, 0, 0, 0)
    head = (q, q.stride(), k, k.stride(), v, v.stride(), *_extras(q, k, bias, mask, mix), lse, delta, g, g.stride())
    unused = (q, none, k, none, v, none, q, none, lse, delta, g, none)
    rest = (q, k, v, bias, mask, mix, causal, scale, precision, None, units)
    _launch("grad_columns", (*head, *unused, dk, (0, *dk.stride()), dv, (0, *dv.stride())), *rest)
    _launch("grad_rows", (*head, *unused, dq, (0, *dq.stride()), c), *rest)
    return dq, dk, dv, c


def _gradients(q, k, v, mix, lead):
    """Uninitialised dQ, dK, dV and c = rowsum(C ∘ dP), or their tangents."""
    lead = (*lead, q.shape[0])
    c = _absent(lead, q) if mix is None else torch.empty(*lead, *q.shape[1:3], dtype=torch.float32, device=q.device)
    return (*(_rows_first(lead, x.shape[1], x.shape[2], x.shape[3], x) for x in (q, k, v)), c)


@_attend_grad.register_fake
def _(q, k, v, bias, mask, mix, O, lse, delta, dO, causal, scale, precision):
    return _gradients(q, k, v, mix, ())


@torch.library.custom_op("quadform::attend_tangent", mutates_args=())
def _attend_tangent(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, mix: Tensor | None,
    O: Tensor, lse: Tensor, tq: Tensor, tk: Tensor, tv: Tensor, tmix: Tensor | None,
    causal: bool, scale: float, precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, O, tq, tk, tv = _dense(q, k, v, O, tq, tk, tv)
    tout, tO, tlse = _outputs(q, v, mix, tq.shape[:2])
    units = None
    if _in_halves(q, precision):
        (q, k, v, tq, tk, tv), units = operands((q, k, v, tq, tk, tv), (AS_IS,) * 3 + (TANGENT,) * 3, tmix)
    soft = tout if mix is None else tO
    args = (q, q.stride(), k, k.stride(), v, v.stride(), *_extras(q, k, bias, mask, mix), O, O.stride())
    args += (lse.contiguous(), tq, tq.stride(), tk, tk.stride(), tv, tv.stride())
    args += (*_weights(q, tmix, (*tq.shape[:3], 3)), soft, soft.stride(), tlse, tout, tout.stride())
    _launch("forward_tangent", args, q, k, v, bias, mask, mix, causal, scale, precision, tq.shape[0], units)
    return tout, tO, tlse


@_attend_tangent.register_fake
def _(q, k, v, bias, mask, mix, O, lse, tq, tk, tv, tmix, causal, scale, precision):
    return _outputs(q, v, mix, tq.shape[:2])


@torch.library.custom_op("quadform::attend_grad_tangent", mutates_args=())
def _attend_grad_tangent(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, mix: Tensor | None,
    lse: Tensor, delta: Tensor, dO: Tensor,
    tq: Tensor, tk: Tensor, tv: Tensor, tmix: Tensor | None, tlse: Tensor, tdelta: Tensor, tdO: Tensor,
    causal: bool, scale: float, precision: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, g, tq, tk, tv, tg = _dense(q, k, v, dO, tq, tk, tv, tdO)
    lse, delta, tlse, tdelta = (x.contiguous() for x in (lse, delta, tlse, tdelta))
    tdq, tdk, tdv, tc = _gradients(q, k, v, mix, tq.shape[:1])
    units = None
    if _in_halves(q, precision):
        kinds = (AS_IS, AS_IS, AS_IS, COTANGENT, TANGENT, TANGENT, TANGENT, BOTH)
        (q, k, v, g, tq, tk, tv, tg), units = operands((q, k, v, g, tq, tk, tv, tg), kinds, tmix)
    head = (q, q.stride(), k, k.stride(), v, v.stride(), *_extras(q, k, bias, mask, mix), lse, delta, g, g.stride())
    head += (tq, tq.stride(), tk, tk.stride(), tv, tv.stride(), *_weights(q, tmix, (*tq.shape[:3], 3)))
    head += (tlse, tdelta, tg, tg.stride())
    rest = (q, k, v, bias, mask, mix, causal, scale, precision, tq.shape[0], units)
    _launch("tangent_columns", (*head, tdk, tdk.stride(), tdv, tdv.stride()), *rest)
    _launch("tangent_rows", (*head, tdq, tdq.stride(), tc), *rest)
    return tdq, tdk, tdv, tc


@_attend_grad_tangent.register_fake
def _(q, k, v, bias, mask, mix, lse, delta, dO, tq, tk, tv, tmix, tlse, tdelta, tdO, causal, scale, precision):
    return _gradients(q, k, v, mix, tq.shape[:1])


# The four functions, under the signatures of `reference`. The bias is constant here: `choose` sees to it.


def forward(q, k, v, bias, mask, causal: bool, scale: float, precision: str):
    """O and ℓ; see `reference.forward`."""
    O, _, lse = _attend(q, k, v, bias, mask, None, causal, scale, precision)
    return O, lse


def backward(q, k, v, bias, mask, O, lse, delta, dO, causal: bool, scale: float, precision: str):
    """dQ, dK, dV and None for the bias; see `reference.backward`."""
    out = _attend_grad(q, k, v, bias, mask, None, O, lse, delta, dO, causal, scale, precision)[:3]
    return out if bias is None else (*out, torch.zeros_like(bias))


def forward_tangent(q, k, v, bias, mask, O, lse, tq, tk, tv, tbias, causal: bool, scale: float, precision: str):
    """Ȯ and ℓ̇; see `reference.forward_tangent`."""
    tangents = (t[None] for t in (tq, tk, tv))
    tO, _, tlse = _attend_tangent(q, k, v, bias, mask, None, O, lse, *tangents, None, causal, scale, precision)
    return tO[0], tlse[0]


def backward_tangent(
    q, k, v, bias, mask, lse, delta, dO, tq, tk, tv, tbias, tlse, tdelta, tdO,
    causal: bool, scale: float, precision: str,
):  # fmt: skip
    """dQ̇, dK̇, dV̇; see `reference.backward_tangent`."""
    tq, tk, tv, tlse, tdelta, tdO = (t[None] for t in (tq, tk, tv, tlse, tdelta, tdO))
    rest = (tq, tk, tv, None, tlse, tdelta, tdO, causal, scale, precision)
    out = tuple(t[0] for t in _attend_grad_tangent(q, k, v, bias, mask, None, lse, delta, dO, *rest)[:3])
    return out if bias is None else (*out, torch.zeros_like(bias))


# vmap. A batch of tangents over one primal joins the tangent axis; a batched primal joins the batch axis.


EXTRAS = (3, 4, 5)
"""Places of bias, mask and mix among the arguments: they may have a batch axis of 1."""


def _vmap_rule(op, primal: int):
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
            elif i in EXTRAS:
                new[i] = new[i].expand(n, batch, *new[i].shape[2:]).flatten(0, 1)
            elif i < primal:
                new[i] = new[i].flatten(0, 1)
            else:
                one = new[i].movedim(0, 1)
                new[i] = one.expand(*one.shape[:2], batch, *one.shape[3:]).flatten(1, 2)
        axis = 1 if over_primal and max(tensors) >= primal else 0
        out = tuple(o.unflatten(axis, (n, o.shape[axis] // n)) for o in op(*new))
        return out, tuple(axis for _ in out)

    return rule


for _op, _primal in ((_attend, 6), (_attend_grad, 10), (_attend_tangent, 8), (_attend_grad_tangent, 9)):
    torch.library.register_vmap(_op, _vmap_rule(_op, _primal))


# Reverse rules for torch.compile: first order, then second order through the tangent operators.


def _save_attend(ctx, inputs, output):
    *tensors, causal, scale, precision = inputs
    ctx.options = (causal, scale, precision)
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def mix_gradient(v: Tensor, mix: Tensor, dO: Tensor, delta: Tensor, c: Tensor) -> Tensor:
    """(dα, dβ, dγ) = (Σ dO ∘ V, Σ Δ, −Σ c) of each head, in the shape of `mix`; no α where rows are not columns."""
    dalpha = delta.new_zeros(delta.shape[:2])
    if v.shape[2] == dO.shape[2]:
        own = dO.float().unflatten(1, (v.shape[1], -1)) * v.float()[:, :, None]
        dalpha = own.sum((-2, -1)).flatten(1)
    per_head = torch.stack((dalpha, delta.sum(-1), -c.sum(-1)), -1)
    return per_head if mix.shape[0] == per_head.shape[0] else per_head.sum(0, keepdim=True)


def _attend_backward(ctx, dout, dO, dlse):
    q, k, v, bias, mask, mix, out, O, lse = ctx.saved_tensors
    soft = out if mix is None else O
    delta = (dout.float() * soft.float()).sum(-1)
    if dlse is not None:
        delta = delta - dlse
    *grads, c = _attend_grad(q, k, v, bias, mask, mix, soft, lse, delta, dout, *ctx.options)
    dmix = None if mix is None else mix_gradient(v, mix, dout, delta, c)
    return (*grads, None, None, dmix, None, None, None)


def _save_grad(ctx, inputs, output):
    *tensors, causal, scale, precision = inputs
    ctx.options = (causal, scale, precision)
    ctx.save_for_backward(*tensors)


def _grad_backward(ctx, tq, tk, tv, tc):
    q, k, v, bias, mask, mix, O, lse, delta, dO = ctx.saved_tensors
    if mix is not None:
        raise InputError("shaped attention inside torch.compile has one derivative; differentiate twice outside it.")
    tangents = (tq[None], tk[None], tv[None], None)
    tO, _, tlse = _attend_tangent(q, k, v, bias, mask, None, O, lse, *tangents, *ctx.options)
    tdelta = (dO.float() * tO.float()).sum(-1)
    zero = torch.zeros_like(dO)[None]
    *out, _ = _attend_grad_tangent(
        q, k, v, bias, mask, None, lse, delta, dO, *tangents, tlse, tdelta, zero, *ctx.options
    )
    return (*(o[0] for o in out), None, None, None, None, None, None, tO[0], None, None, None)


torch.library.register_autograd("quadform::attend", _attend_backward, setup_context=_save_attend)
torch.library.register_autograd("quadform::attend_grad", _grad_backward, setup_context=_save_grad)
