"""Pruning and few bits on fetched models that no method was tuned on, and on one (anarcii) that some were.

One half of the weights of all linear maps goes, in one shot, nothing trained again. SparseGPT is given two dampings,
0.01 as published and 0.1, and the better one counts. Methods choose by the loss on the batches they see, so they are
judged on batches held out: "at most 0.8 of what SparseGPT loses" is rise - 0.8 rise of SparseGPT <= 0, which has a
sign also where SparseGPT loses nothing, with the standard error over batches. `published` is SparseGPT written out once
more in numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..applications.prune import prune
from ..applications.quantize import quantize
from ..compress.layerwise import error, sparsegpt
from ..compress.maps import linear_maps
from ..core.record import Estimate, Record
from ..curvature.risk import Risk
from ..report.figure import Figure, Rows
from .charts import bar_panel, figure_of, side_by_side
from .claims import Claim, at_least, at_most
from .experiment import Experiment, Units
from .fetched_models import NAMES, Task, task

#: Method, damping; `sparsegpt` twice.
WAYS = {
    "magnitude": ("magnitude", 0.1),
    "wanda": ("wanda", 0.1),
    "sparsegpt 0.01": ("sparsegpt", 0.01),
    "sparsegpt 0.1": ("sparsegpt", 0.1),
    "hessian": ("hessian", 0.1),
}
#: Bits at which the prediction is held against what is measured, and how close is close.
PREDICTED, CLOSE = (8, 6, 5), 0.1
UNIFORM = 4
#: How much of what the other way loses may be lost: of SparseGPT half gone, and of the same bits for all.
PRUNE_BAR, BUDGET_BAR = 0.8, 0.7


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A model, sequences in a batch, batches seen and batches held out."""

    model: str
    size: int
    seen: int = 1
    held: int = 8

    @property
    def name(self) -> str:
        return self.model.partition(":")[0]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Which models are pruned, rounded one matrix at a time (`each`) and under a budget, how much the methods see, and
    what the one for all matrices may spend."""

    prune: tuple[Sizes, ...] = (
        Sizes(model="rxnfp", size=6, seen=3),
        Sizes(model="anarcii", size=4, seen=3, held=4),
        Sizes(model="minilm", size=8, seen=2),
    )
    each: tuple[Sizes, ...] = (Sizes(model="rxnfp", size=3), Sizes(model="anarcii", size=2))
    budget: tuple[Sizes, ...] = (Sizes(model="rxnfp", size=3), Sizes(model="anarcii", size=2, held=4))
    share: float = 0.5
    products: int = 20
    rounds: int = 2
    group: int = 64
    seed: int = 0


_TINY = (Sizes(model="anarcii:antibody-1", size=1, seen=1, held=2),)
PRESETS = {
    "smoke": Config(prune=_TINY, each=_TINY, budget=_TINY, products=8, rounds=1),
    "cpu": Config(),
    "paper": Config(
        prune=(
            Sizes(model="rxnfp", size=32, seen=3),
            Sizes(model="anarcii", size=16, seen=3, held=4),
            Sizes(model="minilm", size=32, seen=3, held=16),
        ),
        each=(Sizes(model="rxnfp", size=16), Sizes(model="anarcii", size=8), Sizes(model="minilm", size=16)),
        budget=(
            Sizes(model="rxnfp", size=48, held=7),
            Sizes(model="anarcii", size=16, held=8),
            Sizes(model="minilm", size=48, held=10),
        ),
        products=30,
    ),
}


def _task(config: Config, of: Sizes, dtype: torch.dtype = torch.float32) -> Task:
    return task(of.model, of.size, of.seen, of.held, dtype=dtype, seed=config.seed)


def _twin(config: Config, of: Sizes) -> dict[str, Tensor]:
    """SparseGPT beside the published algorithm on each matrix: the ratio of errors, less 1."""
    t = _task(config, of, torch.float64)
    maps = linear_maps(Risk(t.model, t.loss, t.seen, quiet=True))
    own = dict(t.model.named_parameters())
    ratios = []
    for n, m in maps.items():
        W = m.matrix(own[n].detach())
        ours, theirs = sparsegpt(W, m.S, config.share)[0], torch.tensor(published(W, m.S, config.share)).to(W)
        ratios.append(error(W, ours, m.S) / error(W, theirs, m.S) - 1)
    return {"twin": torch.tensor(ratios, dtype=torch.float64)}


def published(W: Tensor, S: Tensor, share: float, damping: float = 0.01, block: int = 128) -> Any:
    """SparseGPT as its authors state it [Frantar, Alistarh 2023, Algorithm 1], with a mask for each block."""
    W, S = W.cpu(), S.cpu()
    w, n = W.numpy().copy(), W.shape[1]
    dead = np.diag(S.numpy()) == 0
    w[:, dead] = 0
    H = S.numpy() + np.diag(dead + damping * np.mean(np.diag(S.numpy())))
    U = np.linalg.cholesky(np.linalg.inv(H)).T
    for i in range(0, n, block):
        end = min(i + block, n)
        score = w[:, i:end] ** 2 / np.diag(U)[i:end] ** 2
        gone = score <= np.sort(score.ravel())[round(score.size * share) - 1]
        E = np.zeros((len(w), end - i))
        for j in range(i, end):
            new = np.where(gone[:, j - i], 0.0, w[:, j])
            E[:, j - i] = (w[:, j] - new) / U[j, j]
            w[:, j:end] -= np.outer(E[:, j - i], U[j, j:end])
            w[:, j] = new
        w[:, end:] -= E @ U[i:end, end:]
    return w


def _pruned(config: Config, of: Sizes, way: str) -> dict[str, Tensor]:
    return pruned(_task(config, of), config, way)


def pruned(t: Task, config: Config, way: str) -> dict[str, Tensor]:
    """A model with a share of its weights gone: losses and score held out, and on what was seen."""
    method, damping = WAYS[way]
    found = prune(
        t.model, t.seen, t.loss, method=(method,), sparsity=config.share, damping=damping, seed=config.seed,
        products=config.products, rounds=config.rounds, held_out=0, progress=False,
    )  # fmt: skip
    return _told(t, found)


def _told(t: Task, found: Any) -> dict[str, Tensor]:
    (m,) = found.methods
    seen = torch.tensor([m.predicted, m.measured, m.size], dtype=torch.float64)
    return t.judged(t.changed(found.weights)) | {"seen": seen}


def _each(config: Config, of: Sizes, bits: int) -> dict[str, Tensor]:
    return each_alone(_task(config, of, torch.float64), config, bits)


def each_alone(t: Task, config: Config, bits: int) -> dict[str, Tensor]:
    """Each matrix rounded alone: (matrices, 2), predicted and measured."""
    found = quantize(
        t.model, t.seen, t.loss, bits=bits, group=config.group, method=("gptq",), each=True, seed=config.seed,
        held_out=0, progress=False,
    )  # fmt: skip
    return {"each": torch.tensor(list(found.each.values()), dtype=torch.float64)}


def _rounded(config: Config, of: Sizes, budget: float | None) -> dict[str, Tensor]:
    return rounded(_task(config, of), config, budget)


def rounded(t: Task, config: Config, budget: float | None) -> dict[str, Tensor]:
    """GPTQ with 4 bits everywhere, or with the bits that a budget gives."""
    size = {"bits": UNIFORM} if budget is None else {"budget": budget}
    found = quantize(
        t.model, t.seen, t.loss, **size, group=config.group, method=("gptq",), seed=config.seed, held_out=0,
        progress=False,
    )  # fmt: skip
    return _told(t, found) | {"bits": torch.tensor(list(found.bits.values()))}


def _as_it_is(config: Config, of: Sizes) -> dict[str, Tensor]:
    t = _task(config, of)
    return t.judged(t.model)


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    scalars: dict[str, Estimate] = {}
    tensors: dict[str, Tensor] = {}
    parts = (_of_pruning, config.prune), (_of_budget, config.budget), (_of_each, config.each), (_of_twin, config.prune)
    total = len(config.prune) * (2 + len(WAYS)) + len(config.budget) * 3 + len(config.each) * len(PREDICTED)
    with units.plan(total):
        for work, models in parts:
            for of in models:
                s, t = work(config, of, units)
                scalars, tensors = scalars | s, tensors | t
    return scalars, tensors


def _of_pruning(config: Config, of: Sizes, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    before = units(f"{of.model}, before", _as_it_is, config, of)
    found = {way: units(f"{of.model}, {way}", _pruned, config, of, way) for way in WAYS}
    base, name = before["held"], of.name
    rise = {way: f["held"] - base for way, f in found.items()}
    theirs = min(("sparsegpt 0.01", "sparsegpt 0.1"), key=lambda way: float(rise[way].mean()))
    scalars = {
        f"loss/{name}": Estimate(float(base.mean()), note="held out, before"),
        f"score/{name}": Estimate(float(before["score"]), note="held out, before"),
    }
    scalars |= _beside(f"lost/{name}/prune", "all together", "hessian", theirs, found, base, PRUNE_BAR)
    scalars |= {
        f"score/{name}/{way}": Estimate(float(f["score"]), note="held out, half gone") for way, f in found.items()
    }
    scalars |= {f"rise/{name}/{way}": mean(r, "held out, half gone") for way, r in rise.items()}
    held = torch.stack([rise[way].mean() for way in WAYS])
    return scalars, {f"held/{name}": held, f"seen/{name}": torch.stack([f["seen"] for f in found.values()])}


def _of_twin(config: Config, of: Sizes, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    worst = float(units(f"{of.model}, published", _twin, config, of)["twin"].abs().max())
    note = "largest difference to the published algorithm's error of a matrix"
    return {f"twin/{of.name}": Estimate(worst, note=note)}, {}


def _of_each(config: Config, of: Sizes, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    each = torch.stack([units(f"{of.model}, each {b}", _each, config, of, b)["each"] for b in PREDICTED])
    near = ((each[..., 0] - each[..., 1]).abs() <= CLOSE * each[..., 1].abs()).double()
    scalars = {f"close/{of.name}": Estimate(float(near.mean()), note=f"share of {near.numel()} matrices and bits")}
    scalars |= {
        f"close/{of.name}/{b}": Estimate(float(row.mean()), note="share of matrices")
        for b, row in zip(PREDICTED, near, strict=True)
    }
    return scalars, {f"each/{of.name}": each}


def _of_budget(config: Config, of: Sizes, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    name, same = of.name, units(f"{of.model}, 4 bits", _rounded, config, of, None)
    chosen = units(f"{of.model}, budget", _rounded, config, of, float(same["seen"][2]))
    before = units(f"{of.model}, as it is", _as_it_is, config, of)
    found, base = {"4 bits": same, "budget": chosen}, before["held"]
    scalars = _beside(f"lost/{name}/budget", "the budget of 4 bits", "budget", "4 bits", found, base, BUDGET_BAR)
    for way, f in found.items():
        scalars[f"rise/{name}/{way}"] = mean(f["held"] - base, f"held out; {float(f['seen'][1]):.3g} on what was seen")
        scalars[f"score/{name}/{way}"] = Estimate(
            float(f["score"]), note=f"held out; {float(before['score']):.3f} before"
        )
    return scalars, {f"bits/{name}": chosen["bits"], f"rounded/{name}": same["seen"]}


def _beside(
    key: str, what: str, ours: str, theirs: str, found: dict[str, dict[str, Tensor]], base: Tensor, bar: float
) -> dict[str, Estimate]:
    """One way beside another, held out: the rise less `bar` of the other's; and on what was seen, rise over rise."""
    a, b = (found[way]["held"] - base for way in (ours, theirs))
    (seen, other), note = (float(found[way]["seen"][1]) for way in (ours, theirs)), f"{what} beside {theirs}"
    told = f"{note}: {float(a.mean()):.3g} less {bar:g} x {float(b.mean()):.3g}, held out"
    over = seen / other if other > 0 else math.inf if seen > 0 else math.nan
    return {key: mean(a - bar * b, told), f"seen-{key}": Estimate(over, note=f"{note}: {seen:.3g} over {other:.3g}")}


