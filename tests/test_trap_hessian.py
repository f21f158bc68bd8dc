"""A trap, kept visible: `torch.func.hessian` is silently wrong through layer norm with a weight.

The oracle of this project is `jacfwd(grad)` or double backward. When this file turns red because the trap is gone
(upstream: pytorch/pytorch#196700, #198017), the warning in the documentation can go too; the oracle stays.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
W = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
THETA = torch.cat(
    [W.reshape(-1), torch.linspace(0.5, 1.5, 5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)]
)


def loss(theta: Tensor, norm=F.layer_norm) -> Tensor:
    """A 35-parameter toy: mean square of a layer norm, with weight and bias, of a linear map."""
    W, weight, bias = theta[:25].reshape(5, 5), theta[25:30], theta[30:]
    return norm(X @ W, (5,), weight, bias).sin().square().mean()


def by_hand(Z: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer norm from its definition."""
    centred = Z - Z.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def double_backward(f, theta: Tensor) -> Tensor:
    theta = theta.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(theta), theta, create_graph=True)
    return torch.stack([torch.autograd.grad(g_i, theta, retain_graph=True)[0] for g_i in g])


def off(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def test_the_oracles_agree() -> None:
    """jacfwd(grad) = double backward to 1e-12, through F.layer_norm and through its definition; symmetric."""
    want = double_backward(lambda t: loss(t, by_hand), THETA)
    assert off(jacfwd(grad(loss))(THETA), want) < 1e-12
    assert off(double_backward(loss, THETA), want) < 1e-12
    assert off(jacfwd(grad(lambda t: loss(t, by_hand)))(THETA), want) < 1e-12
    assert off(want, want.T) < 1e-12


def test_finite_differences_side_with_the_oracles() -> None:
    """Central differences of the gradient give the same matrix to their own accuracy."""
    step, g = 1e-5, grad(loss)
    columns = [(g(THETA + step * e) - g(THETA - step * e)) / (2 * step) for e in torch.eye(35, dtype=torch.float64)]
    assert off(torch.stack(columns, 1), jacfwd(grad(loss))(THETA)) < 1e-8


def test_the_trap() -> None:
    """torch.func.hessian through F.layer_norm with weight: percents off and not symmetric, without a warning."""
    want = jacfwd(grad(loss))(THETA)
    got = hessian(loss)(THETA)
    assert off(got, want) > 1e-2
    assert off(got, got.T) > 1e-2


def test_the_trap_is_the_fused_layer_norm() -> None:
    """The same call is right through the hand-written definition: the fused formula's derivative is at fault."""
    assert off(hessian(lambda t: loss(t, by_hand))(THETA), jacfwd(grad(loss))(THETA)) < 1e-12


def test_reverse_over_reverse_is_in_the_trap_too() -> None:
    """jacrev(jacrev) is wrong as well: only the derivative of the *gradient* is to be trusted."""
    assert off(jacrev(jacrev(loss))(THETA), jacfwd(grad(loss))(THETA)) > 1e-2


def test_a_symmetry_probe_exposes_it() -> None:
    """u^T H v = v^T H u holds for the oracle and fails for the trap: a two-vector check users can run."""
    u, v = torch.randn(2, 35, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    right, wrong = jacfwd(grad(loss))(THETA), hessian(loss)(THETA)
    assert abs(u @ right @ v - v @ right @ u) < 1e-12 * right.norm() * u.norm() * v.norm()
    assert abs(u @ wrong @ v - v @ wrong @ u) > 1e-4 * right.norm() * u.norm() * v.norm()
