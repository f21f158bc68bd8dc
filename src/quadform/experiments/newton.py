"""Newton's method on one attention head that can be fitted exactly: why Gauss-Newton works and plain Newton climbs.

The teacher has the same shape as the student, so that the loss falls to 0 and Gauss-Newton converges quadratically.
Plain Newton uses H = H_o + H_f; away from the solution the functional part H_f is indefinite, and the step goes uphill.
With H_f switched off the same undamped step goes down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.record import Estimate, Record
from ..core.rng import stream
from ..curvature.operators import hessian
from ..curvature.risk import Risk
from ..estimate import eigenpairs
from ..optim.newton import GaussNewtonCG, NewtonCG, SaddleFreeNewton
from ..report.figure import Figure, Rows
from .charts import figure_of, line_panel, side_by_side
from .claims import at_least, at_most
from .experiment import Experiment, Units

#: The series, in the order of the figure.
METHODS = ("gradient descent", "Newton", "Newton without H_f", "saddle-free Newton", "Gauss-Newton")
#: The order of convergence is read from errors between these shares of the start: near the end rounding rules.
TAIL = (1e-11, 1e-2)


@dataclass(frozen=True, kw_only=True)
class Config:
    """`draws` teachers of width `dim` on `sequences` of `tokens`; the student starts `away` of their weights."""

    dim: int = 8
    tokens: int = 8
    sequences: int = 8
    away: float = 0.25
    steps: int = 12
    draws: int = 20
    seed: int = 0


PRESETS = {
    "smoke": Config(dim=3, tokens=3, sequences=4, steps=8, draws=1),
    "cpu": Config(dim=6, tokens=6, sequences=6, draws=6),
    "paper": Config(),
}


class Head(nn.Module):
    """softmax(X W_Q W_K^T X^T / sqrt(d)) X W_V."""

    def __init__(self, d: int, generator: torch.Generator) -> None:
        super().__init__()

        def drawn() -> nn.Parameter:
            return nn.Parameter(torch.randn(d, d, generator=generator, dtype=torch.float64) / math.sqrt(d))

        self.W_Q, self.W_K, self.W_V = drawn(), drawn(), drawn()

    def forward(self, X: Tensor) -> Tensor:
        scores = (X @ self.W_Q) @ (X @ self.W_K).mT / math.sqrt(X.shape[-1])
        return torch.softmax(scores, -1) @ (X @ self.W_V)


def squared(F: Tensor, batch: Any) -> Tensor:
    """The mean squared error."""
    return ((F - batch[1]) ** 2).mean()


def _problem(config: Config, seed: int) -> tuple[Callable[[], Head], tuple[Tensor, Tensor]]:
    """A function that makes the student at its start, and the batch."""
    generator = stream(seed, "newton")
    teacher = Head(config.dim, generator)
    X = torch.randn(config.sequences, config.tokens, config.dim, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        Y = teacher(X)
        moved = {
            n: p + config.away * torch.randn(p.shape, generator=generator, dtype=p.dtype) / math.sqrt(config.dim)
            for n, p in teacher.named_parameters()
        }

    def student() -> Head:
        model = Head(config.dim, torch.Generator().manual_seed(0))
        model.load_state_dict(moved)
        return model

    return student, (X, Y)


def _losses(method: str, config: Config, seed: int) -> dict[str, Tensor]:
    student, batch = _problem(config, seed)
    model = student()
    plain: dict[str, Any] = {"damping": 1e-10, "adapt": False, "tol": 1e-8, "max_products": 2000}
    careful: dict[str, Any] = {"damping": 1e-6, "tol": 1e-8, "max_products": 2000}
    made: dict[str, Callable[[], Any]] = {
        "Newton": lambda: NewtonCG(model, squared, **plain),
        "Newton without H_f": lambda: GaussNewtonCG(model, squared, **plain),
        "saddle-free Newton": lambda: SaddleFreeNewton(model, squared, **careful),
        "Gauss-Newton": lambda: GaussNewtonCG(model, squared, **careful),
    }
    if method == "gradient descent":
        return {"loss": _descent(model, batch, config.steps)}
    optimizer = made[method]()
    losses = [optimizer.step(batch) for _ in range(config.steps)]
    with torch.no_grad():
        losses.append(float(squared(model(batch[0]), batch)))
    return {"loss": torch.tensor(losses, dtype=torch.float64)}


def _descent(model: nn.Module, batch: tuple[Tensor, Tensor], steps: int) -> Tensor:
    """Gradient descent at 1 / lambda_max of the start."""
    risk = Risk(model, squared, batch, quiet=True)
    rate = 1 / eigenpairs(hessian(risk), top=1, seed=0).top[0].value
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps + 1):
        loss = squared(model(batch[0]), batch)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def run(config: Config, units: Units) -> tuple[dict[str, Estimate], dict[str, Tensor]]:
    losses = torch.zeros(len(METHODS), config.draws, config.steps + 1, dtype=torch.float64)
    with units.plan(len(METHODS) * config.draws):
        for i, method in enumerate(METHODS):
            for draw in range(config.draws):
                name = f"{method}, draw {draw}"
                losses[i, draw] = units(name, _losses, method, config, config.seed + draw)["loss"]
    start = losses[:, :, :1]
    relative = (losses / start).nan_to_num(nan=math.inf, posinf=1e300)
    by = dict(zip(METHODS, relative, strict=True))
    climbs = {method: (r[:, 1:4].amax(1) > 1).double().mean().item() for method, r in by.items()}
    scalars = {
        "final/gauss-newton": _middle(by["Gauss-Newton"][:, -1], "of the start, after the last step"),
        "final/descent": _middle(by["gradient descent"][:, -1], "of the start, after the last step"),
        "final/saddle-free": _middle(by["saddle-free Newton"][:, -1], "of the start, after the last step"),
        "order": _middle(torch.tensor([_order(r) for r in by["Gauss-Newton"]]), "order of convergence of Gauss-Newton"),
        "climbs/newton": Estimate(climbs["Newton"], note="share of draws above the start in steps 1 to 3"),
        "climbs/without": Estimate(climbs["Newton without H_f"], note="the same without H_f"),
    }
    return scalars, {"median": relative.clamp(1e-32, 1e32).median(1).values}


def _middle(values: Tensor, note: str) -> Estimate:
    return Estimate(float(values.nanmedian()), note=f"median of {len(values)}, {note}")


def _order(relative: Tensor) -> float:
    """log(e_{k+1} / e_k) / log(e_k / e_{k-1}), the last one whose errors rounding does not rule; e = sqrt(loss)."""
    e = relative.sqrt().tolist()
    found = math.nan
    for a, b, c in zip(e, e[1:], e[2:], strict=False):
        if TAIL[0] < c and b < TAIL[1] and c < b < a:
            found = math.log(c / b) / math.log(b / a)
    return found


CLAIMS = (
    at_most("Gauss-Newton ends at 1e-20 of the start", "final/gauss-newton", 1e-20, "[own]", presets=("cpu", "paper")),
    at_least("... and converges quadratically: order at least 1.7", "order", 1.7, "[own]", presets=("cpu", "paper")),
    at_least("gradient descent at 1/lambda_max is above 1e-3 of the start then", "final/descent", 1e-3, "[own]"),
    at_least("plain Newton climbs at first in most draws", "climbs/newton", 0.5, "[own]", presets=("cpu", "paper")),
    at_most("with the functional part switched off it climbs in few", "climbs/without", 0.25, "[own]",
            presets=("cpu", "paper")),
    at_most("saddle-free Newton ends below 1e-6 of the start", "final/saddle-free", 1e-6, "[own]",
            presets=("cpu", "paper")),
)  # fmt: skip


def figure(record: Record) -> Figure:
    over, median, s = Rows(), record.tensors["median"], record.scalars
    rows = [
        {"x": k, "y": float(y), "series": method}
        for method, row in zip(METHODS, median, strict=True)
        for k, y in enumerate(row)
    ]
    chart = line_panel(
        over, rows, x="step", y="loss over the loss at the start", log=(False, True), order=METHODS, size=(460, 300)
    )
    return figure_of(
        "newton",
        "Newton's method on one attention head",
        side_by_side(over, chart),
        headline=f"Gauss-Newton ends at {s['final/gauss-newton'].value:.1e} of the start, order {s['order'].value:.2g};"
        f" gradient descent at {s['final/descent'].value:.2g}. Plain Newton climbs in "
        f"{100 * s['climbs/newton'].value:.0f} % of the draws, without H_f in {100 * s['climbs/without'].value:.0f} %.",
        reading="Down is better; a line that bends down gains digits faster with every step. Medians over the draws.",
        not_meaning="One head that can be fitted exactly, all data in every step. Networks that cannot be fitted keep"
        " a residual, and with it a functional part, to the end.",
        columns=("method", *(f"step {k}" for k in range(median.shape[1]))),
        rows=[(method, *(float(v) for v in row)) for method, row in zip(METHODS, median, strict=True)],
        tags=("exact",),
        caption=f"One head of width {record.inputs['config']['dim']}, {record.inputs['config']['draws']} draws.",
    )


EXPERIMENT = Experiment(
    id="newton",
    title="Newton, Gauss-Newton and gradient descent on one attention head",
    source="[own]",
    asked="Which second-order method solves one attention head, starting near its solution?",
    presets=PRESETS,
    run=run,
    figure=figure,
    claims=CLAIMS,
)
