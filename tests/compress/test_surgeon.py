"""OBS against brute force over all sets; bits under a budget against brute force over all choices."""

import itertools

import numpy as np
import pytest
import torch

from quadform.compress.allocation import allocate, choices_of
from quadform.compress.surgeon import Surgeon
from quadform.core.errors import InputError


def quadratic(n=8, seed=0, gradient=True):
    r = np.random.default_rng(seed)
    A = r.normal(size=(n, 2 * n))
    w, g = torch.tensor(r.normal(size=n)), torch.tensor(r.normal(size=n) * 0.1)
    return w, torch.tensor(A @ A.T / n), g if gradient else torch.zeros(n, dtype=torch.double)


def constrained(w, H, g, removed):
    """The minimum by elimination: the kept coordinates are solved for."""
    kept = [i for i in range(len(w)) if i not in removed]
    d = torch.zeros_like(w)
    d[list(removed)] = -w[list(removed)]
    d[kept] = torch.linalg.solve(H[kept][:, kept], -g[kept] - H[kept][:, list(removed)] @ d[list(removed)])
    return d


@pytest.mark.parametrize("gradient", [False, True])
def test_the_step_is_the_constrained_minimum_for_every_set(gradient):
    w, H, g = quadratic(6, gradient=gradient)
    surgeon = Surgeon.of(w, H, g)
    for k in (1, 2, 3, 5):
        for removed in itertools.combinations(range(6), k):
            torch.testing.assert_close(surgeon.step(torch.tensor(removed)), constrained(w, H, g, removed))


def test_one_weight_is_the_formula_of_the_paper():
    w, H, _ = quadratic(gradient=False)
    surgeon, P = Surgeon.of(w, H), torch.linalg.inv(H)
    d = surgeon.step(torch.tensor([3]))
    torch.testing.assert_close(d, -(w[3] / P[3, 3]) * P[:, 3])
    torch.testing.assert_close(surgeon.predicted(d), w[3] ** 2 / (2 * P[3, 3]))


@pytest.mark.parametrize("seed", range(5))
def test_the_order_takes_the_cheapest_each_time(seed):
    w, H, g = quadratic(7, seed=seed)
    surgeon = Surgeon.of(w, H, g)
    found = surgeon.order(4).tolist()
    gone: list[int] = []
    for q in found:
        cost = {i: float(surgeon.predicted(constrained(w, H, g, [*gone, i]))) for i in range(7) if i not in gone}
        assert q == min(cost, key=lambda i: cost[i])
        gone.append(q)


def test_obs_on_a_network_of_forty_weights():
    """Every pair of weights of a trained network with 40 weights: OBS finds the best pair of its quadratic model."""
    torch.manual_seed(0)
    X = torch.randn(60, 5, dtype=torch.double)
    y = torch.tanh(X @ torch.randn(5, 1, dtype=torch.double))
    shapes = [(6, 5), (1, 6)]
    w = torch.randn(36, dtype=torch.double) * 0.5
    w = torch.cat([w, torch.zeros(4, dtype=torch.double)])

    def loss(p):
        W1, W2, b = p[:30].reshape(shapes[0]), p[30:36].reshape(shapes[1]), p[36:40]
        hidden = torch.tanh(X @ W1.T + torch.cat([b[:3], b[:3]]))
        return ((hidden @ W2.T + b[3] - y) ** 2).mean() + 1e-2 * p.square().sum()

    p = w.clone().requires_grad_()
    best = torch.optim.LBFGS([p], max_iter=2000, tolerance_grad=1e-12, line_search_fn="strong_wolfe")
    best.step(lambda: (best.zero_grad(), loss(p).backward(), loss(p))[2])
    w = p.detach()
    H, g = torch.func.hessian(loss)(w), torch.func.grad(loss)(w)
    surgeon = Surgeon.of(w, H, g)
    pairs = list(itertools.combinations(range(40), 2))
    costs = [float(surgeon.predicted(constrained(w, H, g, pair))) for pair in pairs]
    found = [float(surgeon.predicted(surgeon.step(torch.tensor(pair)))) for pair in pairs]
    np.testing.assert_allclose(found, costs, rtol=1e-8, atol=1e-14)
    greedy = surgeon.order(2)
    assert float(surgeon.predicted(surgeon.step(greedy))) <= 1.5 * min(costs)
    # One weight: the predicted rise is the measured one to second order.
    d = surgeon.step(greedy[:1])
    measured = float(loss(w + d) - loss(w))
    assert measured == pytest.approx(float(surgeon.predicted(d)), rel=0.3)


def test_without_a_minimum_it_is_refused():
    w, H, g = quadratic()
    with pytest.raises(InputError, match="damping above"):
        Surgeon.of(w, H - 5 * torch.eye(8, dtype=torch.double), g)


@pytest.mark.parametrize("seed", range(20))
def test_bits_under_a_budget(seed):
    r = np.random.default_rng(seed)
    sizes = {f"m{i}": {b: float(b * n) for b in (2, 3, 4, 8)} for i, n in enumerate(r.integers(20, 60, size=5))}
    count = 20
    steps = r.normal(size=(count, 30)) * np.repeat([[4.0], [2.0], [1.0], [0.1]], 5, axis=1).T.reshape(-1, 1)
    A = r.normal(size=(30, 30))
    curve = torch.tensor(steps @ (A @ A.T) @ steps.T)
    choices = choices_of(sizes, curve)
    budget = 4.0 * sum(s[4] for s in sizes.values()) / 4

    def fits(chosen):
        return float(choices.size[chosen].sum()) <= budget

    every = [torch.tensor(c) for c in itertools.product(*(range(4 * i, 4 * i + 4) for i in range(5)))]
    best = min(choices.predicted(c) for c in every if fits(c))
    found = allocate(choices, budget)
    chosen = torch.tensor([4 * i + [2, 3, 4, 8].index(b) for i, b in enumerate(found.values())])
    assert fits(chosen)
    assert choices.predicted(chosen) <= best + 0.05 * abs(best)
    assert min(allocate(choices.at_least(3), budget).values()) >= 3
    with pytest.raises(InputError, match="fewest bits"):
        allocate(choices, 10.0)


def test_a_budget_that_is_the_size_of_the_fewest_bits_fits():
    """Sizes over a number of weights and times it again may be less by rounding."""
    least, n = next((s, n) for s in range(1000, 2000) for n in range(3, 400) if (s / n) * n < s)
    choices = choices_of({"a": {4: float(least), 8: 2.0 * least}}, torch.eye(2, dtype=torch.double))
    assert allocate(choices, (least / n) * n) == {"a": 4}
