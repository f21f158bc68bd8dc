"""The model that is trained in the lecture: an encoder-decoder that learns to translate number words.

Training runs in a thread of its own. What the page looks at is never the model in training but a copy, taken now and
then, so that a picture is that of one step.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..corpora.datasets import NumberWords
from ..corpora.numerals import LANGUAGES
from ..nn.tokens import BOS, EOS
from ..nn.transformer import Transformer
from ..train.config import TrainConfig
from ..train.feed import Meal, meals
from ..train.optimizer import Optimizer
from ..train.score import exact_match
from ..train.steps import Loop
from ..train.watch import Diverged

LR, STEPS, QUESTIONS = 5e-3, 400, 50
#: Steps between two copies for the page, and between two rounds of questions.
COPY_EVERY, ASK_EVERY = 10, 50
DATA = NumberWords(to="ko", digits=3)
"""Number words of up to three digits, English to Korean."""


def number_model(seed: int = 0) -> Transformer:
    """The model before training: Pre-LN, 2 + 2 blocks, width 32, 4 heads."""
    settings: dict[str, Any] = {"depth": 2, "d_model": 32, "heads": 4, "positions": "sinusoidal", **DATA.settings}
    return Transformer(design="pre-ln", **settings, seed=seed)


def number_config(lr: float = LR, steps: int = STEPS, seed: int = 0) -> TrainConfig:
    """How it is trained: AdamW, 5 % warm-up, linear decay."""
    return TrainConfig(steps=steps, batch_size=32, lr=lr, seed=seed, questions=QUESTIONS, valid_every=steps)


def trained_model(lr: float = LR, steps: int = STEPS, seed: int = 0, stop: int | None = None) -> Transformer:
    """The model after training; with `stop` the run of `steps` is ended there."""
    lesson = Lesson(number_model(seed), number_config(lr, steps, seed))
    lesson.go(stop)
    return lesson.model.eval()


def source_of(number: int) -> list[int]:
    """English words as tokens, the end token included."""
    return [*DATA.tokenizer.encode(LANGUAGES["en"](number)), EOS]


def target_of(number: int) -> list[int]:
    """Korean words as tokens, with begin and end."""
    return [BOS, *DATA.tokenizer.encode(LANGUAGES["ko"](number)), EOS]


class Lesson(Loop[Meal]):
    """One training run: `quadform.train.train` step by step, with its losses kept and a flag that stops it."""

    def __init__(self, model: Transformer, config: TrainConfig) -> None:
        super().__init__(model, config, Optimizer(model, config))
        self.losses: list[float] = []
        self.exact: list[tuple[int, float]] = []
        self.stopping, self.broken = threading.Event(), ""
        self.seen = copy.deepcopy(model).eval()

    def go(self, stop: int | None = None) -> None:
        """Train to the end, or to the step `stop`."""
        c = self.config
        fed: Any = meals(self.model, DATA, batch_size=c.batch_size, accumulate=1, seed=c.seed)
        try:
            self.run(fed, c.steps if stop is None else stop)
        except Diverged as error:
            self.broken = str(error)
        finally:
            self._ask()

    def backward(self, meal: Meal) -> Tensor:
        loss = self.model.loss(meal.batches[0], reduction="sum") / meal.targets
        loss.backward()
        self.losses.append(float(loss.detach()))
        return loss.detach()

    def batches(self, meal: Meal) -> list[Any]:
        return list(meal.batches)

    def after(self, meal: Meal, lr: float) -> bool:
        if self.step % ASK_EVERY == 0 and self.step < self.config.steps:
            self._ask()
        elif self.step % COPY_EVERY == 0:
            self._copy()
        return self.stopping.is_set()

    def _copy(self) -> None:
        self.seen = copy.deepcopy(self.model).eval()

    def _ask(self) -> None:
        """Held-out numbers: the share that greedy decoding translates exactly."""
        self._copy()
        found = exact_match(self.seen, DATA, count=QUESTIONS, seed=self.config.seed).value
        self.exact.append((self.step, found))


@dataclass
class Pupil:
    """The model of the lecture, before, during and after its training. It is trained once, and again when asked."""

    seed: int = 0
    lesson: Lesson | None = None
    thread: threading.Thread | None = None
    kept: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def fresh(self) -> Transformer:
        """The model before training."""
        return number_model(self.seed).eval()

    @property
    def model(self) -> Transformer:
        """The model as it stands: untrained, or the newest copy of the run."""
        return self.fresh if self.lesson is None else self.lesson.seen

    @property
    def step(self) -> int:
        return 0 if self.lesson is None else self.lesson.step

    @property
    def running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def start(self, lr: float = LR, steps: int = STEPS) -> None:
        """Train a new model; a run that goes on is left alone."""
        if self.running:
            return
        lesson = self.lesson = Lesson(number_model(self.seed), number_config(lr, steps, self.seed))

        def work() -> None:
            torch.set_num_threads(1)
            lesson.go()

        self.thread = threading.Thread(target=work, name="quadform-teach", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End the run after its step; the model stays as it is."""
        if self.lesson is not None:
            self.lesson.stopping.set()

    def finish(self) -> None:
        """Wait for the end of the run."""
        if self.thread is not None:
            self.thread.join()

    @property
    def python(self) -> str:
        """The arguments of `trained_model` that make this model again."""
        lesson = self.lesson
        if lesson is None:
            return f"seed={self.seed}, stop=0"
        c = lesson.config
        stop = "" if lesson.step == c.steps else f", stop={lesson.step}"
        return f"lr={c.lr:g}, steps={c.steps}, seed={c.seed}{stop}"
