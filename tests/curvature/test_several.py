"""Several vectors in one pass by units: the work that no vector touches is done once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_units import double_backward, gap, mse, net
from test_units_memory import allocated
from torch import Tensor, nn

from quadform.curvature import Risk, functional, gauss_newton, hessian
from quadform.curvature.outline import Counted
from quadform.curvature.several import NotTogether, Several, together

F64 = torch.float64
K, N, D, BLOCKS = 4, 5, 6, 3


class Chain(nn.Module):
    """Blocks of one matrix each: all matrix products are those of a block, in its input and its matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Parameter(torch.randn(D))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Sequential(nn.Linear(D, D, bias=False), nn.Tanh())) for _ in range(BLOCKS)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.enter
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(scope="module")
def chain() -> Risk:
    torch.manual_seed(0)
    return Risk(Chain().to(F64), mse, (torch.randn(N, D, dtype=F64), torch.randn(N, D, dtype=F64)), quiet=True)


def passes(work: Callable[[], Any]) -> float:
    """Matrix work in forward passes."""
    with Counted() as counted:
        work()
    return counted.flops / (BLOCKS * 2 * N * D * D)


@pytest.mark.parametrize(("make", "shared", "each"), [(hessian, 4, 8), (gauss_newton, 3, 4), (functional, 5, 8)])
def test_matrix_work_is_counted(chain: Risk, make: Any, shared: int, each: int) -> None:
    """4 + 8 k forward passes: the first run, its repetition and the reverse pass are those of all vectors; H_o and
    H_f run forwards once more, for the derivatives behind the output."""
    A = make(chain, route="units")
    V = chain.space.random(K, dtype=F64)
    A @ V  # looks at derivatives first
    assert passes(lambda: A @ {n: t[0] for n, t in V.items()}) == pytest.approx(shared + each, abs=1e-12)
    assert passes(lambda: A @ V) == pytest.approx(shared + each * K, abs=1e-12)
    if make is hessian:
        assert (shared + each * K) / K <= 9.2


@pytest.mark.parametrize("make", [hessian, gauss_newton, functional])
def test_images_are_those_of_one_vector_at_a_time(make: Any) -> None:
    """Norms, attention, rules that need a graph; of H those of a double backward."""
    model, batch = net()
    risk = Risk(model, mse, batch, quiet=True)
    V, A = risk.space.random(K, dtype=F64), make(risk, route="units")
    found = A @ V
    for j in range(K):
        v = {n: t[j] for n, t in V.items()}
        assert gap({n: t[j] for n, t in found.items()}, A @ v) <= 1e-14
        if make is hessian:
            with risk.context():
                want = double_backward(model, lambda: mse(model(batch[0]), batch), v)
            assert gap({n: t[j] for n, t in found.items()}, want) <= 1e-13


def test_memory_of_several_vectors() -> None:
    """Each further vector adds its tangents: less than two thirds of what one takes, whose values they share."""
    torch.manual_seed(0)
    risk = Risk(Chain().to(F64), mse, (torch.randn(400, D, dtype=F64), torch.randn(400, D, dtype=F64)), quiet=True)
    A, V = hessian(risk, route="units"), risk.space.random(K, dtype=F64)
    A @ V
    one, _ = allocated(lambda: A @ {n: t[0] for n, t in V.items()})
    most, left = allocated(lambda: A @ V)
    assert left == 0
    assert most - one <= 2 / 3 * (K - 1) * one


class Indexed(Chain):
    """The reverse rule of indexing writes into a tensor of zeros, which is one for all vectors."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.enter[torch.arange(D)]


def test_operators_that_write_one_tensor_for_all_are_told(capsys: Any) -> None:
    torch.manual_seed(0)
    risk = Risk(Indexed().to(F64), mse, (torch.randn(N, D, dtype=F64), torch.randn(N, D, dtype=F64)), quiet=True)
    V, A = risk.space.random(K, dtype=F64), hessian(risk, route="units")
    for _ in range(2):
        assert gap(A @ V, hessian(risk) @ V) <= 1e-13
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "Hessian: one vector after another (`_index_put_impl_.default` writes one tensor for all)"
    assert A.route == "units"


def test_images_that_differ_are_told(chain: Risk, monkeypatch: Any, capsys: Any) -> None:
    """The first ones in one pass are compared with one alone."""
    V, A = chain.space.random(K, dtype=F64), hessian(chain, route="units")
    monkeypatch.setattr("quadform.curvature.by_units.together", lambda product, V: {n: 2 * t for n, t in V.items()})
    assert gap(A @ V, hessian(chain) @ V) <= 1e-13
    assert "the image is not that of the vector alone" in capsys.readouterr().err


def test_operators_run_for_each() -> None:
    """Views, several results, writing in place; a number that is not the same for all is refused."""
    a, b = torch.randn(3, 2, dtype=F64), torch.randn(3, 2, dtype=F64)
    t = Several([a.clone(), b.clone()])
    low, where = t.min(1)
    assert torch.equal(low.parts[1], b.min(1).values)  # type: ignore[attr-defined]  # several again
    assert torch.equal(where.parts[0], a.argmin(1))  # type: ignore[attr-defined]
    assert t.add_(1) is t
    assert torch.equal(t.parts[1], b + 1)
    with pytest.raises(NotTogether, match="differs between them"):
        float(t.sum())
    with pytest.raises(NotTogether, match=r"`add_\.Tensor` writes one tensor for all"):
        a.clone().add_(t)
    assert float((t - t).sum()) == 0
    image = together(lambda v: {"a": v["a"] * 2, "b": a}, {"a": torch.stack([a, b])})
    assert torch.equal(image["a"], 2 * torch.stack([a, b]))
    assert torch.equal(image["b"], torch.stack([a, a]))
