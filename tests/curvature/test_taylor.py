"""The loss along a line: derivatives against finite differences, radii against their definition."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quadform.core.errors import InputError
from quadform.curvature import Risk, hessian
from quadform.curvature.kinks import GRID
from quadform.curvature.taylor import SHARE, Line, WrittenOut, along, measured_radius, unit


def transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, nn.functional.gelu, batch_first=True, dtype=torch.double)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 3, dtype=torch.double))


def risk_of(seed=0):
    torch.manual_seed(seed)
    x, y = torch.randn(4, 5, 8, dtype=torch.double), torch.randint(0, 3, (4, 5))
    return Risk(
        transformer(), lambda F, b: nn.functional.cross_entropy(F.flatten(0, 1), b[1].flatten()), (x, y), quiet=True
    )


def direction(risk, seed=1):
    return unit(risk.space.random(dtype=risk.dtype, generator=torch.Generator().manual_seed(seed)))


def test_four_derivatives_along_a_line():
    risk = risk_of()
    v = direction(risk)
    line = along(risk, v)

    def at(r):
        return float(risk.value({n: t + r * v[n] for n, t in risk.params.items()}))

    g = risk.gradient()
    assert line.value == pytest.approx(at(0), rel=1e-14)
    assert line.slope == pytest.approx(float(risk.space.inner(g, v)), rel=1e-10)
    assert line.curve == pytest.approx(float(risk.space.inner(v, hessian(risk) @ v)), rel=1e-9)

    def curve(r):
        moved = transformer()
        moved.load_state_dict({n: t + r * v[n] for n, t in risk.params.items()})
        there = Risk(moved, risk.loss, risk.batches, quiet=True)
        return float(there.space.inner(v, hessian(there) @ v))

    h = 1e-4
    assert line.third == pytest.approx((curve(h) - curve(-h)) / (2 * h), rel=1e-5)
    h = 3e-3
    assert line.fourth == pytest.approx((curve(h) - 2 * curve(0) + curve(-h)) / h**2, rel=1e-3)


@given(*[st.floats(-5, 5).filter(lambda x: x == 0 or abs(x) > 1e-3)] * 4)
def test_the_predicted_radius_is_where_the_rest_reaches_the_share(slope, curve, third, fourth):
    line = Line(1.0, slope, curve, third, fourth)
    r = line.radius()
    if third == fourth == 0 or r == math.inf:
        assert r == math.inf
    elif slope == curve == 0:
        assert r == 0
    else:
        grid = np.linspace(0, r, 2001)[1:]
        rest = np.abs(third * grid**3 / 6 + fourth * grid**4 / 24)
        model = np.maximum.accumulate(np.abs(slope * grid + curve * grid**2 / 2))
        assert (rest[:-2] <= SHARE * model[:-2] * 1.02).all()
        assert rest[-1] >= SHARE * model[-1] * 0.98


@pytest.mark.parametrize("seed", range(4))
def test_predicted_and_measured_radius(seed):
    risk = risk_of(seed)
    v = unit({n: -g for n, g in risk.gradient().items()})
    line = along(risk, v)
    found = measured_radius(risk, v, line)
    assert found.kind == "estimate"
    assert 1 / 1.5 < line.radius() / found.value < 1.5


@pytest.mark.parametrize(
    ("torchs", "ours", "x"),
    [
        (lambda x: nn.functional.layer_norm(x, (8,), x[0], x[1], 1e-3), "layer", (4, 8)),
        (lambda x: nn.functional.batch_norm(x, None, None, x[0], x[1], True), "batch", (6, 8)),
        (lambda x: nn.functional.batch_norm(x, x[2], x[3].abs(), x[0], x[1]), "running", (6, 8)),
        (lambda x: nn.functional.batch_norm(x, None, None, training=True), "image", (3, 4, 2, 2)),
    ],
)
def test_norms_written_out_are_the_norms(torchs, ours, x):
    x = torch.randn(*x, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    with WrittenOut():
        found = torchs(x)
    torch.testing.assert_close(found, torchs(x), rtol=1e-12, atol=1e-12)


def test_torchs_own_third_derivative_of_layer_norm_is_wrong():
    """The reason for `WrittenOut`. When this fails, torch has been mended and it can go."""
    v = torch.linspace(-1, 2, 16, dtype=torch.double).sin()

    def third(r):
        d = (nn.functional.layer_norm((v.cos() + r * v).reshape(2, 8), (8,)) ** 3 * v[:8]).sum()
        for _ in range(3):
            (d,) = torch.autograd.grad(d, r, create_graph=True)
        return float(d)

    r = torch.zeros((), dtype=torch.double, requires_grad=True)
    with WrittenOut():
        right = third(r)
    assert abs(third(r) / right - 1) > 0.01


def test_a_polynomial_has_the_radius_of_its_definition():
    model = nn.Linear(1, 1, bias=False, dtype=torch.double)
    nn.init.constant_(model.weight, 1.0)

    def loss(F, batch):
        w = F.sum()
        return w + w**2 + w**3

    risk = Risk(model, loss, (torch.ones(1, 1, dtype=torch.double), torch.ones(1)), quiet=True)
    line = along(risk, {"weight": torch.ones(1, 1, dtype=torch.double)})
    assert (line.value, line.slope, line.curve, line.third) == pytest.approx((3, 6, 8, 6))
    found = measured_radius(risk, {"weight": torch.ones(1, 1, dtype=torch.double)}, line)
    r = found.value
    assert r**3 == pytest.approx(0.1 * (6 * r + 4 * r * r), rel=0.1)
    assert found.value == pytest.approx(line.radius(), rel=0.03)


def test_a_loss_computed_in_float32_is_measured_above_its_rounding():
    risk = risk_of()
    rough = Risk(risk.model, lambda F, b: risk.loss(F.float(), b), risk.batches, quiet=True)
    v = unit({n: -g for n, g in risk.gradient().items()})
    fine, found = (measured_radius(r, v, along(r, v)) for r in (risk, rough))
    assert found.value == pytest.approx(fine.value, rel=0.1)


def test_a_small_loss_of_large_logits_rounds_like_the_logits():
    """A loss of 1e-5 whose logits are near 1,000: its rounding is 1e-13, not 1e-21."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3, dtype=torch.double)
    x, y = torch.randn(20, 4, dtype=torch.double), torch.randint(0, 3, (20,))
    sure = 12 * nn.functional.one_hot(y, 3) + 1000.0
    risk = Risk(net, lambda F, b: nn.functional.cross_entropy(F + sure, b[1]), (x, y), quiet=True)
    v = unit({n: -g for n, g in risk.gradient().items()})
    line = along(risk, v)
    assert line.value < 1e-4
    found = measured_radius(risk, v, line)
    assert (found.kind, found.value) == ("estimate", pytest.approx(line.radius(), rel=0.5))


