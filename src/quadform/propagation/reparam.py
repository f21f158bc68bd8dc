"""Weight reparameterisation W = skip W_init + branch dW, and which step on W a step on dW is.

dW starts at zero, W_init (orthogonal or the identity) is fixed. The loss sees only W, so dL/d(dW) = branch dL/dW and

    SGD, any momentum       lr on dW is lr branch^2 on W
    Adam                    lr and eps on dW are lr branch and eps / branch on W
    decoupled decay (wd)    pulls W towards skip W_init instead of towards 0, at the rate lr wd of the step on dW

so a small branch is a small learning rate for the matrix, and branch -> 0 removes it.
Source: [HH24, Sec. 4.2] for the first step; that both identities hold for every step, with eps and decay, is [own].
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quadform.core.errors import InputError, UnknownName, did_you_mean

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer setting: lr, eps (Adam) and decoupled weight decay towards the anchor."""

    lr: float
    eps: float = 0.0
    weight_decay: float = 0.0


def compose(W_init: Tensor, dW: Tensor, skip: float | Tensor, branch: float | Tensor) -> Tensor:
    """W = skip W_init + branch dW."""
    return skip * W_init + branch * dW


def split(W: Tensor, W_init: Tensor, skip: float, branch: float) -> Tensor:
    """The dW that gives W: (W - skip W_init) / branch."""
    if branch == 0:
        raise InputError("with branch = 0 the matrix is fixed at skip W_init; no dW gives another one.")
    return (W - skip * W_init) / branch


def dual_step(optimizer: str, step: Step, branch: float) -> Step:
    """The setting on W (decay towards skip W_init) whose every step equals `step` taken on dW.

    Weight decay is decoupled: dW <- (1 - lr wd) dW before the gradient step, as in AdamW.
    """
    if optimizer not in OPTIMIZERS:
        raise UnknownName(
            f"no optimizer {optimizer!r}; there are {', '.join(OPTIMIZERS)}.{did_you_mean(optimizer, OPTIMIZERS)}"
        )
    if not branch > 0:
        raise InputError(f"the step duality needs branch > 0; got {branch}.")
    if optimizer == "sgd":
        return Step(lr=step.lr * branch**2, weight_decay=step.weight_decay / branch**2)
    return Step(lr=step.lr * branch, eps=step.eps / branch, weight_decay=step.weight_decay / branch)
