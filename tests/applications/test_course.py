"""Ceilings along a run, the Taylor radius beside the ceiling, and the schedule of a fresh model."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from quadform.answers.course import COURSE, Course, Stop, packed_stops
from quadform.answers.step_size import StepSize
from quadform.applications.step_size import lr
from quadform.applications.step_size.rules import Stepper, adam, read_optimizer, sgd
from quadform.cli.main import main
from quadform.core.record import Estimate
from quadform.corpora import dataset
from quadform.curvature import Risk
from quadform.curvature.operators import hessian
from quadform.nn import Transformer
from quadform.train import Schedule, TrainConfig, train
from quadform.train.along import KEPT, marks
from quadform.train.runs import open_run

CONFIG = TrainConfig(steps=24, batch_size=8, lr=3e-3, schedule=Schedule(warmup=6), watch_every=0)


@pytest.fixture(scope="module")
def data():
    return dataset("add", digits=1)


def trained(data, out: Path, config: TrainConfig) -> Path:
    train(Transformer("pre-ln", depth=1, d_model=8, heads=2, **data.settings), data, config, out=out, progress=False)
    return out


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory) -> Path:
    return trained(data, tmp_path_factory.mktemp("course") / "run", CONFIG)


@pytest.fixture(scope="module")
def answer(folder) -> StepSize:
    return lr(str(folder), batch_size=4, batches=1, verify=0, progress=False)


# --- checkpoints of a run ---------------------------------------------------------------------------------------------
def test_the_checkpoint_of_the_largest_rate_is_kept():
    """Where the rate is largest, halfway there, and evenly to the end; a large model keeps fewer, or none."""
    found = marks(CONFIG, 1)
    assert {3, 6} <= found
    assert len(found) == KEPT
    assert max(found) < CONFIG.steps
    assert marks(CONFIG, 2**29) == {6, 3}
    assert marks(CONFIG, 2**40) == frozenset()


def test_a_run_is_what_it_was_at_every_checkpoint(data, folder, tmp_path):
    """Weights and optimizer state of a kept checkpoint are those of a run that was stopped there."""
    runs = list(open_run(folder).along())
    assert [run.step for run in runs] == sorted(marks(CONFIG, 1))
    at = runs[1].step
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, **data.settings)

    class Stopped(Exception): ...

    def stop(done, *_):
        if done == at:
            raise Stopped

    with pytest.raises(Stopped):
        train(model, data, CONFIG, out=tmp_path, progress=stop)
    assert all(torch.equal(p, dict(runs[1].model.named_parameters())[n]) for n, p in model.named_parameters())
    assert read_optimizer(runs[1].optimizer().parts[0], runs[1].model).steps["embed.W_E"] == at


def test_every_ceiling_along_a_run_is_that_of_its_own_step(data, folder, answer):
    """lambda_max from the dense Hessian on the batch of the next step, and the rate of the schedule."""
    course = answer.course
    assert course is not None
    stop = course.stops[1]
    run = next(run for run in open_run(folder).along() if run.step == stop.step)
    stepper = read_optimizer(run.optimizer().parts[0], run.model)
    risk = Risk(run.model, None, next(data.batches("train", 8, 0, stop.step)), quiet=True)
    A = stepper.operator(hessian(risk), stepper.preconditioner(risk.gradient(), risk.params)).dense().double()
    assert stop.ceiling.value == pytest.approx(38 / float(torch.linalg.eigvalsh(A)[-1]), rel=2e-2)
    assert stop.rate == CONFIG.lr * CONFIG.schedule.factor(stop.step, CONFIG.steps)
    assert course.peak == CONFIG.lr
    assert course.stops[-1].step == CONFIG.steps


def test_a_planted_overshoot_is_red_and_a_small_rate_green(data, tmp_path, answer):
    """SGD at a rate far above what its start bears, without warm-up, is above its ceilings along the run."""
    assert answer.verdicts()[1].name == "course"
    assert answer.verdicts()[1].status == "green"
    high = {"optimizer": "sgd", "weight_decay": None, "lr": 2.0, "schedule": Schedule(warmup=0), "diverged_at": 1e6}
    config = dataclasses.replace(CONFIG, **high)
    found = lr(str(trained(data, tmp_path, config)), batch_size=4, batches=1, verify=0, progress=False)
    verdict = found.verdicts()[1]
    assert verdict.status == "red"
    assert "too high. Lower the peak from 2 below" in verdict.sentence()


def course_of(shares: list[float], **more) -> Course:
    stops = [
        Stop(10 * i, 1.0, Estimate(1 / s, 1e-4 / s, "estimate", error_kind="residual")) for i, s in enumerate(shares)
    ]
    return Course(tuple(stops), peak=1.0, warmup=5, **more)


@pytest.mark.parametrize(
    ("shares", "status", "words"),
    [
        ([0.1, 0.5], "green", "at most 0.5 times it, at step 10"),
        ([0.9, 0.5], "green", "edge of stability"),
        ([0.1, 1.5], "yellow", "edge of stability"),
        ([3.0, 0.5], "red", "Lower the peak from 1 below 0.333"),
    ],
)
def test_the_words_along_a_run_follow_its_limits(shares, status, words):
    verdict = course_of(shares).verdict()
    assert verdict.status == status == COURSE.of(max(shares))
    assert words in verdict.sentence()
    assert verdict.sentence("ko") != verdict.sentence()


def test_the_warm_up_is_judged_by_the_ceilings_of_a_short_run():
    """Too high within the warm-up: longer. Later: a lower peak. A peak below every ceiling needs none."""
    assert "Warm up for longer than 5 steps" in course_of([3.0, 0.5], short=20).verdict().sentence()
    assert "Lower the peak below 0.333." in course_of([0.5, 3.0], short=20).verdict().sentence()
    assert "does not require warm-up" in course_of([0.5, 0.2], short=20).verdict().sentence()
    stops = (Stop(1, 0.1, Estimate(0.5)), Stop(9, 1.0, Estimate(4.0)))
    assert "Keep the warm-up of 5 steps: at step 1" in Course(stops, 1.0, 5, 20).verdict().sentence()


def test_the_course_is_read_back_as_it_was_written(answer, tmp_path):
    answer.save(tmp_path)
    again = StepSize.load(tmp_path)
    assert again.course == answer.course
    assert set(packed_stops(answer.course.stops)) <= set(again.record.tensors)
    assert "rate_course" in again.figures()


def test_a_fresh_model_is_judged_along_a_short_run(capsys, tmp_path):
    """The recipe's peak, or the rate that is given; the model itself stays as it was."""
    words = [
        "lr",
        "new:pre-ln,depth=1,d_model=4,heads=2",
        "--data",
        "add:digits=1",
        "--batch-size",
        "4",
        "--batches",
        "1",
    ]
    more = ["--short-run", "8", "--warmup", "4", "--checkpoints", "3", "--verify", "0", "--quiet"]
    assert main([*words, *more, "--lr", "50", "--out", str(tmp_path / "a")]) == 0
    course = StepSize.load(tmp_path / "a").course
    assert course is not None
    assert (course.short, course.warmup, course.peak) == (8, 4, 50.0)
    assert [s.step for s in course.stops] == [2, 4, 8]
    assert "along a short run of 8 steps on a copy" in capsys.readouterr().out
    assert main([*words, *more, "--short-run", "0", "--out", str(tmp_path / "b")]) == 0
    assert StepSize.load(tmp_path / "b").course is None


