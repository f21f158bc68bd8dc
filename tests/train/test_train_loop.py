"""The loop: what one step is, determinism, validation, stopping, watching."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal

import pytest
import torch

from quadform.core.errors import InputError
from quadform.corpora import Addition, Dataset, Letters
from quadform.nn import Transformer, generate
from quadform.nn.decode import Search
from quadform.propagation.collapse import token_cosine
from quadform.train import Diverged, Schedule, TrainConfig, evaluate, exact_match, loop, token_cosines, train
from quadform.train.score import targets
from quadform.train.watch import keeps_apart

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0, "watch_every": 0}
CONSTANT = Schedule(decay="constant", warmup=0)
WORDS = Letters(letters=3, longest=4)
SUMS = Addition(digits=1)


class Given(Dataset):
    """The given batches, again and again."""

    def __init__(self, *batches):
        self.given = batches

    def __repr__(self):
        return "Given()"

    @property
    def settings(self):
        return WORDS.settings

    def batches(self, split, batch_size, seed=0, start=0):
        return itertools.islice(itertools.cycle(self.given), start, None)


def small(data, design="pre-ln", **settings):
    settings = {"depth": 2, "d_model": 8, "heads": 2, "dtype": torch.float64, **settings}
    return Transformer(design, **settings, **data.settings)


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def quiet(model, data, config, **more):
    return train(model, data, config, progress=False, **more)


# ------------------------------------------------------------------------------------------------------------ one step
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_step_is_gradient_descent(smoothing):
    """One SGD step is W - lr * gradient of the (smoothed) mean loss over all targets of the accumulated batches."""
    batches = list(itertools.islice(WORDS.batches("train", 3, 5), 3))
    counts = [int((b["target"][:, 1:] != 0).sum()) for b in batches]
    assert len(set(counts)) > 1  # else a mean of means would do
    model = small(WORDS)
    loss = sum(n * model.loss(b, smoothing=smoothing) for n, b in zip(counts, batches, strict=True)) / sum(counts)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    expect = weights(model) - 0.3 * gradient
    config = TrainConfig(steps=1, accumulate=3, lr=0.3, smoothing=smoothing, schedule=CONSTANT, **PLAIN)
    done = quiet(model, Given(*batches), config)
    torch.testing.assert_close(weights(model), expect, rtol=1e-12, atol=1e-14)
    assert done.loss == pytest.approx(loss.item(), rel=1e-12)


def test_clipping_bounds_the_step():
    """With clip c below the gradient norm, one SGD step at rate 1 has length c."""
    model = small(WORDS)
    before = weights(model)
    quiet(model, WORDS, TrainConfig(steps=1, lr=1.0, schedule=CONSTANT, **{**PLAIN, "clip": 0.01}))
    assert float((weights(model) - before).norm()) == pytest.approx(0.01, rel=1e-4)


def test_rate_follows_the_schedule(tmp_path):
    """Logged rates are lr times the schedule's factor, step by step."""
    config = TrainConfig(steps=6, batch_size=2, lr=0.1, schedule=Schedule(warmup=2), log_every=1, **PLAIN)
    quiet(small(SUMS), SUMS, config, out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["lr"] for line in lines if "lr" in line}
    assert rates == {t + 1: pytest.approx(0.1 * config.schedule.factor(t, 6)) for t in range(6)}


def test_seed_decides_everything():
    """Same seed: same weights, with dropout; another seed: others. The global generator and the mode stay as found."""
    config = TrainConfig(steps=3, batch_size=4, watch_every=1, valid_every=2)
    models = [small(WORDS, dropout=0.3).eval() for _ in range(3)]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    quiet(models[0], WORDS, config)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    quiet(models[1], WORDS, config)
    quiet(models[2], WORDS, TrainConfig(steps=3, batch_size=4, seed=1))
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert not torch.equal(weights(models[0]), weights(models[2]))
    assert not models[0].training
    assert all(p.grad is None for p in models[0].parameters())


