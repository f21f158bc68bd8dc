"""What a question needs of this machine, said with what there is."""

from __future__ import annotations

import pytest
import torch

from quadform.applications import machine
from quadform.applications.spectrum import spectrum
from quadform.core.designs import DESIGNS, design
from quadform.core.errors import TooLarge
from quadform.core.parameters import count_of_design, count_parameters

CPU = torch.device("cpu")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 20 GB of free memory."""
    monkeypatch.setattr(machine, "free_bytes", lambda device: 20e9)
    monkeypatch.setattr("quadform.core.memory.free_bytes", lambda device: 20e9)


@pytest.mark.usefixtures("free")
def test_vectors_are_held_against_memory() -> None:
    """What fits is one number; what does not, two, and what follows."""
    assert machine.vectors_in_words(10e9, CPU) == "10 GB for vectors"
    assert machine.vectors_in_words(30e9, CPU) == (
        "30 GB wanted and 20 GB free (the basis is kept to half of that and takes more products) for vectors"
    )


def test_a_plan_says_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line before the work has both numbers where the vectors do not fit."""
    model, asked = "new:pre-ln,depth=1,d_model=4,heads=2", {"data": "add:digits=1", "batch_size": 2}
    assert "free" not in spectrum.plan(model, **asked).text
    monkeypatch.setattr("quadform.applications.room.free_bytes", lambda device: 1000.0)
    assert "for vectors, and 1 kB free" in spectrum.plan(model, **asked).text


@pytest.mark.parametrize("name", DESIGNS)
def test_designs_of_any_depth_are_counted(name: str) -> None:
    """count(depth) without its blocks is the count of the design itself."""
    sizes = {"d_model": 8, "heads": 2, "vocab": 11}
    for depth in (1, 2, 3, 7):
        assert count_of_design(name, depth, **sizes) == count_parameters(design(name, depth=depth, **sizes))


@pytest.mark.usefixtures("free")
def test_guards_refuse_at_the_limit() -> None:
    """2 sequences of 50,000 tokens: scores of 2 x 50,000^2 floats are 20 GB; the stream comes on top."""
    machine.guard_tokens(2, 49_000, 8, 1, CPU, torch.float32)
    with pytest.raises(TooLarge, match=r"attention of 2 x 50,000 tokens needs 20 GB; 20 GB are free"):
        machine.guard_tokens(2, 50_000, 8, 1, CPU, torch.float32)
    row = {"tokens": torch.zeros(1, 10, dtype=torch.long)}  # 80 bytes
    machine.guard_probe(1, 250_000_000, row)
    with pytest.raises(TooLarge, match=r"a probe of 2 x 250,000,000 sequences needs 40 GB"):
        machine.guard_probe(2, 250_000_000, row)


def test_a_run_that_others_stretched_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of five; a single one where it is long by itself."""
    now, runs = [0.0], iter([0.05, 0.02, 0.04, 0.03, 0.06, 5.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += next(runs)

    assert machine.least_seconds(work, CPU) == pytest.approx(0.02)
    assert machine.least_seconds(work, CPU) == pytest.approx(5.0)