# --- the Taylor radius beside the ceiling -----------------------------------------------------------------------------
def on_a_line(loss, **fields) -> StepSize:
    """`lr` of SGD for a loss of one number, at x = 1."""
    x = {"x": torch.tensor([1.0], dtype=torch.float64)}
    one = {"params": x, "optimizer": "sgd", "progress": False} | fields
    return lr(lambda params, batch: params["x"], torch.zeros(1), lambda out, batch: loss(out).sum(), **one)


def test_the_radius_along_the_update_is_where_the_quadratic_model_leaves_the_loss():
    """x^2 / 2 + x^4 at x = 1: the model is wrong by 10 % of its own largest change first at the r of the equation."""
    found = on_a_line(lambda x: x.square() / 2 + x**4, verify=0)
    g, h = 5.0, 13.0

    def outside(r: float) -> bool:
        moved = max(abs(h * s * s / 2 - g * s) for s in (r, min(r, g / h)))
        return abs(r**4 - 4 * r**3) > 0.1 * moved

    r = next(i * 1e-4 for i in range(1, 10**5) if outside(i * 1e-4))
    assert found.reach is not None
    assert found.reach.value == pytest.approx(r / g, rel=0.03)
    assert found.applies is False
    assert r / g < 2 / h
    assert "the ceiling does not apply" in str(found)


def test_a_quadratic_holds_as_far_as_it_was_looked():
    """x^2 / 2: the ceiling applies, and the radius is a bound from below beyond it."""
    found = on_a_line(lambda x: x.square() / 2, verify=3)
    assert found.applies is True
    assert found.reach.side == "lower"
    assert "does not apply" not in str(found)
    assert found.verdicts()[0].status == "green"


def test_a_rate_beyond_the_radius_is_yellow(data, answer):
    """Below the ceiling, and beyond where the quadratic model holds: the first words say to watch the loss."""
    record = answer.record
    record.scalars["taylor_rate"] = Estimate(answer.ceiling.value / 10, kind="bound", side="upper")
    record.inputs.update(lr=answer.ceiling.value / 5, lr_is="yours")
    assert answer.verdicts()[0].status == "yellow"
    said = answer.verdicts()[0].sentence()
    assert said.startswith("Watch the loss at learning rate")
    assert "the ceiling does not apply" in said
    assert "Before you raise it" not in said


@pytest.mark.parametrize("rule", [sgd(), sgd(0.9), sgd(0.9, nesterov=True), adam(0.9)])
def test_the_steady_step_is_the_limit_of_the_recurrence(rule):
    """m' = b m + a g with g = 1 for ever: the step c g + e m' goes to `steady`."""
    m = 0.0
    for _ in range(2000):
        m = rule.b * m + rule.a
    assert rule.steady == pytest.approx(rule.c + rule.e * m, rel=1e-9)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_update_is_torchs_step_at_rate_1(decay):
    """-P^-1 g - W x, one step of AdamW without momentum from its own state."""
    p = torch.nn.Parameter(torch.tensor([[1.0, -2.0]], dtype=torch.float64))
    optimizer = torch.optim.AdamW([p], lr=1e-3, betas=(0.0, 0.99), weight_decay=decay)
    for g in (0.5, 0.2):
        p.grad = torch.full_like(p, g)
        optimizer.step()
    model = torch.nn.Module()
    model.register_parameter("W", p)
    stepper: Stepper = read_optimizer(optimizer, model)
    theta, g = p.detach().clone(), torch.tensor([[0.3, -0.1]], dtype=torch.float64)
    expected = stepper.update({"W": g}, {"W": theta})["W"]
    p.grad = g.clone()
    optimizer.step()
    assert torch.allclose((p.detach() - theta) / 1e-3, expected, rtol=1e-6)
    assert math.isfinite(float(expected.sum()))
