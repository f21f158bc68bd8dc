"""Memory of products by units: that of one block and of the inputs of all; it comes back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile

from quadform.core.errors import InputError
from quadform.curvature import Risk, functional, gauss_newton, hessian
from quadform.curvature.by_units import ByUnits, Evaluation
from quadform.curvature.foresight import graph_bytes
from quadform.curvature.retained import Retained
from quadform.curvature.units import NoUnit
from quadform.distributed.processes import Group

F64 = torch.float64
BLOCKS = 12


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.evaluations = 10**9  # so many are left

    def forward(self, x: Tensor) -> Tensor:
        self.evaluations -= 1
        if self.evaluations < 0:
            raise KeyboardInterrupt
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)))).softmax(-1)


class Net(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.blocks, self.leave = nn.ModuleList(Block(d) for _ in range(BLOCKS)), nn.Linear(d, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def cross_entropy(out: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(out, batch[1])


@pytest.fixture
def problem() -> tuple[Net, tuple[Tensor, Tensor]]:
    """Activations outweigh the weights: 1 MB a block against 20 kB."""
    return Net().to(F64), (torch.randn(500, 16, dtype=F64), torch.randint(3, (500,)))


def allocated(work: Callable[[], Any]) -> tuple[int, int]:
    """(most bytes that torch's allocator had given out at a time during `work`, bytes it did not get back)."""
    gc.collect()
    with profile(profile_memory=True) as seen:
        work()
        gc.collect()
    assert seen.kineto_results is not None
    events = [e for e in seen.kineto_results.events() if e.name() == "[memory]"]
    now, most = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most, now


@pytest.mark.parametrize("make", [hessian, gauss_newton, functional])
def test_memory_is_that_of_one_block(problem: Any, make: Any) -> None:
    """A product of twelve blocks takes a small part of what the other eager products take, and gives it back."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    assert risk.soundness.twice
    assert risk.through("units")  # looked at before

    def work(route: Any) -> None:
        A = make(risk, route=route)
        A @ v
        assert A.route == route

    whole, _ = allocated(lambda: work("eager"))
    least, left = allocated(lambda: work("units"))
    assert least < whole / (3 if make is gauss_newton else 5)
    assert left == 0


def test_memory_does_not_grow_with_the_inside_of_blocks(problem: Any) -> None:
    """Twice as many blocks add their inputs with tangents, and weights, and nothing else."""
    model, batch = problem
    peaks = []
    for blocks in (BLOCKS, BLOCKS // 2):
        model.blocks = model.blocks[:blocks]
        risk = Risk(model, cross_entropy, batch, quiet=True)
        v, A = risk.space.random(dtype=F64), hessian(risk, route="units")
        A @ v  # looks at derivatives first
        peaks.append(allocated(lambda A=A, v=v: A @ v)[0])
    inputs = 2 * batch[0].numel() * 8
    weights = sum(p.numel() for p in model.blocks[0].parameters()) * 8
    assert peaks[0] - peaks[1] <= BLOCKS // 2 * (inputs + 2 * weights)


@pytest.mark.parametrize("make", [hessian, gauss_newton, functional])
def test_checks_take_no_more_than_a_product(problem: Any, make: Any) -> None:
    """What is looked at before the first product fits where products of H by units do; beside it a few vectors of the
    size of the weights."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    made: list[Any] = []
    first, _ = allocated(lambda: made.append(make(risk, route="units")) or made[0] @ v)
    later, _ = allocated(lambda: hessian(risk, route="units") @ v)
    weights = 8 * sum(t.numel() for t in risk.params.values())
    assert first <= later + 3 * weights
    assert 4 * weights < later / 2


@pytest.mark.parametrize("after", [BLOCKS // 2, BLOCKS + 3])
def test_memory_comes_back_after_an_interrupt_inside_a_unit(problem: Any, after: int) -> None:
    """Forwards, and backwards where a unit is run again."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    v = risk.space.random(dtype=F64)
    A = hessian(risk, route="units")
    want = A @ v

    def work() -> None:
        shared = model.blocks[3]
        shared.evaluations = 0 if after < BLOCKS else 1
        with pytest.raises(KeyboardInterrupt):
            A @ v
        shared.evaluations = 10**9

    allocated(work)  # torch keeps what an interrupted reverse pass has found until the next one
    assert allocated(work)[1] == 0
    for n, t in (A @ v).items():
        assert torch.equal(t, want[n])


@pytest.mark.parametrize("make", [hessian, functional])
def test_units_are_taken_where_the_graph_does_not_fit(problem: Any, make: Any, monkeypatch: Any, capsys: Any) -> None:
    """With little memory free no graph of the whole is made, neither for a product nor to check derivatives."""
    model, batch = problem
    fits = Risk(model, cross_entropy, batch, quiet=True)
    v = fits.space.random(dtype=F64)
    want, (whole, _) = make(fits) @ v, allocated(lambda: make(fits) @ v)
    monkeypatch.setattr(Group, "free_here", lambda group, device: whole / 8)
    risk = Risk(model, cross_entropy, batch, quiet=True)
    most, _ = allocated(lambda: risk.soundness)
    assert most < whole / 2
    assert risk.soundness.twice
    A = make(risk)
    least, _ = allocated(lambda: A @ v)
    assert least < whole / 2
    assert A.route == "units"
    (why,) = A.why
    assert "the graph would take about" in why
    how = f"by its {BLOCKS} units, which are run again backwards, about 2.0 times as long a product"
    assert why.endswith(f"; {how}.")
    assert capsys.readouterr().err == why + "\n"
    for n, t in (A @ v).items():
        torch.testing.assert_close(t, want[n])


def test_the_graph_is_foreseen_from_one_block(problem: Any) -> None:
    """To a few percent, at the memory of one block; a model that fits stays eager."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    with risk.context():
        (loss, gradient), most = risk.foreseen, allocated(lambda: graph_bytes(risk))[0]
        assert gradient == pytest.approx(
            Retained(lambda p: risk.run(p, batch)[0], risk.params, risk.space.names).bytes, rel=0.03
        )
    assert loss < 0.6 * gradient
    assert most < 2 * gradient / BLOCKS
    assert all("forward" not in block.__dict__ for block in model.blocks)
    for make in (hessian, gauss_newton, functional):
        A = make(risk)
        A @ risk.space.random(dtype=F64)
        assert (A.route, A.why) == ("eager", ())


@pytest.mark.parametrize("share", [0.4, 1.9])
def test_gauss_newton_goes_by_units_where_its_graph_does_not_fit(problem: Any, share: float, monkeypatch: Any) -> None:
    """One vector takes 1.2 times the graph of the loss, eight 3 times: fewer at once first, then units."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    assert risk.soundness.twice
    V = risk.space.random(8, dtype=F64)
    want = gauss_newton(risk) @ V
    with risk.context():
        room = share * risk.foreseen[0]
    monkeypatch.setattr(Group, "free_here", lambda group, device: room)
    A = gauss_newton(risk)
    found = A @ V
    assert A.route == ("units" if share < 1 else "eager")
    assert A.why[0] == "Gauss-Newton: 8 vectors at once do not fit the memory; 4 at once."
    for n, t in found.items():
        torch.testing.assert_close(t, want[n])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_eager_products_that_run_out_of_memory_go_by_units(
    problem: Any, error: Exception, monkeypatch: Any, capsys: Any
) -> None:
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    assert risk.soundness.twice

    def full(*args: Any) -> None:
        raise error

    monkeypatch.setattr("quadform.curvature.strategies.Retained", full)
    H = hessian(risk)
    H @ risk.space.random(dtype=F64)
    assert H.route == "units"
    how = f"by its {BLOCKS} units, which are run again backwards, about 2.0 times as long a product"
    line = f"Hessian: a product does not fit the memory; {how}."
    assert (H.why, capsys.readouterr().err) == ((line,), line + "\n")


def test_a_graph_that_does_not_fit_and_blocks_that_are_no_units(problem: Any, monkeypatch: Any) -> None:
    """The refusal speaks of memory."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    assert risk.soundness.twice
    monkeypatch.setattr(Group, "free_here", lambda group, device: 1e6)
    monkeypatch.setattr(ByUnits, "prepare", lambda *args: (_ for _ in ()).throw(NoUnit("a tensor leaves a unit")))
    with pytest.raises(InputError, match=r"does not fit the memory, and this model cannot be run by units.*shorter"):
        hessian(risk) @ risk.space.random(dtype=F64)


def test_graphs_are_counted_where_blocks_differ(problem: Any, monkeypatch: Any) -> None:
    """What the first block does not tell is seen while the graph is made."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    assert risk.soundness.twice
    with risk.context():
        room = risk.foreseen[1]
    risk.__dict__["foreseen"] = (0.0, 0.0)
    monkeypatch.setattr(Group, "free_here", lambda group, device: room)
    H = hessian(risk)
    H @ risk.space.random(dtype=F64)
    assert "the graph of the gradient takes more than" in H.why[0]
    assert H.route == "units"


@pytest.mark.parametrize("room", [None, 1e6])
def test_programs_that_do_not_fit_give_way_to_eager_products_and_then_to_units(
    problem: Any, room: float | None, monkeypatch: Any
) -> None:
    from quadform.curvature.strategies import ByProgram

    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    assert risk.soundness.twice

    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ByProgram, "_made", full)
    if room is not None:
        monkeypatch.setattr(Group, "free_here", lambda group, device: room)
    A = hessian(risk, route="compiled")
    A @ risk.space.random(dtype=F64)
    assert A.route == ("eager" if room is None else "units")
    assert "cannot be compiled (its program does not fit the memory); step by step instead" in A.why[0]


def test_a_gradient_that_does_not_fit_is_taken_by_units(problem: Any, monkeypatch: Any) -> None:
    """The same gradient, at a small part of the memory."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    want, (whole, _) = risk.gradient(), allocated(risk.gradient)

    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with risk.context():
        least, left = allocated(lambda: Evaluation(risk, risk.units).gradient(batch, risk.params))
    assert least < whole / 2
    assert left == 0
    monkeypatch.setattr("quadform.curvature.risk.gradients", full)
    for n, t in risk.gradient().items():
        torch.testing.assert_close(t, want[n])


def test_nothing_of_a_product_waits_for_the_collector(problem: Any) -> None:
    """Objects of a product hold no cycle: what it took is free at its end, not when Python's collector runs."""
    model, batch = problem
    risk = Risk(model, cross_entropy, batch, quiet=True)
    v, A = risk.space.random(dtype=F64), hessian(risk, route="units")
    A @ v
    gc.collect()
    gc.disable()
    try:
        with profile(profile_memory=True) as seen:
            for _ in range(3):
                A @ v
    finally:
        gc.enable()
    assert seen.kineto_results is not None
    assert sum(e.nbytes() for e in seen.kineto_results.events() if e.name() == "[memory]") == 0


def test_a_first_product_evaluates_no_more_than_its_checks_need(problem: Any, monkeypatch: Any) -> None:
    """Calls of a block: long sequences make each of them dear. Default and `route="units"` differ by one look at one
    block, which tells that the graph does not fit."""
    model, batch = problem
    last = model.blocks[-1]

    def calls(work: Callable[[], Any]) -> int:
        before = last.evaluations
        work()
        return int(before - last.evaluations)

    def units(route: Any) -> tuple[int, ...]:
        risk = Risk(model, cross_entropy, batch, quiet=True)
        A, v = hessian(risk, route=route), risk.space.random(dtype=F64)
        found = calls(lambda: A @ v), calls(lambda: A @ v)
        assert A.route == "units"
        return found

    monkeypatch.setattr(Group, "free_here", lambda group, device: 1e6)
    rules, slope, symmetry, product = 1, 2, 3 * 2, 2
    assert units("eager") == units("units") == (rules + slope + symmetry + product, product)


def test_gauss_newton_is_not_checked_by_units_twice(problem: Any, monkeypatch: Any) -> None:
    model, batch = problem
    monkeypatch.setattr(Group, "free_here", lambda group, device: 1e6)
    risk = Risk(model, cross_entropy, batch, quiet=True)
    assert risk.soundness.by_units
    monkeypatch.setattr(Evaluation, "symmetry", lambda *args: pytest.fail("looked at again"))
    A = gauss_newton(risk)
    A @ risk.space.random(dtype=F64)
    assert A.route == "units"


@pytest.mark.parametrize(
    ("blocks", "told"),
    [(False, "has no repeated blocks.*or name its parts"), (True, "not even block by block.*shorter sequences.$")],
)
def test_a_product_that_fits_no_memory_says_what_to_do(
    problem: Any, blocks: bool, told: str, monkeypatch: Any, capsys: Any
) -> None:
    model, batch = problem
    risk = Risk(model if blocks else nn.Linear(16, 3, dtype=F64), cross_entropy, batch, quiet=True)
    assert risk.soundness.twice

    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has none.")

    for name in ("strategies.ByRetained.prepare", "by_units.ByUnits.prepare"):
        monkeypatch.setattr(f"quadform.curvature.{name}", full)
    with pytest.raises(torch.OutOfMemoryError, match=told) as error:
        hessian(risk) @ risk.space.random(dtype=F64)
    assert str(error.value).startswith("Hessian: a product does not fit the memory, ")
    assert "(CUDA out of memory)" in str(error.value)
