"""Opening a model: which one, on which data, in which number format. Torch-free; `open` does the work."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..core.files import checkpoints_in, is_dir, is_file
from ..core.question import Fields, Question, option, required

if TYPE_CHECKING:
    from .subject import Subject


@dataclass(frozen=True, kw_only=True)
class Numerics(Fields):
    """Where and how the numbers are made."""

    seed: int = option(0, "Seed of all random numbers.")
    dtype: str = option(
        "float64",
        "Floating-point type of the computation. Half precision is refused because it underflows.",
        choices=("float32", "float64"),
    )
    device: str = option("cpu", "Device to compute on: cpu, cuda, cuda:0, ...")


@dataclass(frozen=True, kw_only=True)
class Probe(Fields, ABC):
    """Batches that models are measured on, and how models are opened."""

    data: str = option("auto", "A data set (`quadform ls data`), a text file, or `auto` (what the run was trained on).")
    batch_size: int = option(8, "Sequences per batch.", least=1)
    batches: int = option(1, "Number of batches; the loss is their mean.", least=1)
    length: int | None = option(
        None,
        "Tokens per sequence, for text and language models.",
        least=1,
        metavar="INT",
        shown="(default: the data's)",
    )
    seed: int = option(0, "Seed of all random numbers.")
    dtype: str = option(
        "float32",
        "Floating-point type of the computation. Half precision is refused because it underflows.",
        choices=("float32", "float64"),
    )
    device: str = option("cpu", "Device to compute on: cpu, cuda, cuda:0, ...")
    allow_download: bool = option(False, "Allow downloads from the Hugging Face hub. By default no network is used.")
    trust_pickle: bool = option(False, "Open pickle checkpoints. They can run code: use this only for files you trust.")

    @classmethod
    @abstractmethod
    def naming(cls, model: Any) -> dict[str, Any] | None:
        """The fields that name `model`, which is a text or a path; None for a model of Python's."""

    @property
    @abstractmethod
    def named(self) -> str:
        """What is opened, in words."""

    def usual_folder(self, verb: str) -> str:
        """Where the results of a verb are kept when no folder is named."""
        return f"runs/{folder_name(self.named)}-{verb}"

    @abstractmethod
    def open(self) -> Any:
        """The subject: what is named, with its batches."""

    @abstractmethod
    def light(self) -> Any:
        """The subject for a plan: a large model has single sequences."""


@dataclass(frozen=True, kw_only=True)
class Opening(Probe):
    """A model and the batches it is measured on."""

    model: str = required(
        "A run folder, a Hugging Face folder, a fetched model (`sceptr:tiny`), or `new:pre-ln,depth=6,d_model=64`.",
        metavar="MODEL",
    )

    @classmethod
    def naming(cls, model: Any) -> dict[str, Any] | None:
        return {"model": str(model)} if isinstance(model, str | Path) else None

    def check(self) -> None:
        """Of a folder with many checkpoints and no model of its own the latest is meant."""
        path = Path(self.model)
        if is_dir(path) and not any(is_file(path / name) for name in ("config.json", "model.json")):
            found = [p for p in checkpoints_in(path) if is_file(p / "config.json")]
            if found:
                object.__setattr__(self, "model", str(found[-1]))

    @property
    def named(self) -> str:
        return self.model

    def open(self) -> Subject:
        from .subject import open_subject

        return open_subject(self)

    def outline(self) -> Subject | None:
        """A large model as its configuration describes it, without weights; None where that cannot be told."""
        from .outlined import outlined

        return outlined(self)

    def light(self) -> Subject:
        from .lighter import lighter

        asked, scale = lighter(self)
        return replace(asked.open(), scale=scale)


@dataclass(frozen=True, kw_only=True)
class CutOpening(Opening):
    """A model whose weights several processes may hold together."""

    fsdp: bool = option(
        False,
        "Shard the weights over the processes of torchrun (FSDP2), for a model that does not fit one device. Whole"
        " batches go to the processes: give as many as there are.",
    )
    world: int = option(1, "With --dry-run: number of processes the weights would be sharded over.", least=1)

    def outline(self) -> Subject | None:
        found = super().outline()
        return found and replace(found, world=self.world)

    def light(self) -> Subject:
        return replace(Opening.light(replace(self, world=1, fsdp=False)), world=self.world)

    def open(self) -> Subject:
        if self.world > 1:
            raise InputError(
                f"world={self.world} is for a plan alone. To measure, start that many processes with torchrun and cut"
                " the weights over them (fsdp)."
            )
        if not self.fsdp:
            return super().open()
        from .cutting import open_cut

        return open_cut(self)


@dataclass(frozen=True, kw_only=True)
class ModelQuestion(Question):
    """A question about one opened model: which of its parameters, in which mode."""

    params: str | tuple[str, ...] = option(
        "*", "Parameters to measure: comma-separated names with wildcards (`h.0.attn.*,*.W_Q`)."
    )
    include_frozen: bool = option(False, "Include parameters with requires_grad=False.")
    train_mode: bool = option(False, "Measure in training mode, with dropout. The default is eval mode.")
    seed: int = option(0, "Seed of all random numbers.")

    def light(self, opening: Any) -> Any:
        return opening.outline() or opening.light()

    @property
    def globs(self) -> list[str]:
        """`params` as a list of patterns."""
        return [g.strip() for g in self.params.split(",")] if isinstance(self.params, str) else list(self.params)


def folder_name(word: str) -> str:
    """A folder name for a model: `new:pre-ln,depth=6` -> `pre-ln-depth-6`."""
    return re.sub(r"[^\w.-]+", "-", word.removeprefix("new:")).strip("-.") or "model"
