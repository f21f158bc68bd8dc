"""SparseGPT and GPTQ beside llmcompressor on one layer, where it is installed (docs/decisions/0833)."""

import numpy as np
import pytest
import torch
from torch import nn

from quadform.compress.layerwise import gptq, sparsegpt

OUT, WIDTH, BLOCK = 24, 64, 32


def layer():
    r = np.random.default_rng(3)
    mix = r.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5 + 0.3 * np.eye(WIDTH)
    X = torch.tensor(r.normal(size=(400, WIDTH)) @ mix, dtype=torch.float32)
    return torch.tensor(r.normal(size=(OUT, WIDTH)), dtype=torch.float32), X.T @ X / len(X)


@pytest.mark.parametrize("structure", ["none", "2:4"])
def test_sparsegpt_is_that_of_llmcompressor(structure):
    """The same zeros, and weights within 1e-5 of the largest; theirs are computed in float32.

    It removes the weights up to and including the one at place size / 2, counted from 0: one more a block.
    """
    theirs = pytest.importorskip("llmcompressor.modifiers.pruning.sparsegpt.sgpt_sparsify", exc_type=ImportError)
    W, S = layer()
    module = nn.Linear(WIDTH, OUT, bias=False)
    module.weight.data = W.clone()
    n, m = (2, 4) if structure == "2:4" else (0, 0)
    with torch.no_grad():
        _, expected = theirs.sparsify_weight(module, {module: 2 * S}, 0.5, n, m, BLOCK, 0.01, False)
    share = 0.5 if structure == "2:4" else 0.5 + 1 / (OUT * BLOCK)
    ours, keep = sparsegpt(W.double(), S.double(), share, structure, block=BLOCK)
    assert ((expected != 0) == keep).all()
    assert float((ours - expected).abs().max()) <= 1e-5 * float(W.abs().max())


def test_gptq_is_that_of_llmcompressor():
    """One scale a row, 4 bits: the same codes, and values within 1e-5 of the largest weight."""
    theirs = pytest.importorskip("llmcompressor.modifiers.gptq.gptq_quantize", exc_type=ImportError)
    from compressed_tensors.quantization import QuantizationArgs

    W, S = layer()
    ours = gptq(W.double(), S.double(), 4)
    grid = ours.grid
    asked = QuantizationArgs(num_bits=4, type="int", strategy="channel", symmetric=False)
    # Their codes are signed: -8 .. 7.
    scale, zero = grid.scale.float()[None], (grid.zero - 8).to(torch.int8)[None]
    found = theirs.quantize_weight(W.clone()[None], 2 * S[None], scale, zero, None, asked, 128, 0.01)[0][0]
    assert float((ours.values - found.double()).abs().max()) <= 1e-5 * float(W.abs().max())
