"""Where the P of an optimizer comes from: the run, a file that was named, or the gradients of the probe."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ... import preconditioners as pre
from ...core.errors import InputError, QuadformError
from ...curvature.risk import Risk
from ...train.folder import is_run
from ..step_size import chosen
from ..step_size.question import StepSizeQuestion
from ..step_size.rules import Stepper
from ..step_size.state import SavedState, read_state
from ..subject import Subject, tensors_hash
from .question import SAVED, PrecondQuestion


def stepper_of(asked: PrecondQuestion, subject: Subject) -> Stepper | None:
    """Adam with the state of the file that was named, or of the run; None where there is none."""
    if state_of(asked, subject) is not None:  # of another optimizer
        return None
    try:
        stepper = chosen.opened(_as_lr(asked), subject)[1]
    except QuadformError:
        if asked.optimizer_state is not None:
            raise
        return None
    return stepper if stepper.rule.adaptive and stepper.second else None


def state_of(asked: PrecondQuestion, subject: Subject) -> tuple[str, SavedState] | None:
    """The named state where it is another's than Adam's, and whose it is; None where it is Adam's, or none is named.

    A state that no P can be made of is refused, and one whose optimizer is not among the methods.
    """
    if asked.optimizer_state is None or is_run(asked.optimizer_state) or not isinstance(subject.model, nn.Module):
        return None
    found = read_state(asked.optimizer_state, subject.model)
    kind = pre.kind_of(found.groups[0], found.states)
    if not kind:
        raise InputError(f"`{found.path}` holds no state of {', '.join(SAVED)}; no preconditioner is read from it.")
    if kind not in asked.methods:
        raise InputError(f"`{found.path}` holds the state of {kind}; name {kind} among the methods.")
    return None if kind == "adam" else (kind, found)


def saved_metric(name: str, asked: PrecondQuestion, subject: Subject, risk: Risk) -> pre.Blocks | None:
    """P of Adafactor, Shampoo or SOAP from the named file; None where it is not theirs."""
    own = state_of(asked, subject)
    if own is None or own[0] != name:
        return None
    found, kind = own[1], {"dtype": risk.dtype, "device": risk.device}
    if name == "shampoo":
        return pre.shampoo_of(found.states, risk.space, kind)
    own_kind = pre.soap_of if name == "soap" else pre.adafactor_of
    return own_kind(found.groups[0], found.states, risk.space, kind)


def identity_of(asked: PrecondQuestion, subject: Subject) -> dict[str, Any]:
    """The state that P is read from, in plain values."""
    own = state_of(asked, subject)
    if own is not None:
        flat = {f"{n}/{k}": t for n, s in own[1].states.items() for k, t in s.items() if isinstance(t, Tensor)}
        return {"rule": own[0], "optimizer_hash": tensors_hash(flat)}
    if "adam" not in asked.methods:
        return {}
    try:
        return chosen.identity_of(_as_lr(asked), subject)
    except QuadformError:
        if asked.optimizer_state is not None:
            raise
        return {}


def _as_lr(asked: PrecondQuestion) -> StepSizeQuestion:
    """The question about step sizes that finds the same optimizer."""
    shared: dict[str, Any] = {
        "params": asked.params,
        "include_frozen": asked.include_frozen,
        "train_mode": asked.train_mode,
    }
    return StepSizeQuestion(**shared, seed=asked.seed, state=asked.optimizer_state)
