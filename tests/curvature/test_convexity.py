"""H_o promises to be positive semi-definite where the loss is known to be convex, and nowhere else."""

import pytest
import torch
import torch.nn.functional as fn
from torch import nn

import quadform as qf
from quadform.curvature.labels import label_weights
from quadform.testing import check_operator

X = torch.randn(6, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (6, 5), generator=torch.Generator().manual_seed(1))
Z = torch.randn(6, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def risk_of(loss, *, scale=1.0, data=(X, Y), dtype=torch.float64):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).to(dtype)
    with torch.no_grad():
        model[2].weight.mul_(scale)
    return qf.Risk(model, loss, tuple(t.to(dtype) if t.is_floating_point() else t for t in data), quiet=True)


def entropy(F, batch, **options):
    return fn.cross_entropy(F.flatten(0, 1), batch[1].flatten(), **options)


def ignored(F, batch):
    return entropy(F, (None, torch.where(batch[1] == 3, -100, batch[1])))


KNOWN = {
    "cross-entropy": entropy,
    "smoothed and weighed": lambda F, b: entropy(F, b, label_smoothing=0.1, weight=torch.arange(1.0, 5).to(F)),
    "classes on axis 1": lambda F, b: fn.cross_entropy(F.mT, b[1]),
    "some labels ignored": ignored,
    "squared error": lambda F, b: (F - Z.to(F)).square().mean(),
    "weighed squares": lambda F, b: (torch.arange(4).to(F) * (F - Z.to(F)).square()).sum(),
    "sigmoid": lambda F, b: fn.binary_cross_entropy_with_logits(F, Z.sigmoid().to(F)),
}
UNKNOWN = {
    "the negative of a cross-entropy": lambda F, b: -entropy(F, b),
    "focal": lambda F, b: (-((1 - (lp := F.log_softmax(-1)).exp()) ** 2) * lp)[..., 0].mean(),
    "a cosine": lambda F, b: (1 - (F - Z).cos()).mean(),
    "a wide cosine": lambda F, b: (1 - (0.1 * (F - Z)).cos()).mean(),  # bends upwards here, as squares do
    "squares of squares": lambda F, b: ((F * F - Z) ** 2).mean(),
    "one place negative": lambda F, b: (torch.tensor([1.0, 1, 1, -1]).to(F) * (F - Z).square()).mean(),
    "linear": lambda F, b: F.mean(),
    "cross-entropy and a little more": lambda F, b: entropy(F, b) - 0.01 * F.square().mean(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_convex_loss_makes_the_promise(name):
    H_o = qf.gauss_newton(risk_of(KNOWN[name]))
    assert H_o.psd
    assert H_o.block("0.*").psd
    assert not H_o.block("0.*", "2.*").psd
    check_operator(H_o)


def test_a_model_that_is_certain_of_most_keeps_the_promise():
    assert qf.gauss_newton(risk_of(entropy, scale=100.0)).psd


def test_single_precision_is_enough():
    assert qf.gauss_newton(risk_of(entropy, dtype=torch.float32)).psd


@pytest.mark.parametrize("name", UNKNOWN)
def test_another_loss_promises_nothing(name):
    assert not qf.gauss_newton(risk_of(UNKNOWN[name])).psd


def test_a_split_inside_promises_nothing():
    assert not qf.gauss_newton(risk_of(entropy), "0.*", "0.*", split="0").psd


def test_a_system_with_h_o_is_solved_by_cg_with_a_bound():
    """|x - x*| <= bound = |r| / damping, which minres cannot say."""
    risk = risk_of(entropy)
    H_o, g = qf.gauss_newton(risk), risk.gradient()
    found = H_o.solve(g, damping=1e-3)
    assert found.method == "cg"
    assert found.bound is not None
    A = H_o.dense() + 1e-3 * torch.eye(H_o.domain.size, dtype=torch.float64)
    exact = torch.linalg.solve(A, H_o.domain.flatten(g))
    assert float((H_o.domain.flatten(found.x) - exact).norm()) <= float(found.bound)
    assert qf.hessian(risk).solve(g, damping=5.0).method == "minres"


def test_labels_have_no_negative_weights():
    """-cross-entropy is not a cross-entropy of weight 0."""
    F = Z[0].clone().requires_grad_()
    (g,) = torch.autograd.grad(-fn.cross_entropy(F, Y[0, :5]), F, create_graph=True)
    assert label_weights(F, lambda d: torch.autograd.grad(g, F, d, retain_graph=True)[0]) is None
