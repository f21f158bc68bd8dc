"""Training: the loss of the number-words model as it falls, and what the model writes meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from ...corpora.numerals import LANGUAGES
from ...nn.decode import Search, generate
from ..controls import Button, Slider
from ..numbers import say, share
from ..pupil import DATA, LR, QUESTIONS, STEPS, Pupil, source_of
from ..step import Asked, Shown, Step, lines, table

PYTHON = """\
from quadform.lecture import DATA, number_config, number_model
from quadform.train import train

model = number_model(seed={seed})  # an encoder-decoder of 2 + 2 blocks
done = train(model, DATA, number_config(lr={lr:g}, steps={steps}, seed={seed}), progress=False)
print(done.loss, done.valid["exact"].value)  # loss of the last batch; share of held-out numbers translated exactly
"""
STOPPED_PYTHON = """\
from quadform.lecture import DATA, trained_model
from quadform.train import exact_match

model = trained_model({model})
print(exact_match(model, DATA, count={count}, seed={seed}).value)  # share of held-out numbers translated exactly
"""
#: Numbers of the table: held out from training, whatever the seed.
SHOWN = 5
#: Points of a curve; more would not be seen.
MOST_POINTS = 200


@cache
def held_out() -> tuple[int, ...]:
    """Numbers the model is never trained on."""
    words = {LANGUAGES["en"](n): n for n in range(1000)}
    found = [words[DATA.tokenizer.decode(asked)] for asked, _ in DATA.questions("valid", 200)]
    known = sorted({n for n in found if n > 20})
    return tuple(known[:: max(1, len(known) // SHOWN)][:SHOWN])


def curve(losses: list[float]) -> list[list[float]]:
    """Means of neighbouring steps, at most MOST_POINTS of them."""
    width = max(1, math.ceil(len(losses) / MOST_POINTS))
    groups = [losses[i : i + width] for i in range(0, len(losses), width)]
    return [[width * i + (len(g) + 1) / 2, sum(g) / len(g)] for i, g in enumerate(groups)]


def written(pupil: Pupil, numbers: Sequence[int]) -> list[str]:
    """What the model writes for these numbers, greedily."""
    found = generate(pupil.model, [source_of(n) for n in numbers], Search(max_length=12))
    return [DATA.tokenizer.decode(best[0].tokens) for best in found]


def show(asked: Asked) -> Shown:
    """Loss by step, exact answers by step, and five held-out numbers."""
    t, pupil, lesson = asked.texts, asked.pupil, asked.pupil.lesson
    running = pupil.running
    numbers = held_out()
    now = written(pupil, numbers)
    right = [LANGUAGES["ko"](n) for n in numbers]
    rows = [
        [str(n), LANGUAGES["en"](n), w or "–", r, t("mark_right") if w == r else t("mark_wrong")]
        for n, w, r in zip(numbers, now, right, strict=True)
    ]
    losses = [] if lesson is None else list(lesson.losses)
    exact = [] if lesson is None else list(lesson.exact)
    steps = asked["steps"] if lesson is None else lesson.config.steps
    chance = math.log(DATA.settings["vocab"])
    said = {"step": len(losses), "steps": steps, "chance": say(chance)}
    if not losses:
        says = t("says_training_none", **said)
    else:
        recent = losses[-20:]
        said |= {"loss": say(sum(recent) / len(recent), 3), "first": say(losses[0])}
        said |= {"exact": share(exact[-1][1] if exact else 0.0), "count": QUESTIONS}
        broken = lesson is not None and lesson.broken
        key = "says_training_broken" if broken else "says_training_now" if running else "says_training"
        says = t(key, **said)
    points = curve(losses) or [[0, chance]]
    done = lesson is not None and not running and lesson.step == lesson.config.steps
    python = STOPPED_PYTHON.format(model=pupil.python, count=QUESTIONS, seed=pupil.seed)
    printed = [exact[-1][1]] if exact else []
    if lesson is not None and done:
        python = PYTHON.format(seed=pupil.seed, lr=lesson.config.lr, steps=lesson.config.steps)
        printed = [losses[-1], exact[-1][1]]
    return Shown(
        says=says,
        panels=[
            lines(
                t("panel_loss"),
                t("axis_step"),
                t("axis_loss"),
                [{"name": "", "points": points, "chosen": True}],
                log=True,
                size="half",
                wide=steps,
            ),
            lines(
                t("panel_exact"),
                t("axis_step"),
                t("axis_exact"),
                [{"name": "", "points": [[0, 0.0], *([a, 100 * b] for a, b in exact)], "chosen": True, "dots": True}],
                size="half",
                low=0.0,
                high=100.0,
                wide=steps,
            ),
            table(t("panel_written"), [t(f"column_{c}") for c in ("number", "read", "wrote", "right", "mark")], rows),
        ],
        python=python,
        printed=printed,
        exercise=t("exercise_training", vocab=DATA.settings["vocab"]),
        answer=t("answer_training", vocab=DATA.settings["vocab"], **{"chance": say(chance)}),
        actions={"train": "stop" if running else "again" if losses else "start"},
        running=running,
    )


def start(asked: Asked) -> None:
    """A new run with the rate and the steps that are set."""
    asked.pupil.start(asked["lr"], asked["steps"])


def stop(asked: Asked) -> None:
    """End the run; the model stays."""
    asked.pupil.stop()


TRAINING = Step(
    name="training",
    controls=(
        Slider(name="lr", low=1e-4, high=5e-2, start=LR, log=True),
        Slider(name="steps", low=100, high=1500, start=STEPS),
        Button(name="train"),
    ),
    show=show,
    acts={"start": start, "again": start, "stop": stop},
)
