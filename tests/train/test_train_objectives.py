"""Masked tokens, classes, fine-tuning: what the batches are, what is learned, what is taken over."""

from __future__ import annotations

import itertools

import pytest
import torch

from quadform.core.errors import InputError
from quadform.corpora import Dataset, Masked, Packages, dataset
from quadform.corpora.fetch import build
from quadform.nn import Transformer
from quadform.nn.tokens import MASK, SPECIALS
from quadform.nn.transformer import IGNORE
from quadform.train import TrainConfig, accuracy, open_run, started_from, train

CODE = dataset("pystdlib", seq_len=32, limit=20_000)


def test_masked_batches_hide_the_share():
    """25 % of tokens carry a label, the token of the plain batch; of those 80 % are MASK, 10 % another, 10 % as it was.

    Tokens without a label are untouched.
    """
    data = Masked(data=CODE)
    plain = next(CODE.batches("train", 400, 3))["tokens"]
    batch = next(data.batches("train", 400, 3))
    chosen = batch["labels"] != IGNORE
    assert torch.equal(batch["labels"][chosen], plain[chosen])
    assert torch.equal(batch["tokens"][~chosen], plain[~chosen])
    assert abs(chosen.float().mean() - 0.25) < 0.02
    assert chosen.any(1).all()
    seen = batch["tokens"][chosen]
    assert abs((seen == MASK).float().mean() - 0.8) < 0.03
    assert abs((seen == plain[chosen]).float().mean() - 0.1) < 0.03
    assert int(seen[seen != MASK].min()) >= len(SPECIALS)


def test_masked_stream_is_a_function():
    """Batch i is the same wherever the stream is taken up; other seeds hide other tokens."""
    data = Masked(data=CODE)
    whole = list(itertools.islice(data.batches("train", 4, 1), 4))
    later = next(data.batches("train", 4, 1, 3))
    assert all(torch.equal(later[k], whole[3][k]) for k in later)
    assert not torch.equal(next(data.batches("train", 4, 2))["labels"], whole[0]["labels"])


def test_one_token_at_least_is_chosen():
    """Even a tiny share asks one question of every sequence, so no batch is without targets."""
    batch = next(Masked(data=CODE, share=1e-9).batches("train", 16))
    assert (batch["labels"] != IGNORE).sum(1).tolist() == [1] * 16


@pytest.mark.parametrize("data", [Masked(data=CODE, share=0.5), Packages(classes=3, seq_len=16)])
def test_objectives_are_values(data):
    """A run folder can name them: from_dict(to_dict(data)) == data."""
    assert Dataset.from_dict(data.to_dict()) == data


def test_masking_needs_text():
    """Sums and pairs of sentences are no running text; shares are shares."""
    with pytest.raises(InputError, match="running text"):
        Masked(data=dataset("add"))
    with pytest.raises(InputError, match="share lies"):
        Masked(data=CODE, share=1.5)


def test_packages_are_held_out():
    """Windows come from the class they are labelled with, and no module is in two splits."""
    data = Packages(classes=3, seq_len=64)
    splits = {s: data.texts(s) for s in ("train", "valid", "test")}
    for label in range(3):
        texts = [{bytes((t - len(SPECIALS)).tolist()) for t in splits[s][label]} for s in splits]
        assert all(texts)
        assert sum(map(len, texts)) == len(set().union(*texts))
    batch = next(data.batches("valid", 30))
    for row, label in zip(batch["tokens"], batch["labels"].tolist(), strict=True):
        window = bytes((row - len(SPECIALS)).tolist())
        assert any(window in bytes((t - len(SPECIALS)).tolist()) for t in splits["valid"][label])


