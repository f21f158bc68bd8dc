"""Probes: made of a text, how large they are, and what is said where part of a stored matrix is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..answers.measured import LIBRARY
from ..core.errors import InputError
from ..core.rng import stream
from ..corpora.text_files import TextFile, read_text_file
from ..curvature.risk import Risk
from .machine import guard_probe
from .opening import Opening

#: Tokens of a sequence where neither the question nor the model says.
DEFAULT_LENGTH = 128

Encode = Callable[[str], list[int]]
"""A text as tokens."""


def probe_of(batches: Sequence[Any], count: int | None = None) -> dict[str, Any]:
    """How large a batch is, by its first tensor: `[8, 18]` of tokens where they are whole numbers, `[8, 3, 32, 32]` of
    images; `[]` where it has none. `count` are the batches of all processes."""
    first = dict(batches[0]) if isinstance(batches[0], Mapping) else batches[0]
    found = [t for t in tree_leaves(first) if isinstance(t, Tensor) and t.dim()]
    tokens = bool(found) and not found[0].is_floating_point()
    shape = found[0].shape[:2] if tokens else found[0].shape if found else ()
    return {"batches": count or len(batches), "probe": list(shape), "of": " tokens" * tokens}


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


def rows_of(encode: Encode, text: str, question: Opening, length: int) -> tuple[list[Tensor], list[str]]:
    """`batches` tensors (batch, length) of consecutive tokens; where the text is short fewer, and that is said."""
    asked = _asked(question, length)
    ids = encoded(encode, text, asked * length)
    rows = len(ids) // length
    if rows < 1:
        raise InputError(
            f"the text has {len(ids)} tokens, but one sequence needs {length}. Give more text or a smaller length."
        )
    table = torch.tensor(ids[: rows * length]).reshape(rows, length)[:asked]
    short = [f"the text has {rows:,} sequences of {length} tokens; {asked:,} were asked for"] if rows < asked else []
    return list(table.split(question.batch_size)), short


def encoded(encode: Encode, text: str, needed: int) -> list[int]:
    """Tokens of a text; of its beginning where that has enough. A cut changes the last tokens alone, so a quarter more
    is read than is needed."""
    size = 8 * needed + 1000
    while size < len(text):
        ids = encode(text[:size])
        if len(ids) >= 1.25 * needed + 100:
            return ids
        size *= 4
    return encode(text)


def random_rows(question: Opening, length: int, vocabulary: int) -> list[Tensor]:
    """`batches` tensors (batch, length) of tokens drawn from the vocabulary."""
    shape = (_asked(question, length), length)
    drawn = torch.randint(vocabulary, shape, generator=stream(question.seed, "probe"))
    return list(drawn.split(question.batch_size))


def _asked(question: Opening, length: int) -> int:
    """Sequences that are asked for; refused where they do not fit the memory."""
    guard_probe(question.batches, question.batch_size, {"tokens": torch.empty(1, length, dtype=torch.long)})
    return question.batches * question.batch_size
