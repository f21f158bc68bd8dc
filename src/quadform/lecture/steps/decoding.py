"""Decoding: greedy and beam search as a tree that grows letter by letter."""

from __future__ import annotations

from typing import Any

import torch

from ...corpora.numerals import LANGUAGES
from ...nn.beam import Grown, beam_search
from ...nn.decode import Hypothesis, Run, Search
from ...nn.tokens import BOS, EOS
from ...nn.transformer import Transformer
from ..controls import Slider
from ..numbers import say, share
from ..pupil import DATA, source_of
from ..step import Asked, Panel, Shown, Step
from .stacks import letters, state

LONGEST = 12
PYTHON = """\
from quadform.nn import Search, generate
from quadform.lecture import source_of, trained_model

model = trained_model({model})
for beam in (1, {beam}):  # 1: greedy
    best = generate(model, [source_of({number})], Search(beam=beam, alpha=0.0, max_length={longest}))[0][0]
    print(best.log_prob)
"""


@torch.inference_mode()
def search(model: Transformer, source: list[int], beam: int) -> tuple[list[Grown], list[Hypothesis]]:
    """Every step of the search, and the hypotheses it ends with, best first. Scores are log-probabilities."""
    how = Search(beam=beam, n_best=beam, alpha=0.0, max_length=LONGEST)
    memory = model.encode(torch.tensor([source]))
    memory.keys_values = {}
    grown: list[Grown] = []
    found = beam_search(Run(model, [[BOS]], memory, how), how, grown.append)
    return grown, found[0]


def tree(grown: list[Grown], best: Hypothesis, steps: int) -> list[dict[str, Any]]:
    """The nodes of the first steps, the root first: parent, letter, log-probability, kind, and whether it is on the
    path to the answer. A kept node without children, before the last step, was dropped by the step after it."""
    nodes: list[dict[str, Any]] = [
        {"parent": None, "depth": 0, "token": BOS, "log_prob": 0.0, "kind": "kept", "path": ()}
    ]
    live = [0]
    for depth, step in enumerate(grown[:steps], start=1):
        rows = []
        for hit, log_prob, parent in zip(step.ends[0], step.ended_log_prob[0], step.ended_parent[0], strict=True):
            if bool(hit):
                nodes.append(_node(nodes, live[int(parent)], depth, EOS, float(log_prob), "ended"))
        for log_prob, parent, token in zip(step.log_prob[0], step.parent[0], step.token[0], strict=True):
            if float(log_prob) > -torch.inf:
                nodes.append(_node(nodes, live[int(parent)], depth, int(token), float(log_prob), "kept"))
            rows.append(len(nodes) - 1)
        live = rows
    parents = {n["parent"] for n in nodes}
    whole = (*best.tokens, EOS) if best.finished else best.tokens
    for i, node in enumerate(nodes):
        if node["kind"] == "kept" and i not in parents and node["depth"] < min(steps, len(grown)):
            node["kind"] = "dropped"
        node["best"] = node["path"] == whole[: node["depth"]]
    return nodes


def _node(
    nodes: list[dict[str, Any]], parent: int, depth: int, token: int, log_prob: float, kind: str
) -> dict[str, Any]:
    path = (*nodes[parent]["path"], token)
    return {"parent": parent, "depth": depth, "token": token, "log_prob": log_prob, "kind": kind, "path": path}


def panel(title: str, nodes: list[dict[str, Any]], legend: list[str]) -> Panel:
    """The tree as the page draws it."""
    shown = [{k: v for k, v in n.items() if k not in ("path", "token")} for n in nodes]
    for node, drawn in zip(nodes, shown, strict=True):
        drawn["label"] = "▶" if node["token"] == BOS else letters([node["token"]])[0]
    return {"kind": "tree", "title": title, "nodes": shown, "legend": legend}


def show(asked: Asked) -> Shown:
    """The tree of one number, and what greedy and beam search end with."""
    t, number, beam = asked.texts, asked["number"], asked["beam"]
    model, source = asked.pupil.model, source_of(asked["number"])
    greedy = search(model, source, 1)[1][0]
    grown, found = search(model, source, beam)
    best, right = found[0], LANGUAGES["ko"](number)
    steps = min(asked["letters"], len(grown))
    read = DATA.tokenizer.decode
    said = {
        "greedy": read(greedy.tokens) or "–",
        "greedy_log": say(greedy.log_prob, 3),
        "best": read(best.tokens) or "–",
        "best_log": say(best.log_prob, 3),
        "beam": beam,
        "right": right,
        "p": share(min(1.0, float(torch.tensor(best.log_prob).exp()))),
    }
    if beam == 1:
        key = "says_decoding_greedy"
    else:
        key = "says_decoding_better" if best.log_prob > greedy.log_prob + 1e-6 else "says_decoding_same"
    mark = t("decoding_right") if read(best.tokens) == right else t("decoding_wrong", right=right)
    legend = [t(f"legend_{name}") for name in ("best", "kept", "dropped", "ended")]
    return Shown(
        says=f"{t(key, **said)} {mark} {state(asked)}",
        panels=[panel(t("panel_tree", words=LANGUAGES["en"](number), beam=beam), tree(grown, best, steps), legend)],
        python=PYTHON.format(model=asked.pupil.python, beam=beam, number=number, longest=LONGEST),
        printed=[greedy.log_prob, best.log_prob],
        exercise=t("exercise_decoding", beam=beam),
        answer=t("answer_decoding", beam=beam, vocab=DATA.settings["vocab"], scored=beam * DATA.settings["vocab"]),
        most={"letters": len(grown)},
    )


DECODING = Step(
    name="decoding",
    controls=(
        Slider(name="number", low=0, high=999, start=42),
        Slider(name="beam", low=1, high=4, start=3),
        Slider(name="letters", low=1, high=LONGEST, start=LONGEST),
    ),
    show=show,
)
