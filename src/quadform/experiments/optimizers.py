"""Does the X-ray of an optimizer predict how fast it trains? Ten optimizers on four designs, rates from a grid.

Predicted, at a model that a tenth of the steps of Adam have moved, all designs and seeds for themselves:

    x-ray     the fall of the quadratic model by its best step along P^-1 g, P as `quadform precond` makes it
              (Muon has no P: the fall along its update)
    update    the fall by the best step along the package's own next update, its state made of the same gradients

Trained: the steps until the loss (mean of the last thirtieth of all steps) is where Adam's is at half of its steps; a
run that does not get there comes after all that do, by its last loss. Each optimizer takes the rate of its grid with
the fewest steps, mean over the seeds. The rank correlation is of optimizers, for each design and seed; its mean and
interval are over those. Where the model curves downwards along a step, the size of the curvature is taken.

The intervals, the grid and this rule were fixed before any of these seeds was run; the middle of each grid was looked
for on another seed. PSGD of the package whitens gradients, that of the X-ray inverts |H|.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..applications.precond import precond
from ..core.errors import QuadformError, needing
from ..core.precision import NoHalvesOnCPU
from ..core.record import Estimate, Record
from ..core.space import Vector
from ..corpora.datasets import Addition, Batch
from ..curvature.operators import hessian
from ..curvature.risk import Risk
from ..nn.transformer import Transformer
from ..preconditioners import kfac, mean_eigenvalue
from ..report.figure import Figure, Rows
from .charts import figure_of, point_panel, side_by_side
from .claims import at_least
from .experiment import Experiment, Units
from .measure import bootstrapped, mean, spearman
from .stacked import Stack, drawn_together

DESIGNS: dict[str, dict[str, Any]] = {
    "Pre-LN": {"name": "pre-ln"},
    "Post-LN": {"name": "post-ln"},
    "SAS-P": {"name": "sas-p"},
    "Pre-LN, linear": {"name": "pre-ln", "linear": True},
}
#: The middle of the grid of each optimizer, and the P of the X-ray that is its own.
MIDDLE = {"SGD": 0.3, "momentum": 0.1, "Adam": 0.03, "AdamW": 0.03, "Adafactor": 0.03, "Shampoo": 0.1, "SOAP": 0.03,
          "PSGD": 0.1, "K-FAC": 3e-4, "Muon": 0.03}  # fmt: skip
XRAY = {"SGD": "none", "momentum": "none", "Adam": "adam", "AdamW": "adam", "Adafactor": "adafactor",
        "Shampoo": "shampoo", "SOAP": "soap", "PSGD": "psgd", "K-FAC": "kfac"}  # fmt: skip
PREDICTORS = ("x-ray", "update")
#: K-FAC: steps between two factors, products for what has none, damping as a share of its mean eigenvalue, momentum.
EVERY, PRODUCTS, DAMPING, MOMENTUM = 10, 10, 0.1, 0.9
#: A predicted winner is right where it is among so many trained ones.
BEST = 3


@dataclass(frozen=True, kw_only=True)
class Config:
    """`digits`-digit addition; `rates` of each grid, half decades around its middle; X-ray on 4 batches of `probe`."""

    optimizers: tuple[str, ...] = tuple(MIDDLE)
    designs: tuple[str, ...] = tuple(DESIGNS)
    digits: int = 2
    depth: int = 2
    d_model: int = 64
    heads: int = 4
    batch: int = 64
    steps: int = 600
    rates: int = 5
    probe: int = 64
    seeds: int = 3
    seed: int = 0

    @property
    def each_seed(self) -> range:
        """The seeds of the runs."""
        return range(self.seed, self.seed + self.seeds)


PRESETS = {
    "smoke": Config(optimizers=("SGD", "Adam", "SOAP", "K-FAC"), designs=("Pre-LN",), digits=1, depth=1,
                    d_model=8, heads=2, batch=8, steps=10, rates=1, probe=4, seeds=1),
    "cpu": Config(digits=1, depth=1, d_model=16, heads=2, batch=32, steps=100, probe=32),
    "paper": Config(),
}  # fmt: skip


def package() -> Any:
    """pytorch-optimizer, which has Shampoo, SOAP and PSGD."""
    with needing("Shampoo, SOAP and PSGD"):
        import pytorch_optimizer
    return pytorch_optimizer


class KFAC(torch.optim.Optimizer):
    """K-FAC of the last batch with momentum: m <- 0.9 m + (P + damping)^-1 g, w <- w - lr m. Source: [MG15]."""

    def __init__(self, params: Mapping[str, Tensor], model: nn.Module, lr: float) -> None:
        super().__init__(list(params.values()), {"lr": lr})
        self.params, self.model, self.steps = dict(params), model, 0
        self.batch: Batch = {}
        self.m = {n: torch.zeros_like(p) for n, p in params.items()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is called
        g = {n: p.grad for n, p in self.params.items() if p.grad is not None}
        if self.steps % EVERY == 0:
            self.model.load_state_dict(self.params)
            P = kfac(Risk(self.model, None, self.batch, quiet=True), seed=self.steps, products=PRODUCTS)
            self.inverse = P.inverse(damping=DAMPING * mean_eigenvalue(P))
        self.steps += 1
        d = self.inverse @ g
        for n, p in self.params.items():
            self.m[n].mul_(MOMENTUM).add_(d[n])
            p.sub_(self.param_groups[0]["lr"] * self.m[n])


def made(name: str, params: Mapping[str, Tensor], model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """The optimizer of this name for named tensors; Muon has the matrices of the blocks, AdamW the rest."""
    every = list(params.values())
    adam: dict[str, Any] = {"lr": lr, "betas": (0.9, 0.99)}
    match name:
        case "SGD" | "momentum":
            return [torch.optim.SGD(every, lr=lr, momentum=0.9 if name == "momentum" else 0.0)]
        case "Adam":
            return [torch.optim.Adam(every, **adam)]
        case "AdamW":
            return [torch.optim.AdamW(every, **adam, weight_decay=0.1)]
        case "Adafactor":
            return [torch.optim.Adafactor(every, lr=lr)]
        case "Shampoo":
            return [package().Shampoo(every, lr=lr, momentum=0.9, matrix_eps=1e-2)]
        case "SOAP":
            return [package().SOAP(every, lr=lr, weight_decay=0.0)]
        case "PSGD":
            return [
                package().Kron(every, lr=lr, momentum=0.9, balance_prob=0.0, pre_conditioner_update_probability=0.2)
            ]
        case "K-FAC":
            return [KFAC(params, model, lr)]
    inner = [p for n, p in params.items() if "layers." in n and p.ndim == 2]
    rest = [p for n, p in params.items() if not ("layers." in n and p.ndim == 2)]
    return [torch.optim.Muon(inner, lr=lr, adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW(rest, **adam)]


def grid(name: str, config: Config) -> tuple[float, ...]:
    """The learning rates that are tried: half decades around the middle."""
    return tuple(MIDDLE[name] * 10 ** (0.5 * (i - config.rates // 2)) for i in range(config.rates))


def net(design: str, config: Config, data: Addition, seed: int) -> Transformer:
    """The model of a design at its start."""
    how = dict(DESIGNS[design])
    sizes: dict[str, Any] = {"depth": config.depth, "d_model": config.d_model, "heads": config.heads}
    return Transformer(how.pop("name"), seed=seed, dtype=torch.float64, **sizes, **how, **data.settings)


def _where() -> dict[str, Any]:
    """On a GPU in float32; the matrices of Shampoo, SOAP and PSGD need it."""
    gpu = torch.cuda.is_available()
    return {"device": "cuda" if gpu else "cpu", "dtype": torch.float32 if gpu else torch.float64}


def _trained(design: str, optimizer: str, config: Config) -> dict[str, Tensor]:
    """`losses` (rates, seeds, steps) of all rates and seeds; those of one seed share start and batches."""
    data, rates, seeds, began = Addition(digits=config.digits), grid(optimizer, config), config.each_seed, time.time()
    torch.manual_seed(config.seed)  # PSGD draws its probes from torch's own stream
    stack = Stack([net(design, config, data, seed).to(**_where()) for seed in seeds], len(rates))
    runs = len(rates) * len(seeds)
    steppers, own = [], []
    for i in range(runs):
        own.append({n: p[i] for n, p in stack.params.items()})
        model = net(design, config, data, 0).to(**_where())
        steppers.append(made(optimizer, own[i], model, rates[i // len(seeds)]))
    losses = torch.full((runs, config.steps), torch.inf, dtype=torch.float64)
    feeds = [data.batches("train", config.batch, seed) for seed in seeds]
    burst = torch.zeros(runs, dtype=torch.bool)
    for k in range(config.steps):
        batch = drawn_together([next(feed) for feed in feeds], len(rates), stack.device)
        gradients, values = stack.gradients(batch)
        values = values.double().cpu()
        burst |= ~values.isfinite()
        losses[~burst, k] = values[~burst]
        for i in (~burst).nonzero().flatten().tolist():
            step(steppers[i], own[i], {n: g[i] for n, g in gradients.items()}, {key: t[i] for key, t in batch.items()})
    found = losses.view(len(rates), len(seeds), -1)
    return {"losses": found, "seconds": torch.tensor(time.time() - began)}


def step(parts: list[torch.optim.Optimizer], params: Mapping[str, Tensor], gradient: Vector, batch: Batch) -> None:
    """One step of an optimizer on its own tensors; a run whose factors are no longer finite stays where it is."""
    for n, p in params.items():
        p.grad = gradient[n].clone()
    for part in parts:
        if isinstance(part, KFAC):
            part.batch = batch
        try:
            with NoHalvesOnCPU():
                part.step()
        except (torch.linalg.LinAlgError, QuadformError):
            for p in params.values():
                p.fill_(torch.nan)


def _predicted(design: str, seed: int, config: Config) -> dict[str, Tensor]:
    """(predictors, optimizers): predicted falls at the model after a tenth of the steps."""
    data, began = Addition(digits=config.digits), time.time()
    model = net(design, config, data, seed).to(device=_where()["device"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.99))
    feed = data.batches("train", config.batch, seed)
    for _ in range(config.steps // 10):
        optimizer.zero_grad()
        model.loss(_moved(next(feed), model)).backward()
        optimizer.step()
    probe = data.batches("train", config.probe, seed, 10_000)
    batches = [_moved(next(probe), model) for _ in range(4)]
    names = tuple(dict.fromkeys(XRAY[o] for o in config.optimizers if o in XRAY))
    seen = precond(model, batches, methods=names, products=4, probes=2, steps=3, progress=False)
    risk = Risk(model, None, batches, quiet=True)
    g, H = risk.gradient(), hessian(risk)
    each = [Risk(model, None, b, quiet=True).gradient() for b in batches]
    table = torch.full((len(PREDICTORS), len(config.optimizers)), torch.nan, dtype=torch.float64)
    torch.manual_seed(seed)
    for i, name in enumerate(config.optimizers):
        d = _update(name, model, risk.params, each, g, batches)
        table[1, i] = fall(float(risk.space.inner(g, d)), float(risk.space.inner(d, H @ d)))
        one = seen.by(XRAY[name]) if name in XRAY else None
        table[0, i] = table[1, i] if one is None else fall(one.slope, one.curvature)
    return {"falls": table, "seconds": torch.tensor(time.time() - began)}


def fall(slope: float, curvature: float) -> float:
    """Of the quadratic model by its best step along a direction: slope^2 / (2 |curvature|); 0 for one that climbs."""
    return slope**2 / (2 * abs(curvature)) if slope > 0 and curvature else 0.0


def _moved(batch: Batch, model: nn.Module) -> Batch:
    device = next(model.parameters()).device
    return {key: t.to(device) for key, t in batch.items()}


def _update(
    name: str, model: nn.Module, params: Vector, each: list[dict[str, Tensor]], g: Vector, batches: list[Batch]
) -> dict[str, Tensor]:
    """What the optimizer would take away at rate 1 from the weights, after the gradients `each` at held weights."""
    held = {n: p.detach().clone() for n, p in params.items()}
    parts = made(name, held, copy.deepcopy(model), MIDDLE[name])
    for own, batch in [*zip(each, batches, strict=True), (g, batches[0])]:
        for n, p in held.items():
            p.copy_(params[n])
        step(parts, held, own, batch)
    return {n: params[n].detach() - p for n, p in held.items()}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    names = config.optimizers
    with units.plan(len(config.designs) * (config.seeds + len(names))):
        falls = torch.stack(
            [
                torch.stack(
                    [units(f"{d}, seed {s}", _predicted, d, s, config)["falls"].cpu() for s in config.each_seed]
                )
                for d in config.designs
            ]
        )  # (design, seed, predictor, optimizer)
        losses = {
            (d, o): units(f"{d}, {o}", _trained, d, o, config)["losses"].cpu() for d in config.designs for o in names
        }
    scalars: dict[str, Estimate] = {}
    taken = torch.stack([_taken(config, {o: losses[d, o] for o in names}, d, scalars) for d in config.designs])
    return scalars | judged(config, falls, taken), {"falls": falls, "steps": taken}


def _taken(config: Config, losses: Mapping[str, Tensor], design: str, scalars: dict[str, Estimate]) -> Tensor:
    """Steps to Adam's loss at half its steps, (seeds, optimizers), each optimizer at its best rate."""
    width = max(1, config.steps // 30)
    smooth = {o: x.unfold(-1, width, 1).mean(-1) for o, x in losses.items()}  # (rate, seed, step)
    adam = smooth["Adam"].mean(1)
    target = float(adam[int(adam[:, -1].argmin()), (config.steps - width) // 2])
    scalars[f"target/{design}"] = Estimate(target, note="nats, Adam at half of its steps")
    found = []
    for o in config.optimizers:
        steps = steps_to(smooth[o], target) + width - 1
        best = int(steps.mean(1).argmin())
        rate = grid(o, config)[best]
        at_end = config.rates > 1 and best in (0, config.rates - 1)
        scalars[f"rate/{design}/{o}"] = Estimate(rate, note="at an end of the grid" if at_end else "inside the grid")
        scalars[f"steps/{design}/{o}"] = mean(steps[best], f"steps to {target:.2f} nats, {config.seeds} seeds")
        found.append(steps[best])
    return torch.stack(found, -1)


def steps_to(losses: Tensor, target: float) -> Tensor:
    """The first step at which a loss (..., steps) is at the target; where it never is, all of them and a part of one
    step more by which its last loss is above."""
    there = losses <= target
    above = (losses[..., -1] - target).nan_to_num(nan=1e9, posinf=1e9)
    return torch.where(there.any(-1), there.double().argmax(-1) + 1.0, losses.shape[-1] + 1 + above / (1 + above))


def _mean_of(values: Tensor, which: Tensor) -> Tensor:
    return values[which].mean(-1)


def judged(config: Config, falls: Tensor, taken: Tensor) -> dict[str, Estimate]:
    """Rank correlations of predicted falls and speed, over designs and seeds, and how often a winner was foretold."""
    found: dict[str, Estimate] = {}
    cells = config.seeds * len(config.designs)
    for p, predictor in enumerate(PREDICTORS):
        ranks = spearman(falls[:, :, p], -taken)  # (design, seed)
        note = f"Spearman over {len(config.optimizers)} optimizers, mean of {cells} designs and seeds"
        if cells > 1:
            found[f"spearman/{predictor}"] = bootstrapped(partial(_mean_of, ranks.flatten()), cells, note)
        for d, design in enumerate(config.designs):
            found[f"spearman/{predictor}/{design}"] = mean(ranks[d], f"{config.seeds} seeds")
        best = falls[:, :, p].argmax(-1, keepdim=True)
        right = taken.argsort(-1).argsort(-1).gather(-1, best) < BEST
        found[f"winner/{predictor}"] = mean(right.double(), f"predicted best among the best {BEST}")
    if {"SGD", "SOAP"} <= set(config.optimizers):
        a, b = (taken[..., config.optimizers.index(o)] for o in ("SGD", "SOAP"))
        found["faster"] = mean((a / b).log2(), "log2 of the steps of SGD over those of SOAP")
    return found


_BIG = ("cpu", "paper")
_PAGE = "0433-the-x-ray-does-not-rank-optimizers.md"
_ONE_STEP = "PSGD, K-FAC and Shampoo are predicted among the best and train slowly"
CLAIMS = (
    at_least("the X-ray ranks optimizers as training does: rank correlation at least 0.8", "spearman/x-ray", 0.8,
             "[own]", presets=_BIG, because=_ONE_STEP, page=_PAGE),
    at_least("... the X-ray by at least 0.5", "spearman/x-ray", 0.5, "[own]", presets=_BIG, because=_ONE_STEP,
             page=_PAGE),
    at_least("the fall along the next update does: at least 0.8", "spearman/update", 0.8, "[own]", presets=_BIG,
             because=_ONE_STEP, page=_PAGE),
    at_least("... the update by at least 0.5", "spearman/update", 0.5, "[own]", presets=_BIG, because=_ONE_STEP,
             page=_PAGE),
    at_least("the predicted winner is among the three fastest in 3 of 4 cases", "winner/x-ray", 0.75, "[own]",
             presets=_BIG, because=_ONE_STEP, page=_PAGE),
    at_least("SOAP takes at most half the steps of SGD: log2 of their ratio is at least 1", "faster", 1.0, "[own]",
             presets=_BIG, because="it takes about two thirds of them on these small models", page=_PAGE),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, t, s, config = Rows(), record.tensors, record.scalars, record.inputs["config"]
    names, designs = config["optimizers"], config["designs"]
    panels = []
    for d, design in enumerate(designs):
        x, y = t["falls"][d, :, 0].log().mean(0).exp(), t["steps"][d].mean(0)
        rows = [{"x": float(x[i]), "y": float(y[i]), "series": o} for i, o in enumerate(names)]
        panels.append(
            point_panel(over, rows, x="predicted fall by one step (nats)", y="steps to the loss", order=names,
                        title=f"{design}, rank correlation {s[f'spearman/x-ray/{design}'].value:.2f}",
                        log=(True, True), size=(260, 190))
        )  # fmt: skip
    told = {"x-ray": "the Hessian as the preconditioner sees it (X-ray)", "update": "the fall along the next update"}
    both = ", ".join(
        f"{e.value:.2f} +- {e.error or 0.0:.2f} from {told[p]}" for p in PREDICTORS if (e := s.get(f"spearman/{p}"))
    )
    ends = sum(e.note.startswith("at an end") for key, e in s.items() if key.startswith("rate/"))
    return figure_of(
        "optimizers",
        "Predicted and trained ranking of optimizers",
        side_by_side(over, *panels, colours="shared"),
        headline=f"Rank correlation of predicted and trained speed (1: as predicted): "
        f"{both or 'one run each, too few to say'}.",
        reading="Each point is an optimizer at its best learning rate. A falling line of points: the larger the"
        " predicted fall of one step, the fewer steps are taken.",
        not_meaning="One step at one early point against whole runs of small models on one task. The best rate is at"
        f" an end of its grid in {ends} of {len(designs) * len(names)} cases.",
        columns=("design", "optimizer", "predicted, x-ray", "predicted, update", "best rate", "steps", "error"),
        rows=[
            (d, o, *(float(t["falls"][k, :, p, i].mean()) for p in range(2)), s[f"rate/{d}/{o}"].value,
             s[f"steps/{d}/{o}"].value, s[f"steps/{d}/{o}"].error or 0.0)
            for k, d in enumerate(designs)
            for i, o in enumerate(names)
        ],
        tags=("estimate",),
        caption=f"{config['digits']}-digit addition, {config['depth']} blocks of width {config['d_model']},"
        f" {config['steps']} steps, {config['rates']} rates, {config['seeds']} seeds.",
    )  # fmt: skip


EXPERIMENT = Experiment(
    id="optimizers",
    title="Predicted against trained ranking of optimizers",
    source="[own]",
    asked="Does the Hessian, as an optimizer's preconditioner sees it, predict how fast the optimizer trains?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    gpu="float32",
    ready=package,
)
