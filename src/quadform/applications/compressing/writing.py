"""Weights on disk: those of each method while the work goes on, the best one as a model that loads again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from ...core.packed import PACKED, Layout, to_bytes
from ...core.record import Estimate, strict_json, write_atomically
from ...core.work import WORK, Work
from ...integrations import reading as hf
from ...nn.transformer import Transformer
from ..subject import DATA, Subject


class Kept:
    """The tensors that methods left: in the folder of the work, or in memory where there is none."""

    def __init__(self, work: Work) -> None:
        self.folder = None if work.folder is None else work.folder / WORK / "methods"
        self.here: dict[str, dict[str, Tensor]] = {}

    def write(self, method: str, tensors: Mapping[str, Tensor]) -> None:
        if self.folder is None:
            self.here[method] = dict(tensors)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        blob = save({n: t.detach().cpu().contiguous() for n, t in tensors.items()})
        write_atomically(self.folder / f"{method}.safetensors", blob)

    def read(self, method: str) -> dict[str, Tensor]:
        return self.here[method] if self.folder is None else load_file(self.folder / f"{method}.safetensors")


def changed(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with other weights; tied ones stay tied."""
    other = copy.deepcopy(model)
    own = dict(other.named_parameters())
    with torch.no_grad():
        for name, t in weights.items():
            own[name].copy_(t)
    return other


def write(where: Path, subject: Subject, weights: Mapping[str, Tensor]) -> Path:
    """The model with these weights in a folder, in the format it came in; the path.

    A module that is neither ours nor of transformers is written as `weights.safetensors`, the names of its state.
    """
    model = subject.model
    if not isinstance(model, nn.Module):
        where.mkdir(parents=True, exist_ok=True)
        save_file({n: t.detach().cpu().contiguous() for n, t in weights.items()}, where / "weights.safetensors")
        return where
    other: Any = changed(model, weights)
    if isinstance(other, Transformer):
        other.save(where)
        _write_data(where, subject)
    elif hasattr(other, "save_pretrained"):
        with hf.quiet():
            other.save_pretrained(where)
        _write_tokenizer(where, subject)
    else:
        from safetensors.torch import save_model

        where.mkdir(parents=True, exist_ok=True)
        save_model(other, str(where / "weights.safetensors"))
    return where


def write_packed(where: Path, subject: Subject, parts: Mapping[str, Tensor], layouts: Mapping[str, Layout]) -> Path:
    """The model with the matrices in `layouts` as codes, scales and zero points (`parts`), in a folder; the path."""
    model: Any = subject.model
    own = dict(subject.params or {}) if not isinstance(model, nn.Module) else model.state_dict()
    dtype = next(t.dtype for n, t in own.items() if n in layouts)
    blob = to_bytes(_once(own, layouts) | dict(parts), layouts, dtype)
    if isinstance(model, Transformer):
        model.save(where, packed=blob)
        _write_data(where, subject)
        return where
    where.mkdir(parents=True, exist_ok=True)
    write_atomically(where / PACKED, blob)
    if hasattr(model, "save_pretrained"):
        with hf.quiet():
            model.config.save_pretrained(where)
        _write_tokenizer(where, subject)
    return where


def _once(state: Mapping[str, Tensor], layouts: Mapping[str, Layout]) -> dict[str, Tensor]:
    """Tensors that are not among the matrices nor tied to one, each once."""
    seen = {state[n].data_ptr() for n in layouts}
    found = {}
    for name, t in state.items():
        if t.data_ptr() not in seen or not t.numel():
            seen.add(t.data_ptr())
            found[name] = t
    return found


def _write_data(where: Path, subject: Subject) -> None:
    """Name the data beside the model, so that every verb takes it again."""
    if "split" in subject.source:
        write_atomically(where / DATA, strict_json(subject.source["data"]).encode())


def _write_tokenizer(where: Path, subject: Subject) -> None:
    """That of the folder the model was read from; a fetched model has another name than its folder."""
    source = subject.source
    folder = getattr(subject.model, "name_or_path", "") if source["kind"] == "fetched" else source.get("model")
    tokenizer = hf.read_tokenizer(str(folder)) if folder and source["kind"] != "python" else None
    if tokenizer is not None:
        with hf.quiet():
            tokenizer.save_pretrained(where)


def scored(subject: Subject, weights: Mapping[str, Tensor], count: int) -> dict[str, Any]:
    """The score of the task on the test split of a training run: `{"score": (its name, Estimate)}`; else nothing."""
    if subject.run is None or not count:
        return {}
    from ...train.recipes import score_test

    other: Any = changed(subject.model, weights)
    found: dict[str, Estimate] = score_test(replace(subject.run, model=other), count)
    name = next((n for n in found if n != "loss"), None)
    return {} if name is None else {"score": [name, found[name]]}
