"""Several heads side by side, and masks: who may see whom."""

from __future__ import annotations

import torch

from ...nn.attention import Attention
from ...nn.frame import Frame
from ...nn.tokens import PAD
from ..controls import Choice, Sentence, Slider
from ..numbers import say, share
from ..step import Asked, Shown, Step, matrix
from ..words import sentence_model, words_of

# --- several heads ----------------------------------------------------------------------------------------------------
HEADS_PYTHON = """\
from quadform.nn.frame import Frame
from quadform.lecture import sentence_model

model, tokens = sentence_model({sentence!r}, heads={heads})
frame = Frame.of(tokens.shape[1], None, False, tokens.device)
X = model.embed(tokens, frame)
A = model.layers[0].attn.matrix(X, frame)[0]  # one attention matrix a head
apart = (A[:, None] - A[None]).abs().sum(-1).mean(-1) / 2  # share of the weight that two heads place differently
print(*apart.flatten().tolist())
"""


def heads(asked: Asked) -> Shown:
    """softmax(Q_h K_h^T / sqrt(d_k)) of every head h, and how far two heads differ."""
    t, count = asked.texts, int(asked["heads"])
    words = words_of(asked["sentence"])
    model, tokens = sentence_model(asked["sentence"], heads=count)
    frame = Frame.of(len(words), None, False, tokens.device)
    attn = model.layers[0].attn
    assert isinstance(attn, Attention)
    A = attn.matrix(model.embed(tokens, frame), frame)[0]
    apart = (A[:, None] - A[None]).abs().sum(-1).mean(-1) / 2
    d_k = 8 // count
    if count > 1:
        a, b = divmod(int(apart.argmax()), count)
        says = t("says_heads", heads=count, d_k=d_k, a=a + 1, b=b + 1, share=share(float(apart[a, b])))
    else:
        says = t("says_heads_one", d_k=d_k)
    size = "quarter" if count > 1 else "half"
    return Shown(
        says=says,
        panels=[
            matrix(
                t("panel_head", head=h + 1),
                A[h],
                words,
                words,
                high=1.0,
                size=size,
                square=True,
                numbers=count < 4,
                percent=True,
            )
            for h in range(count)
        ],
        python=HEADS_PYTHON.format(sentence=asked["sentence"], heads=count),
        printed=apart.flatten().tolist(),
        exercise=t("exercise_heads"),
        answer=t("answer_heads", numbers=f"{sum(p.numel() for p in attn.parameters()):,}", heads=count),
    )


# --- masks ------------------------------------------------------------------------------------------------------------
MASKS_PYTHON = """\
import torch
from quadform.nn.frame import Frame
from quadform.lecture import sentence_model

model, tokens = sentence_model({sentence!r})
tokens = torch.nn.functional.pad(tokens, (0, {pad}))  # {pad} padding tokens, id 0
mask = {mask}
frame = Frame.of(tokens.shape[1], mask, {causal}, tokens.device)
A = model.layers[0].attn.matrix(model.embed(tokens, frame), frame)[0, 0]
print(int((A[:{n}] == 0).sum()), *A[:{n}].sum(1).tolist())  # blocked pairs have weight 0, rows still add up to 1
"""


def masks(asked: Asked) -> Shown:
    """`Frame.visible`, and attention where what is not visible has the score minus infinity."""
    t, kind, words = asked.texts, asked["mask"], words_of(asked["sentence"])
    causal, padded = kind in ("causal", "both"), kind in ("padding", "both")
    pad, n = asked["pad"] if padded else 0, len(words)
    model, tokens = sentence_model(asked["sentence"])
    tokens = torch.nn.functional.pad(tokens, (0, pad), value=PAD)
    mask = tokens != PAD if padded else None
    frame = Frame.of(n + pad, mask, causal, tokens.device)
    attn = model.layers[0].attn
    assert isinstance(attn, Attention)
    A = attn.matrix(model.embed(tokens, frame), frame)[0, 0, :n]
    seen = torch.ones(n + pad, n + pad, dtype=torch.bool)
    if frame.visible is not None:
        seen = frame.visible[0, 0].expand(n + pad, -1)
    elif causal:
        seen = seen.tril()
    seen = seen[:n]
    columns = [*words, *(["<pad>"] * pad)]
    blocked = int((~seen).sum())
    last = int(seen.sum(1).argmin())
    said = {"blocked": blocked, "all": seen.numel(), "word": words[last], "count": int(seen[last].sum())}
    shown = [
        [x if s else None for x, s in zip(row, see, strict=True)] for row, see in zip(A.tolist(), seen, strict=True)
    ]
    allowed = [[1.0 if s else None for s in see] for see in seen]
    square = {"size": "half", "square": True, "high": 1.0}
    return Shown(
        says=t("says_masks", **said) if blocked else t("says_masks_none", all=seen.numel()),
        panels=[
            matrix(t("panel_visible"), seen.double(), words, columns, **square) | {"values": allowed},
            matrix(t("panel_attention"), A, words, columns, **square, numbers=True, percent=True) | {"values": shown},
        ],
        python=MASKS_PYTHON.format(
            sentence=asked["sentence"], pad=pad, causal=causal, n=n, mask="tokens != 0" if padded else None
        ),
        printed=[blocked, *A.sum(1).tolist()],
        exercise=t("exercise_masks", n=n),
        answer=t("answer_masks", n=n, seen=n * (n + 1) // 2, all=n * n, share=say(100 * (n + 1) / (2 * n), 0)),
        hidden=frozenset() if padded else frozenset({"pad"}),
    )


HEADS = Step(
    name="heads", controls=(Sentence(), Choice(name="heads", values=("1", "2", "4", "8"), start="4")), show=heads
)
MASKS = Step(
    name="masks",
    controls=(
        Sentence(),
        Choice(name="mask", values=("causal", "padding", "both", "none")),
        Slider(name="pad", low=1, high=4, start=2),
    ),
    show=masks,
)
