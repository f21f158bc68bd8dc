"""Pruned weights on disk: those of each method while the work goes on, the best one as a model that loads again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from ...core.record import Estimate, write_atomically
from ...core.work import WORK, Work
from ...integrations import reading as hf
from ...nn.transformer import Transformer
from ..subject import Subject

#: The folder of the best model, inside that of the results.
PRUNED = "pruned"


class Kept:
    """The weights that methods left: in the folder of the work, or in memory where there is none."""

    def __init__(self, work: Work) -> None:
        self.folder = None if work.folder is None else work.folder / WORK / PRUNED
        self.here: dict[str, dict[str, Tensor]] = {}

    def write(self, method: str, weights: Mapping[str, Tensor]) -> None:
        if self.folder is None:
            self.here[method] = dict(weights)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        blob = save({n: t.detach().cpu().contiguous() for n, t in weights.items()})
        write_atomically(self.folder / f"{method}.safetensors", blob)

    def read(self, method: str) -> dict[str, Tensor]:
        return self.here[method] if self.folder is None else load_file(self.folder / f"{method}.safetensors")


def pruned(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with other weights; tied ones stay tied."""
    other = copy.deepcopy(model)
    own = dict(other.named_parameters())
    with torch.no_grad():
        for name, t in weights.items():
            own[name].copy_(t)
    return other


def write(folder: Path, subject: Subject, weights: Mapping[str, Tensor]) -> Path:
    """The model with these weights in `folder/pruned`, in the format it came in; the path.

    A module that is neither ours nor of transformers is written as `weights.safetensors`, the names of its state.
    """
    where, model = folder / PRUNED, subject.model
    if not isinstance(model, nn.Module):
        where.mkdir(parents=True, exist_ok=True)
        save_file({n: t.detach().cpu().contiguous() for n, t in weights.items()}, where / "weights.safetensors")
        return where
    other: Any = pruned(model, weights)
    if isinstance(other, Transformer):
        other.save(where)
    elif hasattr(other, "save_pretrained"):
        with hf.quiet():
            other.save_pretrained(where)
            tokenizer = hf.read_tokenizer(str(subject.source["model"])) if subject.source["kind"] != "python" else None
            if tokenizer is not None:
                tokenizer.save_pretrained(where)
    else:
        from safetensors.torch import save_model

        where.mkdir(parents=True, exist_ok=True)
        save_model(other, str(where / "weights.safetensors"))
    return where


def scored(subject: Subject, weights: Mapping[str, Tensor], count: int) -> dict[str, Any]:
    """The score of the task on the test split of a training run: `{"score": (its name, Estimate)}`; else nothing."""
    if subject.run is None or not count:
        return {}
    from ...train.recipes import score_test

    other: Any = pruned(subject.model, weights)
    found: dict[str, Estimate] = score_test(replace(subject.run, model=other), count)
    name = next((n for n in found if n != "loss"), None)
    return {} if name is None else {"score": [name, found[name]]}
