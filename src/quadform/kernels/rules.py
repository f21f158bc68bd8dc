"""`attention`: softmax attention that can be differentiated twice, in either mode, at memory linear in the tokens.

Two autograd rules carry everything. `_Attend` is the value; its reverse rule is `_AttendGrad`, whose own reverse rule
is the second derivative. Both have a forward rule, so `jvp(grad(f))` and double backward meet the same four functions
of `reference` (any device, any type) or `ops` (Triton): forward, backward, forward_tangent, backward_tangent.

The log-sum-exp ℓ is an output of `_Attend` (kept inside this module) and Δ = rowsum(dO ∘ O) − dℓ an ordinary torch
expression, so their tangents ℓ̇ and Δ̇ arrive at `_AttendGrad` by the chain rule and nothing is computed twice. For
reverse over reverse, the gradient of ⟨dO, O(Q, K, V, B)⟩ has a symmetric Jacobian, so the tangent functions serve again
with the cotangents as tangents and dȮ = 0; the cotangent of dO is Ȯ. Source: [own]; pytorch/pytorch#116350 is the gap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quadform.core.errors import InputError

from . import reference
from .choice import Choice, choose, choose_traced
from .mixing import fits_one_tile, plain, shaped, weights


def _backend(choice: Choice):
    if choice.backend == "reference":
        return reference
    from . import ops

    return ops


def _options(choice: Choice, causal: bool, scale: float) -> tuple:
    return (causal, scale) if choice.backend == "reference" else (causal, scale, choice.precision)


def _zeros_if_none(t: Tensor | None, like: Tensor | None) -> Tensor | None:
    return torch.zeros_like(like) if t is None and like is not None else t


class _Attend(torch.autograd.Function):
    """(Q, K, V, B; mask) -> (O, ℓ)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, bias, mask, causal, scale, choice):
        return _backend(choice).forward(q, k, v, bias, mask, *_options(choice, causal, scale))

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, bias, mask, ctx.causal, ctx.scale, ctx.choice = inputs
        O, lse = output
        ctx.save_for_backward(q, k, v, bias, mask, O, lse)
        ctx.save_for_forward(q, k, v, bias, mask, O, lse)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dO, dlse):
        q, k, v, bias, mask, O, lse = ctx.saved_tensors
        dO = _zeros_if_none(dO, O)
        wide = torch.float64 if O.dtype == torch.float64 else torch.float32
        delta = (dO.to(wide) * O.to(wide)).sum(-1)
        if dlse is not None:
            delta = delta - dlse
        out = _AttendGrad.apply(q, k, v, bias, mask, O, lse, delta, dO, ctx.causal, ctx.scale, ctx.choice)
        return (*out[:3], out[3] if bias is not None else None, None, None, None, None)

    @staticmethod
    def jvp(ctx, tq, tk, tv, tbias, *_):
        q, k, v, bias, mask, O, lse = ctx.saved_tensors
        tq, tk, tv, tbias = (_zeros_if_none(t, x) for t, x in ((tq, q), (tk, k), (tv, v), (tbias, bias)))
        options = _options(ctx.choice, ctx.causal, ctx.scale)
        return _backend(ctx.choice).forward_tangent(q, k, v, bias, mask, O, lse, tq, tk, tv, tbias, *options)


