"""Fields of every question that makes a model smaller. Torch-free."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.question import option
from ..opening import ModelQuestion, Opening

if TYPE_CHECKING:
    from ..subject import Subject


@dataclass(frozen=True, kw_only=True)
class CalibrationOpening(Opening):
    """A model and several batches: the inputs of its matrices are measured on them."""

    batches: int = option(8, "Number of calibration batches, including those held out.", least=1)

    def open(self) -> Subject:
        from .headless import with_a_loss

        return with_a_loss(super().open())


@dataclass(frozen=True, kw_only=True)
class CompressQuestion(ModelQuestion):
    """Methods are calibrated on some batches and compared on others."""

    held_out: int | None = option(
        None,
        "Number of batches held out of the calibration; the methods are compared on them.",
        least=0,
        metavar="INT",
        shown="(default: a quarter of the batches)",
    )
    score: int = option(
        200, "Number of questions for the task's own score, if the training data have one; 0: none.", least=0
    )

    @property
    @abstractmethod
    def methods(self) -> tuple[str, ...]:
        """The methods to be measured."""


def require_known(methods: tuple[str, ...], known: Collection[str]) -> None:
    """At least one method, and none that is unknown."""
    if not methods:
        raise InputError(f"method=(): name at least one of {', '.join(known)}.")
    for name in methods:
        if name not in known:
            near = did_you_mean(name, known)
            raise UnknownName(f"unknown method {name!r}; choose from {', '.join(known)}.{near}")
