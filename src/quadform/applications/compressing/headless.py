"""An encoder without a head: what is lost is how far its output moves from what it was."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...integrations import reading as hf
from ..subject import Subject

NOTE = "no head: the loss is |F - F_0|^2 / |F_0|^2, with F the last hidden states and F_0 those of the model as it is"


class Moved:
    """|F - F_0|^2 / |F_0|^2 of a batch. F_0 is computed again each time, by a copy: batches may be cut and moved."""

    def __init__(self, model: nn.Module) -> None:
        self.before = copy.deepcopy(model).requires_grad_(False)

    def __call__(self, out: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            F_0 = self.before(**batch).last_hidden_state
        found: Tensor = (out.last_hidden_state - F_0).square().sum() / F_0.square().sum()
        return found


def with_a_loss(subject: Subject) -> Subject:
    """The subject; a folder of Hugging Face whose model returns hidden states and no loss gets `Moved`."""
    if subject.source["kind"] != "hugging-face" or subject.loss is not None:
        return subject
    with torch.no_grad(), hf.quiet():
        out = subject.model(**{name: t[:1] for name, t in subject.batches[0].items()})
    if getattr(out, "loss", None) is not None or getattr(out, "last_hidden_state", None) is None:
        return subject
    return replace(subject, loss=Moved(subject.model), notes=[*subject.notes, NOTE])
