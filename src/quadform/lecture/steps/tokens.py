"""Tokens and positions: words become rows of numbers, and the rows learn where they stand."""

from __future__ import annotations

import torch

from ...nn.frame import Frame
from ...nn.transformer import sinusoid
from ..controls import Sentence, Slider
from ..numbers import say
from ..step import Asked, Shown, Step, matrix
from ..words import ids, sentence_model, words_of

PYTHON = """\
import torch
from quadform.nn.frame import Frame
from quadform.nn.transformer import sinusoid
from quadform.lecture import sentence_model

model, tokens = sentence_model({sentence!r}, d_model={d})
n = tokens.shape[1]
E = model.embed.scale * model.embed.W_E[tokens[0]]  # one row a word, times sqrt(d)
P = sinusoid(torch.arange(n), {d})  # one row a position
X = model.embed(tokens, Frame.of(n, None, False, tokens.device))[0]  # what the first layer reads
print(float((X - E - P).abs().max()), float((P[0] - P[-1]).norm()))
"""


def show(asked: Asked) -> Shown:
    """W_E[token], the sinusoids, and their sum."""
    t, d, words = asked.texts, asked["width"], words_of(asked["sentence"])
    model, tokens = sentence_model(asked["sentence"], d_model=d)
    n = len(words)
    E, P = model.embed.scale * model.embed.W_E[tokens[0]], sinusoid(torch.arange(n), d)
    X = model.embed(tokens, Frame.of(n, None, False, tokens.device))[0]
    labels = [f"{i} {word}" for i, word in enumerate(words, start=1)]
    high = float(torch.cat((E, P, X)).abs().max())
    parts = (("embedding", E), ("position", P), ("input", X))
    twice = next(((i, j) for j in range(n) for i in range(j) if words[i].lower() == words[j].lower()), None)
    count = {"n": n, "d": d, "id": ids(words)[0], "first": words[0]}
    if twice:
        i, j = twice
        apart = say(float((X[i] - X[j]).norm()))
        says = t("says_tokens_twice", word=words[i], i=i + 1, j=j + 1, apart=apart, **count)
    else:
        says = t("says_tokens", apart=say(float((P[0] - P[-1]).norm())), **count)
    return Shown(
        says=says,
        panels=[matrix(t(f"panel_{name}"), M, labels, high=high, axes=["", t("axis_width")]) for name, M in parts],
        python=PYTHON.format(sentence=asked["sentence"], d=d),
        printed=[float((X - E - P).abs().max()), float((P[0] - P[-1]).norm())],
        exercise=t("exercise_tokens"),
        answer=t("answer_tokens", values=", ".join(say(float(x)) for x in sinusoid(torch.arange(2), d)[1, :2])),
    )


TOKENS = Step(name="tokens", controls=(Sentence(), Slider(name="width", low=2, high=32, start=16)), show=show)
