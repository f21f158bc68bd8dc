"""Plans at a part of the cost. A large model is not loaded for one: its configuration tells the work of a product
(`Outlined`). Where that is not enough it is timed on single sequences of its probe, and the time is scaled."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TypeVar

from ..corpora.fetch import fetched
from .opening import Opening
from .subject import TRAINED

#: Parameters from which one sequence keeps the processor busy, so that the time of a product is in proportion to it.
LARGE = 25_000_000

Asked = TypeVar("Asked", bound=Opening)


def lighter(question: Asked) -> tuple[Asked, float]:
    """The question with one sequence a batch and at most two batches, and how many times longer its products take.

    A small model is asked as it is: its products take as long for one sequence as for several.
    """
    if parameters_stored(question.model) < LARGE:
        return question, 1.0
    batches = min(question.batches, 2)  # several batches are planned otherwise than one
    return dataclasses.replace(
        question, batch_size=1, batches=batches
    ), question.batch_size * question.batches / batches


def parameters_stored(model: str) -> int:
    """Numbers in the safetensors files of a local folder or a fetched model, from their headers; 0 for any other."""
    folder, name = Path(model), model.partition(":")[0]
    if folder.is_dir():
        return sum(map(_stored, folder.glob("*.safetensors")))
    found = fetched(name) if name in TRAINED else None
    return 0 if found is None else sum(map(_stored, found.folder.rglob("*.safetensors")))


def _stored(path: Path) -> int:
    """A safetensors file begins with the length of its header, eight bytes, and the header, JSON."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return sum(math.prod(told["shape"]) for name, told in header.items() if name != "__metadata__")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError):
        return 0  # told when the model is opened