def mean(values: Tensor, note: str) -> Estimate:
    """The mean over batches with its standard error."""
    spread = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(float(values.mean()), spread, "estimate" if spread else "exact", note=note)


_PAGE = "0832-compression-measured-again.md"
_BECAUSE = {
    "close/anarcii": "its loss is near 0, and a rounded matrix moves it out of the range of the quadratic model",
}


def _claims() -> tuple[Claim, ...]:
    found: list[Claim] = []
    for name in NAMES:
        presets = ("paper",) if name == "minilm" else ("cpu", "paper")

        def red(key: str) -> dict[str, Any]:
            return {"because": _BECAUSE[key], "page": _PAGE} if key in _BECAUSE else {}

        found += [
            at_most(f"{name}: the error of every matrix is within 1 % of the published SparseGPT's", f"twin/{name}",
                    0.01, "[own]", presets=("cpu", "paper")),
            at_most(f"{name}: half of the weights gone, all matrices together lose at most {PRUNE_BAR:g} of what"
                    " SparseGPT does, held out", f"lost/{name}/prune", 0, "[own]", presets=("cpu", "paper"),
                    **red(f"lost/{name}/prune")),
            at_least(f"{name}: g.d + d.Hd/2 is within 10 % at 8 to 5 bits for 90 % of the matrices", f"close/{name}",
                     0.9, "[own]", presets=presets, **red(f"close/{name}")),
            at_most(f"{name}: bits under the budget lose at most {BUDGET_BAR:g} of what 4 bits for all do, held out",
                    f"lost/{name}/budget", 0, "[own]", presets=presets, **red(f"lost/{name}/budget")),
        ]  # fmt: skip
    return tuple(found)


