"""A decoder of the shape of GPT-2, trained here on Python source: its Hessian under attention sinks of growing size.

Shape of GPT-2 (small): 12 blocks, d = 768, 12 heads, LayerNorm in front, GELU, learned positions, tied embeddings; no
biases, and the vocabulary of the corpus. After training the first position is lifted, by so many sizes of a token, in
the direction that draws most attention to it there; the Hessian is that over all attention matrices.
"""

from __future__ import annotations

import contextlib
import functools
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import FileError, InputError
from ..core.record import Estimate, Record
from ..corpora.datasets import Batch, Dataset
from ..corpora.running import StandardLibrary
from ..curvature.operators import hessian
from ..curvature.risk import Risk
from ..estimate.lanczos import eigenpairs
from ..estimate.quadrature import density
from ..nn.transformer import Transformer
from ..report.figure import Figure, Rows
from ..report.style import LIGHT
from ..train.checkpoint import load_checkpoint
from .blocks import smooth
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units
from .gpt_sinks import attracting, captured
from .measure import band
from .packed import Packed
from .parity import Fresh
from .protocol import Kept, Recipe, gpu_or_cpu, train_run


@dataclass(frozen=True, kw_only=True)
class Config:
    """Trained for `steps`, or where that is 0 for as many as take `seconds` at the pace of the first 60.

    `corpus` is "stdlib" (bytes) or "packed", as in `blocks`. `heights` in sizes of a token, the first is 0; `ascents`
    steps find the direction at each. `probe` held-out windows; `probes` x `products` for the density, `products` times
    2 at most for both ends of the spectrum.
    """

    depth: int = 4
    dim: int = 32
    heads: int = 4
    seq_len: int = 48
    batch: int = 16
    steps: int = 1200
    seconds: float = 0.0
    lr: float = 3e-3
    warmup: float = 60.0
    init: str = "fan-in"
    corpus: str = "stdlib"
    limit: int = 3_000_000
    valid_batches: int = 32
    heights: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
    ascents: int = 20
    probe: int = 4
    probes: int = 4
    products: int = 40
    seed: int = 0


