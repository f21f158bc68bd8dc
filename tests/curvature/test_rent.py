"""`auto`, the default, without a number of products: eager until they would have paid for preparing a faster route."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quadform.core.steady import steady
from quadform.curvature import Risk, gauss_newton, hessian, prediction
from quadform.curvature.by_units import ByUnits
from quadform.curvature.strategies import ByForward, ByProgram, ByRetained, Strategy
from quadform.distributed.processes import Group
from quadform.estimate import eigenpairs
from quadform.kernels import programs

F64 = torch.float64


def mse(out: Tensor, batch: Any) -> Tensor:
    return (out - batch[1]).square().mean()


class Clock:
    """Stands still but for products, which take what is predicted of n of them."""

    def __init__(self, predict: Any) -> None:
        self.now, costs = 0.0, [predict(n) for n in (0, 1)]
        self.begin = costs[0]
        self.product = {route: costs[1][route] - costs[0][route] for route in costs[0]}
        self.prepared: set[str] = set()

    def called(self, way: Strategy) -> None:
        if way.route not in self.prepared:
            self.prepared.add(way.route)
            self.now += self.begin.get(way.route, 0.0)
        self.now += self.product.get(way.route, 0.0)


def _watched(clock: Clock, monkeypatch: Any) -> None:
    """Products move the clock, and nothing is compiled."""
    monkeypatch.setattr(prediction, "clock", lambda: clock.now)
    monkeypatch.setattr(programs, "compiled", lambda graph: graph)
    monkeypatch.setattr("quadform.curvature.linear.compiled", lambda graph: graph)
    for kind in (ByRetained, ByForward, ByProgram, ByUnits):

        def timed(way: Any, *args: Any, own: Any = kind.__call__) -> Any:
            clock.called(way)
            return own(way, *args)

        monkeypatch.setattr(kind, "__call__", timed)


@pytest.fixture
def risk() -> Risk:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(F64)
    return Risk(model, mse, (torch.randn(5, 3, dtype=F64), torch.randn(5, 2, dtype=F64)), quiet=True)


@pytest.mark.parametrize("make", [hessian, gauss_newton])
@pytest.mark.parametrize("each", [0.0005, 0.02, 0.5, 30.0])
def test_never_worse_than_twice_the_best_choice(
    make: Any, each: float, risk: Risk, monkeypatch: Any, capsys: Any
) -> None:
    """After any number of products, with every route as long as predicted, but for two eager products: the first, which
    warms up and tells nothing, and the one that makes up the mind. The numbers stay right."""
    eager = make(risk, route="eager")
    v = risk.space.random(dtype=F64)
    want = eager @ v
    operators = prediction.operators_of(eager.run)
    predict = lambda n: prediction.predict(operators, each, n, "cpu", retained=make is hessian)  # noqa: E731
    clock = Clock(predict)
    _watched(clock, monkeypatch)
    A = make(risk)
    for n in range(1, 400):
        image = A @ v
        best = min(predict(n).values())
        assert clock.now <= 2 * best + 2 * each + 1e-9
    assert max(float((image[n] - want[n]).abs().max()) for n in want) <= 1e-12
    told = capsys.readouterr().err
    assert (A.route == "eager") == (prediction.fastest(predict(397)) == "eager")
    assert ("from now on, for which" in told) == (A.route != "eager")


def test_where_only_units_fit_one_block_is_compiled_once_that_has_paid(monkeypatch: Any, capsys: Any) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 8, 0.0, batch_first=True), 3).eval().to(F64)
    risk = Risk(model, mse, (torch.randn(2, 3, 4, dtype=F64), torch.randn(2, 3, 4, dtype=F64)), quiet=True)
    v, each = risk.space.random(dtype=F64), 5.0
    want = hessian(risk, route="eager") @ v
    operators = prediction.operators_of(hessian(risk).run)
    predict = lambda n: prediction.predict_units(operators, each, n, "cpu", blocks=3)  # noqa: E731
    clock = Clock(predict)
    _watched(clock, monkeypatch)
    monkeypatch.setattr(Group, "free_here", lambda group, device: 1.0)
    H = hessian(risk)
    for n in range(1, 60):
        image = H @ v
        assert clock.now <= 2 * min(predict(n).values()) + 2 * each + 1e-9
    assert H.route == "compiled-units"
    assert "compiled-units from now on, for which" in capsys.readouterr().err
    assert max(float((image[n] - want[n]).abs().max()) for n in want) <= 1e-12


def test_work_that_can_be_resumed_stays_eager(risk: Risk, tmp_path: Any, monkeypatch: Any) -> None:
    """Its bits must not depend on the clock; outside of it the same operator may still change."""
    clock = Clock(lambda n: {"eager": 100.0 * n, "traced": 1.0, "compiled": 1.0})
    _watched(clock, monkeypatch)
    H, v = hessian(risk), risk.space.random(dtype=F64)
    with steady():
        for _ in range(9):
            H @ v
    assert H.route == "eager"
    eigenpairs(H, top=1, resume=tmp_path, progress=False)
    assert H.route == "eager"
    H @ v
    assert H.route != "eager"


def test_a_block_of_an_operator_may_change_too(risk: Risk) -> None:
    H = hessian(risk)
    H @ risk.space.random(dtype=F64)
    assert H.route == "eager"
    assert H.block("0.weight", "2.weight").run.rent is not None


def test_a_number_of_products_decides_at_once(risk: Risk) -> None:
    assert hessian(risk).run.rent is not None
    assert hessian(risk, products=5).run.rent is None
    assert hessian(risk, route="eager").run.rent is None


def test_a_few_products_are_not_timed_first(risk: Risk, monkeypatch: Any) -> None:
    """A prediction takes two eager products: of one or two it is left out, and inside resumable work always."""
    taken: list[str] = []
    own = ByRetained.__call__
    monkeypatch.setattr(ByRetained, "__call__", lambda way, *args: taken.append(way.route) or own(way, *args))
    v = risk.space.random(dtype=F64)
    hessian(risk, products=1) @ v
    assert taken == ["eager"]
    with steady():
        hessian(risk, products=50) @ v
    assert len(taken) == 2
    hessian(risk, products=50) @ v
    assert len(taken) == 5
