"""`auto` without a number of products: eager until they would have paid for preparing a faster route."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadform.curvature import Risk, gauss_newton, hessian, prediction
from quadform.curvature.strategies import ByForward, ByProgram, ByRetained, Strategy
from quadform.kernels import programs

F64 = torch.float64


def mse(out: Tensor, batch: Any) -> Tensor:
    return (out - batch[1]).square().mean()


class Clock:
    """Stands still but for products, which take what is predicted of them."""

    def __init__(self, each: float, operators: int, retained: bool) -> None:
        self.now, self.each = 0.0, each
        costs = [prediction.predict(operators, each, n, "cpu", retained=retained) for n in (0, 1)]
        self.begin = costs[0]
        self.product = {route: costs[1][route] - costs[0][route] for route in costs[0]}
        self.prepared: set[str] = set()

    def called(self, way: Strategy) -> None:
        if way.route not in self.prepared:
            self.prepared.add(way.route)
            self.now += self.begin[way.route]
        self.now += self.product[way.route]


@pytest.mark.parametrize("make", [hessian, gauss_newton])
@pytest.mark.parametrize("each", [0.0005, 0.02, 0.5, 30.0])
def test_never_worse_than_twice_the_best_choice(make: Any, each: float, monkeypatch: Any, capsys: Any) -> None:
    """After any number of products, with every route as long as predicted, but for two eager products: the first, which
    warms up and tells nothing, and the one that makes up the mind. The numbers stay right."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(F64)
    batch = (torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64))
    risk = Risk(model, mse, batch, quiet=True)
    eager = make(risk, route="eager")
    v = risk.space.random(dtype=F64)
    want = eager @ v
    operators = prediction.operators_of(eager.run)
    clock = Clock(each, operators, make is hessian)
    monkeypatch.setattr(prediction, "clock", lambda: clock.now)
    monkeypatch.setattr(programs, "compiled", lambda graph: graph)
    monkeypatch.setattr("quadform.curvature.linear.compiled", lambda graph: graph)
    for kind in (ByRetained, ByForward, ByProgram):

        def timed(way: Any, *args: Any, own: Any = kind.__call__) -> Any:
            clock.called(way)
            return own(way, *args)

        monkeypatch.setattr(kind, "__call__", timed)
    A = make(risk, route="auto")
    for n in range(1, 400):
        image = A @ v
        best = min(prediction.predict(operators, each, n, "cpu", retained=make is hessian).values())
        assert clock.now <= 2 * best + 2 * each + 1e-9
    assert max(float((image[n] - want[n]).abs().max()) for n in want) <= 1e-12
    told = capsys.readouterr().err
    if A.route == "eager":
        assert not told
    else:
        assert "from now on, for which" in told
    assert (A.route == "eager") == (each == 0.0005)


def test_a_number_of_products_decides_at_once() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(F64)
    risk = Risk(model, mse, (torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64)), quiet=True)
    assert hessian(risk, route="auto").run.rent is not None
    assert hessian(risk, route="auto", products=5).run.rent is None
    assert hessian(risk, route="eager").run.rent is None
