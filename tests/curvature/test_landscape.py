"""Losses on lines and planes against the loss of a model that stands there."""

import copy

import pytest
import torch
from torch import nn

from quadform.core.errors import InputError
from quadform.curvature import Risk, hessian
from quadform.curvature import landscape as ls


def problem(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    data = [
        (torch.randn(7, 4).double(), torch.randn(7, 2).double()),
        (torch.randn(3, 4).double(), torch.randn(3, 2).double()),
    ]
    return Risk(model, lambda F, b: ((F - b[1]) ** 2).mean(), data, quiet=True)


def standing(risk, at):
    model = copy.deepcopy(risk.model)
    model.load_state_dict(at)
    return float(Risk(model, risk.loss, risk.batches, quiet=True).value())


def plane_of(risk):
    generators = [torch.Generator().manual_seed(i) for i in (1, 2)]
    return ls.Plane(risk.params, tuple(ls.random_axis(risk.params, g) for g in generators))


@pytest.mark.parametrize("together", [1, 2**22])
def test_values_are_those_of_a_model_that_stands_there(monkeypatch, together):
    monkeypatch.setattr(ls, "TOGETHER", together)
    risk = problem()
    plane = plane_of(risk)
    points = torch.tensor([[0.0, 0.0], [0.5, -1.0], [2.0, 0.3]], dtype=torch.double)
    seen = []
    values = ls.evaluate(risk, plane, points, progress=lambda done, total: seen.append((done, total)))
    expected = [standing(risk, plane.at(x)) for x in points.tolist()]
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.double), rtol=1e-12, atol=0)
    assert seen[-1] == (3, 3)


def test_models_that_cannot_run_together_run_one_by_one():
    risk = problem()

    def loss(F, batch):
        return ((F - batch[1]) ** 2).mean() * (1.0 if float(F.detach().sum()) < 1e9 else 2.0)

    careful = Risk(risk.model, loss, risk.batches, quiet=True)
    points = torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=torch.double)
    torch.testing.assert_close(ls.evaluate(careful, plane_of(risk), points), ls.evaluate(risk, plane_of(risk), points))


def test_the_quadratic_model_touches_the_loss_where_the_model_stands():
    risk = problem()
    H, plane = hessian(risk), plane_of(risk)
    h = 1e-3
    near = torch.tensor([[0.0, 0.0], [h, 0.0], [0.0, h], [h, h]], dtype=torch.double)
    gap = (ls.quadratic(risk, H, plane, near) - ls.evaluate(risk, plane, near)).abs()
    assert gap[0] < 1e-14
    assert gap.max() < 1e-6
    twice = (ls.quadratic(risk, H, plane, 2 * near) - ls.evaluate(risk, plane, 2 * near)).abs()
    assert 6 < float(twice[3] / gap[3]) < 10  # third order
    beside = ls.Plane(plane.at((0.5, -0.2)), plane.axes)
    torch.testing.assert_close(
        ls.quadratic(risk, H, beside, near), ls.quadratic(risk, H, plane, near + torch.tensor([0.5, -0.2]))
    )


def test_random_axes_have_the_norms_of_the_filters():
    weights = {"conv": torch.randn(3, 2, 5, 5), "W": torch.randn(4, 6), "b": torch.randn(4)}
    axis = ls.random_axis(weights, torch.Generator().manual_seed(0))
    torch.testing.assert_close(axis["conv"].flatten(1).norm(dim=1), weights["conv"].flatten(1).norm(dim=1))
    torch.testing.assert_close(axis["W"].norm(dim=1), weights["W"].norm(dim=1))
    assert not axis["b"].any()


def test_lines_and_planes_of_a_run_pass_through_their_points():
    risk = problem()
    points = [risk.params, problem(1).params, problem(2).params]
    line = ls.line(points[0], points[1])
    values = ls.evaluate(risk, line, torch.tensor([[0.0], [1.0]], dtype=torch.double))
    assert float(values[1]) == pytest.approx(standing(risk, points[1]), rel=1e-12)
    plane = ls.principal(points, ["0", "10", "20"])
    for label, point in zip(["0", "10", "20"], points, strict=True):
        here = plane.at(plane.marks[label])
        assert all(torch.allclose(here[n], t, atol=1e-10) for n, t in point.items())
    a, b = (torch.cat([t.flatten() for t in axis.values()]) for axis in plane.axes)
    assert (float(a @ a), float(b @ b), float(a @ b)) == pytest.approx((1, 1, 0), abs=1e-10)


def test_refusals():
    risk = problem()
    with pytest.raises(InputError, match="one axis or two"):
        ls.Plane(risk.params, ())
    with pytest.raises(InputError, match="at least three"):
        ls.principal([risk.params], ["0"])
    with pytest.raises(InputError, match="on a line"):
        ls.principal([ls.line(risk.params, problem(1).params).at((x,)) for x in (0.0, 0.5, 1.0)], list("abc"))
    with pytest.raises(InputError, match="a point"):
        ls.evaluate(risk, plane_of(risk), torch.zeros(3))
    with pytest.raises(InputError, match="matrices"):
        ls.random_axis({"b": torch.ones(3)})
