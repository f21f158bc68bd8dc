"""Small models, data and gradients on which packages of others were run; the same here and in `record_peers.py`."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Pixels(nn.Module):
    """A convolution with stride and padding, an activation in place, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.last = nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Linear(12, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu_(self.first(torch.tanh(self.conv(x)).flatten(1))))


class Tokens(nn.Module):
    """Two linear layers shared by tokens; one answer for a sequence, or one for each token."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.first, self.last, self.pooled = nn.Linear(6, 5), nn.Linear(5, 4), pooled

    def forward(self, x: Tensor) -> Tensor:
        out = self.last(torch.tanh(self.first(x)))
        return out.mean(1) if self.pooled else out


MODELS = {"pixels": Pixels, "pooled": lambda: Tokens(True), "tokens": lambda: Tokens(False)}
LOSSES = {
    "cross-entropy": lambda out, batch: F.cross_entropy(out.flatten(0, -2), batch[1].flatten()),
    "mse": lambda out, batch: F.mse_loss(out, batch[1]),
}
CASES = [
    case
    for case in product(
        MODELS, LOSSES, ("kfac", "ekfac"), ("expand", "reduce"), ("exact", "empirical"), ("column", "apart")
    )
    # the peer's EKFAC takes one loss term an example; its exact factors send one column for all terms of an example
    if case[0] != "tokens" or case[2:5] in {("kfac", "expand", "exact"), ("kfac", "expand", "empirical"),
                                            ("kfac", "reduce", "empirical")}
]  # fmt: skip
SHAPES = {"W": (4, 3), "b": (4,), "K": (3, 2, 2, 2)}
OPTIMIZERS = {  # name: (arguments of ours, gradients seen)
    "shampoo": ({}, 8),
    "soap": ({"frequency": 100}, 8),
    "soap, refreshed": ({"frequency": 3}, 8),
}


def problem(name: str, loss: str) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A model with weights and two unequal batches in float64; enough examples for factors of full rank."""
    generator = torch.Generator().manual_seed(7)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    model = MODELS[name]().double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * randn(*p.shape))
    x = randn(24, 2, 4, 4) if name == "pixels" else randn(24, 7, 6)
    lead = (24, 7) if name == "tokens" else (24,)
    y = torch.randint(0, 4, lead, generator=generator) if loss == "cross-entropy" else randn(*lead, 4)
    return model, [(x[:16], y[:16]), (x[16:], y[16:])]


def vector(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def gradients() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [{n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in SHAPES.items()} for _ in range(8)]


def indefinite(n: int = 40) -> Tensor:
    """A symmetric matrix with eigenvalues of both signs."""
    A = torch.randn((n, n), generator=torch.Generator().manual_seed(10), dtype=torch.float64)
    return A + A.T + torch.diag(torch.linspace(-10, 20, n, dtype=torch.float64))