class _AttendGrad(torch.autograd.Function):
    """(Q, K, V, B; mask, O, ℓ, Δ, dO) -> (dQ, dK, dV[, dB])."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, bias, mask, O, lse, delta, dO, causal, scale, choice):
        return _backend(choice).backward(q, k, v, bias, mask, O, lse, delta, dO, *_options(choice, causal, scale))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.causal, ctx.scale, ctx.choice = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, tq, tk, tv, tbias=None):
        q, k, v, bias, mask, O, lse, delta, dO = ctx.saved_tensors
        tq, tk, tv, tbias = (_zeros_if_none(t, x) for t, x in ((tq, q), (tk, k), (tv, v), (tbias, bias)))
        options = _options(ctx.choice, ctx.causal, ctx.scale)
        backend = _backend(ctx.choice)
        tO, tlse = backend.forward_tangent(q, k, v, bias, mask, O, lse, tq, tk, tv, tbias, *options)
        tdelta = (dO.to(delta.dtype) * tO.to(delta.dtype)).sum(-1)
        tdO = torch.zeros_like(dO)
        out = backend.backward_tangent(
            q, k, v, bias, mask, lse, delta, dO, tq, tk, tv, tbias, tlse, tdelta, tdO, *options
        )
        return (*out[:3], out[3] if bias is not None else None, None, None, None, None, tO, None, None, None)

    @staticmethod
    def jvp(ctx, tq, tk, tv, tbias, tmask, tO, tlse, tdelta, tdO, *_):
        q, k, v, bias, mask, _, lse, delta, dO = ctx.saved_tensors
        tangents = ((tq, q), (tk, k), (tv, v), (tbias, bias), (tlse, lse), (tdelta, delta), (tdO, dO))
        tq, tk, tv, tbias, tlse, tdelta, tdO = (_zeros_if_none(t, x) for t, x in tangents)
        options = _options(ctx.choice, ctx.causal, ctx.scale)
        return _backend(ctx.choice).backward_tangent(
            q, k, v, bias, mask, lse, delta, dO, tq, tk, tv, tbias, tlse, tdelta, tdO, *options
        )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    alpha: Tensor | float | None = None,
    beta: Tensor | float | None = None,
    gamma: Tensor | float | None = None,
) -> Tensor:
    """alpha V + beta softmax(scale Q K^T + bias) V − gamma mean(V): (..., heads, rows, value width).

    Value, gradient, double backward, `jvp`, `jvp(grad)` and `vmap` of those are exact, at memory linear in the tokens.

    q          (..., heads, rows, width)
    k, v       (..., key heads, columns, width): heads must be a multiple of key heads; head h reads key head
               h // (heads / key heads)
    causal     row i sees columns j <= i (both counted from the first token, as in `scaled_dot_product_attention`)
    mask       boolean, True where a row may look; broadcasts to (..., heads, rows, columns): a padding mask is
               (batch, 1, 1, columns)
    bias       added to the scores; broadcasts likewise and may require a gradient. −inf hides a key
    scale      1/sqrt(width) when None
    alpha, beta, gamma
               weights of the shaped mixing, numbers or (heads,) tensors, differentiable; None means 0, 1, 0. mean(V)
               averages the values a row may see (`causal` and `mask`; `bias` does not enter): a running mean
               Source: [HMZ23, Sec. 3], [HH24, Eq. 5]

    A row that sees no key attends to nothing: zeros, where a plain softmax gives NaN.
    """
    batch, q4, k4, v4, bias4, mask4 = _shapes(q, k, v, bias, mask, alpha, gamma)
    if not (q.shape[-2] and k.shape[-2]):  # no rows, or nothing to see
        return q.new_zeros(*q.shape[:-1], v.shape[-1]) + 0 * q[..., :0, :].sum()
    groups = q4.shape[1] // k4.shape[1]
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    shape = alpha is not None or beta is not None or gamma is not None
    heads_v, fused = v4, False
    if torch.compiler.is_dynamo_compiling():
        width = max(q.shape[-1], v.shape[-1])
        trained = bias is not None and bias.requires_grad
        precision = choose_traced(q.device.type, q.dtype, width, trained, q.numel() == 0 or v.numel() == 0)
        if precision:
            fused = shape and mask is None
            mix = weights(alpha, beta, gamma, q4.shape[1], q.device) if fused else None
            if fused and fits_one_tile(q4, k4, v4, bias):
                out = torch.ops.quadform.short(q4, k4, v4, mix, bool(causal), scale)[0]
            else:
                out = torch.ops.quadform.attend(q4, k4, v4, bias4, mask4, mix, bool(causal), scale, precision)[0]
        else:
            k4, heads_v = k4.repeat_interleave(groups, 1), v4.repeat_interleave(groups, 1)
            out = reference.forward(q4, k4, heads_v, bias4, mask4, bool(causal), scale)[0]
    else:
        choice = choose(q4, v4, bias)
        fused = shape and mask is None and choice.backend == "triton"
        if fused:
            mix = weights(alpha, beta, gamma, q4.shape[1], q.device)
            out = shaped(q4, k4, v4, mix, bias4, bool(causal), scale, choice.precision)
        else:
            if groups > 1 and choice.backend == "reference":
                k4, heads_v = k4.repeat_interleave(groups, 1), v4.repeat_interleave(groups, 1)
            out, _ = _Attend.apply(q4, k4, heads_v, bias4, mask4, bool(causal), scale, choice)
    if shape and not fused:
        if heads_v.shape[1] != q4.shape[1]:
            heads_v = v4.repeat_interleave(groups, 1)
        out = plain(out, heads_v, mask4, causal, alpha, beta, gamma)
    return out.reshape(*batch, *out.shape[1:])


def _shapes(q, k, v, bias, mask, alpha, gamma):
    """Everything as 4-D views, after checking it; batch is the leading shape to give back."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() < 3:
            raise InputError(f"{name} must be (..., heads, tokens, width); got shape {tuple(t.shape)}.")
        if t.dtype != q.dtype or not t.is_floating_point():
            raise InputError(f"q, k and v must share one floating type; q is {q.dtype}, {name} is {t.dtype}.")
    batch = q.shape[:-3]
    if k.shape[:-3] != batch or v.shape[:-3] != batch or k.shape[-3:-1] != v.shape[-3:-1]:
        raise InputError(
            f"k and v must share batch {tuple(batch)}, heads and tokens; got k {tuple(k.shape)}, v {tuple(v.shape)}."
        )
    if q.shape[-1] != k.shape[-1]:
        raise InputError(f"q and k must have one width; got {q.shape[-1]} and {k.shape[-1]}.")
    if q.shape[-3] % k.shape[-3]:
        raise InputError(f"{q.shape[-3]} query heads cannot be shared by {k.shape[-3]} key heads; use a divisor.")
    if (alpha is not None) and q.shape[-2] != k.shape[-2]:
        raise InputError(
            f"alpha adds each token's own value, so rows and columns must match; got {q.shape[-2]} and {k.shape[-2]}."
        )
    if mask is not None and mask.dtype != torch.bool:
        raise InputError(f"mask must be boolean (True where a row may look), got {mask.dtype}; give scores as bias=.")
    full = (*batch, q.shape[-3], q.shape[-2], k.shape[-2])
    four: list[Tensor | None] = []
    for name, t in (("bias", bias), ("mask", mask)):
        if t is None:
            four.append(None)
            continue
        try:
            broadcast = torch.broadcast_shapes(t.shape, full)
        except RuntimeError:
            broadcast = None
        if broadcast != torch.Size(full):
            raise InputError(f"{name} of shape {tuple(t.shape)} does not broadcast to {full}.")
        t = t.reshape((1,) * (len(full) - t.dim()) + tuple(t.shape))
        if len(batch) != 1:
            lead = t.shape[:-3]
            t = t.expand(*(batch if any(n != 1 for n in lead) else lead), *t.shape[-3:])
            t = t.reshape(-1, *t.shape[-3:]) if batch else t[None]
        four.append(t)
    q4, k4, v4 = (t if len(batch) == 1 else t.reshape(-1, *t.shape[-3:]) for t in (q, k, v))
    return batch, q4, k4, v4, *four
