"""The caller's autocast is left outside: products, estimates and questions are in the operator's own precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadform as qf
from quadform import estimate
from quadform.core.errors import InputError
from quadform.core.operator import Dense
from quadform.core.space import Space
from quadform.theory import AttentionLayer, LinearMLP, attention_moments


@pytest.fixture(scope="module")
def A() -> Dense:
    M = torch.randn(12, 12, generator=torch.Generator().manual_seed(0))
    return Dense(M @ M.T + torch.eye(12), Space((("a", (4,)), ("b", (8,)))), symmetric=True, psd=True)


b = torch.arange(1.0, 13.0)
ASKED: dict[str, Callable[[Any], Any]] = {
    "product": lambda A: A @ b,
    "stack": lambda A: A @ torch.stack([b, -b], 1),
    "eigenpairs": lambda A: estimate.eigenpairs(A, 2).values,
    "density": lambda A: estimate.density(A, probes=2, steps=5).nodes,
    "trace": lambda A: estimate.trace(A, 8).value,
    "diagonal": lambda A: A.codomain.flatten(estimate.diagonal(A, 8).value),
    "frobenius": lambda A: estimate.frobenius(A, 8).value,
    "block_norms": lambda A: estimate.block_norms(A, ["a", "b"], 3).value,
    "spectral_norm": lambda A: estimate.spectral_norm(A).value,
    "singular_ends": lambda A: estimate.singular_ends(A).largest.value,
    "condition_number": lambda A: estimate.condition_number(A).value,
    "nuclear_norm": lambda A: estimate.nuclear_norm(A, 2, 5).value,
    "stable_rank": lambda A: estimate.stable_rank(A, 12).value,
    "solve": lambda A: estimate.solve(A, b).x,
    "matrix_function": lambda A: estimate.matrix_function(A, b, torch.log).value,
}


@pytest.mark.parametrize("name", ASKED)
def test_estimates_of_an_operator(name: str, A: Dense) -> None:
    """Inside autocast: equal to the bit, in float32."""
    want = ASKED[name](A)
    with torch.autocast("cpu", torch.bfloat16):
        got = ASKED[name](A)
    assert torch.equal(got, want) if isinstance(want, Tensor) else got == want


def test_questions() -> None:
    """`spectrum` and `lr` of a module: the numbers are those outside, and a note says that autocast was on."""
    torch.manual_seed(0)
    model, loss = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), nn.MSELoss()
    batch = torch.randn(5, 3), torch.randn(5, 2)
    optimizer = torch.optim.AdamW(model.parameters())

    def asked() -> tuple[float, float, str]:
        found = qf.spectrum(model, batch, loss, top=1, blocks="none", progress=False)
        step = qf.lr(model, batch, loss, optimizer=optimizer, verify=2, progress=False)
        return found.top[0].value, step.ceiling.value, repr(found)

    *want, _ = asked()
    with torch.autocast("cpu", torch.bfloat16):
        *got, told = asked()
    assert got == want
    assert "autocast switched off while measuring" in told


def test_closed_forms_in_single_precision_are_refused() -> None:
    X = torch.eye(2)
    with torch.autocast("cpu", torch.bfloat16):
        for make in (
            lambda: AttentionLayer(X, X, X, X, X),
            lambda: LinearMLP(X, [X], X),
            lambda: attention_moments(X, X),
        ):
            with pytest.raises(InputError, match=r"autocast is on.*`with torch\.autocast\('cpu', enabled=False\):`"):
                make()
        assert AttentionLayer(*[X.double()] * 5).norm("W_V", "W_V").value > 0  # autocast leaves float64 as it is
