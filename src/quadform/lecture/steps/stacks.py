"""Encoder and decoder of the number-words model, trained or not: who looks at what."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...corpora.numerals import LANGUAGES
from ...propagation.collapse import attention_entropy
from ..controls import Control, Slider
from ..maps import attention_maps
from ..numbers import share
from ..pupil import DATA, source_of, target_of
from ..step import Asked, Shown, Step, matrix

PYTHON = """\
from quadform.lecture import attention_maps, source_of, target_of, trained_model

model = trained_model({model})
maps = attention_maps(model, source_of({number}), target_of({number}))
A = maps["{name}"][{head}]  # rows look at columns
print(*A.flatten().tolist())
"""
_CONTROLS: tuple[Control, ...] = (
    Slider(name="number", low=0, high=999, start=42),
    Slider(name="layer", low=1, high=2, start=1),
    Slider(name="head", low=1, high=4, start=1),
)


def letters(tokens: list[int]) -> list[str]:
    """Tokens as they are written; the end token as ■, a space as ␣."""
    return [DATA.tokenizer.decode([token]).replace(" ", "␣") or "■" for token in tokens]


def state(asked: Asked) -> str:
    """Whether the model has been trained, and how far."""
    step = asked.pupil.step
    return asked.texts("state_trained", steps=step) if step else asked.texts("state_untrained")


def _spread(A: Tensor) -> str:
    return share(float(attention_entropy(A[None])[1][0])) if A.shape[-1] > 1 else share(0.0)


def _python(asked: Asked, name: str) -> str:
    return PYTHON.format(model=asked.pupil.python, number=asked["number"], name=name, head=asked["head"] - 1)


def encoder(asked: Asked) -> Shown:
    """Self-attention of one head over the letters of a number."""
    t, number, layer, head = asked.texts, asked["number"], asked["layer"] - 1, asked["head"] - 1
    source, target, name = source_of(number), target_of(number), f"encoder.{asked['layer'] - 1}"
    maps = attention_maps(asked.pupil.model, source, target)
    A, rows = maps[name][head], letters(source)
    i, j = divmod(int(A.argmax()), len(rows))
    said = {"row": rows[i], "column": rows[j], "share": share(float(A[i, j])), "spread": _spread(A)}
    return Shown(
        says=t("says_encoder", **said) + " " + state(asked),
        panels=[
            matrix(
                t("panel_encoder", layer=layer + 1, head=head + 1, words=LANGUAGES["en"](number)),
                A,
                rows,
                rows,
                high=1.0,
                square=True,
                letters=True,
                axes=["", t("axis_looks")],
            )
        ],
        python=_python(asked, name),
        printed=A.flatten().tolist(),
        exercise=t("exercise_encoder"),
        answer=t("answer_encoder", n=len(rows), pairs=len(rows) ** 2),
    )


def decoder(asked: Asked) -> Shown:
    """Cross-attention of one head: every letter that is written looks at the letters that were read."""
    t, number, layer, head = asked.texts, asked["number"], asked["layer"] - 1, asked["head"] - 1
    source, target, name = source_of(number), target_of(number), f"cross.{asked['layer'] - 1}"
    model = asked.pupil.model
    maps = attention_maps(model, source, target)
    A, own = maps[name][head], maps[f"decoder.{layer}"][head]
    columns, rows, before = letters(source), letters(target[1:]), ["▶", *letters(target[1:-1])]
    with torch.no_grad():
        p = model(torch.tensor([target[:-1]]), source=torch.tensor([source]))[0].softmax(-1)
    chance = [float(p[k, token]) for k, token in enumerate(target[1:])]
    i = max(range(len(rows) - 1), key=lambda k: float(A[k].max())) if len(rows) > 1 else 0
    j = int(A[i].argmax())
    seen = torch.ones_like(own).tril() > 0
    blank = [
        [x if s else None for x, s in zip(row, see, strict=True)] for row, see in zip(own.tolist(), seen, strict=True)
    ]
    said = {"row": rows[i], "column": columns[j], "place": j + 1, "share": share(float(A[i, j]))}
    return Shown(
        says=t("says_decoder", **said, chance=share(math.prod(chance))) + " " + state(asked),
        panels=[
            matrix(
                t("panel_cross", layer=layer + 1, head=head + 1),
                A,
                rows,
                columns,
                high=1.0,
                square=True,
                letters=True,
                axes=["", t("axis_read")],
            ),
            matrix(
                t("panel_self"), own, rows, before, high=1.0, square=True, letters=True, axes=["", t("axis_written")]
            )
            | {"values": blank},
        ],
        python=_python(asked, name),
        printed=A.flatten().tolist(),
        exercise=t("exercise_decoder"),
        answer=t("answer_decoder", rows=len(rows), columns=len(columns)),
    )


ENCODER = Step(name="encoder", controls=_CONTROLS, show=encoder)
DECODER = Step(name="decoder", controls=_CONTROLS, show=decoder)
