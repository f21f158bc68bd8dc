"""Attention: queries, keys and values, one head by hand, several heads, and who may see whom."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...nn.attention import Attention
from ...nn.frame import Frame
from ..controls import Sentence, Slider
from ..numbers import say, share, vector
from ..step import Asked, Shown, Step, bars, matrix, table
from ..words import sentence_model, words_of

_TOKEN = Slider(name="token", low=1, high=8, start=2)


def _read(asked: Asked, **settings: Any) -> tuple[list[str], Tensor, Attention, Frame]:
    """Words, the input X (1, n, d) of the first layer, its attention, and the frame of the pass."""
    model, tokens = sentence_model(asked["sentence"], **settings)
    frame = Frame.of(tokens.shape[1], None, False, tokens.device)
    attn = model.layers[0].attn
    assert isinstance(attn, Attention)
    return words_of(asked["sentence"]), model.embed(tokens, frame), attn, frame


# --- queries, keys, values ------------------------------------------------------------------------------------------
QKV_PYTHON = """\
from quadform.nn.frame import Frame
from quadform.lecture import sentence_model

model, tokens = sentence_model({sentence!r}, d_k={d_k})
X = model.embed(tokens, Frame.of(tokens.shape[1], None, False, tokens.device))[0]
attn = model.layers[0].attn
Q, K, V = X @ attn.W_Q, X @ attn.W_K, X @ attn.W_V
print(*(Q[{i}] @ K.T).tolist())             # how well the query of word {number} fits every key
"""


def projections(asked: Asked) -> Shown:
    """Three matrices times X, and how well one query fits every key."""
    t, d_k = asked.texts, asked["head_width"]
    words, X, attn, _ = _read(asked, d_k=d_k)
    i = min(asked["token"], len(words)) - 1
    Q, K, V = (part[0, 0] for part in (attn.queries(X), attn.keys(X), attn.values(X)))
    fits = Q[i] @ K.T
    best = int(fits.argmax())
    numbers = {"numbers": d_k <= 4, "high": float(torch.cat((Q, K, V)).abs().max()), "mark": i}
    return Shown(
        says=t("says_projections", word=words[i], best=words[best], fit=say(float(fits[best]))),
        panels=[
            *(
                matrix(t(f"panel_{name}"), M, words, **numbers, size="third")
                for name, M in (("Q", Q), ("K", K), ("V", V))
            ),
            bars(t("panel_fits", word=words[i]), fits, words, mark=best),
        ],
        python=QKV_PYTHON.format(sentence=asked["sentence"], d_k=d_k, i=i, number=i + 1),
        printed=fits.tolist(),
        exercise=t("exercise_projections", d_k=d_k),
        answer=t("answer_projections", d_k=d_k, each=8 * d_k, all=3 * 8 * d_k),
        most={"token": len(words)},
    )


# --- one head by hand -------------------------------------------------------------------------------------------------
HEAD_PYTHON = """\
from quadform.nn.frame import Frame
from quadform.lecture import sentence_model

model, tokens = sentence_model({sentence!r}, d_k=2, attn_scale={scale!r})
frame = Frame.of(tokens.shape[1], None, False, tokens.device)
X = model.embed(tokens, frame)
attn = model.layers[0].attn
A = attn.matrix(X, frame)[0, 0]             # softmax(scale Q K^T), row by row
Y = A @ attn.values(X)[0, 0]
print(*A[{i}].tolist(), *Y[{i}].tolist())
"""


def head(asked: Asked) -> Shown:
    """One row of softmax(scale Q K^T) V, number by number."""
    t, scale = asked.texts, asked["sharpness"] / math.sqrt(2)
    words, X, attn, frame = _read(asked, d_k=2, attn_scale=scale)
    i = min(asked["token"], len(words)) - 1
    Q, K, V = (part[0, 0] for part in (attn.queries(X), attn.keys(X), attn.values(X)))
    A = attn.matrix(X, frame)[0, 0]
    fits, weights, Y = Q[i] @ K.T, A[i], A[i] @ V
    best, entropy = int(weights.argmax()), float(torch.special.entr(weights).sum())
    rows = [
        [
            w,
            vector(K[j].tolist()),
            say(float(fits[j])),
            say(scale * float(fits[j])),
            share(float(weights[j])),
            vector(V[j].tolist()),
        ]
        for j, w in enumerate(words)
    ]
    j = next((j for j, w in enumerate(words) if w != words[i]), i)
    product = " + ".join(f"{say(float(a))} · {say(float(b))}" for a, b in zip(Q[i], K[j], strict=True))
    return Shown(
        says=t(
            "says_head",
            word=words[i],
            best=words[best],
            share=share(float(weights[best])),
            spread=share(entropy / math.log(len(words)) if len(words) > 1 else 0.0),
        ),
        panels=[
            table(
                t("panel_hand", word=words[i], q=vector(Q[i].tolist())),
                [t(f"column_{name}") for name in ("word", "key", "fit", "scaled", "weight", "value")],
                rows,
                mark=best,
                foot=t("foot_hand", y=vector(Y.tolist())),
            ),
            bars(t("panel_weights", word=words[i]), weights, words, mark=best, percent=True),
        ],
        python=HEAD_PYTHON.format(sentence=asked["sentence"], scale=scale, i=i),
        printed=[*weights.tolist(), *Y.tolist()],
        exercise=t("exercise_head", word=words[i], other=words[j]),
        answer=t(
            "answer_head",
            product=product,
            fit=say(float(fits[j])),
            scale=say(scale),
            scaled=say(scale * float(fits[j])),
            weight=share(float(weights[j])),
        ),
        most={"token": len(words)},
    )


PROJECTIONS = Step(
    name="projections",
    controls=(Sentence(), _TOKEN, Slider(name="head_width", low=1, high=8, start=3)),
    show=projections,
)
HEAD = Step(
    name="head",
    controls=(Sentence(), _TOKEN, Slider(name="sharpness", low=0.1, high=10.0, start=1.0, log=True)),
    show=head,
)
