"""Memory of operators comes back: what a product allocates is freed with its operator."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile

from quadform.core.errors import InputError
from quadform.core.operator import Operator
from quadform.curvature import Risk, activation_hessian, fisher, functional, gauss_newton, hessian

F64 = torch.float64


def left_over(work: Callable[[], Any]) -> int:
    """Bytes that torch's allocator gave out during `work` and did not get back, seen below Python and its collector."""
    gc.collect()
    with profile(profile_memory=True) as seen:
        work()
        gc.collect()
    assert seen.kineto_results is not None
    return sum(event.nbytes() for event in seen.kineto_results.events() if event.name() == "[memory]")


def cross_entropy(out: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(out, batch[1])


class Net(nn.Module):
    """Operators that save their own result: layer norm, softmax, tanh, exp."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 32), nn.LayerNorm(32), nn.Linear(32, 3)
        self.evaluations = 10**6  # so many are left
        self.end: BaseException = RuntimeError("a part of the model failed")

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.a(x)).softmax(-1).tanh().exp()
        self.evaluations -= 1
        if self.evaluations < 0:
            raise self.end
        return self.b(h)


@pytest.fixture
def net() -> tuple[Net, list[tuple[Tensor, Tensor]]]:
    return Net().to(F64), [(torch.randn(n, 4, dtype=F64), torch.randint(3, (n,))) for n in (500, 300)]


ROUTES = [(make, route) for make in (hessian, gauss_newton, functional) for route in ("eager", "traced")]
KINDS: dict[str, Callable[[Risk], Operator]] = {
    **{f"{make.__name__}, {route}": partial(make, route=route) for make, route in ROUTES},  # type: ignore[call-arg]
    "a module's output": partial(gauss_newton, split="norm"),
    "a block": partial(hessian, rows="a.*", cols="b.*", route="traced"),
    "empirical Fisher": fisher,
    "Monte-Carlo Fisher": partial(fisher, kind="monte-carlo"),
    "activations": lambda risk: activation_hessian(Risk(risk.model, risk.loss, risk.batches[:1], quiet=True)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_memory_comes_back(net: Any, kind: str) -> None:
    """Nothing stays of an operator that nobody holds, whatever its kind and route."""
    model, batches = net

    def work() -> None:
        A = KINDS[kind](Risk(model, cross_entropy, batches, quiet=True))
        for _ in range(2):
            A @ A.domain.random(2, dtype=F64)

    assert left_over(work) == 0


def test_memory_comes_back_of_a_compiled_program(net: Any) -> None:
    """Weights that are not measured are constants of the program; the compiler's caches do not hold them."""
    model, batches = net

    def work() -> None:
        risk = Risk(model, cross_entropy, batches[:1], params="a.*", quiet=True)
        A = gauss_newton(risk, route="compiled")
        A @ risk.space.random(dtype=F64)
        assert A.route == "compiled"  # type: ignore[attr-defined]

    assert left_over(work) == 0


@pytest.mark.parametrize(("route", "after"), [("eager", 0), ("eager", 3), ("traced", 3)])
@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt])
def test_memory_comes_back_after_an_error(net: Any, route: Any, after: int, end: type[BaseException]) -> None:
    """A product that ends in an error, or by Ctrl-C, holds nothing, and the next one is right."""
    model, batches = net
    model.end = end("a part of the model failed")

    def work() -> None:
        risk = Risk(model, cross_entropy, batches, quiet=True)
        A, v = hessian(risk, route=route), risk.space.random(dtype=F64)
        model.evaluations = after
        with pytest.raises((end, InputError), match="a part of the model failed"):
            A @ v
        model.evaluations, model.end = 10**6, end("")  # errors hold frames

    assert left_over(work) == 0
    risk = Risk(model, cross_entropy, batches, quiet=True)
    v = risk.space.random(dtype=F64)
    want = gauss_newton(risk) @ v
    rest = functional(risk) @ v
    for n, t in (hessian(risk, route=route) @ v).items():
        torch.testing.assert_close(t, want[n] + rest[n])


def test_many_risks_do_not_add_up(net: Any) -> None:
    """While one operator lives, those before it are gone: ten leave no more than one."""
    model, batches = net
    kept: list[Any] = []

    def work(times: int) -> None:
        for _ in range(times):
            A = hessian(Risk(model, cross_entropy, batches, quiet=True))
            kept[:] = [A, A @ A.domain.random(dtype=F64)]

    once = left_over(partial(work, 1))
    assert once > 0
    assert left_over(partial(work, 10)) == 0  # the one of before makes room for the last


class Overwrites(nn.Module):
    """exp needs its own result, which is written over."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).exp()
        return y.mul_(2)


@pytest.mark.parametrize("route", ["eager", "traced"])
def test_results_written_over_are_refused(route: Any) -> None:
    """Torch refuses to train such a model; its curvature is not given either."""
    batch = (torch.randn(5, 4, dtype=F64), torch.randint(3, (5,)))
    model = Overwrites()
    with pytest.raises(RuntimeError, match="inplace"):
        cross_entropy(model(batch[0]), batch).backward()
    risk = Risk(model, cross_entropy, batch, quiet=True)
    with pytest.raises(InputError, match="was overwritten by an inplace operation"):
        hessian(risk, route=route) @ risk.space.random(dtype=F64)