def test_a_quadratic_loss_is_never_left():
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=torch.double)
    data = (torch.randn(20, 3, dtype=torch.double), torch.randn(20, 1, dtype=torch.double))
    risk = Risk(model, lambda F, b: ((F - b[1]) ** 2).mean(), data, quiet=True)
    v = direction(risk)
    line = along(risk, v)
    assert abs(line.third) < 1e-12
    found = measured_radius(risk, v, line)
    assert (found.kind, found.side) == ("bound", "lower")


def test_directions_must_have_a_length():
    with pytest.raises(InputError, match="finite length"):
        unit({"a": torch.zeros(3)})
    with pytest.raises(InputError, match="no quadratic model"):
        measured_radius(risk_of(), direction(risk_of()), Line(1.0, 0.0, 0.0, 1.0))


# --- kinks ----------------------------------------------------------------------------------------------------------
class InPlace(nn.Module):
    """A ReLU in place whose result is not taken from the call."""

    def forward(self, x):
        nn.functional.relu(x, inplace=True)
        return 1.0 * x


def units(activation, loss, tokens=6):
    """One hidden layer in float64, and a loss of its output."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), activation, nn.Linear(16, 3)).double()
    return Risk(net, loss, (torch.randn(tokens, 4, dtype=torch.double),), quiet=True)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.2), InPlace()])
def test_kinks_are_all_there_is_where_units_switch_and_nothing_else_bends(activation):
    """Inputs of units linear in r, the loss linear in their outputs: L - L0 - a r = kinks(r) at every radius."""
    risk = units(activation, lambda F, b: (F * F.new_tensor([1.0, -2.0, 0.5])).mean())
    v = direction(risk)
    v = unit({n: t if n.startswith("0.") else torch.zeros_like(t) for n, t in v.items()})
    line = along(risk, v)
    assert (line.curve, line.third) == pytest.approx((0, 0), abs=1e-13)
    for i in torch.searchsorted(GRID, torch.tensor([1e-2, 0.3, 1.0, 5.0, 100.0])):
        r = float(GRID[i])
        exact = float(risk.value({n: t + r * v[n] for n, t in risk.params.items()}).detach())
        assert float(line.kinks[i]) == pytest.approx(exact - line.value - line.slope * r, abs=1e-11)
        assert line.rest(r) == pytest.approx(float(line.kinks[i]), abs=1e-9)
    assert float(line.kinks[-1]) != 0


def test_a_smooth_model_has_no_kinks():
    assert along(risk_of(), direction(risk_of())).kinks is None


def test_kinks_predict_the_radius_of_a_relu_model():
    """Three layers, of which the derivatives alone predict the radius too long by a factor of 4 and more."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)).double()
    x, y = torch.randn(40, 8, dtype=torch.double), torch.randint(0, 3, (40,))
    risk = Risk(net, lambda F, b: nn.functional.cross_entropy(F, b[1]), (x, y), quiet=True)
    near, smooth = [], []
    for seed in range(8):
        v = direction(risk, seed)
        line = along(risk, v)
        found = measured_radius(risk, v, line).value
        near.append(1 / 1.5 < line.radius() / found < 1.5)
        smooth.append(dataclasses.replace(line, kinks=None).radius() / found)
    assert sum(near) >= 7
    assert sorted(smooth)[4] > 4
