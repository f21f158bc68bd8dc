"""Probes: made of a text, how large they are, and what is said where part of a stored matrix is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..answers.measured import LIBRARY
from ..core.errors import InputError
from ..corpora.text_files import TextFile, read_text_file
from ..curvature.risk import Risk
from .opening import Opening

#: Tokens of a sequence where neither the question nor the model says.
DEFAULT_LENGTH = 128


def probe_of(batches: Sequence[Any], count: int | None = None) -> dict[str, Any]:
    """How large the probe is, as far as its tensors tell: `[8, 18]`, of tokens where they are whole numbers. `count`
    are the batches of all processes."""
    first = batches[0]
    values = (
        list(first.values()) if isinstance(first, Mapping) else list(first) if isinstance(first, tuple) else [first]
    )
    found = [t for t in values if isinstance(t, Tensor) and t.dim()]
    tokens = bool(found) and not found[0].is_floating_point()
    return {
        "batches": count or len(batches),
        "probe": list(found[0].shape[:2]) if found else [],
        "of": " tokens" * tokens,
    }


def whole_tensors(risk: Risk, params: str | Sequence[str]) -> list[str]:
    """What is said where the parameters asked for are parts of a stored matrix: a risk has whole tensors only."""
    if not risk.space.views:
        return []
    asked = risk.space.select(*([params] if isinstance(params, str) else params)).size
    if asked == risk.space.size:
        return []
    return [
        f"{asked:,} parameters were asked for, parts of matrices that are stored with others: the whole"
        f" {risk.space.size:,} are measured; blocks name their parts"
    ]


def text_of(question: Opening) -> TextFile:
    """The text a question names, or source of Python's standard library."""
    if question.data != "auto":
        return read_text_file(question.data)
    from ..corpora.running import library_files

    return TextFile(tuple(text for _, text in itertools.islice(library_files(), 50)), LIBRARY)


def length_of(question: Opening, config: Any) -> int:
    """Tokens of a sequence for a model of transformers."""
    return question.length or min(DEFAULT_LENGTH, getattr(config, "max_position_embeddings", DEFAULT_LENGTH))


def rows_of(ids: list[int], question: Opening, length: int) -> list[Tensor]:
    """`batches` tensors (batch, length) of consecutive tokens; fewer sequences where the text is short."""
    rows = len(ids) // length
    if rows < 1:
        raise InputError(
            f"the text has {len(ids)} tokens, one sequence has {length}. Give more text or a smaller length."
        )
    table = torch.tensor(ids[: rows * length]).reshape(rows, length)[: question.batch_size * question.batches]
    return list(table.split(question.batch_size))
