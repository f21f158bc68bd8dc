"""A loss as seen from a layer's output, to second order: its gradient g = dl/dF and its Hessian d2l/dF2.

Any loss, and any network between the layer and the loss, enters the layer's Hessian through these two alone [own]:
H = J^T (d2l/dF2) J + <g, d2F>. Token-wise losses have one `(d_V, d_V)` matrix per token.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.showing import fields_in_brief
from .inputs import finite


@dataclass(frozen=True)
class OutputLoss(ABC):
    """`value` (None where unknown) and `g` of shape `(N, d_V)`, N counting the tokens of all sequences."""

    value: Tensor | None
    g: Tensor

    @abstractmethod
    def hessian_times(self, M: Tensor) -> Tensor:
        """`(d2l/dF2) M` for perturbations M of the output, `(N, d_V, r)`."""

    #: Whether d2l/dF2 is block-diagonal over tokens.
    token_wise = True
    #: Whether d2l/dF2 is positive semi-definite whatever the data.
    convex = True

    def shared_matrix(self) -> Tensor | None:
        """The token Hessian where it is one matrix `(1, d_V, d_V)` for all tokens."""
        return None

    def counted(self) -> Tensor:
        """The tokens that the loss counts, `(N,)`."""
        return torch.ones(self.g.shape[0], dtype=torch.bool, device=self.g.device)

    def token_matrices(self) -> Tensor:
        """The token Hessians `(N, d_V, d_V)`, or `(1, d_V, d_V)` where all are equal."""
        shared = self.shared_matrix()
        if shared is not None:
            return shared
        N, d_V = self.g.shape
        return self.hessian_times(torch.eye(d_V, dtype=self.g.dtype, device=self.g.device).expand(N, d_V, d_V))


@final
@dataclass(frozen=True)
class MeanSquared(OutputLoss):
    """l = sum_n w_n ||F_n - Y_n||^2 / (d_V sum_n w_n), the mean over all tokens and outputs where no weights are given.

    The token Hessian is `curvature w_n I`. Source: [ODS25, Sec. 2]; weights [own].
    """

    curvature: float
    weight: Tensor | None = None

    __repr__ = fields_in_brief

    @classmethod
    def at(cls, F: Tensor, Y: Tensor, weight: Tensor | None = None) -> MeanSquared:
        if Y.shape != F.shape:
            raise InputError(
                f"Y has shape {tuple(Y.shape)}; the mean squared loss needs the shape of F, {tuple(F.shape)}."
            )
        R = F - Y
        if weight is None:
            c = 2.0 / max(R.numel(), 1)
            return cls((R * R).mean(), c * R, c)
        c = 2.0 / (R.shape[1] * float(weight.sum()))
        return cls(c / 2 * (weight[:, None] * R * R).sum(), c * weight[:, None] * R, c, weight)

    def hessian_times(self, M: Tensor) -> Tensor:
        return self.curvature * (M if self.weight is None else self.weight[:, None, None] * M)

    def counted(self) -> Tensor:
        return super().counted() if self.weight is None else self.weight > 0

    def shared_matrix(self) -> Tensor | None:
        if self.weight is not None:
            return None
        return self.curvature * torch.eye(self.g.shape[1], dtype=self.g.dtype, device=self.g.device)[None]


@final
@dataclass(frozen=True)
class CrossEntropy(OutputLoss):
    """l = mean over tokens of -sum_o y_o log softmax(F)_o; token Hessian w_n (diag p - p p^T)."""

    p: Tensor
    weight: Tensor

    __repr__ = fields_in_brief

    def counted(self) -> Tensor:
        return self.weight > 0

    @classmethod
    def at(cls, F: Tensor, Y: Tensor, given: Tensor | None = None) -> CrossEntropy:
        """Y holds class numbers `(N,)`, -100 for tokens left out as in torch, or probabilities `(N, d_V)`."""
        N, d_V = F.shape
        logp = F.log_softmax(-1)
        if Y.is_floating_point():
            if Y.shape != F.shape:
                raise InputError(f"Y has shape {tuple(Y.shape)}; class probabilities need {tuple(F.shape)}.")
            if bool((Y < 0).any()):
                raise InputError(f"class probabilities in Y are not negative; the smallest is {float(Y.min()):.3g}.")
            counted, y = torch.ones(N, dtype=torch.bool, device=F.device), Y
        else:
            if Y.shape != (N,):
                raise InputError(f"Y has shape {tuple(Y.shape)}; class numbers need one per token, {(N,)}.")
            counted = Y != -100
            named = Y[counted]
            if named.numel() == 0 or int(named.min()) < 0 or int(named.max()) >= d_V:
                raise InputError(
                    f"class numbers in Y must lie in 0..{d_V - 1} (or be -100, left out), one at least counted."
                )
            y = torch.nn.functional.one_hot(Y.clamp_min(0), d_V).to(F.dtype)
        weight = counted.to(F.dtype) * (1 if given is None else given)
        if not bool(weight.any()):
            raise InputError("no token counts: each has the class number -100 or the token weight 0.")
        weight = weight / weight.sum()
        mass = y.sum(-1, keepdim=True)
        p, top = logp.exp(), F.argmax(-1, keepdim=True)
        value = -(weight[:, None] * y * logp).sum()
        g = (mass * p - y).scatter(1, top, 0.0)
        g = g.scatter(1, top, -g.sum(-1, keepdim=True))  # p - y of a sure class: 1 - 1 would lose all its digits
        return cls(value, weight[:, None] * g, p, weight * mass[:, 0])

    def hessian_times(self, M: Tensor) -> Tensor:
        """With M less its entry at the surest class, which changes nothing: p (1 - p) would lose its digits there."""
        top = self.p.argmax(-1)[:, None, None].expand(-1, 1, M.shape[2])
        pM = self.p[:, :, None] * (M - M.gather(1, top))
        return self.weight[:, None, None] * (pM - self.p[:, :, None] * pM.sum(1, keepdim=True))


@final
@dataclass(frozen=True)
class TokenWise(OutputLoss):
    """Any token-wise loss, given by its gradient and its token Hessians `(N, d_V, d_V)`."""

    Hl: Tensor

    __repr__ = fields_in_brief
    convex = False

    def counted(self) -> Tensor:
        return self.g.any(1) | self.Hl.flatten(1).any(1)

    def hessian_times(self, M: Tensor) -> Tensor:
        return self.Hl @ M


@final
@dataclass(frozen=True)
class Coupled(OutputLoss):
    """Any network and loss behind the layer, given by g and the operator d2(l o D)/dF2; it couples tokens."""

    operator: Operator
    token_wise = False
    convex = False

    def hessian_times(self, M: Tensor) -> Tensor:
        N, d_V, r = M.shape
        (name, shape), *_ = self.operator.domain.parts
        image = self.operator.apply({name: M.permute(2, 0, 1).reshape(r, *shape)})[name]
        return image.reshape(r, N, d_V).permute(1, 2, 0)


def output_loss(
    loss: str | tuple[Tensor, Tensor | Operator], F: Tensor, Y: Tensor | None, token_weights: Tensor | None = None
) -> OutputLoss:
    """The loss of a layer whose output, all tokens in a row, is F `(N, d_V)`; `Y`, `g` and `token_weights` may keep
    their batch axes."""
    N, d_V = F.shape
    weight = None if token_weights is None else _token_weights(token_weights, F)
    if not bool(F.isfinite().all()):
        raise InputError(f"the output of the layer exceeds the range of {F.dtype}; make its inputs or weights smaller.")
    if isinstance(loss, tuple):
        if Y is not None:
            raise InputError("a loss given by (g, Hl) has its targets inside it; leave Y out.")
        if weight is not None:
            raise InputError("a loss given by (g, Hl) has its token weights inside it; leave token_weights out.")
        g, Hl = loss
        finite("g = dl/dF", g)
        if g.numel() != F.numel() or g.shape[-1] != d_V:
            raise InputError(
                f"g = dl/dF has shape {tuple(g.shape)}; it needs the shape of the output, {N} tokens x {d_V}."
            )
        g = g.to(F.dtype).reshape(N, d_V)
        if isinstance(Hl, Operator):
            if len(Hl.domain) != 1 or Hl.shape != (N * d_V, N * d_V):
                raise InputError(f"d2l/dF2 as an operator acts on one tensor of {N * d_V} outputs; got {Hl!r}.")
            return Coupled(None, g, Hl)
        finite("Hl", Hl)
        if Hl.shape[-2:] != (d_V, d_V) or Hl.numel() != N * d_V * d_V:
            raise InputError(
                f"Hl has shape {tuple(Hl.shape)}; it needs one {d_V} x {d_V} matrix for each of {N} tokens."
            )
        Hl = Hl.to(F.dtype).reshape(N, d_V, d_V)
        if (skew := float((Hl - Hl.mT).abs().max())) > torch.finfo(Hl.dtype).eps ** 0.5 * float(Hl.abs().max()):
            raise InputError(
                f"Hl is not symmetric: entries across its diagonal differ by {skew:.1e}; d2l/dF2 always is."
            )
        return TokenWise(None, g, Hl)
    if Y is None:
        raise InputError(f"the loss {loss!r} needs targets Y; or give the loss as (g, Hl).")
    finite("Y", Y)
    if loss == "mse":
        if Y.numel() != F.numel() or Y.shape[-1] != d_V:
            raise InputError(f"Y has shape {tuple(Y.shape)}; the output is {N} tokens x {d_V}.")
        return MeanSquared.at(F, Y.to(F.dtype).reshape(N, d_V), weight)
    if loss == "cross-entropy":
        if not Y.is_floating_point():
            return CrossEntropy.at(F, Y.reshape(-1), weight)
        if Y.numel() != F.numel() or Y.shape[-1] != d_V:
            raise InputError(f"Y has shape {tuple(Y.shape)}; class probabilities need {N} tokens x {d_V}.")
        return CrossEntropy.at(F, Y.to(F.dtype).reshape(N, d_V), weight)
    raise InputError(f"loss {loss!r} is not one of 'mse', 'cross-entropy' or a pair (g, Hl).")


def _token_weights(weights: Tensor, F: Tensor) -> Tensor:
    """One weight a token, not negative, one above 0 at least."""
    finite("token_weights", weights)
    weights = weights.to(F.dtype).reshape(-1)
    if weights.numel() != F.shape[0] or bool((weights < 0).any()) or not bool(weights.any()):
        raise InputError(
            f"token_weights are one number for each of {F.shape[0]} tokens, none below 0 and one above; got"
            f" {weights.numel()} from {float(weights.min()) if weights.numel() else math.nan:.3g}."
        )
    return weights
