"""A subject without weights: a large model as its configuration describes it, for plans that load nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..core.errors import QuadformError
from ..curvature.outline import Outline
from ..curvature.risk import Risk
from ..integrations import reading as hf
from .lighter import LARGE, parameters_stored
from .machine import DTYPES, device_of
from .opening import Opening
from .probes import length_of, text_of, whole_tensors
from .room import NOTE
from .subject import TRAINED, Subject, new_subject


@dataclass(eq=False)
class Outlined(Subject):
    """A model on the meta device with batches of shapes alone. It has a plan and cannot be measured."""

    def risk(self, question: Any = None, **options: Any) -> Risk:
        """The shapes of the loss, over the parameters the question names."""
        if question is not None:
            chosen = {"params": question.globs, "include_frozen": question.include_frozen}
            options = {**chosen, "train_mode": question.train_mode} | options
        risk = Outline(self.model, self.loss, self.batches, **options)
        return risk.noted(NOTE, *self.notes, *whole_tensors(risk, options.get("params", "*")), first=True)


def outlined(opening: Opening) -> Outlined | None:
    """The subject of an opening without its weights; None where the model is small, is to run on a GPU, or does not
    tell its cost without numbers."""
    if device_of(opening.device).type != "cpu":
        return None
    try:
        found = _described(opening)
        if found is not None:
            Outline(found.model, found.loss, found.batches).run_empty()
    except QuadformError:
        raise
    except Exception:  # whatever a model has against running without numbers: it is loaded then
        return None
    return found


def _described(opening: Opening) -> Outlined | None:
    meta, dtype = torch.device("meta"), DTYPES[opening.dtype]
    name, source = opening.model.partition(":")[0], {"model": opening.model}
    found = None
    if name == "new":
        made = new_subject(opening, meta, dtype)
        found = Outlined(opening.model, made.model, made.batches, source)
    elif name in TRAINED and opening.data == "auto":
        from ..corpora.zoo import TOKENS, outline

        model = outline(name, dtype)
        ids = torch.zeros((opening.batch_size, opening.length or TOKENS), dtype=torch.long, device=meta)
        batches = [{"input_ids": ids, "labels": ids}] * opening.batches
        found = None if model is None else Outlined(opening.model, model, batches, source)
    elif parameters_stored(opening.model) >= LARGE:
        found = Outlined(opening.model, *_of_folder(opening, dtype), source)
    return found if found is not None and found.parameters >= LARGE else None


def _of_folder(opening: Opening, dtype: torch.dtype) -> tuple[torch.nn.Module, list[Any]]:
    """The model of a Hugging Face folder, and batches of the shape it would have."""
    if opening.data != "auto":
        text_of(opening)  # what cannot be read is told now
    model: Any = hf.read_outline(opening.model, dtype, allow_download=opening.allow_download)
    ids = torch.zeros((opening.batch_size, length_of(opening, model.config)), dtype=torch.long, device="meta")
    batch = hf.labelled(model, ids, None, opening.seed)
    del batch["attention_mask"]  # it hides nothing
    return model, [batch] * opening.batches
