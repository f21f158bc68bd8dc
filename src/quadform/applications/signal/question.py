"""The question of `quadform signal` and `qf.signal`, and what it is asked of: designs and models. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.designs import DESIGNS
from ...core.errors import InputError
from ...core.question import Question, option, options, whole_numbers
from ..opening import Opening, Probe

if TYPE_CHECKING:
    from .subjects import Subjects

#: Tokens of designs are drawn uniformly from so many.
VOCAB = 1024
_DEPTHS = (12,)


@dataclass(frozen=True, kw_only=True)
class SignalQuestion(Question):
    """Does the signal survive depth? Token cosine, effective rank, norm and gradient after every block.

    A design (`pre-ln`, `sas-p`, ...) is initialised at random and compared with its mean-field prediction; a model is
    measured on data. The figure shows cosine, rank and norm per layer: predictions as lines, measurements as points.
    """

    verb = "signal"

    blocks: str | None = option(
        None,
        "Models: name of the list of blocks (`transformer.h`), or a pattern of their names, if it is not found"
        " automatically.",
        metavar="NAME",
        shown="(default: found)",
    )
    jacobian: bool = option(False, "Also the singular values of the Jacobian of three blocks and of the whole stack.")
    mask: Callable[[Any], Any] | None = option(
        None,
        "Models: batch -> (batch, T), True for real tokens. Without it the masks of the batch and the model's padding"
        " token are used.",
        command_line=False,
    )
    seed: int = option(0, "Seed of all random numbers.")

    def identity(self, subject: Any = None) -> dict[str, Any]:
        """The question in plain values. What a mask hides is part of the names of the pieces."""
        return super().identity(subject) | {"mask": self.mask is not None}

    def measurement(self, subject: Any = None) -> Any:
        from .measure import SignalMeasurement

        return SignalMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.signal import Signal

        return Signal(record)


@dataclass(frozen=True, kw_only=True)
class SignalOpening(Probe):
    """Designs with what is drawn of them, models with the batches they are measured on."""

    subjects: tuple[str, ...] = option(
        (),
        "Block designs, run folders, Hugging Face folders, or `new:pre-ln,depth=6,d_model=64`.",
        positional=True,
        metavar="[MODEL|DESIGN ...]",
    )
    depths: tuple[int, ...] = option(
        _DEPTHS, "Designs: numbers of blocks, comma-separated (`6,24,72`).", parse=whole_numbers
    )
    d_model: int = option(256, "Designs: width; the prediction is the limit of large width.", least=1)
    heads: int = option(8, "Designs: attention heads.", least=1)
    tokens: int = option(64, f"Designs: tokens of a sequence, drawn uniformly from {VOCAB}.")
    networks: int = option(4, "Designs: number of random networks; the error bars are over them.", least=1)
    settings: Mapping[str, Any] | None = option(
        None, "Designs: other settings by name, such as {'d_ff': 512} (`core.designs.design`).", command_line=False
    )

    def check(self) -> None:
        if not self.subjects:
            raise InputError("signal needs a design or a model, such as `pre-ln`, `sas-p` or `runs/NAME`.")
        if len(set(self.subjects)) < len(self.subjects):
            raise InputError(f"a subject is named twice: {' '.join(self.subjects)}.")
        if self.tokens < 2:
            raise InputError(f"tokens={self.tokens}: a cosine is between tokens; give at least 2.")
        if self.d_model % self.heads:
            raise InputError(f"d_model={self.d_model} does not divide into heads={self.heads}.")
        object.__setattr__(self, "depths", tuple(sorted(set(self.depths))))
        if not self.depths or self.depths[0] < 1:
            raise InputError(f"depths={list(self.depths)}: a stack has at least 1 block.")
        if self.depths != _DEPTHS and not any(map(is_design, self.subjects)):
            raise InputError(f"depths={list(self.depths)} belongs to designs; a model has the depth it has.")

    @classmethod
    def naming(cls, model: Any) -> dict[str, Any] | None:
        words = [model] if isinstance(model, str | Path) else model
        if isinstance(words, list | tuple) and all(isinstance(word, str | Path) for word in words):
            return {"subjects": tuple(map(str, words))}
        return None

    @property
    def named(self) -> str:
        return ", ".join(self.subjects)

    def of_model(self, name: str) -> Opening:
        """What opens a subject that is a model."""
        return Opening(model=name, **{field: getattr(self, field) for field in options(Probe)})

    def open(self) -> Subjects:
        from .subjects import open_subjects

        return open_subjects(self, lambda name: self.of_model(name).open())

    def light(self) -> Subjects:
        from .subjects import open_subjects

        return open_subjects(self, lambda name: self.of_model(name).light())


def is_design(word: str) -> bool:
    """Whether a subject is the name of a design."""
    return word.replace("_", "-") in DESIGNS
