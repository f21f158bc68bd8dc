"""`quadform ls` and `qf.ls`: what there is. One function a list. Torch-free until a list is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..answers.texts import line
from ..core.errors import InputError
from ..core.question import Listing, Task, option

if TYPE_CHECKING:
    from ..core.spec import BlockSpec, Gain, Mixing
    from ..core.work import Work

#: Blocks a design is described with, one by one, to be listed.
DEEPEST = 10_000


@dataclass(frozen=True, kw_only=True)
class LsTask(Task):
    """List block designs with their formulas, data sets, experiments, or your runs with their verdicts."""

    verb = "ls"
    takes = frozenset()
    first = "what"

    what: str = option(
        "designs",
        "designs, data, experiments or runs.",
        positional=True,
        choices=("designs", "data", "experiments", "runs"),
    )
    where: str = option("runs", "runs: the folder to look in.", positional=True, metavar="[DIR]")
    depth: int = option(6, "designs: blocks of the model whose parameters are counted.", least=1)
    d_model: int = option(64, "designs: its width.", least=1)
    heads: int = option(4, "designs: its heads.", least=1)
    vocab: int = option(256, "designs: its vocabulary.", least=1)

    def check(self) -> None:
        if self.what != "runs" and self.where != "runs":
            raise InputError(f"{self.where!r} is not understood: the list of {self.what} takes no folder.")
        if self.depth > DEEPEST:
            raise InputError(f"depth={self.depth}: the list describes up to {DEEPEST:,} blocks.")

    def run(self, work: Work) -> Listing:
        return LISTS[self.what](self)


# --- designs ----------------------------------------------------------------------------------------------------------
def designs(asked: LsTask) -> Listing:
    """Block designs with their sizes."""
    from ..core.designs import DESIGNS, design
    from ..core.parameters import count_parameters

    rows = []
    for name, chosen in DESIGNS.items():
        shape = design(name, depth=asked.depth, d_model=asked.d_model, heads=asked.heads, vocab=asked.vocab)
        rows.append((name, chosen.title, formula(shape.blocks[-1]), f"{count_parameters(shape):,}"))
    size = {"depth": asked.depth, "d_model": asked.d_model, "heads": asked.heads, "vocab": asked.vocab}
    below = line("line_designs", **size)
    return Listing("designs", ("design", "what it is", "one block", "parameters"), tuple(rows), below)


def formula(block: BlockSpec) -> str:
    """A block as a line: `Y = X + A N(X) W_V W_O; Y + MLP(N(Y))`."""
    inside = "N(X)" if block.norm != "none" and block.norm_at == "pre" else "X"
    mixed = " ".join(
        [mixing(block.mixing), inside, *(["W_V"] if block.value else []), *(["W_O"] if block.proj else [])]
    )
    first = _sum(block.attn, "X", mixed)
    if block.layout == "parallel":
        mlp = "" if block.mlp is None else f" + {_times('b', block.mlp, 'branch')}MLP({inside})"
        return f"{first}{mlp}"
    after = "N" if block.norm != "none" and block.norm_at == "post" else ""
    first = f"{after}({first})" if after else first
    if block.mlp is None:
        return first
    second = _sum(block.mlp, "Y", f"MLP({inside.replace('X', 'Y')})")
    return f"Y = {first}; " + (f"{after}({second})" if after else second)


def mixing(m: Mixing) -> str:
    """The matrix that mixes tokens: `A`, `(alpha I + beta A - gamma C)`, ..."""
    attention = "Q K^T" if m.kind == "linear" else f"D softmax(Q K^T + B_{m.bias.family[0]})" if m.bias else "A"
    if not (m.learn or m.alpha or m.gamma) and m.beta == 1:
        return attention
    terms = [(name, matrix) for name, matrix in (("alpha", "I"), ("beta", attention), ("gamma", "C")) if m.uses(name)]
    text = " + ".join(f"{name if name in m.learn else f'{getattr(m, name):g}'} {matrix}" for name, matrix in terms)
    return f"({text.replace('+ gamma', '- gamma')})"


def _sum(gain: Gain, skip: str, branch: str) -> str:
    whole = f"{_times('b', gain, 'branch')}{branch}"
    if gain.skip == 0 and "skip" not in gain.learn:
        return whole
    return f"{_times('s', gain, 'skip')}{skip} + {whole}"


def _times(letter: str, gain: Gain, name: str) -> str:
    """The factor in front of a term: a letter where it is learned, a number where it is fixed and not 1."""
    if name in gain.learn:
        return f"{letter} "
    value = getattr(gain, name)
    return "" if value == 1 else f"{value:.3g} "


# --- data -------------------------------------------------------------------------------------------------------------
def data(asked: LsTask) -> Listing:
    """Data sets, made here or to be fetched."""
    from ..corpora.datasets import DATASETS
    from ..corpora.done import state
    from ..corpora.fetch import CATALOGUE

    rows = []
    for name, make in DATASETS.items():
        made = make()
        task = getattr(make, "keywords", {})
        words = (type(made).__doc__ or "").strip().splitlines()[0]
        rows.append(
            (name, words + "".join(f" [{k}: {v}]" for k, v in task.items()), made.settings["kind"], "made here")
        )
    for name, item in CATALOGUE.items():
        if item.kind != "model":
            kind = "encoder-decoder" if item.kind == "pairs" else "decoder"
            rows.append((name, item.title, kind, "fetched" if state(name) == "yes" else "to fetch"))
    below = line("line_data_sets")
    return Listing("data", ("data", "what it is", "for a", "state"), tuple(rows), below)


# --- experiments ------------------------------------------------------------------------------------------------------
def experiments(asked: LsTask) -> Listing:
    """Experiments with the cost and the verdict of their last record."""
    from ..experiments.catalog import CATALOG, experiment, recorded

    rows = []
    for name in CATALOG:
        found, last = experiment(name), recorded().get(name)
        cost = verdict = "-"
        if last is not None:
            where = ", GPU" if last.device.startswith("cuda") else ""
            cost = f"{last.seconds:.0f} s ({last.preset}{where})"
            verdict = ", ".join(f"{count} {status}" for status, count in last.claims.items())
        rows.append((name, found.title, found.source, cost, verdict))
    columns = ("experiment", "what it shows", "source", "cost", "last verdict")
    below = line("line_experiments")
    return Listing("experiments", columns, tuple(rows), below)


# --- runs -------------------------------------------------------------------------------------------------------------
def runs(asked: LsTask) -> Listing:
    """Runs below a folder, with their verdicts."""
    from .runs import runs as find

    rows = [dataclasses.astuple(row) for row in find(asked.where)]
    below = line("line_runs", count=len(rows), folder=asked.where)
    return Listing("runs", ("run", "kind", "model", "made", "verdict"), tuple(rows), below)


LISTS: dict[str, Callable[[LsTask], Listing]] = {
    "designs": designs,
    "data": data,
    "experiments": experiments,
    "runs": runs,
}
