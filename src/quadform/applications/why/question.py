"""The question of `quadform why` and `qf.why`. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.question import Question, option, whole_numbers, words_of

#: What can be taken out of a block, one at a time.
REMOVABLE = ("softmax", "norm", "skip", "qk")


@dataclass(frozen=True, kw_only=True)
class WhyQuestion(Question):
    """What softmax, norm, skip and the product W_Q W_K^T each do to curvature, measured by removing one at a time.

    Every variant has the weights, the data and the seed of the model itself. For later steps each variant is first
    trained up to that step, on the same batches. In Python, pass a Dataset as batches to train.
    """

    verb = "why"

    remove: Sequence[str] = option(
        REMOVABLE, "Components to remove, one at a time, comma-separated.", parse=words_of, metavar="NAMES"
    )
    steps: Sequence[int] = option(
        (0,),
        "Training steps at which to measure, comma-separated (`0,100,1000`).",
        parse=whole_numbers,
        metavar="STEPS",
    )
    lr: float = option(1e-3, "Learning rate of that training (AdamW).", above=0)
    step: int | None = option(
        None,
        "Explain this step of a training run instead: its batch, learning rate, ceiling and update by layer.",
        least=1,
        metavar="N",
        shown="(default: remove components)",
    )
    checkpoints: str | None = option(
        None,
        "Folder with the checkpoints of another trainer's run (Lightning, plain torch), for one step of a module.",
        command_line=False,
    )
    batch_size: int = option(8, "Sequences per batch.", least=1)
    seed: int = option(0, "Seed of all random numbers.")

    def check(self) -> None:
        object.__setattr__(self, "remove", tuple(dict.fromkeys(self.remove)))
        object.__setattr__(self, "steps", tuple(sorted(set(self.steps))))
        for name in self.remove:
            if name not in REMOVABLE:
                raise UnknownName(
                    f"remove={name!r} is unknown; choose from {', '.join(REMOVABLE)}.{did_you_mean(name, REMOVABLE)}"
                )
        if not self.steps or self.steps[0] < 0:
            raise InputError(f"steps={list(self.steps)}: give whole numbers of at least 0.")

    def light(self, opening: Any) -> Any:
        return opening.light() if self.step is not None else opening.outline() or opening.light()

    def measurement(self, subject: Any = None) -> Any:
        if self.checkpoints is not None and self.step is None:
            raise InputError("checkpoints= is for one step of a run; give step= too.")
        if self.step is not None:
            from .between import BetweenMeasurement
            from .one_step import StepMeasurement

            own = subject.run is not None and self.checkpoints is None
            return (StepMeasurement if own else BetweenMeasurement)(self, subject)
        from .measure import WhyMeasurement

        return WhyMeasurement(self, subject)

    @classmethod
    def answer(cls, record: Any) -> Any:
        from ...answers.why import Why
        from ...answers.why_step import WhyStep

        return (WhyStep if record.kind == WhyStep.kind else Why)(record)
