"""The symmetries of a Transformer: the loss is constant along each; together they are the kernel of its Jacobian."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from quadform.applications.point.inertia import span
from quadform.applications.point.symmetries import Family, families
from quadform.curvature.risk import Risk
from quadform.nn.transformer import Transformer

ALL = ("q", "k", "v", "o", "mlp", "out")
#: Singular values of the Jacobian below this share of the largest are zero; the scale of the stream (eps) is at 1e-8.
ZERO = 1e-12
BASE: dict[str, Any] = {"depth": 2, "d_model": 4, "heads": 2, "d_ff": 5, "vocab": 6, "seq_len": 5, "activation": "gelu"}
CASES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tied": False},
    "biases": {"biases": ALL},
    "untied, biases": {"tied": False, "biases": ALL},
    "values and outputs with biases": {"biases": ("v", "o")},
    "ReLU": {"activation": "relu", "biases": ALL, "d_ff": 8},
    "RMS": {"norm": "rms", "tied": False},
    "RMS, biases": {"norm": "rms", "biases": ALL},
    "Llama": {"norm": "rms", "activation": "swiglu", "positions": "rotary", "tied": False, "d_k": 4, "kv_heads": 1},
    "shared keys": {"kv_heads": 1, "biases": ALL},
    "relative": {"positions": "relative", "buckets": 4, "max_distance": 8},
    "parallel": {"design": "parallel", "biases": ALL},
    "Post-LN": {"design": "post-ln"},
    "Post-LN, untied, biases": {"design": "post-ln", "tied": False, "biases": ALL},
    "no skip": {"design": "no-skip"},
    "BERT head": {"kind": "encoder", "transform": "gelu", "biases": ALL},
    "classes": {"kind": "encoder", "classes": 3, "biases": ALL, "depth": 1},
    "encoder and decoder": {"kind": "encoder-decoder", "encoder_depth": 1, "depth": 1, "biases": ALL},
    "two vocabularies": {"kind": "encoder-decoder", "encoder_depth": 1, "depth": 1, "source_vocab": 5},
}


def made(settings: dict[str, Any]) -> tuple[Transformer, dict[str, Tensor]]:
    """A model at arbitrary weights, and as many tokens as tell its weights apart."""
    settings = BASE | settings
    model = Transformer(settings.pop("design", "pre-ln"), seed=0, dtype=torch.float64, **settings)
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn(p.shape, generator=drawn, dtype=p.dtype)
    rows = 250 if model.config.classes else 60

    def tokens(vocab: int, length: int) -> Tensor:
        return torch.randint(0, vocab, (rows, length), generator=drawn)

    batch = {"tokens": tokens(6, 5)}
    if model.config.kind == "encoder-decoder":
        batch = {"target": tokens(6, 6), "source": tokens(model.config.source_vocab or 6, 5)}
    elif model.config.kind == "encoder":
        batch["labels"] = tokens(3, 1)[:, 0] if model.config.classes else batch["tokens"]
    return model, batch


def jacobian(model: Transformer, batch: dict[str, Tensor]) -> Tensor:
    """Of all log-probabilities, by reverse differentiation: (outcomes, parameters)."""
    named = {n: p.detach() for n, p in model.named_parameters()}

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.model.forward_batch(batch).log_softmax(-1).flatten()

    def outcomes(params: dict[str, Tensor], part: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(Whole(), {f"model.{n}": t for n, t in params.items()}, (part,))
        return found

    parts = []
    for i in range(0, len(next(iter(batch.values()))), 10):
        J = jacrev(outcomes)(named, {n: t[i : i + 10] for n, t in batch.items()})
        parts.append(torch.cat([J[n].reshape(len(J[n]), -1) for n in named], 1))
    return torch.cat(parts)


@pytest.fixture(scope="module", params=CASES, ids=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Tensor, list[tuple[Family, Tensor]]]:
    """The Jacobian with length 1, and the families with their orthonormal directions."""
    model, batch = made(CASES[request.param])
    J = jacobian(model, batch)
    risk = Risk(model, None, batch, quiet=True)
    found = [(family, span(family.flat(risk))) for family in families(risk)]
    return J / torch.linalg.matrix_norm(J, 2), [(family, Q) for family, Q in found if len(Q)]


def test_the_symmetries_are_the_kernel_of_the_jacobian(case: tuple[Tensor, list[tuple[Family, Tensor]]]) -> None:
    """dim span = n - rank J: no direction that leaves all outputs as they are is without a name."""
    J, found = case
    n = J.shape[1]
    dead = torch.eye(n, dtype=J.dtype)[J.abs().amax(0) == 0]
    held = [Q for _, Q in found if float(torch.linalg.matrix_norm(J @ Q.T, 2)) < ZERO]
    singular = torch.linalg.svdvals(torch.linalg.qr(J, mode="r").R)
    assert len(span(torch.cat([dead, *held]))) == int((singular < ZERO).sum())
    assert float(singular[singular >= ZERO].min()) > 100 * ZERO  # a gap: nothing lies near the limit


def test_the_scale_of_the_stream_is_broken_by_eps_alone(case: tuple[Tensor, list[tuple[Family, Tensor]]]) -> None:
    """It moves the outputs by 1e-5, the eps of the norms, of what other directions do; with eps = 0 by nothing."""
    J, found = case
    for family, Q in found:
        if family.near:
            assert float(torch.linalg.matrix_norm(J @ Q.T, 2)) < 1e-5


@pytest.mark.parametrize("design", ["pre-ln", "post-ln"])
def test_without_eps_the_scale_is_a_symmetry(design: str) -> None:
    model, batch = made({"design": design, "eps": 0.0})
    J = jacobian(model, batch)
    risk = Risk(model, None, batch, quiet=True)
    near = [span(family.flat(risk)) for family in families(risk) if family.near]
    assert len(near) == (1 if design == "pre-ln" else 4)
    for Q in near:
        assert float((J @ Q.T).norm() / J.norm()) < ZERO


@pytest.mark.parametrize("design", ["shaped", "sas-p", "v-skipinit", "rezero"])
def test_learned_weights_of_branches_and_heads(design: str) -> None:
    """alpha, beta, gamma of a head against its W_O, the weight of a branch against what it writes: J w = 0."""
    model, batch = made({"design": design, "activation": "relu"})
    J = jacobian(model, batch)
    risk = Risk(model, None, batch, quiet=True)
    found = {f.name: span(f.flat(risk)) for f in families(risk) if "weight" in f.name}
    assert found or design == "sas-p"
    for name, Q in found.items():
        assert float((J @ Q.T).norm() / J.norm()) < ZERO, name
