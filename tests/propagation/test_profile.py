"""Predicted depth profiles against drawn networks (tests/propagation/stacks.py), every named design."""

import dataclasses

import pytest
import torch

from quadform.core.designs import DESIGNS, design
from quadform.core.errors import InputError
from quadform.core.spec import BlockSpec, Gain, Mixing, ModelConfig, Projection
from quadform.propagation.profile import layer_kernels, matrix_gain, predict

from . import stacks

torch.set_num_threads(1)
f64 = torch.float64
TOKENS = 32


def compare(config, seeds, tokens=TOKENS):
    """Largest excess of |predicted - drawn| over max(0.02, 5 %), over the depth; drawn = mean over networks."""
    runs = torch.stack([stacks.run(config, tokens, seed)[0] for seed in range(seeds)]).double().mean(0)
    predicted = predict(config, tokens).tensors["cosine"]
    allowed = torch.maximum(torch.tensor(0.02, dtype=f64), 0.05 * runs.abs())
    excess = (predicted - runs).abs() - allowed
    assert float(excess.max()) <= 0, f"predicted {predicted.tolist()} drawn {runs.tolist()}"


@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNS)
def test_cosine_of_every_design(name):
    """Mean token cosine of each design at d = 512, six blocks: within 0.02 or 5 % of the mean of drawn networks."""
    config = design(name, depth=6, d_model=512, heads=8, d_ff=1024)
    orthogonal = config.init == "orthogonal"
    compare(config, seeds=2 if orthogonal else 6)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["gelu", "geglu", "swiglu"])
def test_cosine_of_other_activations(activation):
    """The same for parallel simplified blocks with a strong MLP branch and each smooth or gated activation."""
    compare(design("sas-p", depth=6, d_model=512, heads=8, d_ff=1024, activation=activation, mlp_branch=0.6), seeds=3)


@pytest.mark.slow
def test_cosine_bidirectional():
    """The same for a bidirectional Pre-LN encoder (no causal mask) and for small normal weights (std 0.02)."""
    compare(design("pre-ln", kind="encoder", depth=6, d_model=512, heads=8, d_ff=1024, init="normal"), seeds=4)


def test_rms_grows_as_predicted():
    """The size of the stream after each Pre-LN block is predicted within 5 %."""
    config = design("pre-ln", depth=4, d_model=512, heads=8, d_ff=1024)
    sizes = torch.stack([stacks.run(config, TOKENS, seed)[1] for seed in range(3)]).double().mean(0)
    torch.testing.assert_close(predict(config, TOKENS).tensors["rms"], sizes, rtol=0.05, atol=0)


def test_identity_values_add_to_the_skip_coherently():
    """With W_V = W_O = I, zero queries and a skip, the branch shares the skip's features: cross terms count."""
    block = BlockSpec(mlp=None, value=None, proj=Projection(init="identity"), query_init="zero", attn=Gain(branch=0.7))
    config = ModelConfig(blocks=(block,) * 3, d_model=512, heads=8, d_ff=8, vocab=8, eps=0.0)
    X = torch.randn(10, 512, generator=torch.Generator().manual_seed(0))
    cosine, size = stacks.run(config, 10, 0, X)
    record = predict(config, Sigma_0=X @ X.T / 512)
    # LayerNorm also removes the coordinate mean, 1/512 of the energy
    torch.testing.assert_close(record.tensors["cosine"], cosine.double(), rtol=0, atol=5e-3)
    last = list(layer_kernels(config, Sigma_0=X @ X.T / 512))[-1]
    assert float(last.diagonal().mean().sqrt()) == pytest.approx(float(size[-1]), rel=5e-3)
    assert float(record.tensors["rms"][-1]) == pytest.approx(float(size[-1]), rel=5e-3)


def test_simplified_blocks_agree_at_the_start():
    """At initialisation SAS and SAS-P are the same map N + b_FF MLP(N)."""
    sas, parallel = (predict(design(n, depth=5), 16).tensors for n in ("sas", "sas-p"))
    torch.testing.assert_close(sas["cosine"], parallel["cosine"])


def test_the_record_carries_what_was_asked():
    """Profiles have depth + 1 entries, scalars are the last, kernels come when kept; two stacks are refused."""
    record = predict(design("pre-ln", depth=3), 8, keep=True)
    assert record.kind == "signal-prediction"
    assert record.tensors["kernels"].shape == (4, 8, 8)
    assert record.scalars["cosine"].value == float(record.tensors["cosine"][-1])
    with pytest.raises(InputError, match="one stack"):
        predict(design("pre-ln", kind="encoder-decoder", depth=2), 8)
    with pytest.raises(InputError, match="square"):
        predict(design("pre-ln", depth=2), Sigma_0=torch.ones(2, 3))
    for kernel in (torch.full((3, 3), torch.nan), -torch.eye(3)):
        with pytest.raises(InputError, match="squared sizes"):
            predict(design("pre-ln", depth=1), Sigma_0=kernel)
    for tokens in (0, -3, 2.5):
        with pytest.raises(InputError, match="whole number of tokens"):
            predict(design("pre-ln", depth=1), tokens)


