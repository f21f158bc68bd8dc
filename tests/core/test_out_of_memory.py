"""Memory that is over is no property of a model or a file: nobody takes it for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform.core.errors import FileError, out_of_memory, pass_on_memory
from quadform.curvature import soundness
from quadform.curvature.retained import TooLarge

SHORT = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    TooLarge("its graph does not fit"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    MemoryError(),
]


@pytest.mark.parametrize("error", SHORT, ids=lambda e: type(e).__name__)
def test_errors_that_say_it(error: Exception) -> None:
    assert out_of_memory(error)
    with pytest.raises(type(error)):
        pass_on_memory(error)


def test_others() -> None:
    for error in (RuntimeError("no forward derivative"), ValueError("out of range")):
        assert not out_of_memory(error)
        pass_on_memory(error)


def risk(fails: Any = lambda: None) -> qf.Risk:
    def loss(out: Tensor, batch: Any) -> Tensor:
        fails()
        return out.square().mean()

    return qf.Risk(nn.Linear(2, 1).double(), loss, torch.ones(3, 2, dtype=torch.float64), quiet=True)


def test_a_check_without_memory_is_not_passed() -> None:
    """`differ` and `through` answer where a derivative is missing, and raise where memory is."""

    def measured(error: Exception) -> Any:
        def slopes(near: Any) -> tuple[float, float]:
            raise error

        return slopes

    assert not soundness.differ(risk(), measured(RuntimeError("no such derivative")))
    for error in SHORT[:3]:
        with pytest.raises(RuntimeError, match=str(error)[:20]):
            soundness.differ(risk(), measured(error))


@pytest.mark.parametrize("check", [soundness._forward, soundness._through])
def test_checks_of_a_loss_without_memory(check: Any) -> None:
    left = [99]

    def fails() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise SHORT[0]

    own = risk(fails)
    left[0] = 0
    with pytest.raises(torch.OutOfMemoryError):
        check(own, own.batches[0])


def test_a_file_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that do not fit the memory are no damaged file."""
    qf.nn.Transformer("pre-ln", depth=1, d_model=4, heads=1, vocab=3, seq_len=2).save(tmp_path)

    def load(*words: Any, **options: Any) -> None:
        raise SHORT[2]

    monkeypatch.setattr(nn.Module, "load_state_dict", load)
    with pytest.raises(RuntimeError, match="can't allocate memory") as told:
        qf.nn.Transformer.load(tmp_path)
    assert not isinstance(told.value, FileError)
