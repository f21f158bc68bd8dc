"""A compiler that gives up does not end a run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from quadform.train.machinery import compiled


def test_training_goes_on_uncompiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first failure of the compiler is told once; the plain loss is used from then on, and its own errors rise."""
    tried = []

    def give_up(loss_of, dynamic=None):
        def call(*words: Tensor) -> Tensor:
            tried.append(dynamic)
            raise TorchDynamoException("no")

        return call

    monkeypatch.setattr(torch, "compile", give_up)
    loss = compiled(lambda x: x.sum(), dynamic=True)
    assert [float(loss(torch.ones(n))) for n in (2, 3)] == [2.0, 3.0]
    assert tried == [True]
    assert capsys.readouterr().err.count("going on without it") == 1

    def broken(x: Tensor) -> Tensor:
        raise TorchDynamoException("of the loss itself")

    with pytest.raises(TorchDynamoException, match="itself"):
        compiled(broken, dynamic=False)(torch.ones(1))
