"""A plan counts one block of each kind, and finds what a count of all blocks does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform.curvature.share import share_of


class Block(nn.Module):
    """A residual block that knows how often it ran."""

    ran = 0

    def __init__(self, inner: int, power: int = 1) -> None:
        super().__init__()
        self.a, self.b, self.power = nn.Linear(4, inner), nn.Linear(inner, 4), power

    def forward(self, x: Tensor) -> Tensor:
        Block.ran += 1
        y = x
        for _ in range(self.power):
            y = self.b(torch.tanh(self.a(y)))
        return x + y


@pytest.fixture(scope="module")
def risk() -> qf.Risk:
    """Six blocks of three kinds: of the second another width, of the last another setting."""
    torch.manual_seed(0)
    blocks = [Block(5), Block(7), Block(5), Block(5), Block(5), Block(5, power=2)]
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(*blocks), nn.Linear(4, 2)).double()
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    return qf.Risk(model, nn.MSELoss(), [(x, y)] * 4, quiet=True)


@pytest.mark.parametrize("world", [1, 3, 1024])
@pytest.mark.parametrize("kind", ["hessian", "gauss_newton", "functional"])
def test_blocks_that_repeat_are_counted_once(risk: qf.Risk, kind: str, world: int) -> None:
    """FLOPs, numbers gathered and added up, bytes: equal. Of the six blocks three are run."""
    found, ran = [], []
    for once in (True, False):
        Block.ran = 0
        found.append(share_of(risk, kind, world, once=once))
        ran.append(Block.ran)
    assert found[0] == found[1]
    assert ran[0] <= 0.75 * ran[1]


@pytest.mark.parametrize(("L", "T"), [(12, 64), (3, 40)])
def test_memory_by_a_formula(L: int, T: int) -> None:
    """n / N + 5 u + (2 L + 21) T d + 8.5 h T^2 numbers for H, within 10 %: docs/distributed.md says so."""
    d, h, N = 16, 2, 4
    model = qf.nn.Transformer("pre-ln", depth=L, d_model=d, heads=h, vocab=d, seq_len=T, dtype=torch.float64)
    tokens = torch.zeros(1, T, dtype=torch.int64)
    risk = qf.Risk(model, lambda F, batch: nn.functional.cross_entropy(F[0], batch[1][0]), (tokens, tokens), quiet=True)
    n, u = (sum(p.numel() for p in m.parameters()) for m in (model, next(iter(risk.units.values()))))
    found = share_of(risk, "hessian", N).product / 8
    assert found == pytest.approx(n / N + 5 * u + (2 * L + 21) * T * d + 8.5 * h * T**2, rel=0.1)
