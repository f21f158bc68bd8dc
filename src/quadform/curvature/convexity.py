"""Whether a loss is known to be convex in the network's output F, so that H_o = J^T (d2l/dF2) J is positive
semi-definite.

    squared error     d2l/dF2 = diag(w)
    sigmoid           diag(w s (1 - s)),             s = sigmoid(F)
    softmax           w_n (diag p_n - p_n p_n^T),    p = softmax(F), a weight w_n >= 0 for each term

Measured on the first batch, by second derivatives along random vectors at F and at a place beside it: both have one of
these forms, with the same weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ..core.rng import stream
from ..distributed.processes import group_of
from .risk import Risk
from .wide import whole

Curve = Callable[[Tensor], Tensor]  # d -> (d2l/dF2) d
Form = Callable[[Tensor, Tensor], Tensor]  # F, d -> the known Hessian of weight 1 at F, times d
#: How far a second derivative may be from its form, relative to its size, by rounding.
_ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-3}
#: Tensors of the size of F that looking holds at its most (measured 23).
_HELD = 24


def convex(risk: Risk) -> bool:
    """Whether the loss is a cross-entropy (softmax, sigmoid) or a squared error of the network's output.

    False says that nothing is known: so in half precision, which is too coarse to tell, where weights or data lie
    apart on several processes, and where outputs are too large to look at.
    """
    risk = risk.whole
    apart = risk.shards is not None or group_of(risk.space).world > 1
    if apart or not risk.batches or risk.dtype not in _ROUNDING:
        return False
    with contextlib.suppress(RuntimeError), risk.context():  # no second derivative, or no memory for it
        places = list(_places(risk))
        shape = places[0][0].shape if places else ()
        axes = [axis for axis in dict.fromkeys((len(shape) - 1, 1)) if axis < len(shape)]
        forms: list[tuple[Form, int | None]] = [(_square, None), (_sigmoid, None)]
        forms += [(partial(_softmax, axis), axis) for axis in axes]
        return bool(places) and any(_is(places, *form) for form in forms)
    return False


def _places(risk: Risk) -> Iterator[tuple[Tensor, Curve]]:
    """F of the first batch with d2l/dF2 there, and the same beside it."""
    batch, generator = risk.batches[0], stream(0, "convex", risk.device)
    with torch.no_grad():
        F = risk.run(risk.params, batch)[1]
    if F is None or not F.dim() or _HELD * F.numel() * F.dtype.itemsize > risk.room:
        return
    for away in (0.0, 1.0):
        shift = away * torch.randn(F.shape, dtype=F.dtype, device=F.device, generator=generator)
        with torch.enable_grad():
            shift.requires_grad_()
            (g,) = torch.autograd.grad(risk.run(risk.params, batch, None, shift)[0], shift, create_graph=True)
        yield (whole(F) + shift).detach(), partial(_curved, g, shift)


def _curved(g: Tensor, at: Tensor, d: Tensor) -> Tensor:
    return torch.autograd.grad(g, at, d, retain_graph=True)[0].detach()


def _is(places: list[tuple[Tensor, Curve]], form: Form, axis: int | None) -> bool:
    """Whether d2l/dF2 is w times the form at all places; w is read, for each term, where the form is larger."""
    first = places[0][0]
    generator = stream(1, "convex", first.device)
    d, e = torch.randn((2, *first.shape), dtype=first.dtype, device=first.device, generator=generator)

    def along(image: Tensor) -> Tensor:
        return d * image if axis is None else (d * image).sum(axis, keepdim=True)

    own = torch.stack([along(form(F, d)) for F, _ in places])
    height, which = own.max(0, keepdim=True)
    seen = torch.stack([along(curve(d)) for _, curve in places]).gather(0, which)
    w = torch.where(height > 0, seen / height, 0).clamp_min(0)[0]
    for F, curve in places:
        image = curve(e)
        if not float((image - w * form(F, e)).abs().max()) <= _ROUNDING[first.dtype] * float(image.abs().max()):
            return False
    return True


def _square(F: Tensor, d: Tensor) -> Tensor:
    return d


def _sigmoid(F: Tensor, d: Tensor) -> Tensor:
    return torch.sigmoid(F) * torch.sigmoid(-F) * d


def _softmax(axis: int, F: Tensor, d: Tensor) -> Tensor:
    p = F.softmax(axis)
    return p * d - p * (p * d).sum(axis, keepdim=True)