def test_watching_does_not_change_the_run():
    """Validation, questions and the collapse monitor leave the weights as they would be without them."""
    a, b = small(WORDS, dropout=0.3), small(WORDS, dropout=0.3)
    quiet(a, WORDS, TrainConfig(steps=4, batch_size=4, watch_every=1, valid_every=1, questions=5, log_every=1))
    quiet(b, WORDS, TrainConfig(steps=4, batch_size=4, watch_every=0, valid_every=4))
    assert torch.equal(weights(a), weights(b))


# --------------------------------------------------------------------------------------------------------------- score
@pytest.mark.parametrize("data", [WORDS, SUMS])
def test_validation_is_the_mean_over_targets(data):
    """evaluate = sum of losses / number of targets over the batches; its standard error by the ratio formula."""
    model = small(data, dropout=0.5)
    found = evaluate(model, data, batches=3, batch_size=5, seed=4)
    model.eval()
    lost, counts = [], []
    for batch in itertools.islice(data.batches("valid", 5, 4), 3):
        each = model.loss(batch, reduction="none").detach()
        assert torch.equal(targets(model, batch), each != 0)
        lost += each.sum(1).tolist()
        counts += (each != 0).sum(1).tolist()
    mean = sum(lost) / sum(counts)
    assert found.value == pytest.approx(mean, rel=1e-12)
    spread = math.sqrt(sum((l - mean * n) ** 2 for l, n in zip(lost, counts, strict=True))) / sum(counts)
    assert found.stderr == pytest.approx(spread, rel=1e-9)


def test_reverse_is_learned():
    """A small encoder-decoder learns to reverse words: at least 95 % of held-out words exactly, in seconds."""
    data = Letters(task="reverse", letters=8, longest=6)
    model = small(data, depth=1, d_model=32, dtype=torch.float32)
    config = TrainConfig(
        steps=500, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01, questions=200, valid_every=100, goal=0.98
    )
    done = quiet(model, data, config)
    assert done.valid["exact"].value >= 0.95
    asked = data.questions("test", 50)
    found = generate(model, [q for q, _ in asked], Search(max_length=7))
    right = sum(list(f[0].tokens) == answer for f, (_, answer) in zip(found, asked, strict=True))
    assert exact_match(model, data, count=50, split="test").value == right / 50
    assert done.step < 500 if done.stopped == "goal" else done.stopped == "steps"


def test_exact_match_asks_for_the_end():
    """An untrained model answers (next to) nothing; a decoder without end token is compared on the answer's digits."""
    share = exact_match(small(WORDS), WORDS, count=50)
    assert share.value < 0.3
    q = (50 * share.value + 1) / 52  # no answer right is no certainty that none will be
    assert share.stderr == pytest.approx((q * (1 - q) / 50) ** 0.5)
    model, asked = small(SUMS), SUMS.questions("valid", 40)
    found = generate(model, [q for q, _ in asked], Search(max_length=2))
    right = sum(list(f[0].tokens) == answer for f, (_, answer) in zip(found, asked, strict=True))
    assert exact_match(model, SUMS, count=40).value == right / 40


# ------------------------------------------------------------------------------------------------------------ stopping
def test_early_stopping(tmp_path):
    """At rate 0 no validation is better than the first: patience 2 stops at the third, and `best` is the first."""
    config = TrainConfig(steps=50, batch_size=2, lr=0.0, valid_every=4, patience=2)
    done = quiet(small(SUMS), SUMS, config, out=tmp_path)
    assert (done.step, done.best_step, done.stopped) == (12, 4, "patience")
    best = Transformer.load(tmp_path / "best")
    assert torch.equal(weights(best), weights(small(SUMS)))


def test_best_model_is_kept(tmp_path):
    """`best` holds the weights of the best validation, not of the last step."""
    config = TrainConfig(steps=12, batch_size=4, optimizer="sgd", lr=3.0, clip=0, valid_every=2, diverged_at=1e9)
    done = quiet(small(SUMS), SUMS, config, out=tmp_path)
    best = evaluate(Transformer.load(tmp_path / "best"), SUMS, batch_size=4).value
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    seen = {line["step"]: line["valid"]["loss"]["value"] for line in lines if "valid" in line}
    assert best == pytest.approx(min(seen.values()), rel=1e-12)
    assert seen[done.best_step] == min(seen.values())
    assert torch.equal(weights(Transformer.load(tmp_path / "model")), weights(done.model))


