"""Values and projections as W = W_init + beta dW with fixed beta in [0, 1], from the identity and from orthogonal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..core.rng import stream
from ..corpora.running import StandardLibrary
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .measure import band, mean
from .protocol import Recipe, train_run

INITS = ("identity", "orthogonal")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Shaped attention without attention skip on the standard library's bytes, `betas` x `INITS`, `seeds` seeds."""

    depth: int = 12
    dim: int = 64
    heads: int = 4
    seq_len: int = 64
    batch: int = 16
    steps: int = 1000
    lr: float = 2e-3
    betas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.5, 1.0)
    seeds: int = 3
    limit: int = 2_000_000
    seed: int = 0


PRESETS = {
    "smoke": Config(depth=2, dim=16, heads=2, seq_len=16, batch=4, steps=8, betas=(0.0, 1.0), seeds=1, limit=60_000),
    "cpu": Config(depth=6, dim=32, heads=2, seq_len=48, batch=12, steps=200, betas=(0.0, 0.2, 1.0), seeds=1),
    "paper": Config(),
}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    data = StandardLibrary(seq_len=config.seq_len, limit=config.limit)

    def one(init: str, beta: float, seed: int) -> dict[str, Tensor]:
        recipe = Recipe(
            design="shaped",
            depth=config.depth,
            dim=config.dim,
            heads=config.heads,
            d_ff=4 * config.dim,
            steps=config.steps,
            batch=config.batch,
            lr=config.lr,
            warmup=0.3,
            seed=seed,
            projections=(init, beta),
        )
        return train_run(recipe, data)

    losses = torch.zeros(config.seeds, len(INITS), len(config.betas), dtype=torch.float64)
    errors = []
    with units.plan(losses.numel()):
        for s in range(config.seeds):
            for i, init in enumerate(INITS):
                for j, beta in enumerate(config.betas):
                    z = config.seed + s
                    part = units(f"{init}, beta {beta:g}, seed {z}", one, init, beta, z)
                    losses[s, i, j] = part["valid"][0]
                    errors.append(float(part["valid"][1]))
    scalars: dict[str, Estimate] = {}
    sample = sum(errors) / len(errors)
    for i, init in enumerate(INITS):
        for j, beta in enumerate(config.betas):
            e = mean(losses[:, i, j], f"{config.seeds} seeds")
            one_seed = Estimate(
                e.value, sample, "estimate", note="ONE seed; the error is that of the validation sample"
            )
            scalars[f"loss/{init}/{beta:g}"] = e if config.seeds > 1 else one_seed
    first, last = config.betas[0], config.betas[-1]

    def minus(a: str, b: str, note: str) -> Estimate:
        x, y = scalars[f"loss/{a}"], scalars[f"loss/{b}"]
        return Estimate(x.value - y.value, math.hypot(x.stderr or 0.0, y.stderr or 0.0), "estimate", note=note)

    scalars["identity_gain"] = minus(
        f"orthogonal/{first:g}", f"identity/{first:g}", f"nats, orthogonal minus identity at beta = {first:g}"
    )
    scalars["small_beta_gain"] = minus(
        f"identity/{last:g}", f"identity/{first:g}", f"nats, identity: beta = {last:g} minus {first:g}"
    )
    scalars |= _duality(config.seed)
    return scalars, {"betas": torch.tensor(config.betas, dtype=torch.float64), "loss": losses.mean(0)}


def _duality(seed: int) -> dict[str, Estimate]:
    """One SGD step on dW in W = U + beta dW moves W as a step on W with lr beta^2; a first Adam step with lr beta."""
    generator = stream(seed, "duality")
    U, G = (torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    beta, lr, gaps = 0.3, 0.01, {}
    for name, kind, power in (("sgd", torch.optim.SGD, 2), ("adam", torch.optim.Adam, 1)):
        dW = torch.zeros_like(U, requires_grad=True)
        W = U.clone().requires_grad_()
        steps = []
        for parameter, rate, value in ((dW, lr, lambda d: U + beta * d), (W, lr * beta**power, lambda w: w)):
            exact: dict[str, Any] = {"eps": 1e-30} if name == "adam" else {}
            optimizer = kind([parameter], lr=rate, **exact)
            (value(parameter) * G).sum().backward()  # a loss whose gradient in W is G
            optimizer.step()
            steps.append(value(parameter).detach() - U)
        gaps[name] = float((steps[0] - steps[1]).abs().max() / steps[1].abs().max())
    return {
        f"duality/{k}": Estimate(v, kind="bound", note="relative difference of the two moves of W")
        for k, v in gaps.items()
    }


_HH = "[HH24, Fig. 3]"
CLAIMS = (
    at_most("SGD: a step on dW is a step on W with lr beta^2", "duality/sgd", 1e-12, "[HH24, Sec. 4.2]"),
    at_most("Adam: the first step on dW is a step on W with lr beta", "duality/adam", 1e-9, "[HH24, Sec. 4.2]"),
    at_least("without an attention skip identity W_V, W_P beat orthogonal ones (beta = 0)", "identity_gain", 0.0,
             _HH, presets=("cpu", "paper"), page="0812-paper-presets.md"),
    at_least("from the identity, smaller beta is not worse: beta = 0 against 1", "small_beta_gain", -0.05, _HH,
             presets=("cpu", "paper"),
             page="0806-blocks-on-a-cpu.md"),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, t, s = Rows(), record.tensors, record.scalars
    betas = t["betas"].tolist()
    rows = [
        {
            "x": b,
            "y": (e := s[f"loss/{init}/{b:g}"]).value,
            "series": init,
            **band(e, 1.0),
        }
        for init in INITS
        for b in betas
    ]
    chart = line_panel(
        over, rows, x="beta, fixed", y="validation loss (nats)", log=(False, False), order=INITS, size=(420, 240)
    )
    return figure_of(
        "projections",
        "Values and projections: how far from W_init may they move",
        side_by_side(over, chart),
        headline=f"At beta = {betas[0]:g} orthogonal W_V, W_P end {_gap(s['identity_gain'])} identity ones; from the "
        f"identity, beta = {betas[-1]:g} ends {_gap(s['small_beta_gain'])} beta = {betas[0]:g}.",
        reading="Bands are one standard error over seeds. Left: W_V and W_O stay what they were at the start. "
        "Right: they are trained freely.",
        not_meaning="Small models and few steps; the published curves are of 18 blocks and 43,000 steps.",
        columns=("init", *(f"beta {b:g}" for b in betas)),
        rows=[(init, *(float(v) for v in t["loss"][i])) for i, init in enumerate(INITS)],
        tags=("estimate",),
        caption=f"Shaped attention without attention skip, {record.inputs['config']['depth']} blocks, "
        f"{record.inputs['config']['steps']} steps, {record.inputs['config']['seeds']} seeds.",
    )


def _gap(e: Estimate) -> str:
    """`0.009 +- 0.011 nats below`."""
    return f"{abs(e.value):.3f} +- {e.stderr or 0.0:.3f} nats {'above' if e.value > 0 else 'below'}"


EXPERIMENT = Experiment(
    id="projections",
    title="Reparameterised values and projections: fixed beta, identity and orthogonal",
    source=_HH,
    asked="Without an attention skip, do values and projections near the identity train better than orthogonal ones?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
