"""Without an attention skip: does a small beta in W = W_init + beta dW, for W_V and W_O, restore training speed?

Pre-LN beside shaped attention without an attention skip, with W_V and W_O from the identity and from orthogonal
matrices, at one learning rate for all, as curves over the steps. `projections` has the last losses of a smaller model.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..corpora.datasets import Dataset
from ..corpora.running import StandardLibrary
from ..report.figure import Figure, Rows
from ..report.style import LIGHT
from .blocks import smooth
from .charts import bar_panel, figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .measure import band, mean, over_seeds
from .packed import Packed
from .projections import INITS
from .protocol import Recipe, gpu_or_cpu, train_run
from .v_skipinit import sooner

PRE_LN = "Pre-LN"
STARTS = {"identity": "the identity", "orthogonal": "orthogonal matrices"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """`betas` from the smallest to 1, the second is the small one; `corpus` is "stdlib" or "packed", as in `blocks`."""

    depth: int = 8
    dim: int = 48
    heads: int = 4
    seq_len: int = 48
    batch: int = 16
    steps: int = 300
    lr: float = 2e-3
    warmup: float = 0.3
    betas: tuple[float, float, float] = (0.0, 0.2, 1.0)
    seeds: int = 2
    init: str = "fan-in"
    corpus: str = "stdlib"
    limit: int = 2_000_000
    valid_batches: int = 16
    seed: int = 0


PRESETS = {
    "smoke": Config(depth=2, dim=8, heads=2, seq_len=8, batch=4, steps=40, seeds=1, limit=60_000, valid_batches=2),
    "cpu": Config(),
    "paper": Config(depth=18, dim=768, heads=12, seq_len=128, batch=32, steps=800, lr=1e-3, init="normal",
                    corpus="packed", valid_batches=64),
}  # fmt: skip


@functools.cache
def data_of(config: Config) -> Dataset:
    """The corpus of a config."""
    if config.corpus == "packed":
        return Packed(seq_len=config.seq_len)
    return StandardLibrary(seq_len=config.seq_len, limit=config.limit)


def plan(config: Config, seed: int) -> dict[str, Recipe]:
    """The runs of a seed by name: "Pre-LN", "orthogonal, beta 1", ..."""

    def recipe(design: str, **change: Any) -> Recipe:
        return Recipe(design=design, depth=config.depth, dim=config.dim, heads=config.heads, d_ff=4 * config.dim,
                      steps=config.steps, batch=config.batch, lr=config.lr, warmup=config.warmup, seed=seed,
                      init=config.init, **change)  # fmt: skip

    runs = {PRE_LN: recipe("pre-ln")}
    return runs | {
        f"{init}, beta {b:g}": recipe("shaped", projections=(init, b))
        for init in reversed(INITS)
        for b in reversed(config.betas)
    }


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    def one(recipe: Recipe) -> dict[str, Tensor]:
        device = gpu_or_cpu(config.corpus == "packed", "beta")
        return train_run(recipe, data_of(config), valid_batches=config.valid_batches, device=device)

    found: dict[str, list[dict[str, Tensor]]] = {}
    with units.plan(len(plan(config, 0)) * config.seeds):
        for seed in range(config.seed, config.seed + config.seeds):
            for name, recipe in plan(config, seed).items():
                found.setdefault(name, []).append(units(f"{name}, seed {seed}", one, recipe))

    def minus(a: str, b: str, note: str) -> Estimate:
        pairs = [(x["valid"], y["valid"]) for x, y in zip(found[a], found[b], strict=True)]
        return over_seeds([torch.stack([x[0] - y[0], x[1].hypot(y[1])]) for x, y in pairs], f"nats, {note}")

    least, small, whole = (f"beta {b:g}" for b in config.betas)
    scalars = {f"loss/{name}": over_seeds([r["valid"] for r in runs]) for name, runs in found.items()}
    for init in INITS:
        scalars[f"behind/{init}"] = minus(f"{init}, {whole}", PRE_LN, f"{init} with {whole} minus Pre-LN")
        scalars[f"restored/{init}"] = minus(f"{init}, {small}", PRE_LN, f"{init} with {small} minus Pre-LN")
        pairs = zip(found[f"{init}, {small}"], found[f"{init}, {whole}"], strict=True)
        note = f"steps of {whole} over those of {small} to its last training loss, {init}, {config.seeds} seeds"
        scalars[f"sooner/{init}"] = mean([sooner(a["loss"], b["loss"]) for a, b in pairs], note)
    note = f"orthogonal minus identity, {least}"
    scalars["identity_gain"] = minus(f"orthogonal, {least}", f"identity, {least}", note)
    curves = {f"loss/{n}": torch.stack([smooth(r["loss"], 40) for r in runs]) for n, runs in found.items()}
    return scalars, curves


_FIG3, _BIG, _PAGE = "[HH24, Fig. 3]", ("cpu", "paper"), "0821-beta-at-the-published-width.md"
_SMALL = "8 blocks of width 48 after 300 steps: beta = 1 is not behind Pre-LN there, so there is nothing to restore"
CLAIMS = (
    at_least("without an attention skip orthogonal W_V, W_O that are trained freely (beta = 1) are behind Pre-LN, by "
             "0.05 nats", "behind/orthogonal", 0.05, _FIG3, presets=_BIG, because=_SMALL, page=_PAGE),
    at_least("a small beta restores their training speed: the last loss of beta = 1 in 1.2 times fewer steps",
             "sooner/orthogonal", 1.2, _FIG3, presets=_BIG, because=_SMALL, page=_PAGE),
    at_least("... also from the identity", "sooner/identity", 1.2, _FIG3, presets=_BIG, because=_SMALL, page=_PAGE),
    at_most("with it they are within 0.2 nats of Pre-LN at the end", "restored/orthogonal", 0.2, _FIG3, presets=_BIG,
            why="0.14 at width 256 (`v-skipinit`)", page=_PAGE),
    at_most("... from the identity too", "restored/identity", 0.2, _FIG3, presets=_BIG, page=_PAGE),
    at_least("where W_V and W_O stay what they are (beta = 0) the identity is not behind orthogonal ones",
             "identity_gain", 0.0, _FIG3, presets=_BIG, page=_PAGE),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, s, t, c = Rows(), record.scalars, record.tensors, record.inputs["config"]
    names = [k.removeprefix("loss/") for k in s if k.startswith("loss/")]
    betas = [f"beta {b:g}" for b in c["betas"]]
    colours = dict(zip((PRE_LN, *betas), (LIGHT.query, LIGHT.out, LIGHT.key, LIGHT.value), strict=True))
    late = torch.cat([t[f"loss/{n}"].mean(0)[4:] for n in names])
    domain = (None, [float(late.min()) - 0.1, float(late.max()) + 0.1])
    panels = []
    for init in INITS:
        rows = []
        for series in (PRE_LN, *betas):
            curves = t[f"loss/{PRE_LN if series == PRE_LN else f'{init}, {series}'}"]
            for i, each in enumerate(curves.T):
                x = c["steps"] * (i + 1) / curves.shape[1]
                rows.append({"x": x, "y": float(each.mean()), "series": series, **band(mean(each), 1.0)})
        panels.append(line_panel(over, rows, x="step", y="training loss (nats)", log=(False, False), points=False,
                                 title=f"W_V, W_O from {STARTS[init]}", order=list(colours), colours=colours,
                                 domain=domain, size=(280, 210)))  # fmt: skip
    base, bars = s[f"loss/{PRE_LN}"].value, []
    for name in names[1:]:
        off = replace(e := s[f"loss/{name}"], value=e.value - base)
        bars.append({"name": name, "value": off.value, **band(off, 1.0)})
    panels.append(bar_panel(over, bars, x="validation loss minus that of Pre-LN (nats)", width=260, label="+.3f"))
    small = betas[1].replace(" ", " = ")
    return figure_of(
        "beta",
        "A small beta restores training speed",
        side_by_side(over, *panels),
        headline=f"Without an attention skip, from orthogonal W_V and W_O, {small} reaches the last loss of beta = 1 "
        f"{s['sooner/orthogonal'].value:.1f} times sooner (from the identity {s['sooner/identity'].value:.1f} times) "
        f"and ends {s['restored/orthogonal'].value:+.2f} nats from Pre-LN; beta = 1 ends "
        f"{s['behind/orthogonal'].value:+.2f}.",
        reading="Lower is better. With a small beta W_V and W_O move little from where they start. Bands and bars: one "
        "standard error over seeds, of one seed that of the validation sample.",
        not_meaning="One learning rate for all and short runs: a rate of its own might help beta = 1.",
        columns=("run", "validation loss", "s.e."),
        rows=[(n, s[f"loss/{n}"].value, s[f"loss/{n}"].error) for n in names],
        tags=("estimate",),
        caption=f"{c['depth']} blocks, width {c['dim']}, {c['batch']} x {c['seq_len']} tokens a step, {c['steps']} "
        f"steps, rate {c['lr']:g}, {c['seeds']} seed{'s' if c['seeds'] > 1 else ''}.",
    )


EXPERIMENT = Experiment(
    id="beta",
    title="A small beta restores training speed",
    source=_FIG3,
    asked="Without an attention skip, does restricting how far values and projections move restore training speed?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    gpu="bfloat16",
)
