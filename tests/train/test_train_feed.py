"""Batches on their way: padding to few shapes changes no number; a thread changes no batch."""

from __future__ import annotations

import itertools

import pytest
import torch

from quadform.corpora import Letters, Packages
from quadform.nn import Transformer
from quadform.train import TrainConfig, train
from quadform.train.feed import Meal, ahead, meals, rounded
from quadform.train.machinery import compiled
from quadform.train.score import targets

DATA = Letters(letters=5, longest=9)


def small(design, **more):
    settings = {"depth": 2, "d_model": 8, "heads": 2, "dtype": torch.float64, **DATA.settings, **more}
    return Transformer(design, **settings)


@pytest.mark.parametrize("design", ["pre-ln", "sas-p", "u-spa", "post-ln"])
def test_rounding_changes_no_loss(design):
    """Rows and lengths padded to a multiple: the same loss, the same number of targets, the same gradient."""
    model = small(design, positions="sinusoidal")
    batch = next(DATA.batches("train", 5, 2))
    wide = rounded(batch, 4, model.config)
    assert wide["source"].shape[0] % 4 == wide["source"].shape[1] % 4 == (wide["target"].shape[1] - 1) % 4 == 0
    assert wide["source"].numel() > batch["source"].numel()
    assert targets(model, wide).sum() == targets(model, batch).sum()
    grads = [torch.autograd.grad(model.loss(b, smoothing=0.1), list(model.parameters())) for b in (batch, wide)]
    torch.testing.assert_close(model.loss(wide), model.loss(batch), rtol=1e-12, atol=0)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_rounding_stops_at_learned_positions():
    """No length passes the table of learned positions; a classifier's labels of padded rows carry no loss."""
    model = small("pre-ln", seq_len=11)
    batch = {"source": torch.ones(1, 10, dtype=torch.long), "target": torch.ones(1, 11, dtype=torch.long)}
    wide = rounded(batch, 8, model.config)
    assert (wide["source"].shape, wide["target"].shape) == ((8, 11), (8, 12))
    model.loss(wide)
    data = Packages(classes=3, seq_len=8)
    judge = Transformer("pre-ln", depth=1, d_model=8, heads=2, dtype=torch.float64, pad=0, **data.settings)
    batch = next(data.batches("train", 3))
    torch.testing.assert_close(judge.loss(rounded(batch, 4, judge.config)), judge.loss(batch), rtol=1e-12, atol=0)


def test_rounded_training_is_the_same():
    """A run with bucket 4 ends with the weights of a run without, to rounding."""
    config = {"steps": 5, "batch_size": 4, "watch_every": 0}
    a, b = (small("pre-ln", positions="sinusoidal") for _ in range(2))
    train(a, DATA, TrainConfig(**config), progress=False)
    train(b, DATA, TrainConfig(**config, bucket=4), progress=False)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


def test_compiled_once_for_all_shapes(monkeypatch):
    """Bucketed batches of many shapes are compiled once: no length, no number of rows and no equality is built in."""
    made, plain = [], torch.compile

    def counted(graph, inputs):
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda f, **how: plain(f, backend=counted, **how))
    model = small("pre-ln", positions="sinusoidal", depth=1, dropout=0.1)
    loss_of = compiled(model.loss, dynamic=True)
    batches = [rounded(b, 4, model.config) for b in itertools.islice(DATA.batches("train", 12), 12)]
    assert len({(b["source"].shape, b["target"].shape) for b in batches}) > 2
    for batch in batches:
        loss_of(batch, smoothing=0.1, reduction="sum")
    assert len(made) == 1


def test_processes_share_the_stream():
    """Process r of w takes batches r, w + r, 2w + r, ... of the one stream, wherever it is taken up."""
    model, size = small("pre-ln"), {"batch_size": 3, "seed": 1}
    one = [m.batches[0]["target"] for m in itertools.islice(meals(model, DATA, accumulate=1, **size), 12)]
    for rank in (0, 1):
        mine = meals(model, DATA, accumulate=2, step=1, rank=rank, world=2, **size)
        got = [b["target"] for m in itertools.islice(mine, 2) for b in m.batches]
        for a, i in zip(got, (4, 6, 8, 10), strict=True):
            assert torch.equal(a, one[i + rank])


def test_ahead_is_the_same_stream():
    """A thread that works ahead gives the same items in order, and its error at its place; it ends when closed."""
    items = [Meal([], i) for i in range(20)]
    stream = ahead(iter(items), 3)
    assert [m.targets for m in itertools.islice(stream, 20)] == list(range(20))
    stream.close()

    def breaks():
        yield items[0]
        raise OSError("no more")

    stream = ahead(breaks(), 3)
    assert next(stream) is items[0]
    with pytest.raises(OSError, match="no more"):
        next(stream)

    endless = ahead((items[0] for _ in itertools.count()), 2)
    next(endless)
    endless.close()  # returns: the worker has ended
