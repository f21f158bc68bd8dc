"""The split at the output of a cross-attention module: as for any other module."""

from __future__ import annotations

import pytest
import torch

from quadform.core.rng import stream
from quadform.curvature.operators import functional, gauss_newton, hessian
from quadform.curvature.risk import Risk
from quadform.kernels import attention
from quadform.nn.transformer import Transformer


@pytest.fixture(scope="module")
def risk() -> Risk:
    """Two blocks a side, d = 4, three sentences of unequal length, float64; the weights of one cross-attention."""
    model = Transformer(
        "pre-ln", kind="encoder-decoder", depth=2, d_model=4, heads=2, vocab=9, seq_len=6, pad=0, bos=1, eos=2, seed=1,
        dtype=torch.float64,
    )  # fmt: skip
    generator = stream(3, "cross")
    source, target = (torch.randint(3, 9, (3, n), generator=generator) for n in (5, 4))
    source[0, 3:] = 0
    target[:, 0] = 1
    return Risk(model, None, {"source": source, "target": target}, params="layers.1.cross.*", quiet=True)


def test_the_parts_at_a_cross_attention_add_up_to_the_hessian(risk: Risk) -> None:
    """H_o + H_f = H for the weights inside the module, whatever the split: here at its own output."""
    parts = [make(risk, split="layers.1.cross").dense() for make in (gauss_newton, functional)]
    torch.testing.assert_close(parts[0] + parts[1], hessian(risk).dense(), rtol=1e-10, atol=1e-14)
    assert float(parts[1].norm()) > 0


def test_the_functional_part_is_the_double_backward_of_its_output(risk: Risk) -> None:
    """H_f = d2 <g, F> with g = dl/dF fixed, F the module's output: by reverse over reverse, column by column."""
    module = risk.model.get_submodule("layers.1.cross")  # type: ignore[union-attr]
    seen: list[torch.Tensor] = []
    risk.model.attend = attention  # type: ignore[union-attr, assignment]  # twice differentiable
    handle = module.register_forward_hook(lambda m, args, out: seen.append(out))
    try:
        loss = risk.model.loss(risk.batches[0])  # type: ignore[union-attr, operator]
        (g,) = torch.autograd.grad(loss, seen[0], retain_graph=True)
        weights = [dict(risk.model.named_parameters())[n] for n in risk.space.names]  # type: ignore[union-attr]
        first = torch.autograd.grad((g.detach() * seen[0]).sum(), weights, create_graph=True)
        flat = torch.cat([t.reshape(-1) for t in first])
        rows = []
        for one in flat:
            row = torch.autograd.grad(one, weights, retain_graph=True, materialize_grads=True, allow_unused=True)
            rows.append(torch.cat([t.reshape(-1) for t in row]))
    finally:
        handle.remove()
    torch.testing.assert_close(
        functional(risk, split="layers.1.cross").dense(), torch.stack(rows), rtol=1e-9, atol=1e-14
    )


def test_a_cross_attention_is_linear_in_its_values(risk: Risk) -> None:
    """H_f(V, V) = 0 in the split at the module's output; H_f(Q, V) is not."""
    H_f = functional(risk, split="layers.1.cross")
    assert float(H_f.block("layers.1.cross.W_V", "layers.1.cross.W_V").dense().abs().max()) == 0
    assert float(H_f.block("layers.1.cross.W_Q", "layers.1.cross.W_V").dense().norm()) > 0
