"""SGD against Adam: a Transformer with and without softmax, with and without norms, beside an MLP and a CNN.

All six read the same sequences (addition, the loss on the answer) and predict the next token from those before it. Both
optimizers have momentum 0.9 and a linear warm-up; each has a grid of learning rates, from which the rate with the
lowest mean loss over the seeds is taken. The gap is the loss of SGD minus that of Adam, mean of the last tenth of the
steps. The sources explain it by softmax attention, whose blocks of the Hessian differ by orders of magnitude; then it
is large for the Transformer and small for the others. A loss above a guess (log 12), where a run burst, counts as a
guess. Intervals were fixed before any run; the grid was widened once, after 20 steps of another seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.record import Estimate, Record
from ..corpora.datasets import Addition
from ..nn.transformer import Transformer
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .measure import mean
from .stacked import Stack, drawn_together

#: The nets in the order of the figure; Transformers by what `design` is told.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "softmax, norm": {},
    "softmax, no norm": {"norm": "none"},
    "linear, norm": {"linear": True},
    "linear, no norm": {"linear": True, "norm": "none"},
}
NETS = (*TRANSFORMERS, "MLP", "CNN")
#: The grid: half decades.
RATES = {"SGD": (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0), "Adam": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)}
#: Points of a curve that are kept.
POINTS = 50


@dataclass(frozen=True, kw_only=True)
class Config:
    """`digits`-digit addition, nets of width `d_model` (MLP and CNN: of about as many weights), `steps` steps.

    `rates` takes the middle of the grid, that many on each side (None: all of it).
    """

    digits: int = 4
    depth: int = 4
    d_model: int = 64
    heads: int = 4
    batch: int = 64
    steps: int = 4000
    warmup: float = 0.1
    rates: int | None = None
    seeds: int = 3
    seed: int = 0

    @property
    def each_seed(self) -> range:
        """The seeds of the runs."""
        return range(self.seed, self.seed + self.seeds)


PRESETS = {
    "smoke": Config(digits=1, depth=1, d_model=8, heads=2, batch=8, steps=20, rates=0, seeds=1),
    "cpu": Config(digits=1, depth=2, d_model=16, heads=2, batch=32, steps=500),
    "paper": Config(),
}


class Window(nn.Module):
    """An MLP on the embeddings of all tokens up to a place, later ones blank; two hidden layers."""

    def __init__(self, vocab: int, length: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.net = nn.Sequential(
            nn.Linear(length * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, vocab)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        X = self.embed(tokens)
        L = X.shape[1]
        before = torch.ones(L, L, dtype=X.dtype, device=X.device).tril()  # what each place sees
        return self.net((before[None, :, :, None] * X[:, None]).flatten(2))


class Causal(nn.Module):
    """A CNN along the tokens, kernels of 5 that look back alone; `depth` hidden layers."""

    def __init__(self, vocab: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 5, padding=4) for _ in range(depth))
        self.out = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        X = self.embed(tokens).mT
        for layer in self.layers:
            X = torch.relu(layer(X)[..., : tokens.shape[1]])
        return self.out(X.mT)


def net(name: str, config: Config, data: Addition, seed: int) -> nn.Module:
    """The net of this name at its start."""
    torch.manual_seed(seed)
    d, vocab, length = config.d_model, data.settings["vocab"], data.settings["seq_len"]
    if name == "MLP":
        return Window(vocab, length, d // 4, 2 * d).double()
    if name == "CNN":
        return Causal(vocab, d, config.depth + 1).double()
    sizes: dict[str, Any] = {"depth": config.depth, "d_model": d, "heads": config.heads}
    return Transformer("pre-ln", seed=seed, dtype=torch.float64, **sizes, **TRANSFORMERS[name], **data.settings)


def grid(optimizer: str, config: Config) -> tuple[float, ...]:
    """The learning rates that are tried."""
    rates = RATES[optimizer]
    middle = len(rates) // 2
    return rates if config.rates is None else rates[middle - config.rates : middle + config.rates + 1]


def _train(name: str, optimizer: str, config: Config) -> dict[str, Tensor]:
    """All learning rates and seeds side by side; those of one seed share start and batches.

    `curve` (rates, seeds, POINTS), means over equal parts of the run, and `final` (rates, seeds), those of the last
    tenth. In float64 on a CPU, in bfloat16 (weights in float32) on a GPU.
    """
    data, gpu, began = Addition(digits=config.digits), torch.cuda.is_available(), time.perf_counter()
    device, rates, seeds = "cuda" if gpu else "cpu", grid(optimizer, config), config.each_seed
    models = [net(name, config, data, seed).to(device, torch.float32 if gpu else torch.float64) for seed in seeds]
    stack = Stack(models, len(rates), half=gpu)
    stacked = stack.params
    rate = torch.tensor(rates, dtype=torch.float64).repeat_interleave(len(seeds)).to(next(iter(stacked.values())))
    made: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "SGD": lambda: torch.optim.SGD(stacked.values(), lr=1.0, momentum=0.9),
        "Adam": lambda: torch.optim.Adam(stacked.values(), lr=1.0, betas=(0.9, 0.99)),
    }
    step = made[optimizer]()
    losses = torch.empty(len(rate), config.steps, dtype=torch.float64)
    feeds = [data.batches("train", config.batch, seed) for seed in seeds]
    for k in range(config.steps):
        batch = drawn_together([next(feed) for feed in feeds], len(rates), stack.device)
        gradients, losses[:, k] = stack.gradients(batch)
        before = {n: p.clone() for n, p in stacked.items()}
        for n, p in stacked.items():
            p.grad = gradients[n]
        step.step()
        now = rate * min(1.0, (k + 1) / (config.warmup * config.steps))
        for n, p in stacked.items():  # the step at rate 1, times the rate of each
            p.copy_(torch.addcmul(before[n], now.view(-1, *(1,) * (p.dim() - 1)), p - before[n]))
    worst = math.log(data.settings["vocab"])
    losses = losses.nan_to_num(nan=worst).clamp(max=worst).view(len(rates), len(seeds), -1)
    parts = losses.tensor_split(min(POINTS, config.steps), dim=-1)
    return {
        "curve": torch.stack([p.mean(-1) for p in parts], -1),
        "final": losses[..., -max(1, config.steps // 10) :].mean(-1),
        "seconds": torch.tensor(time.perf_counter() - began),
    }


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    found: dict[tuple[str, str], dict[str, Tensor]] = {}
    with units.plan(len(NETS) * len(RATES)):
        for n in NETS:
            for o in RATES:
                found[n, o] = units(f"{n}, {o}", _train, n, o, config)
    scalars: dict[str, Estimate] = {}
    tensors: dict[str, Tensor] = {}
    gap: dict[str, Tensor] = {}
    for n in NETS:
        finals = {}
        for o in RATES:
            rates, by_rate = grid(o, config), found[n, o]["final"]  # (rate, seed)
            best = int(by_rate.mean(1).argmin())
            finals[o] = by_rate[best]
            tensors[f"final/{n}/{o}"] = by_rate
            tensors[f"curve/{n}/{o}"] = found[n, o]["curve"][best].mean(0)
            scalars[f"loss/{n}/{o}"] = mean(finals[o], f"nats, rate {rates[best]:g}, {config.seeds} seeds")
            scalars[f"rate/{n}/{o}"] = Estimate(rates[best], note=_where(best, len(rates)))
        gap[n] = finals["SGD"] - finals["Adam"]
        scalars[f"gap/{n}"] = mean(gap[n], f"nats, SGD minus Adam, {config.seeds} seeds")
    for key, of, beside in (
        ("less/MLP", "MLP", "softmax, norm"), ("less/CNN", "CNN", "softmax, norm"),
        ("less/linear", "linear, norm", "softmax, norm"), ("less/norm", "softmax, norm", "softmax, no norm"),
    ):  # fmt: skip
        scalars[key] = mean(gap[beside] - gap[of], f"gap of `{beside}` minus that of `{of}`, nats")
    scalars["parameters"] = Estimate(float(_size(NETS[0], config)), note=f"weights of `{NETS[0]}`")
    return scalars, tensors


def _where(best: int, count: int) -> str:
    return "at an end of the grid" if count > 1 and best in (0, count - 1) else "inside the grid"


def _size(name: str, config: Config) -> int:
    return sum(p.numel() for p in net(name, config, Addition(digits=config.digits), 0).parameters())


_BIG = ("cpu", "paper")
_PAGE = "0432-sgd-against-adam.md"
CLAIMS = (
    at_least("a Transformer needs Adam: SGD ends at least 0.1 nats above it", "gap/softmax, norm", 0.1,
             "[ODS25, Sec. 1]", presets=_BIG),
    at_most("an MLP does not: at most 0.05 nats", "gap/MLP", 0.05, "[own]", presets=_BIG),
    at_most("a CNN does not: at most 0.05 nats", "gap/CNN", 0.05, "[own]", presets=_BIG,
            because="a CNN without norms learns this task slowly with SGD at every rate", page=_PAGE),
    at_least("the gap of the Transformer is larger than that of the MLP", "less/MLP", 0.0, "[own]", presets=_BIG),
    at_least("... and than that of the CNN", "less/CNN", 0.0, "[own]", presets=_BIG,
             because="the CNN has the largest gap of the nets that do not burst", page=_PAGE),
    at_least("softmax makes it: without it the gap is smaller", "less/linear", 0.0, "[own]", presets=_BIG),
    at_least("norms lessen it: without them the gap is larger", "less/norm", 0.0, "[own]", presets=_BIG),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, t, s, config = Rows(), record.tensors, record.scalars, record.inputs["config"]
    panels = []
    for n in NETS:
        rows = []
        for o in RATES:
            curve = t[f"curve/{n}/{o}"]
            each = config["steps"] / len(curve)
            rows += [{"x": each * (i + 0.5), "y": float(y), "series": o} for i, y in enumerate(curve)]
        title = n if n in ("MLP", "CNN") else f"Transformer, {n}"
        panels.append(
            line_panel(over, rows, x="step", y="loss (nats)", title=title, order=tuple(RATES), log=(False, False),
                       domain=(None, [0.0, 2.6]), size=(250, 170), points=False)
        )  # fmt: skip
    gaps = "; ".join(f"{n} {s[f'gap/{n}'].value:+.2f}" for n in NETS)
    ends = [f"{n} {o}" for n in NETS for o in RATES if s[f"rate/{n}/{o}"].note.startswith("at an end")]
    return figure_of(
        "sgd-adam",
        "SGD against Adam",
        side_by_side(over, *panels, columns=3, colours="shared"),
        headline=f"Loss of SGD minus that of Adam, nats, each at its best learning rate: {gaps}.",
        reading="Down is better. Where the lines part, the net needs Adam; where they meet, SGD does as well.",
        not_meaning="One task and small nets; the gap depends on the number of steps. "
        + (f"The best rate is at an end of the grid for {', '.join(ends)}." if ends else "All best rates lie inside."),
        columns=("net", "optimizer", "best rate", "loss", "error", "rate lies"),
        rows=[
            (n, o, s[f"rate/{n}/{o}"].value, s[f"loss/{n}/{o}"].value, s[f"loss/{n}/{o}"].error or 0.0,
             s[f"rate/{n}/{o}"].note)
            for n in NETS
            for o in RATES
        ],
        tags=("estimate",),
        caption=f"{config['digits']}-digit addition, {config['depth']} blocks of width {config['d_model']}"
        f" ({s['parameters'].value:,.0f} weights), {config['steps']} steps, {config['seeds']} seeds",
    )  # fmt: skip


EXPERIMENT = Experiment(
    id="sgd-adam",
    title="SGD against Adam: softmax, norms, MLP and CNN",
    source="[own]",
    asked="Which part of a Transformer makes it need Adam, where an MLP and a CNN do well with SGD?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    gpu="bfloat16",
)
