"""The rest of a block: residual connections and norms, and the feed-forward network."""

from __future__ import annotations

import math

from ...core.spec import BlockSpec, Gain
from ...nn.block import MLP, Block, activate
from ...nn.frame import Frame
from ...propagation.collapse import rms, token_cosine
from ..controls import Choice, Sentence, Slider
from ..numbers import say, share
from ..step import Asked, Shown, Step, lines, matrix
from ..words import sentence_model, words_of

# --- residual and norm ------------------------------------------------------------------------------------------------
RESIDUAL_PYTHON = """\
from quadform.core.spec import BlockSpec, Gain
from quadform.propagation.collapse import rms, token_cosine
from quadform.lecture import sentence_model

skip = Gain(skip={skip:g})  # X -> skip X + f(X)
block = BlockSpec(norm={norm!r}, attn=skip, mlp=skip)
model, tokens = sentence_model({sentence!r}, d_model=32, heads=4, design=block, depth={depth})
X = model.streams(tokens)  # the rows before block 1, after block 1, ...
print(*(float(token_cosine(x)) for x in X), *(float(rms(x)) for x in X))
"""
VARIANTS = {"both": (1.0, "layer"), "skip": (1.0, "none"), "norm": (0.0, "layer"), "neither": (0.0, "none")}


def residual(asked: Asked) -> Shown:
    """Token cosine and size of the stream after every block, with and without skip and norm."""
    t, depth, chosen = asked.texts, asked["depth"], asked["parts"]
    cosines, sizes = {}, {}
    for name, (skip, norm) in VARIANTS.items():
        gain = Gain(skip=skip)
        block = BlockSpec(norm=norm, attn=gain, mlp=gain)  # type: ignore[arg-type]  # a checked word
        model, tokens = sentence_model(asked["sentence"], d_model=32, heads=4, design=block, depth=depth)
        streams = model.streams(tokens)
        cosines[name] = [float(token_cosine(X)) for X in streams]
        sizes[name] = [float(rms(X)) for X in streams]

    def series(values: dict[str, list[float]]) -> list[dict[str, object]]:
        return [
            {
                "name": t(f"choice_{name}"),
                "points": [[i, y] for i, y in enumerate(values[name]) if math.isfinite(y)],
                "chosen": name == chosen,
            }
            for name in VARIANTS
        ]

    last, (kept, normed) = cosines[chosen][-1], VARIANTS[chosen]
    said = {"parts": t(f"choice_{chosen}"), "depth": depth, "size": say(sizes[chosen][-1] / sizes[chosen][0])}
    alone = not math.isfinite(last)
    says = t("says_residual_one", **said) if alone else t("says_residual", cosine=say(last), **said)
    if not alone and chosen != "neither" and math.isfinite(cosines["neither"][-1]):
        says += " " + t("says_residual_bare", cosine=say(cosines["neither"][-1]))
    return Shown(
        says=says,
        panels=[
            lines(
                t("panel_cosine"), t("axis_block"), t("axis_cosine"), series(cosines), size="half", low=0.0, high=1.0
            ),
            lines(t("panel_size"), t("axis_block"), t("axis_size"), series(sizes), size="half", log=True),
        ],
        python=RESIDUAL_PYTHON.format(sentence=asked["sentence"], skip=kept, norm=normed, depth=depth),
        printed=[] if alone else [*cosines[chosen], *sizes[chosen]],
        exercise=t("exercise_residual"),
        answer=t("answer_residual"),
    )


# --- feed-forward network -------------------------------------------------------------------------------------------
FFN_PYTHON = """\
from quadform.nn.block import activate
from quadform.nn.frame import Frame
from quadform.lecture import sentence_model

model, tokens = sentence_model({sentence!r}, d_ff={d_ff}, activation={activation!r})
frame, block = Frame.of(tokens.shape[1], None, False, tokens.device), model.layers[0]
X = model.embed(tokens, frame)
N = block.norm_attn(X + block.attn(X, frame))[0]  # residual and norm
hidden = activate(N @ block.mlp.W_1, {activation!r})
out = hidden @ block.mlp.W_2  # block.mlp(N)
print(float((hidden == 0).double().mean()), *out[{i}].tolist())
"""


def ffn(asked: Asked) -> Shown:
    """act(N W_1) W_2, row by row, where N = norm(X + attention(X))."""
    t, words, kind = asked.texts, words_of(asked["sentence"]), asked["activation"]
    i, d_ff = min(asked["token"], len(words)) - 1, 8 * asked["ratio"]
    model, tokens = sentence_model(asked["sentence"], d_ff=d_ff, activation=kind)
    frame, block = Frame.of(len(words), None, False, tokens.device), model.layers[0]
    assert isinstance(block, Block)
    assert isinstance(block.mlp, MLP)
    X = model.embed(tokens, frame)
    N = block.norm_attn(X + block.attn(X, frame))[0]
    before = N @ block.mlp.W_1
    hidden = activate(before, kind)
    out = block.mlp(N)
    zero, own = float((hidden == 0).double().mean()), sum(p.numel() for p in block.mlp.parameters())
    rest = sum(p.numel() for p in block.attn.parameters())
    high = float(before.abs().max())
    return Shown(
        says=t(
            f"says_ffn_{kind}",
            zero=share(zero),
            units=d_ff,
            own=own,
            part=share(own / (own + rest)),
            low=say(float(hidden.min())),
        ),
        panels=[
            matrix(t("panel_before", units=d_ff), before, words, high=high, mark=i, axes=["", t("axis_units")]),
            matrix(t(f"panel_after_{kind}"), hidden, words, high=high, mark=i, axes=["", t("axis_units")]),
            matrix(t("panel_out"), out, words, mark=i, numbers=True),
        ],
        python=FFN_PYTHON.format(sentence=asked["sentence"], d_ff=d_ff, activation=kind, i=i),
        printed=[zero, *out[i].tolist()],
        exercise=t("exercise_ffn", d_ff=d_ff),
        answer=t("answer_ffn", d_ff=d_ff, own=own),
        most={"token": len(words)},
    )


RESIDUAL = Step(
    name="residual",
    controls=(
        Sentence(),
        Slider(name="depth", low=1, high=24, start=12),
        Choice(name="parts", values=("both", "skip", "norm", "neither")),
    ),
    show=residual,
)
FFN = Step(
    name="ffn",
    controls=(
        Sentence(),
        Slider(name="token", low=1, high=8, start=2),
        Slider(name="ratio", low=1, high=8, start=4),
        Choice(name="activation", values=("relu", "gelu")),
    ),
    show=ffn,
)