def test_block_gains_are_used():
    """Doubling every branch gain of an un-normalised linear map scales the kernel by four a block."""
    base = BlockSpec(
        norm="none", mlp=None, attn=Gain(skip=0.0), value=None, proj=None, query_init="zero", mixing=_identity()
    )
    config = ModelConfig(blocks=(dataclasses.replace(base, attn=Gain(skip=0.0, branch=2.0)),) * 3,
                         d_model=8, heads=2, d_ff=8, vocab=8)  # fmt: skip
    last = list(layer_kernels(config, 5))[-1]
    torch.testing.assert_close(last, 64 * torch.eye(5, dtype=f64))


@pytest.mark.parametrize("kind", ["normal", "fan-in", "xavier", "orthogonal"])
@pytest.mark.parametrize("shape", [(96, 32), (32, 96)])
def test_gains_of_the_initialisations(kind, shape):
    """matrix_gain = (second moment of an entry) x fan-in of a drawn matrix, for each initialisation and shape."""
    config = ModelConfig(blocks=(BlockSpec(),), d_model=8, heads=1, d_ff=8, vocab=8, init=kind, init_std=0.3)
    W = stacks.matrix(*shape, kind, 0.3, torch.Generator().manual_seed(0))
    assert matrix_gain(config, *shape) == pytest.approx(shape[0] * float(W.square().mean()), rel=0.06)


def test_init_gain_scales_values_and_mlp():
    """init_gain g multiplies W_V, W_O, W_1, W_2: one token's square length becomes g^4 (attention), g^4 / 2 (ReLU)."""
    stream = {"norm": "none", "init_gain": 0.5}
    attention = BlockSpec(attn=Gain(skip=0.0), mlp=None, **stream)
    relu = BlockSpec(attn=Gain(branch=0.0), mlp=Gain(skip=0.0), **stream)
    for block, expected in ((attention, 0.5**4), (relu, 0.5**4 / 2)):
        config = ModelConfig(blocks=(block,), d_model=8, heads=1, d_ff=8, vocab=8)
        assert float(list(layer_kernels(config, 1))[-1]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
@pytest.mark.parametrize(("value", "proj"), [(-1.0, 0.5), (-0.5, -2.0), (1.5, None)])
def test_identities_with_a_weight_keep_its_sign(kind, value, proj):
    """W_V = v I, W_O = o I beside a skip s: X -> (s + b v o M) X exactly, whatever the signs and init_gain."""
    made = Mixing(kind=kind, alpha=0.7, beta=0.4 * (kind == "softmax"), gamma=0.3 * (kind == "softmax"))
    matrices = [None if w is None else Projection(init="identity", skip=w) for w in (value, proj)]
    block = BlockSpec(norm="none", mlp=None, attn=Gain(skip=-0.6, branch=0.8), mixing=made, query_init="zero",
                      value=matrices[0], proj=matrices[1], init_gain=0.5)  # fmt: skip
    config = ModelConfig(blocks=(block,), d_model=8, heads=2, d_ff=8, vocab=8)
    uniform = torch.ones(5, 5, dtype=f64).tril() / torch.arange(1, 6, dtype=f64)[:, None]
    M = 0.7 * torch.eye(5, dtype=f64) + (made.beta - made.gamma) * uniform
    K = -0.6 * torch.eye(5, dtype=f64) + 0.8 * value * (1.0 if proj is None else proj) * M
    Sigma = 0.6 * torch.eye(5, dtype=f64) + 0.4
    torch.testing.assert_close(list(layer_kernels(config, Sigma_0=Sigma))[-1], K @ Sigma @ K.T)


def _identity():
    return Mixing(alpha=1.0, beta=1.0, gamma=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["u-spa", "e-spa"])
def test_orthogonal_queries_on_a_signal_preserving_bias(family):
    """Orthogonal W_Q and W_K leave logits of variance one on top of B: the prediction still meets drawn networks."""
    config = design(family, depth=6, d_model=512, heads=8, mlp=False)
    blocks = tuple(dataclasses.replace(b, query_init="orthogonal") for b in config.blocks)
    compare(dataclasses.replace(config, blocks=blocks), seeds=3)
