"""Reparameterised weights: training dW is training W with another step, at every step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.errors import InputError, UnknownName
from quadform.propagation.reparam import Step, compose, dual_step, split

torch.set_num_threads(1)
f64 = torch.float64
branches = st.sampled_from([0.05, 0.2, 0.7, 1.0, 1.5])


def problem():
    generator = torch.Generator().manual_seed(0)
    W_init, X = (torch.randn(3, 3, generator=generator, dtype=f64) for _ in range(2))
    return W_init, lambda W: torch.tanh(X @ W).square().sum() + (W**4).sum() / 10


def train(loss, start, optimizer, step, steps=6, **more):
    """`steps` steps of torch's own optimizer on a parameter that starts at `start`; the path of the parameter."""
    p = torch.nn.Parameter(start.clone())
    path = []
    if optimizer == "sgd":
        made = torch.optim.SGD([p], lr=step.lr, **more)
    else:
        made = torch.optim.AdamW([p], lr=step.lr, eps=step.eps, weight_decay=step.weight_decay)
    for _ in range(steps):
        made.zero_grad()
        loss(p).backward()
        made.step()
        path.append(p.detach().clone())
    return path


@given(branches, st.sampled_from([0.0, 0.9]))
def test_sgd_duality(branch, momentum):
    """SGD with momentum: lr on dW is lr branch^2 on W, for every step."""
    W_init, loss = problem()
    step = Step(lr=1e-2)
    inner = train(lambda V: loss(compose(W_init, V, 1.0, branch)), torch.zeros(3, 3, dtype=f64), "sgd", step,
                  momentum=momentum)  # fmt: skip
    outer = train(loss, W_init, "sgd", dual_step("sgd", step, branch), momentum=momentum)
    for V, W in zip(inner, outer, strict=True):
        torch.testing.assert_close(compose(W_init, V, 1.0, branch), W, rtol=1e-10, atol=1e-12)


@given(branches, st.sampled_from([1e-8, 1e-1]))
def test_adam_duality(branch, eps):
    """Adam: lr and eps on dW are lr branch and eps / branch on W, for every step and any eps."""
    W_init, loss = problem()
    step = Step(lr=1e-2, eps=eps)
    inner = train(lambda V: loss(compose(W_init, V, 1.0, branch)), torch.zeros(3, 3, dtype=f64), "adam", step)
    outer = train(loss, W_init, "adam", dual_step("adam", step, branch))
    for V, W in zip(inner, outer, strict=True):
        torch.testing.assert_close(compose(W_init, V, 1.0, branch), W, rtol=1e-9, atol=1e-11)


@given(branches)
def test_decay_pulls_towards_the_anchor(branch):
    """AdamW on dW is AdamW on W - skip W_init: the decay's anchor is skip W_init, its rate weight_decay / branch."""
    W_init, loss = problem()
    step = Step(lr=1e-2, eps=1e-6, weight_decay=0.3)
    inner = train(lambda V: loss(compose(W_init, V, 0.8, branch)), torch.zeros(3, 3, dtype=f64), "adam", step)
    anchored = train(
        lambda U: loss(0.8 * W_init + U), torch.zeros(3, 3, dtype=f64), "adam", dual_step("adam", step, branch)
    )
    for V, U in zip(inner, anchored, strict=True):
        torch.testing.assert_close(branch * V, U, rtol=1e-9, atol=1e-11)


@given(branches)
def test_decay_of_sgd_pulls_towards_the_anchor(branch):
    """dW <- (1 - lr wd) dW - lr g branch is U <- (1 - lr' wd') U - lr' g for U = branch dW, W = skip W_init + U."""
    W_init, loss = problem()
    step = Step(lr=1e-2, weight_decay=0.3)
    dual = dual_step("sgd", step, branch)
    V, U = torch.full((3, 3), 0.5, dtype=f64), torch.full((3, 3), 0.5 * branch, dtype=f64)
    for _ in range(6):
        V = (1 - step.lr * step.weight_decay) * V - step.lr * torch.func.grad(
            lambda v: loss(compose(W_init, v, 0.8, branch))
        )(V)
        U = (1 - dual.lr * dual.weight_decay) * U - dual.lr * torch.func.grad(lambda u: loss(0.8 * W_init + u))(U)
        torch.testing.assert_close(branch * V, U, rtol=1e-10, atol=1e-12)


@given(branches)
def test_split_inverts_compose(branch):
    """split(compose(dW)) = dW; a fixed matrix (branch 0) has no dW."""
    W_init, _ = problem()
    dW = torch.arange(9, dtype=f64).reshape(3, 3)
    torch.testing.assert_close(split(compose(W_init, dW, 0.6, branch), W_init, 0.6, branch), dW)


def test_bad_input_is_named():
    W_init, _ = problem()
    with pytest.raises(InputError, match="branch = 0"):
        split(W_init, W_init, 1.0, 0.0)
    with pytest.raises(InputError, match="branch > 0"):
        dual_step("sgd", Step(lr=1.0), 0.0)
    with pytest.raises(UnknownName):
        dual_step("adan", Step(lr=1.0), 1.0)
