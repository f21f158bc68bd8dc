"""Launches that skip Triton's binding of arguments: a stand-in for a compiled kernel counts who started it."""

import pytest
import torch

pytest.importorskip("triton")

from quadform.kernels import direct


class Kernel:
    """A compiled kernel in small: notes what it is started with."""

    packed_metadata = ()

    def __init__(self):
        self.started = []

    def __getitem__(self, grid):
        return lambda *args: self.started.append((grid, args))


class Program:
    """A Triton program in small: binds, and returns its compiled kernel."""

    arg_names = ("x", "st", "scale", "rows", "EVEN", "BM")

    def __init__(self):
        self.bound, self.kernel = [], Kernel()

    def __getitem__(self, grid):
        def run(*args, **constants):
            self.bound.append((args, constants))
            return self.kernel

        return run


@pytest.fixture(autouse=True)
def on(monkeypatch):
    monkeypatch.setattr(direct, "on", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    direct._kernels.clear()
    yield
    direct._kernels.clear()


CONSTANTS = {"BM": 64, "EVEN": True, "num_warps": 4}


def test_the_second_launch_goes_to_the_kernel():
    """Same kinds of arguments: bound once, then started with the new values, constants in the program's order."""
    program, x, y = Program(), torch.zeros(4, 4), torch.ones(4, 4)
    direct.start(program, (1, 2, 3), (x, (4, 1), 0.5, 4), CONSTANTS)
    direct.start(program, (3, 2, 1), (y, (4, 1), 0.25, 4), CONSTANTS)
    assert len(program.bound) == 1
    ((grid, args),) = program.kernel.started
    assert grid == (3, 2, 1)
    assert args[0] is y
    assert args[1:] == ((4, 1), 0.25, 4, True, 64)


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(17)[1:].view(4, 4)},  # not at a multiple of 16 bytes
        {"x": torch.zeros(4, 4, dtype=torch.float64)},
        {"st": (1, 4)},
        {"rows": 1},
        {"constants": {**CONSTANTS, "EVEN": False}},
    ],
)
def test_other_kinds_of_arguments_are_bound_anew(other):
    """Whatever Triton compiles differently for is compared: address, type, strides, integers, constants."""
    program, x = Program(), torch.zeros(4, 4)
    given = {"x": x, "st": (4, 1), "scale": 0.5, "rows": 4}
    direct.start(program, (1, 1, 1), tuple(given.values()), CONSTANTS)
    constants = other.pop("constants", CONSTANTS)
    direct.start(program, (1, 1, 1), tuple({**given, **other}.values()), constants)
    assert len(program.bound) == 2
    assert not program.kernel.started


def test_the_interpreter_gives_no_kernel():
    """Where a launch returns no compiled kernel, every launch is bound."""
    program = Program()
    program.kernel = None
    for _ in range(3):
        direct.start(program, (1, 1, 1), (torch.zeros(1), (1,), 0.5, 1), CONSTANTS)
    assert len(program.bound) == 3