@pytest.mark.parametrize("top", ["", "lib/"])
def test_packages_of_an_own_corpus(tmp_path, top):
    """The parts of any Python source can be told apart: the folders below its outermost one, the largest of them."""
    for part, modules in {"core": 6, "polys": 5, "tiny": 1}.items():
        for i in range(modules):
            path = tmp_path / "code" / top / part / f"m{i}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{part} = {i}\n" * 20)
    (tmp_path / "code" / "start.py").write_text("import core\n")
    source = str(build([tmp_path / "code"], tmp_path / "packed").folder)
    data = Packages(source=source, classes=2, seq_len=16)
    assert data.names == ("core", "polys")
    assert [[len(t) for t in data.texts(s)] for s in ("train", "valid", "test")] == [[3, 3], [1, 1], [2, 1]]
    batch = next(data.batches("train", 20))
    for row, label in zip(batch["tokens"], batch["labels"].tolist(), strict=True):
        assert data.names[label].encode()[:3] in bytes((row - len(SPECIALS)).tolist())
    with pytest.raises(InputError, match="has 3 packages; 5 were asked for"):
        _ = Packages(source=source, classes=5).names
    (tmp_path / "prose.txt").write_text("no code")
    prose = str(build([tmp_path / "prose.txt"], tmp_path / "prose").folder)
    with pytest.raises(InputError, match="told apart by their Python source"):
        _ = Packages(source=prose).names


def test_accuracy_counts_right_labels():
    """accuracy = right labels / labels: of a model that always says class 1, the share of class 1."""
    data = Packages(classes=3, seq_len=16)
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, **data.settings)
    with torch.no_grad():
        model.W_C.zero_()
        model.b_C.copy_(torch.tensor([0.0, 1.0, 0.0]))
    labels = torch.cat([b["labels"] for b in itertools.islice(data.batches("valid", 16), 4)])
    found = accuracy(model, data, batches=4, batch_size=16)
    assert found.value == (labels == 1).double().mean().item()
    q = found.value
    assert found.stderr == pytest.approx((q * (1 - q) / 64 + 0.25 / 64**2) ** 0.5, rel=1e-9)


def test_fine_tuning_takes_the_weights_over(tmp_path):
    """From a masked run to a classifier: every tensor is the old one, W_C and b_C are new, a shorter text keeps the
    first positions; it trains, and its run opens again."""
    config = TrainConfig(steps=2, batch_size=4, watch_every=0, valid_batches=1)
    masked = Masked(data=CODE)
    old = Transformer("sas", depth=2, d_model=8, heads=2, **masked.settings)
    done = train(old, masked, config, progress=False, out=tmp_path / "a")
    assert set(done.valid) == {"loss", "accuracy"}
    data = Packages(classes=3, seq_len=16)
    new, fresh = started_from(open_run(tmp_path / "a").model, data)
    assert sorted(fresh) == ["W_C", "b_C"]
    for name, t in new.state_dict().items():
        if name not in fresh:
            assert torch.equal(
                t, old.state_dict()[name][: len(t)] if name.endswith("W_pos") else old.state_dict()[name]
            )
    done = train(new, data, config, progress=False, out=tmp_path / "b")
    assert done.model.config.classes == 3
    assert open_run(tmp_path / "b").data == data


def test_fine_tuning_refusals():
    """Another vocabulary, another kind, longer texts than learned positions: refused by name."""
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, **CODE.settings)
    with pytest.raises(InputError, match="261 tokens"):
        started_from(model, dataset("add"))
    with pytest.raises(InputError, match="32 positions"):
        started_from(model, Packages(seq_len=64))
    pairs = dataset("reverse", letters=256)
    with pytest.raises(InputError, match="cannot be continued"):
        started_from(model, pairs)


def test_packages_are_learned():
    """A small encoder tells three packages apart far better than chance (1/3) on modules it has not seen."""
    data = Packages(classes=3, seq_len=64)
    model = Transformer("pre-ln", depth=1, d_model=32, heads=2, **data.settings)
    config = TrainConfig(steps=150, batch_size=32, lr=3e-3, weight_decay=0.01, valid_every=150, watch_every=0)
    done = train(model, data, config, progress=False)
    assert done.valid["accuracy"].value > 0.6
