"""No question changes what it is asked about: weights, gradients, mode, hooks, random state, backends, files."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quadform as qf
from quadform.applications.subject import weights_hash
from quadform.cli import main

DATA = qf.datasets.addition(digits=1)
QUESTIONS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "lr": lambda m, b: qf.lr(m, b, verify=2, progress=False),
    "spectrum": lambda m, b: qf.spectrum(m, b, top=1, blocks="qkv", progress=False),
    "signal": lambda m, b: qf.signal(m, b),
    "why": lambda m, b: qf.why(m, DATA, remove=["norm"], steps=[0, 2], batch_size=2, progress=False),
}


def state(model: torch.nn.Module) -> list[Any]:
    backends = [torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()]
    backends.append(torch.backends.cuda.math_sdp_enabled())
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    grads = [None if p.grad is None else p.grad.sum().item() for p in model.parameters()]
    needs = [p.requires_grad for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    random = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    return [weights_hash(model), grads, needs, modes, hooks, random, backends, torch.is_grad_enabled()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", QUESTIONS)
def test_python_leaves_the_model_as_it_was(name: str, training: bool) -> None:
    """A model in training or not, one parameter frozen, gradients half-way: afterwards all is as before."""
    model = qf.Transformer(design="pre-ln", depth=1, d_model=8, heads=2, seed=0, **DATA.settings).train(training)
    batches = list(itertools.islice(DATA.batches("valid", 2, 0), 2))
    frozen = next(iter(model.layers.parameters()))
    if name != "why":  # variants are copies without that parameter
        frozen.requires_grad_(False)
    model.loss(batches[0]).backward()
    before = state(model)
    QUESTIONS[name](model, batches)
    assert state(model) == before


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    words = ["train", "--data", "add:digits=1", "--d-model", "4", "--heads", "2", "--depth", "1", "--steps", "3"]
    assert main([*words, "--batch-size", "2", "--test", "0", "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["lr", "RUN", "--verify", "2", "--batch-size", "2"],
        ["spectrum", "RUN", "--top", "1", "--batch-size", "2", "--blocks", "none", "--out", "OUT"],
        ["signal", "RUN"],
        ["why", "RUN", "--remove", "norm", "--steps", "0,2", "--batch-size", "2"],
        ["decode", "RUN", "1+1="],
        ["ls", "runs", "RUN"],
        ["report", "RUN", "--dry-run"],
    ],
    ids=lambda words: words[0],
)
def test_verbs_leave_a_run_as_it_was(words: list[str], run: Path, tmp_path: Path) -> None:
    """Every file of a training run is the same to the last byte after a verb was asked about it, and none is added."""

    def files() -> dict[str, str]:
        paths = sorted(p for p in run.rglob("*") if p.is_file())
        return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}

    before = files()
    named = {"RUN": str(run), "OUT": str(tmp_path)}
    assert main([*(named.get(w, w) for w in words), "--quiet"]) in (0, 3)
    assert files() == before
