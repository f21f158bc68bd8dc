"""Where vectors live: shares of squared length by layer, matrix, head and row of an embedding."""

import pytest
import torch
from torch import nn

from quadform.core.errors import InputError
from quadform.core.space import Space
from quadform.curvature import Risk
from quadform.curvature.masses import masses, rows_of_embeddings


def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=6)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 11, (2, 5))
    return Risk(model, None, {"input_ids": ids, "labels": ids}, quiet=True)


def test_layers_and_matrices_share_out_the_whole():
    risk = gpt2()
    vectors = risk.space.random(3, generator=torch.Generator().manual_seed(0))
    found = masses(risk.space, vectors)
    for kind in ("layer", "matrix"):
        torch.testing.assert_close(found[kind].share.sum(1), torch.ones(3, dtype=torch.double))
    assert {"transformer.h.0", "transformer.h.1"} <= set(found["layer"].labels)
    assert "transformer.h.0.attn.W_Q" in found["matrix"].labels
    assert "transformer.h.0.attn.c_attn.weight" not in found["matrix"].labels


def test_a_vector_in_one_head_is_found_there():
    risk = gpt2()
    name = "transformer.h.1.attn.W_K[1]"
    sub = risk.space.select(name)
    vectors = risk.space.embed(sub, {name: torch.ones(1, *sub.shape(name))})
    found = masses(risk.space, vectors)
    for kind, label in (("layer", "transformer.h.1"), ("matrix", "transformer.h.1.attn.W_K"), ("head", name)):
        best = int(found[kind].share[0].argmax())
        assert (found[kind].labels[best], float(found[kind].share[0, best])) == (label, 1.0)


def test_rows_of_an_embedding():
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2))
    vectors = {n: torch.zeros(2, *p.shape) for n, p in model.named_parameters()}
    vectors["0.weight"][0, 4, 1], vectors["1.weight"][0, 0, 0] = 2.0, 1.0
    vectors["0.weight"][1, 6] = 1.0
    rows, share = rows_of_embeddings(model, vectors)["0.weight"]
    assert (int(rows[0, 0]), float(share[0, 0])) == (4, pytest.approx(0.8))
    assert (int(rows[1, 0]), float(share[1, 0])) == (6, pytest.approx(1.0))


def test_one_vector_is_refused():
    with pytest.raises(InputError, match="stack"):
        masses(Space((("a", (2,)),)), {"a": torch.ones(2)})


def test_a_parameter_may_be_one_number() -> None:
    """Shaped attention has gains without an axis: they have their share like any matrix."""
    space = Space.of({"alpha": torch.zeros(()), "W": torch.zeros(2, 2)})
    vectors = {"alpha": torch.tensor([1.0, 0.0]), "W": torch.ones(2, 2, 2) / 2}
    found = masses(space, vectors)["matrix"]
    assert found.share.tolist() == [[0.5, 0.5], [0.0, 1.0]]