def _ends(e: Estimate) -> dict[str, float]:
    return {"low": e.value - e.reach, "high": e.value + e.reach} if e.error else {}


def _with_error(e: Estimate) -> str:
    return f"{e.value:.2g} ± {e.error:.1g}" if e.error else f"{e.value:.2g}"


def figure(record: Record) -> Figure:
    over, s = Rows(), record.scalars
    names = [m["model"].partition(":")[0] for m in record.inputs["config"]["prune"]]
    charts, table = [], []
    for name in names:
        rises = {way: s[f"rise/{name}/{way}"] for way in WAYS}
        log = all(e.value > e.reach for e in rises.values())
        charts.append(
            bar_panel(
                over,
                [{"name": way, "value": e.value, **_ends(e)} for way, e in rises.items()],
                x="rise of the loss, held out",
                title=f"{name}, loss {s[f'loss/{name}'].value:.2g}, score {s[f'score/{name}'].value:.2f}",
                order=list(WAYS),
                log=log,
                width=260,
            )
        )
        table += [(name, way, e.value, e.error, s[f"score/{name}/{way}"].value) for way, e in rises.items()]
    told = [
        f"{n}: the loss changes by {_with_error(s[f'rise/{n}/hessian'])} with all matrices together, by"
        f" {_with_error(min((s[f'rise/{n}/{way}'] for way in WAYS if 'sparsegpt' in way), key=lambda e: e.value))} with"
        " SparseGPT"
        for n in names
    ]
    return figure_of(
        "compression",
        "Half of the weights, and few bits, on fetched models",
        side_by_side(over, *charts, columns=2),
        headline="; ".join(told) + "; held out.",
        reading="Left is better: the rise of the loss on batches that no method has seen, half of the weights gone."
        " Lines are two standard errors over batches to each side; where they cross 0, nothing was lost that these"
        " batches can show.",
        not_meaning="Few sequences of calibration, nothing trained again. Reactions are put together from textbook"
        " kinds; the targets of anarcii are its own answers, and its loss is nearly 0.",
        columns=("model", "method", "rise of the loss", "standard error", "score"),
        rows=table,
    )


EXPERIMENT = Experiment(
    id="compression",
    title="Pruning and few bits on fetched models",
    source="[own]",
    asked="Do the bars set on a small model hold on trained models that no method was tuned on?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=_claims(),
    gpu="float32",
    needs=lambda config: tuple(of.name for of in config.prune),
)
