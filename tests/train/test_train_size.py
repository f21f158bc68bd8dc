"""The least memory of a training: a bound from below that what is really kept exceeds."""

import pytest
import torch

from quadform.core.errors import TooLarge
from quadform.core.spec import count_parameters, design
from quadform.corpora import dataset
from quadform.nn import PieceTokenizer, Transformer
from quadform.train import TrainConfig, train
from quadform.train import size as sizes
from quadform.train.optimizer import Optimizer
from quadform.train.size import check_size


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 3), ("adam", 4), ("adamw", 4)])
@pytest.mark.parametrize("made", [False, True])
def test_least_memory_is_counted(optimizer, copies, made, monkeypatch):
    """copies x parameters + batch x blocks x d, 8 bytes each, + 8 bytes a token: one byte less is refused."""
    config = design("pre-ln", depth=3, d_model=8, heads=2, vocab=11)
    training = TrainConfig(optimizer=optimizer, batch_size=5, accumulate=2)
    need = 8 * (count_parameters(config) * (copies - made) + 5 * 3 * 8 + 5 * 2)
    monkeypatch.setattr(sizes, "free_bytes", lambda device: need)
    check_size(config, training, torch.float64, "cpu", made=made)
    monkeypatch.setattr(sizes, "free_bytes", lambda device: need - 1)
    with pytest.raises(TooLarge, match="Make the model, batch_size or accumulate smaller"):
        check_size(config, training, torch.float64, "cpu", made=made)


def test_optimizers_keep_so_many_copies():
    """The state of an optimizer and the gradient are as many numbers as the bound says."""
    data = dataset("add", digits=1)
    for name in ("sgd", "adam", "adamw"):
        model = Transformer("pre-ln", depth=1, d_model=8, heads=2, **data.settings)
        optimizer = Optimizer(model, TrainConfig(optimizer=name))
        model.loss(next(data.batches("train", 2))).backward()
        gradients = sum(p.grad.numel() for p in model.parameters())
        optimizer.step(0.1)
        kept = sum(t.numel() for full, t in optimizer.tensors().items() if not full.startswith("step/"))
        weights = sum(p.numel() for p in model.parameters())
        assert weights + gradients + kept == sizes.optimizer_copies(name) * weights


def test_a_model_of_ones_own_is_looked_at_too():
    """`train` of a model that exists refuses a batch that cannot be."""
    data = dataset("add", digits=1)
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, **data.settings)
    with pytest.raises(TooLarge, match="this training needs at least"):
        train(model, data, TrainConfig(batch_size=10**12), progress=False)


def test_vocabularies_have_an_end():
    """The tokenizers package makes room for a vocabulary first, and dies where it cannot."""
    with pytest.raises(ValueError, match="at most 10,000,000 tokens; got 99,999,999,999"):
        PieceTokenizer.train(["text"], 99_999_999_999)
