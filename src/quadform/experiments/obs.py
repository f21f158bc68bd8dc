"""Optimal brain surgeon, damage and magnitude: weights of a small trained network removed one after the other.

After each removal the Hessian is taken anew; nothing is trained again. Magnitude removes the smallest |w|, OBD the
smallest w^2 H_qq / 2, and neither moves the other weights. OBS removes the smallest w^2 / (2 [H^-1]_qq) and moves the
others by -(w_q / [H^-1]_qq) H^-1 e_q, with |H| + damping in place of H, which is indefinite away from the minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..compress.surgeon import Surgeon
from ..core.record import Estimate, Record
from ..core.rng import stream
from ..curvature.operators import hessian
from ..curvature.risk import Risk
from ..optim.newton import SaddleFreeNewton
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units

METHODS = ("magnitude", "OBD", "OBS")
#: Share of the weights at which the methods are compared.
AT = 0.5


@dataclass(frozen=True, kw_only=True)
class Config:
    """`draws` students with `hidden` tanh units, taught by a net with `teacher` units on `examples` of `inputs`."""

    inputs: int = 4
    hidden: int = 8
    teacher: int = 3
    examples: int = 128
    polish: int = 30
    damping: float = 1e-3
    draws: int = 10
    seed: int = 0


PRESETS = {
    "smoke": Config(inputs=2, hidden=2, teacher=1, examples=16, polish=3, draws=1),
    "cpu": Config(draws=3, hidden=6),
    "paper": Config(),
}


def squared(F: Tensor, batch: Any) -> Tensor:
    """The mean squared error."""
    return ((F - batch[1]) ** 2).mean()


def _net(inputs: int, hidden: int, generator: torch.Generator) -> nn.Module:
    net = nn.Sequential(nn.Linear(inputs, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, 1, bias=False)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) / math.sqrt(p.shape[1]))
    return net


def _trained(config: Config, seed: int) -> Risk:
    """The risk of a student near a minimum: targets of a smaller net with noise, Adam, then saddle-free Newton."""
    generator = stream(seed, "obs")
    X = torch.randn(config.examples, config.inputs, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        Y = _net(config.inputs, config.teacher, generator)(X)
        Y = Y + 0.1 * torch.randn(Y.shape, generator=generator, dtype=Y.dtype)
    student, batch = _net(config.inputs, config.hidden, generator), (X, Y)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    for _ in range(20 * config.polish):
        optimizer.zero_grad()
        squared(student(X), batch).backward()
        optimizer.step()
    newton = SaddleFreeNewton(student, squared, damping=1e-6, tol=1e-6, max_products=500)
    for _ in range(config.polish):
        newton.step(batch)
    return Risk(student, squared, batch, quiet=True)


def _removed(config: Config, seed: int) -> dict[str, Tensor]:
    """For each method the loss after k removals, and what the first removal was predicted to cost."""
    risk = _trained(config, seed)
    found = {method: _path(risk, method, config.damping) for method in METHODS}
    return {
        "loss": torch.stack([path for path, _ in found.values()]),
        "first": torch.tensor([first for _, first in found.values()], dtype=torch.float64),
        "gradient": risk.space.flatten(risk.gradient()).norm(),
    }


def _path(risk: Risk, method: str, damping: float) -> tuple[Tensor, float]:
    space, w = risk.space, risk.space.flatten(risk.params).clone()
    alive, losses, first = torch.ones_like(w, dtype=torch.bool), [float(risk.value())], math.nan
    for _ in range(len(w) - 1):
        at = risk.moved(space.unflatten(w))
        index = torch.nonzero(alive)[:, 0]
        H = hessian(at).dense()[index][:, index]
        part = w[index]
        if method == "OBS" and bool(H.any()):  # else the net is dead, and all are equal
            surgeon = Surgeon.of_absolute(part, H, damping=damping)
            inverse = surgeon.inverse.diagonal()
            q = int((part.square() / inverse).argmin())
            cost, moved = float(part[q] ** 2 / inverse[q] / 2), part + surgeon.step(torch.tensor([q]))
        else:
            score = part.square() * H.diagonal().clamp_min(0) / 2 if method == "OBD" else part.abs()
            q = int(score.argmin())
            cost, moved = float(part[q] ** 2 * H[q, q] / 2), part.clone()
        moved[q] = 0.0
        w[index] = moved
        alive[index[q]] = False
        losses.append(float(risk.value(space.unflatten(w))))
        first = cost if math.isnan(first) else first
    return torch.tensor(losses, dtype=torch.float64), first


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    with units.plan(config.draws):
        draws = [units(f"draw {i}", _removed, config, config.seed + i) for i in range(config.draws)]
    loss = torch.stack([d["loss"] for d in draws])  # (draws, methods, removed)
    rise = (loss - loss[:, :, :1]).clamp_min(1e-300)
    half = round(AT * (loss.shape[2] - 1))
    magnitude, damage, surgeon = rise[:, :, half].unbind(1)
    first = torch.stack([d["first"] for d in draws])[:, 2]
    early = rise[:, 1, max(1, round(0.1 * loss.shape[2]))] > rise[:, 0, max(1, round(0.1 * loss.shape[2]))]
    scalars = {
        "half/magnitude": _middle(surgeon / magnitude, "rise with OBS over that with magnitude, half removed"),
        "half/obd": _middle(surgeon / damage, "rise with OBS over that with OBD, half removed"),
        "first/obs": _middle((first / rise[:, 2, 1] - 1).abs(), "the first removal, predicted against measured"),
        "first/magnitude": _middle(rise[:, 0, 1] / rise[:, 2, 1], "the first removal, magnitude over OBS"),
        "obd/worse": Estimate(float(early.double().mean()), note="share of draws where OBD lost more at a tenth"),
    }
    return scalars, {"rise": rise.median(0).values}


def _middle(values: Tensor, note: str) -> Estimate:
    return Estimate(float(values.median()), note=f"median of {len(values)}: {note}")


HS = "[HS93, Fig. 1]"
CLAIMS = (
    at_most("with half of the weights gone OBS has lost at most a tenth of what magnitude has", "half/magnitude", 0.1,
            HS, presets=("cpu", "paper")),
    at_most("... and at most half of what OBD has", "half/obd", 0.5, HS, presets=("cpu", "paper")),
    at_least("the smallest weight is the wrong one: its removal costs twice what OBS's does", "first/magnitude", 2.0,
             HS, presets=("cpu", "paper")),
    at_most("w^2 / (2 [H^-1]_qq) predicts the first removal within 10 %", "first/obs", 0.1, "[own]",
            presets=("cpu", "paper"), page="0442-what-compression-found.md",
            because="Not explained yet: damping and the slope that was left were not varied."),
    at_least("OBD is worse than magnitude at a tenth in a quarter of the draws", "obd/worse", 0.25, "[own]",
             presets=("cpu", "paper"), page="0442-what-compression-found.md",
             because="At a tenth the diagonal still ranks the weights of these nets better than their size."),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, rise, s = Rows(), record.tensors["rise"], record.scalars
    count = rise.shape[1] - 1
    rows = [
        {"x": 100 * k / count, "y": float(y), "series": method}
        for method, row in zip(METHODS, rise, strict=True)
        for k, y in enumerate(row)
        if k
    ]
    chart = line_panel(
        over,
        rows,
        x="weights removed, %",
        y="rise of the loss",
        log=(False, True),
        order=METHODS,
        size=(460, 300),
        points=False,
    )
    return figure_of(
        "obs",
        "Weights of a small network removed one after the other",
        side_by_side(over, chart),
        headline=f"With half of the weights gone OBS has lost {s['half/magnitude'].value:.2g} of what magnitude has,"
        f" and {s['half/obd'].value:.2g} of what OBD has.",
        reading="Down is better. Medians over the draws; the Hessian is taken anew after each removal, nothing is"
        " trained again.",
        not_meaning="A network of tens of weights whose whole Hessian is known, near a minimum. Larger ones need"
        " approximations of it.",
        columns=("method", *(f"{100 * k / count:.0f} %" for k in range(0, count + 1, max(1, count // 8)))),
        rows=[
            (method, *(float(v) for v in row[:: max(1, count // 8)])) for method, row in zip(METHODS, rise, strict=True)
        ],
        caption=f"{count + 1} weights, {record.inputs['config']['draws']} draws.",
    )


EXPERIMENT = Experiment(
    id="obs",
    title="Optimal brain surgeon, optimal brain damage and magnitude",
    source="[HS93]",
    asked="Which weight of a trained network costs the loss least when it is removed?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