# ------------------------------------------------------------------------------------------------------------- breaking
def broken(model, data=SUMS, **more):
    before = weights(model)
    with pytest.raises(Diverged, match="Lower lr") as caught:
        quiet(model, data, TrainConfig(**{"steps": 50, "batch_size": 4, "watch_every": 0, **more}))
    return caught.value, before


def test_infinite_weights_are_named():
    """A weight that is not finite: the run stops at step 1 and names it."""
    model = small(SUMS)
    model.layers[1].mlp.W_1.data[0, 0] = math.nan
    error, _ = broken(model)
    assert (error.step, error.layer) == (1, "the weights layers.1.mlp.W_1")


def test_overflow_in_the_forward_pass_is_named():
    """An activation that overflows: the first module of the forward pass whose output is not finite is named."""
    model = small(SUMS)
    model.layers[1].mlp.W_1.data.fill_(1e200)
    model.layers[1].mlp.W_2.data.fill_(1e200)
    error, before = broken(model)
    assert error.layer == "the output of layers.1.mlp"
    assert torch.equal(weights(model), before)


def test_broken_gradient_is_named():
    """A gradient that is not finite behind a finite loss: named, and the weights stay as they were."""
    model = small(SUMS)
    model.layers[0].attn.W_V.register_hook(lambda g: g * math.inf)
    error, before = broken(model)
    assert "gradient is not finite" in str(error)
    assert error.layer == "the gradient of layers.0.attn.W_V"
    assert torch.equal(weights(model), before)


def test_a_broken_run_names_its_checkpoint_where_there_is_one(tmp_path):
    """The last checkpoint is spoken of only once there is one."""
    for save_every, spoken in ((10, False), (1, True)):
        how = TrainConfig(steps=50, batch_size=4, watch_every=0, optimizer="sgd", lr=1e300, save_every=save_every)
        with pytest.raises(Diverged) as caught:
            quiet(small(SUMS), SUMS, how, out=tmp_path / str(save_every))
        assert ("last checkpoint" in str(caught.value)) == spoken


def test_divergence_stops_the_run():
    """A finite loss far above its beginning stops the run, with the step and the layer of the largest gradient."""
    error, _ = broken(small(SUMS), optimizer="sgd", lr=300.0, clip=0, schedule=CONSTANT, log_every=3)
    assert "times where it began" in str(error)
    assert error.layer.split(".")[0] in ("layers", "embed", "final_norm")
    assert 3 <= error.step <= 50


def test_refusals():
    """bf16 on a CPU, and batches without any target, are refused by name."""
    with pytest.raises(InputError, match="bf16"):
        quiet(small(SUMS), SUMS, TrainConfig(precision="bf16"))
    batch = next(SUMS.batches("train", 2))
    batch["labels"] = torch.full_like(batch["labels"], -100)
    with pytest.raises(InputError, match="no target"):
        quiet(small(SUMS), Given(batch), TrainConfig(steps=1))


# ----------------------------------------------------------------------------------------------------- one step late
def test_late_numbers_change_nothing(tmp_path, monkeypatch):
    """Looking at loss and norm one step late, as on CUDA: same weights, same log, same checkpoints."""
    config = TrainConfig(steps=7, batch_size=4, watch_every=3, log_every=2, valid_every=5, save_every=3)
    a, b = small(WORDS), small(WORDS)
    now = quiet(a, WORDS, config, out=tmp_path / "now")
    monkeypatch.setattr(loop, "LATE_ON", ("cpu",))
    late = quiet(b, WORDS, config, out=tmp_path / "late")
    assert torch.equal(weights(a), weights(b))
    assert (now.loss, now.valid) == (late.loss, late.valid)

    def log(name):
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert log("now") == log("late")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_late_break_leaves_the_weights(optimizer, monkeypatch):
    """One step late: the step with the broken gradient is skipped by the device, named, and no weight is lost."""
    monkeypatch.setattr(loop, "LATE_ON", ("cpu",))
    model, calls = small(SUMS), []

    def breaks(g):
        calls.append(0)
        return g * math.inf if len(calls) >= 3 else g

    model.layers[0].attn.W_V.register_hook(breaks)
    with pytest.raises(Diverged, match="step 3: the gradient is not finite") as caught:
        quiet(model, SUMS, TrainConfig(steps=9, batch_size=4, watch_every=0, optimizer=optimizer))
    assert caught.value.layer == "the gradient of layers.0.attn.W_V"
    assert torch.isfinite(weights(model)).all()