PRESETS = {
    "smoke": Config(depth=2, dim=8, heads=2, seq_len=8, batch=4, steps=20, warmup=2.0, limit=60_000, valid_batches=2,
                    heights=(0.0, 4.0), ascents=2, probe=2, probes=2, products=8),
    "cpu": Config(),
    "paper": Config(depth=12, dim=768, heads=12, seq_len=512, batch=64, steps=0, seconds=360.0, lr=6e-4, warmup=700.0,
                    init="normal", corpus="packed", products=32),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Passes(Dataset):
    """`Fresh` windows as long as they last; then all of them again, in another order each time."""

    data: Fresh

    @property
    def settings(self) -> dict[str, Any]:
        return self.data.settings

    def windows(self, split: str) -> int:
        """Windows of one pass."""
        return (len(self.data.data.stream_of(split)) - 1) // self.settings["seq_len"]  # type: ignore[attr-defined]  # a running text

    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        in_one = self.windows(split) // batch_size
        if not in_one:
            raise InputError(f"a batch of {batch_size} windows; the {split} text has {self.windows(split)}. Pack more.")
        done, at = divmod(start, in_one)
        while True:
            yield from self.data.batches(split, batch_size, seed + done, at)
            done, at = done + 1, 0


@functools.cache
def data_of(config: Config) -> Passes:
    """The corpus of a config."""
    if config.corpus == "packed":
        return Passes(data=Fresh(data=Packed(seq_len=config.seq_len)))
    return Passes(data=Fresh(data=StandardLibrary(seq_len=config.seq_len, limit=config.limit)))


def recipe(config: Config, steps: int) -> Recipe:
    """The model and its training."""
    return Recipe(design="pre-ln", depth=config.depth, dim=config.dim, heads=config.heads, d_ff=4 * config.dim,
                  steps=steps, batch=config.batch, lr=config.lr, warmup=config.warmup, seed=config.seed,
                  init=config.init, norm="layer", model=(("activation", "gelu"), ("tied", True)))  # fmt: skip


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    def train(steps: int, kept: Kept | None = None) -> dict[str, Tensor]:
        device = gpu_or_cpu(config.corpus == "packed", "gpt-code")
        return train_run(
            recipe(config, steps), data_of(config), valid_batches=config.valid_batches, device=device, kept=kept
        )

    with contextlib.ExitStack() as stack, units.plan(len(config.heights) + 1 + (not config.steps)):
        steps = config.steps
        if not steps:
            steps = math.ceil(config.seconds * 60 / float(units("pace", train, 60)["seconds"]))
        place = units.work.state("training") or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trained = units("training", train, steps, Kept(place, units.work.deadline))
        found = [units(f"height {h:g}", _under, config, steps, place, h) for h in config.heights]
    tensors = {key: torch.stack([part[key] for part in found]) for key in found[0] if key != "seconds"}
    tensors["training"] = smooth(trained["loss"], 80)
    parameters, tokens = float(trained["parameters"]), float(steps * config.batch * config.seq_len)
    value, error = trained["valid"].tolist()
    scalars = {
        "parameters": Estimate(parameters),
        "attention_parameters": Estimate(float(found[0]["size"])),
        "steps": Estimate(float(steps)),
        "tokens": Estimate(tokens, note="read in training"),
        "train_seconds": Estimate(float(trained["seconds"]), note="of all steps"),
        "loss": Estimate(value, error, "estimate", note="held out, nats; ONE seed, the error is that of the sample"),
    }
    capture = tensors["capture"]
    uniform = float((1 / torch.arange(config.seq_len // 2, config.seq_len).add(1).double()).mean())
    scalars["own_sink"] = Estimate(float(capture[0]) / uniform, note="attention on token 0 over that of a uniform head")
    scalars["capture"] = Estimate(float(capture[-1]), note=f"attention on token 0 at height {config.heights[-1]:g}")
    for key in ("top", "bottom", "bulk"):
        scalars[key] = _over(tensors[key][-1], tensors[key][0], f"{_NOTES[key]} at the last height over the first")
    widths = [t - b for t, b in zip(tensors["top"][:, 0], tensors["bottom"][:, 0], strict=True)]
    errors = tensors["top"][:, 1].hypot(tensors["bottom"][:, 1])
    pairs = [torch.stack([w, e]) for w, e in zip(widths, errors, strict=True)]
    scalars["stretch"] = _over(pairs[-1], pairs[0], "lambda_max - lambda_min at the last height over the first")
    return scalars, tensors


_NOTES = {"top": "lambda_max", "bottom": "lambda_min", "bulk": "mean |lambda|"}


def _over(a: Tensor, b: Tensor, note: str) -> Estimate:
    """a / b, each a number with its error."""
    (x, dx), (y, dy) = a.tolist(), b.tolist()
    return Estimate(x / y, abs(x / y) * math.hypot(dx / x, dy / y), "estimate", note=note)


@functools.lru_cache(maxsize=1)
def _trained(config: Config, steps: int, place: Path) -> Transformer:
    """The model that `training` left; float64 on a CPU."""
    found = load_checkpoint(place)
    if found is None:
        raise FileError(f"the weights of the finished training are not in {place}. Begin again in another folder.")
    model = Transformer(recipe(config, steps).model_config(data_of(config)), seed=config.seed)
    model.load_state_dict({n.removeprefix("model/"): t for n, t in found[1].items() if n.startswith("model/")})
    device = gpu_or_cpu(config.corpus == "packed", "gpt-code")
    return (model if device == "cuda" else model.double()).to(device).eval()


def _under(config: Config, steps: int, place: Path, height: float) -> dict[str, Tensor]:
    """Capture, loss and spectrum with the first position lifted by `height`; the model is left as it was."""
    began = time.monotonic()
    model = _trained(config, steps, place)
    held = next(data_of(config).batches("valid", config.probe, config.seed + 1))
    batch = {k: t.to(model.embed.W_E.device) for k, t in held.items()}
    start = model.embed.W_pos.detach()[0].clone()
    try:
        lift(model, batch["tokens"], height, config.ascents)
        with torch.no_grad():
            share = captured(model, batch["tokens"])
        risk = Risk(model, None, batch, params="layers.*.attn.W_*", quiet=True)
        H = hessian(risk)
        ends = eigenpairs(H, top=1, bottom=1, tol=1e-2, max_products=2 * config.products, seed=config.seed)
        d = density(H, config.probes, config.products, seed=config.seed)
        loss = risk.value().detach()
    finally:
        with torch.no_grad():
            model.embed.W_pos[0] = start
    top, bottom, bulk = ends.top[0], ends.bottom[0], d.mean(torch.abs)
    pairs = {"top": top, "bottom": bottom, "bulk": bulk}
    out = {key: torch.tensor([e.value, e.error or 0.0], dtype=torch.float64) for key, e in pairs.items()}
    out |= {"capture": share.double().cpu(), "loss": loss.double().cpu(), "size": torch.tensor(risk.space.size)}
    out |= {"nodes": d.nodes.double().cpu(), "weights": d.weights.double().cpu()}
    return out | {"seconds": torch.tensor(time.monotonic() - began)}


def lift(model: Transformer, tokens: Tensor, height: float, ascents: int) -> None:
    """Move the first position by `height` sizes of a token where attention on it is largest, by gradient ascent.

    The direction begins as the gradient at height 0; each ascent adds half the unit gradient at the lifted position.
    """
    if not height:
        return
    W_pos, start = model.embed.W_pos, model.embed.W_pos.detach()[0].clone()
    size = model.embed.W_E.detach().norm(dim=-1).mean()
    u = attracting(model, tokens) / size
    best = (-1.0, u)
    for _ in range(ascents + 1):
        with torch.no_grad():
            W_pos[0] = start + height * size * u
        share = captured(model, tokens)
        (g,) = torch.autograd.grad(share, W_pos)
        best = max(best, (float(share.detach()), u), key=lambda pair: pair[0])
        u = torch.nn.functional.normalize(u + 0.5 * torch.nn.functional.normalize(g[0], dim=0), dim=0)
    with torch.no_grad():
        W_pos[0] = start + height * size * best[1]


_BIG, _SLIDES, _PAGE = ("cpu", "paper"), "[SOH25, slides]", "0820-a-gpt-on-code.md"
_DOWN = "a model of 60,000 parameters: its spectrum is stretched downwards, where lambda_min grows 3.6-fold"
CLAIMS = (
    at_least("training makes a sink of its own: token 0 has ten times the attention of a uniform head", "own_sink",
             10.0, "[own]", presets=("paper",), why="81 of 270 heads of SmolLM2 give it over half (`real-sinks`)",
             because="6.4 times after 0.24 billion tokens; SmolLM2 read 11,000 billion", page=_PAGE),
    at_least("lifting the first position makes the sink grow: it ends with half of the attention", "capture", 0.5,
             "[own]", presets=_BIG),
    at_least("larger attention sinks stretch the spectrum: lambda_max - lambda_min is twice as wide at the end",
             "stretch", 2.0, "[SOH25, Fig. 6]", presets=_BIG, why="no number published", because=_DOWN, page=_PAGE),
    at_least("a sink grows the outliers: lambda_max is twice as large at the end", "top", 2.0, _SLIDES, presets=_BIG,
             why="no number published", because=_DOWN, page=_PAGE),
    at_most("... and shrinks the bulk: mean |lambda| is half at the end", "bulk", 0.5, _SLIDES, presets=_BIG,
            why="no number published; read once the sink has captured half of the attention",
            because="as over scalar tokens the bulk is largest while the sink is capturing; it holds 54 % at the end",
            page=_PAGE),
    at_most("norms bound what a sink can do: lambda_max grows at most tenfold", "top", 10.0, "[own]", presets=_BIG,
            why="a normalised token has a fixed size",
            because="the planted sink takes the loss from 2.3 to 6.3, which the claim left out", page=_PAGE),
)  # fmt: skip


#: Of the densities in the figure, in decades; and what is left of them, as a share of the largest curvature.
KERNEL, SHOWN = 0.2, 1e-3
#: Darker is higher; the first is without a sink.
RAMP = (LIGHT.query, "#e3a857", "#d98324", "#b85c0c", "#8a3a06", "#551d02")


def spread(nodes: Tensor, weights: Tensor, size: float, low: float, high: float) -> Tensor:
    """Directions per decade of curvature at 120 places from `low` to `high`, (120, 2): place and number.

    Nodes (probes, m) and weights of a density of `size` directions, smoothed by a normal kernel of `KERNEL` decades.
    """
    at = torch.linspace(math.log10(low), math.log10(high), 120, dtype=torch.float64)
    inside = (nodes > 0) & (weights > 0)
    x, w = nodes[inside].log10(), weights[inside] * size / len(nodes)
    kernel = torch.exp(-0.5 * ((at[:, None] - x) / KERNEL) ** 2) / (KERNEL * math.sqrt(2 * math.pi))
    return torch.stack([10**at, kernel @ w], 1)


def figure(record: Record) -> Figure:
    over, t, s, c = Rows(), record.tensors, record.scalars, record.inputs["config"]
    heights = [float(h) for h in c["heights"]]
    names = ["no sink added" if not h else f"height {h:g}" for h in heights]
    high = 2 * float(torch.stack([t["top"][:, 0], t["bottom"][:, 0].abs()]).max())
    panels = []
    for sign, title in ((1, "curvature upwards"), (-1, "curvature downwards")):
        rows = []
        for i, name in enumerate(names):
            curve = spread(sign * t["nodes"][i], t["weights"][i], s["attention_parameters"].value, SHOWN * high, high)
            rows += [{"x": x, "y": y, "series": name} for x, y in curve.tolist() if y > 0.1]
        axis = "lambda" if sign > 0 else "−lambda"
        panels.append(line_panel(over, rows, x=axis, y="directions per decade", title=title, points=False, order=names,
                                 colours=dict(zip(names, RAMP, strict=False)),
                                 legend=None if sign > 0 else "", size=(300, 220)))  # fmt: skip
    rows = [{"x": h, "y": float(t["capture"][i]), "series": "attention on token 0"} for i, h in enumerate(heights)]
    panels.append(line_panel(over, rows, x="height of the sink (token sizes)", y="attention on the first token",
                             log=(False, False), domain=(None, [0, 1]), legend=None, size=(300, 180)))  # fmt: skip
    rows = []
    for key, name in (("top", "lambda_max"), ("bottom", "lambda_min"), ("bulk", "mean |lambda|")):
        for i, h in enumerate(heights):
            e = _over(t[key][i], t[key][0], "")
            rows.append({"x": h, "y": e.value, "series": name, **(band(e, 1.0) if i else {})})
    panels.append(line_panel(over, rows, x="height of the sink (token sizes)", y="over that without a sink",
                             log=(False, True), rules=(1.0,), size=(300, 180)))  # fmt: skip
    return figure_of(
        "gpt-code",
        "A GPT trained on code under growing sinks",
        side_by_side(over, *panels),
        headline=f"Trained on code to {s['loss'].value:.2f} nats, it gives the first token "
        f"{float(t['capture'][0]):.0%} of its attention, and {s['capture'].value:.0%} once that is lifted by "
        f"{heights[-1]:g} token sizes. lambda_max is then {s['top'].value:.2g} times, lambda_min "
        f"{s['bottom'].value:.2g} times and mean |lambda| {s['bulk'].value:.2g} +- {s['bulk'].error or 0:.1g} times "
        f"what it was; the loss has gone from {float(t['loss'][0]):.2f} to {float(t['loss'][-1]):.2f}.",
        reading="First: how many directions of the attention weights have a curvature, one line for each size of the "
        "sink. A spectrum that is stretched reaches farther to the right. Then: attention captured, and what became "
        "of both ends and of the bulk. Bands: one standard error, or the residual.",
        not_meaning="The sink is planted after training, and the loss rises with it; sinks that grow in training come "
        "with weights that fit them.",
        columns=("height", "attention on token 0", "loss", "lambda_max", "lambda_min", "mean |lambda|"),
        rows=[
            (h, float(t["capture"][i]), float(t["loss"][i]), *(float(t[k][i, 0]) for k in ("top", "bottom", "bulk")))
            for i, h in enumerate(heights)
        ],
        tags=("estimate",),
        caption=f"{c['depth']} blocks, width {c['dim']}, {s['parameters'].value:,.0f} parameters, "
        f"{s['steps'].value:,.0f} steps, {s['tokens'].value / 1e6:,.1f}M tokens; Hessian over the "
        f"{s['attention_parameters'].value:,.0f} attention weights on {c['probe']} held-out windows of {c['seq_len']} "
        f"tokens; density from {c['probes']} probes of {c['products']} products, kernel of {KERNEL:g} decades.",
    )


EXPERIMENT = Experiment(
    id="gpt-code",
    title="A GPT trained on code under growing sinks",
    source="[SOH25, Fig. 6], [own]",
    asked="Do larger attention sinks stretch the Hessian spectrum of a trained GPT, and what happens to its bulk?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
    gpu="bfloat16",
)
