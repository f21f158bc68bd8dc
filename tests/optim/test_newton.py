"""Newton's method and its relatives: exact on quadratics, quadratic rates, and saddles left behind."""

import itertools

import pytest
import torch
from torch import nn

from quadform.core.errors import InputError
from quadform.curvature import Risk
from quadform.optim import GaussNewtonCG, NewtonCG, SaddleFreeNewton
from quadform.optim.newton import Eigen


def squared(F, batch):
    return ((F - batch[1]) ** 2).mean()


def linear(seed=0):
    torch.manual_seed(seed)
    X = torch.randn(30, 4, dtype=torch.double)
    y = torch.randn(30, 2, dtype=torch.double)
    return nn.Linear(4, 2).double(), (X, y)


@pytest.mark.parametrize("most", [9, 400])  # 10 parameters: by products, and written out
@pytest.mark.parametrize("method", [NewtonCG, GaussNewtonCG, SaddleFreeNewton])
def test_one_step_ends_a_quadratic(method, most):
    model, batch = linear()
    X = torch.cat([batch[0], torch.ones(30, 1, dtype=torch.double)], 1)
    best = torch.linalg.lstsq(X, batch[1]).solution
    optimizer = method(model, squared, damping=0.0, adapt=False, tol=1e-12, max_products=most)
    before = optimizer.step(batch)
    torch.testing.assert_close(torch.cat([model.weight.T, model.bias[None]]).detach(), best, rtol=1e-8, atol=1e-8)
    step = optimizer.last
    assert step.loss == before > step.after
    assert step.ratio == pytest.approx(1, abs=1e-9)  # the quadratic model is exact


def teacher(seed=0):
    """A tanh network that can be fitted exactly, a little off its solution."""
    torch.manual_seed(seed)
    X = torch.randn(40, 3, dtype=torch.double)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        for p in net.parameters():
            p *= 3
        y = net(X)
        for p in net.parameters():
            p += 0.02 * torch.randn_like(p)
    return net, (X, y)


def test_gauss_newton_converges_quadratically_where_the_fit_is_exact():
    model, batch = teacher()
    optimizer = GaussNewtonCG(model, squared, damping=1e-8, tol=1e-10, max_products=400)
    errors = [optimizer.step(batch) for _ in range(12)]
    assert errors[-1] < 1e-20
    roots = [e**0.5 for e in errors if e > 1e-26]
    assert all(b / a**2 < 50 for a, b in itertools.pairwise(roots))


@pytest.mark.parametrize("method", [NewtonCG, GaussNewtonCG, SaddleFreeNewton])
def test_a_small_model_is_solved_exactly_and_a_large_one_by_products(method):
    """The same direction, of an indefinite and nearly singular system too; 20 parameters."""
    model, batch = teacher()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.5
    optimizer = method(model, squared, tol=1e-9, max_products=400)
    risk = Risk(model, squared, batch, quiet=True)
    B, g = optimizer.curvature(risk), risk.gradient()
    found = Eigen(B).direction(g, 1e-3, optimizer.size)
    wanted, _, converged = optimizer.direction(B, g, 1e-3)
    assert converged
    for n, t in wanted.items():
        torch.testing.assert_close(found[n], t, rtol=1e-6, atol=1e-7)
    assert method is GaussNewtonCG or bool((Eigen(B).values < -1e-3).any())


def saddle():
    """w1 w2 with target 1, from a point near the saddle at 0: H has a negative eigenvalue there."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.01, 0.02], dtype=torch.double))

        def forward(self, x):
            return self.w[0] * self.w[1] * x

    x = torch.ones(1, dtype=torch.double)
    return Product(), (x, x)


def test_plain_newton_goes_to_the_saddle_and_saddle_free_newton_leaves_it():
    plain, batch = saddle()
    for _ in range(4):
        NewtonCG(plain, squared, damping=0.0, adapt=False, tol=1e-10).step(batch)
    assert float(plain.w.detach().norm()) < 1e-3  # the saddle
    model, batch = saddle()
    optimizer = SaddleFreeNewton(model, squared, damping=1e-3)
    losses = [optimizer.step(batch) for _ in range(25)]
    assert losses[-1] < 1e-6
    assert all(b <= a for a, b in itertools.pairwise(losses))


def test_steps_that_climb_are_taken_back():
    model, batch = saddle()
    weights = model.w.detach().clone()
    optimizer = NewtonCG(model, squared, damping=1e-6)
    optimizer.step(batch)
    assert optimizer.last.after <= optimizer.last.loss
    assert optimizer.param_groups[0]["damping"] > 1e-6
    assert optimizer.last.kept or torch.equal(model.w.detach(), weights)


def test_a_run_goes_on_from_its_state():
    model, batch = teacher(1)
    optimizer = GaussNewtonCG(model, squared)
    optimizer.step(batch)
    copy, _ = teacher(1)
    copy.load_state_dict(model.state_dict())
    other = GaussNewtonCG(copy, squared)
    other.load_state_dict(optimizer.state_dict())
    assert optimizer.step(batch) == other.step(batch)
    assert optimizer.last == other.last
    for a, b in zip(model.parameters(), copy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_gradients_and_mode_are_left_alone():
    model, batch = teacher()
    model.eval()
    squared(model(batch[0]), batch).backward()
    before = [p.grad.clone() for p in model.parameters()]
    GaussNewtonCG(model, squared).step(batch)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    assert not model.training


def test_refusals():
    model, _batch = linear()
    with pytest.raises(InputError, match="the batch itself"):
        NewtonCG(model, squared).step(lambda: 0.0)
    with pytest.raises(InputError, match="lr above 0"):
        NewtonCG(model, squared, lr=0.0)