# ------------------------------------------------------------------------------------------------------ leaving early
def test_time_is_up_and_goes_on(tmp_path):
    """After `seconds` the run writes a checkpoint and says "time"; the same call goes on to the same weights."""
    config = TrainConfig(steps=6, batch_size=4, watch_every=0)
    whole = quiet(small(WORDS), WORDS, config).model
    first = quiet(small(WORDS), WORDS, config, out=tmp_path, seconds=0)
    assert (first.stopped, first.step) == ("time", 1)
    model = small(WORDS)
    assert quiet(model, WORDS, config, out=tmp_path).stopped == "steps"
    assert torch.equal(weights(model), weights(whole))


def test_ctrl_c_keeps_the_step(tmp_path):
    """Ctrl-C: the step is finished, a checkpoint written, KeyboardInterrupt raised; the same call goes on."""
    config = TrainConfig(steps=6, batch_size=4, watch_every=0)

    def interrupt(done, total, left, text):
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(small(WORDS), WORDS, config, out=tmp_path, progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    steps = []
    model = small(WORDS)
    train(model, WORDS, config, out=tmp_path, progress=lambda done, *more: steps.append(done))
    assert steps == [3, 4, 5, 6]
    assert torch.equal(weights(model), weights(quiet(small(WORDS), WORDS, config).model))


# ------------------------------------------------------------------------------------------------------------- collapse
def test_cosines_are_those_of_the_streams():
    """The monitor's number for layer l is the mean over sequences of the cosine of stream X_{l+1}, padding left out."""
    model, batch = small(SUMS), next(SUMS.batches("train", 6))
    found = token_cosines(model, batch)
    streams = model.streams(batch["tokens"])
    assert list(found) == ["layers.0", "layers.1"]
    for value, X in zip(found.values(), streams[1:], strict=True):
        assert value.value == pytest.approx(token_cosine(X).mean().item(), rel=1e-12)

    model, batch = small(WORDS, positions="sinusoidal"), next(WORDS.batches("train", 6))
    long = {k: torch.cat((t, torch.zeros(len(t), 3, dtype=t.dtype)), 1) for k, t in batch.items()}
    found, padded = token_cosines(model, batch), token_cosines(model, long)
    assert list(found) == ["encoder_layers.0", "encoder_layers.1", "layers.0", "layers.1"]
    assert {k: e.value for k, e in padded.items()} == pytest.approx({k: e.value for k, e in found.items()}, rel=1e-9)


def test_collapse_is_warned_of(tmp_path, capsys):
    """A deep stack without skips warns of rank collapse, once, by layer; a Pre-LN stack does not."""
    config = TrainConfig(steps=3, batch_size=4, watch_every=1, lr=1e-4)
    done = quiet(small(SUMS, "no-skip", depth=8, d_model=16), SUMS, config, out=tmp_path)
    assert len(done.warnings) == 1
    assert "rank collapse" in done.warnings[0]
    assert "layers." in done.warnings[0]
    assert done.warnings[0] in capsys.readouterr().err
    assert done.warnings[0] in [
        json.loads(x).get("warning") for x in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert "A skip connection" in done.warnings[0]
    assert quiet(small(SUMS, depth=8, d_model=16), SUMS, config).warnings == ()
    aims = quiet(small(SUMS, "e-spa", depth=8, d_model=16), SUMS, config).warnings[0]
    assert "strength 0.005" in aims  # no advice to take the design that it has
    assert "skip" not in aims
    assert "warm-up" in keeps_apart(small(SUMS, "sas-p").config)
    assert "warm-up" in keeps_apart(small(SUMS, "pre-ln").config)
