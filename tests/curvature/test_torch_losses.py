"""Losses of torch as people write them: `nn.CrossEntropyLoss()`, `F.mse_loss`, with batches (x, y)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quadform as qf
from quadform.core.errors import InputError

F64 = torch.float64


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).to(F64)


X = torch.randn(6, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 2, 1, -100, 2, 0])


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (nn.CrossEntropyLoss(), CLASSES),
        (partial(F.cross_entropy, label_smoothing=0.1), CLASSES),
        (F.mse_loss, X.flip(0)),
        (nn.HuberLoss(delta=0.3), X.flip(0)),
    ],
)
def test_products_are_those_of_the_loss_written_out(model: nn.Module, loss: Any, y: torch.Tensor) -> None:
    """The same Hessian as with a function of output and batch."""
    short = qf.hessian(qf.Risk(model, loss, (X, y))).dense()
    written = qf.hessian(qf.Risk(model, lambda out, batch: loss(out, batch[1]), (X, y))).dense()
    assert float(short.norm()) > 0
    assert torch.equal(short, written)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.HuberLoss(delta=0.3), F.smooth_l1_loss])
def test_gauss_newton_needs_no_other_way(model: nn.Module, loss: Any) -> None:
    """Forward derivatives, several vectors at once: nothing to tell; J^T (d2l/dF2) J, both by reverse passes."""
    risk = qf.Risk(model, loss, (X, X.flip(0)))
    H_o = qf.gauss_newton(risk)
    found = H_o.dense()
    assert H_o.why == ()
    weights, F_ = dict(model.named_parameters()), model(X)
    J = torch.stack([risk.space.flatten(dict(zip(weights, g, strict=True))) for g in _rows(F_, weights)])
    G = torch.autograd.functional.hessian(lambda out: loss(out.view_as(F_), X.flip(0)), F_.detach().flatten())
    torch.testing.assert_close(found, J.T @ G @ J, rtol=1e-10, atol=1e-14)


def _rows(out: torch.Tensor, weights: dict[str, Any]) -> list[Any]:
    return [torch.autograd.grad(o, list(weights.values()), retain_graph=True) for o in out.flatten()]


def test_batches_weigh_as_many_terms_as_they_have(model: nn.Module) -> None:
    """Two batches of unequal size give the Hessian of all rows at once."""
    loss = nn.CrossEntropyLoss()
    parts = qf.hessian(qf.Risk(model, loss, [(X[:4], CLASSES[:4]), (X[4:], CLASSES[4:])])).dense()
    torch.testing.assert_close(parts, qf.hessian(qf.Risk(model, loss, (X, CLASSES))).dense(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", [nn.MSELoss(reduction="sum"), partial(F.mse_loss, reduction="sum")])
def test_sums_are_refused(model: nn.Module, loss: Any) -> None:
    """A sum would weigh batches by their size twice."""
    with pytest.raises(InputError, match=r"got (MSELoss|mse_loss) with reduction='sum'. Use 'mean'"):
        qf.Risk(model, loss, (X, X))


def test_spectrum_of_a_model_without_attention(model: nn.Module) -> None:
    """`blocks` is layers where there are no query, key and value matrices."""
    found = qf.spectrum(model, [(X, X.flip(0))], nn.MSELoss(), top=1, progress=False)
    dense = qf.hessian(qf.Risk(model, F.mse_loss, (X, X.flip(0)))).dense()
    assert found.top[0].value == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-3)
    assert {"0", "2"} == set(found.names)
