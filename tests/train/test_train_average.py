"""The mean of snapshots, and the recipe of the original Transformer."""

import pytest
import torch

from quadform.cli import main
from quadform.core.errors import FileError, InputError
from quadform.corpora import dataset
from quadform.nn import Transformer
from quadform.train import TrainConfig, average, average_run, open_run, prepare, train
from quadform.train.folder import RunFolder

DATA = dataset("reverse", letters=3, longest=3)
TINY = {"depth": 1, "d_model": 8, "heads": 1}
HOW = {"batch_size": 4, "valid_every": 100, "valid_batches": 1, "watch_every": 0}


def tiny(seed=0):
    return Transformer("pre-ln", seed=seed, dtype=torch.float64, **TINY, **DATA.settings)


def test_average_is_the_mean(tmp_path):
    """Every parameter of the average is the mean of those of the saved models."""
    models = [tiny(seed) for seed in range(3)]
    folders = [m.save(tmp_path / str(i)) for i, m in enumerate(models)]
    mean = average(folders).state_dict()
    for name, t in mean.items():
        want = torch.stack([m.state_dict()[name] for m in models]).mean(0)
        torch.testing.assert_close(t, want, rtol=1e-15, atol=1e-15)
    Transformer("post-ln", **TINY, **DATA.settings).save(tmp_path / "other")
    with pytest.raises(InputError, match="different shape"):
        average([folders[0], tmp_path / "other"])
    with pytest.raises(InputError, match="at least one saved model"):
        average([])


def test_a_run_keeps_its_last_snapshots(tmp_path):
    """`average` 3 of saves every 2 steps of 9: steps 6, 8 and the last, and their mean; the same where resumed."""
    config = TrainConfig(steps=9, save_every=2, average=3, **HOW)
    done = train(tiny(), DATA, config, out=tmp_path / "run", progress=False)
    kept = RunFolder(tmp_path / "run").kept()
    assert [p.name for p in kept] == ["00000006", "00000008", "00000009"]
    last = Transformer.load(kept[-1]).state_dict()
    assert all(torch.equal(t, last[name]) for name, t in done.model.state_dict().items())
    mean = average(kept).state_dict()
    for model in (Transformer.load(tmp_path / "run" / "averaged"), average_run(tmp_path / "run", 3)):
        assert all(torch.equal(t, mean[name]) for name, t in model.state_dict().items())
    opened = open_run(tmp_path / "run", average=2)
    two = average(kept[1:]).state_dict()
    assert all(torch.equal(t, two[name]) for name, t in opened.model.state_dict().items())
    with pytest.raises(FileError, match="has 3 snapshots to average; 4 were asked for"):
        open_run(tmp_path / "run", average=4)
    half = {"seconds": 0.0, "progress": False}
    while not (tmp_path / "slow" / "averaged").exists():  # one step at a time
        train(tiny(), DATA, config, out=tmp_path / "slow", **half)
    resumed = Transformer.load(tmp_path / "slow" / "averaged").state_dict()
    assert all(torch.equal(t, mean[name]) for name, t in resumed.items())
    train(tiny(), DATA, TrainConfig(steps=1, average=1, **HOW), out=tmp_path / "run", resume=False, progress=False)
    assert [p.name for p in RunFolder(tmp_path / "run").kept()] == ["00000001"]
    with pytest.raises(InputError, match="kept in a folder"):
        train(tiny(), DATA, config, progress=False)


def test_the_original_recipe():
    """Post-LN, Adam (0.9, 0.98, 1e-9), rate d^-0.5 min(s^-0.5, s w^-1.5), smoothing and dropout 0.1 [VSP17]."""
    plan = prepare(DATA, recipe="vaswani", d_model=64, warmup=40, batch_size=4)
    c, m = plan.config, plan.model.config
    assert (c.optimizer, c.betas, c.eps, c.weight_decay) == ("adam", (0.9, 0.98), 1e-9, 0)
    assert (c.smoothing, c.average, c.clip) == (0.1, 5, 0)
    assert (m.design, m.depth, m.d_model, m.heads, m.d_ff, m.dropout) == ("post-ln", 6, 64, 8, 256, 0.1)
    assert (m.positions, m.tied, m.embed_scale) == ("sinusoidal", True, 8)
    for s in (1, 17, 40, 41, 9999):
        rate = 64**-0.5 * min(s**-0.5, s * 40**-1.5)
        assert c.lr * c.schedule.factor(s - 1, c.steps) == pytest.approx(rate, rel=1e-12)
    assert prepare(DATA, recipe="vaswani", design="pre-ln", **TINY, lr=0.5).config.lr == 0.5
    share = prepare(DATA, recipe="vaswani", **TINY, warmup=0.25, steps=100)
    assert share.config.lr == pytest.approx((8 * 25) ** -0.5)
    with pytest.raises(InputError, match="unknown recipe 'vaswni'"):
        prepare(DATA, recipe="vaswni")


def test_on_the_command_line(tmp_path, capsys):
    """`train --recipe vaswani --average 2`, then `decode --recipe vaswani --average 2`, and what is refused."""
    words = [
        "--data",
        "reverse:letters=3,longest=3",
        "--depth",
        "1",
        "--d-model",
        "8",
        "--heads",
        "1",
        "--batch-size",
        "4",
    ]
    run = str(tmp_path / "run")
    made = ["train", *words, "--recipe", "vaswani", "--steps", "4", "--save-every", "2", "--average", "2"]
    assert main([*made, "--test", "4", "--out", run, "--quiet"]) == 0
    assert "post-ln" in capsys.readouterr().out
    assert main(["decode", run, "abc", "--recipe", "vaswani", "--average", "2"]) == 0
    assert main(["decode", run, "abc", "--max-length", "+0"]) == 0
    capsys.readouterr()
    assert main(["decode", run, "abc", "--average", "3"]) == 2
    assert "2 snapshots to average; 3 were asked for" in capsys.readouterr().err
    assert main(["decode", run, "abc", "--max-length", "+x"]) == 2
    assert "max_length=+x: give a number of tokens" in capsys.readouterr().err
