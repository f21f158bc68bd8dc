"""Attention maps of a sentence: of a quadform Transformer, or of a Hugging Face model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...applications.subject import Subject
from ...core.errors import InputError
from ...integrations import reading
from ...nn.maps import maps_of
from ...nn.transformer import Transformer
from ...train.runs import tokenizer_of

#: Tokens of a sentence that are drawn.
MOST_TOKENS = 64


@dataclass(frozen=True)
class Maps:
    """Names of the tokens that look and of those that are looked at, and (heads, rows, columns) of every layer."""

    layers: dict[str, Tensor]
    rows: list[str]
    columns: list[str]


class Reader:
    """Reads sentences with a copy of the model, so that it never meets what is measured at the same time."""

    def __init__(self, subject: Subject) -> None:
        self.own = isinstance(subject.model, Transformer)
        if not self.own and not hasattr(getattr(subject.model, "config", None), "to_dict"):
            raise InputError(
                "attention maps are read from quadform Transformers and Hugging Face models;"
                f" got {type(subject.model).__name__}."
            )
        self.model: Any = copy.deepcopy(subject.model).float().cpu().eval().requires_grad_(False)
        self.tokenizer = _tokenizer(subject)
        self.first = _first(subject)

    @property
    def sentence(self) -> str:
        """What is read before anything is typed: the first sequence the model is measured on."""
        return "" if self.tokenizer is None else self.tokenizer.decode(self.first).strip()

    def read(self, text: str) -> Maps:
        """The maps of a sentence; without a tokenizer, of the first sequence of the probe."""
        ids = self.first if self.tokenizer is None or not text.strip() else _ids(self.tokenizer, text)
        ids = ids[:MOST_TOKENS]
        if not ids:
            raise InputError("the sentence has no tokens; write a word.")
        names = [self._name(i) for i in ids]
        with torch.no_grad():
            layers = self._own(ids) if self.own else self._theirs(ids)
        return Maps({n: A.float() for n, A in layers.items() if A.shape[-1] == A.shape[-2] == len(ids)}, names, names)

    def _name(self, token: int) -> str:
        said = "" if self.tokenizer is None else self.tokenizer.decode([token]).strip()
        return said or str(token)

    def _own(self, ids: list[int]) -> dict[str, Tensor]:
        encodes = self.model.config.kind == "encoder-decoder"
        return maps_of(self.model, ids, ids if encodes else None)

    def _theirs(self, ids: list[int]) -> dict[str, Tensor]:
        """As transformers gives them, by its plain attention."""
        self.model.set_attn_implementation("eager")
        with reading.quiet():
            out = self.model(input_ids=torch.tensor([ids]), output_attentions=True)
        found = getattr(out, "attentions", None) or getattr(out, "encoder_attentions", None) or ()
        return {f"layer.{i}": A[0] for i, A in enumerate(found) if A is not None}


def _tokenizer(subject: Subject) -> Any:
    if subject.run is not None:
        return tokenizer_of(subject.run.data)
    if subject.source.get("kind") == "hugging-face":
        return reading.read_tokenizer(subject.source["model"])
    return None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text))


def _first(subject: Subject) -> list[int]:
    """The tokens of the first sequence of the first batch."""
    batch = subject.batches[0]
    held = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
    for value in held:
        if isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point():
            return value[0].tolist()
    raise InputError("the batches hold no sequence of tokens to read.")
