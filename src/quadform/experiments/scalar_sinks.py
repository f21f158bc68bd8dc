"""Attention sinks over scalar tokens: what happens to bulk and outliers as one token grows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.record import Estimate, Record
from ..core.rng import stream
from ..report.figure import Figure, Rows
from ..theory.scalar_token import ScalarTokenModel
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most, between
from .experiment import Experiment, Units

HEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
KINDS = ("tokens near 1", "tokens of mean 0", "score bias")


@dataclass(frozen=True, kw_only=True)
class Config:
    """256 sequences of 32 tokens, s = 2, w_V = 1, y ~ N(0, 1); the first token is lifted by `HEIGHTS`."""

    sequences: int = 256
    tokens: int = 32
    draws: int = 10
    seed: int = 0


PRESETS = {"smoke": Config(sequences=64, draws=2), "cpu": Config(draws=4), "paper": Config()}


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(config.draws):
        parts = [units(f"draw {i}", _draw, config, config.seed + i) for i in range(config.draws)]
    bulk, top, capture = (
        torch.stack([p[k] for p in parts]).mean(0) for k in ("bulk", "top", "capture")
    )  # (3, heights)
    peak = bulk[0].argmax()
    last = float(HEIGHTS[-1])
    scalars = {
        "bulk_rise": Estimate(float(bulk[0].max() / bulk[0, 0]), note="tokens near 1: largest bulk over that without"),
        "capture_at_peak": Estimate(
            float(capture[0, peak]), note="mean attention on the sink where the bulk is largest"
        ),
        "bulk_end": Estimate(float(bulk[0, -1] / bulk[0, 0]), note="bulk at height 16 over that without a sink"),
        "top_law": Estimate(float(top[0, -1] / (2 * (1 + last) ** 2)), note="largest outlier over 2 x_sink^2"),
        "top_rises": Estimate(float((top[0, 1:] >= top[0, :-1]).double().mean()), note="share of steps that rise"),
        "zero_mean_bulk": Estimate(float(bulk[1, -1] / bulk[1, 0]), note="tokens of mean 0: bulk at 16 over 0"),
        "zero_mean_ratio": Estimate(
            float((bulk[1, -1] / top[1, -1]) / (bulk[1, 0] / top[1, 0])), note="bulk / top at 16 over 0"
        ),
        "bias_bulk": Estimate(float(bulk[2, -1] / bulk[2, 0]), note="score bias 16: bulk over that without"),
        "bias_top": Estimate(float(top[2, -1] / top[2, 0]), note="score bias 16: largest outlier over that without"),
    }
    for h in (2.0, 3.0, 4.0, 8.0):
        scalars[f"capture/{h:g}"] = Estimate(float(capture[0, HEIGHTS.index(h)]), note="mean attention on the sink")
    return scalars, {"bulk": bulk, "top": top, "capture": capture}


def _draw(config: Config, seed: int) -> dict[str, Tensor]:
    generator = stream(seed, "sinks")
    noise = torch.randn(config.sequences, config.tokens, generator=generator, dtype=torch.float64)
    y = torch.randn(config.sequences, config.tokens, generator=generator, dtype=torch.float64)
    w = torch.ones(4, dtype=torch.float64)  # <w, w> / sqrt(4) = 2
    out: dict[str, list] = {"bulk": [], "top": [], "capture": []}
    for kind in KINDS:
        x = noise if kind == "tokens of mean 0" else 1 + 0.25 * noise
        rows = []
        for h in HEIGHTS:
            if kind == "score bias":
                bias = torch.zeros(config.tokens, dtype=torch.float64)
                bias[0] = h
                model = ScalarTokenModel(x, y, w, w, w[0], bias=bias)
            else:
                model = ScalarTokenModel(x, y, w, w, w[0]).with_sink(h)
            spectrum = model.spectrum()
            rows.append((float(spectrum.c.abs()), float(spectrum.outliers.abs().max()), float(model.capture().mean())))
        for k, values in zip(out, zip(*rows, strict=True), strict=True):
            out[k].append(values)
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in out.items()}


_SOH = "[SOH25, slides]"
CLAIMS = (
    at_most(
        "a sink shrinks the bulk",
        "bulk_end",
        0.5,
        _SOH,
        why="read at height 16, after capture",
        because="tokens near 0 never decide for the sink and hold the bulk up; a score bias, which none can "
        "flee, shrinks it",
        page="0802-sinks-and-undecided-queries.md",
    ),
    at_least(
        "... but not at first: before the sink has captured the attention the bulk grows", "bulk_rise", 2.0, "[own]"
    ),
    between(
        "the bulk is largest while the sink is capturing, not before or after", "capture_at_peak", 0.3, 0.95, "[own]"
    ),
    at_least("the outliers grow with the sink", "top_rises", 1.0, _SOH),
    between("the largest outlier tends to 2 x_sink^2", "top_law", 0.8, 1.2, "[own]"),
    between("height 2 takes 0.61 of the attention", "capture/2", 0.51, 0.71, "[own]"),
    between("height 4 takes 0.96 of the attention", "capture/4", 0.92, 1.0, "[own]"),
    at_least("tokens of mean 0: half of the queries flee the sink and the bulk grows", "zero_mean_bulk", 2.0, "[own]"),
    at_most("tokens of mean 0: bulk against outliers still shrinks", "zero_mean_ratio", 0.2, "[own]"),
    at_most("a score bias alone shrinks the bulk", "bias_bulk", 0.05, "[own]"),
    between("a score bias alone leaves the outliers", "bias_top", 0.3, 3.0, "[own]"),
)


def figure(record: Record) -> Figure:
    t, s, over = record.tensors, record.scalars, Rows()
    panels = []
    for key, name, log in (
        ("capture", "mean attention on the sink", False),
        ("bulk", "bulk |c|", True),
        ("top", "largest outlier", True),
    ):
        rows = [
            {"x": h, "y": float(t[key][k, i]), "series": kind}
            for k, kind in enumerate(KINDS)
            for i, h in enumerate(HEIGHTS)
        ]
        panels.append(
            line_panel(
                over,
                rows,
                x="height of the sink (or its score bias)",
                y=name,
                log=(False, log),
                order=KINDS,
                size=(250, 210),
            )
        )
    at = HEIGHTS[int(t["bulk"][0].argmax())]
    return figure_of(
        "scalar-sinks",
        "Attention sinks: capture before shrinkage",
        side_by_side(over, *panels, columns=3, colours="shared"),
        headline=f"Tokens near 1: the bulk first grows {s['bulk_rise'].value:.0f}-fold, is largest at height {at:g}, "
        f"where the sink holds {s['capture_at_peak'].value:.0%} of the attention, and only then shrinks.",
        reading="Follow one colour through the three panels: attention captured, bulk, outliers.",
        not_meaning="The source's own setting is not known; with tokens of mean 0 the bulk grows without end.",
        columns=("tokens", "height", "attention on the sink", "bulk", "largest outlier"),
        rows=[
            (kind, h, *(float(t[key][k, i]) for key in ("capture", "bulk", "top")))
            for k, kind in enumerate(KINDS)
            for i, h in enumerate(HEIGHTS)
        ],
        caption=f"{record.inputs['config']['sequences']} sequences, {record.inputs['config']['draws']} draws, s = 2.",
    )


EXPERIMENT = Experiment(
    id="scalar-sinks",
    title="Attention sinks over scalar tokens: capture before shrinkage",
    source=_SOH,
    asked="Does an attention sink shrink the bulk of the spectrum and raise its outliers?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
