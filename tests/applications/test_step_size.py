"""The learning-rate ceiling: rules against torch's own optimizers, the trial on a copy, resume, words, refusals."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quadform.applications.step_size import StepSize, lr, start
from quadform.applications.step_size.ceiling import ceiling_of
from quadform.applications.step_size.rules import (
    Stepper,
    adam,
    floor_share,
    read_optimizer,
    sgd,
    stepper_by_name,
)
from quadform.applications.step_size.start import first_model
from quadform.applications.step_size.trial import (
    HOLDS,
    Pair,
    double_copy,
    predicted,
    tolerance,
    trial_gradients,
    try_out,
)
from quadform.applications.subject import weights_hash
from quadform.cli.main import main
from quadform.core.errors import InputError, UnknownName
from quadform.core.number import Estimate
from quadform.core.record import Record
from quadform.corpora import dataset
from quadform.curvature import Risk, hessian
from quadform.estimate import eigenpairs
from quadform.nn import Transformer
from quadform.train import TrainConfig, train
from quadform.train.runs import open_run

RULES = [sgd(), sgd(0.9), sgd(0.5, nesterov=True), sgd(0.9, dampening=0.3), adam(0.9), adam(0.0)]
ids = [r.name for r in RULES]


@pytest.fixture(scope="module")
def data():
    return dataset("add", digits=1)


@pytest.fixture(scope="module")
def batches(data):
    return list(itertools.islice(data.batches("train", 8, 3), 2))


def make(data, **options) -> Transformer:
    given_ = {"depth": 1, "d_model": 4, "heads": 2, "activation": "gelu", "dtype": torch.float64, **options}
    return Transformer("pre-ln", **given_, **data.settings)


# --- rules ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", RULES, ids=ids)
@given(lam=st.floats(1e-3, 1e4), decay=st.sampled_from([0.0, 1e-3, 0.3]))
@settings(max_examples=25, deadline=None)
def test_the_ceiling_is_where_the_slowest_mode_neither_grows_nor_shrinks(rule, lam, decay):
    """At eta = 2 / (w + kappa lambda) the spectral radius is 1; at 0.9 of it below 1, at 1.1 above."""
    eta = 2 / (decay + rule.kappa * lam)
    assert rule.multiplier(eta, lam, decay) == pytest.approx(1, abs=1e-6)
    assert rule.multiplier(0.9 * eta, lam, decay) < 1
    assert rule.multiplier(1.1 * eta, lam, decay) > 1


def test_the_published_numerators():
    """2, 2 + 2b, (2 + 2b) / (1 + 2b), (2 + 2 b1) / (1 - b1)."""
    assert sgd().factor == 2
    assert sgd(0.9).factor == pytest.approx(3.8)
    assert sgd(0.9, nesterov=True).factor == pytest.approx(3.8 / 2.8)
    assert adam(0.9).factor == pytest.approx(38)
    assert adam(0.9).formula == "38 / lambda_max(P^-1 H)"


def _torch_path(make_optimizer, lam: float, steps: int, prepare=None) -> list[float]:
    """x after 1, ..., steps of a torch optimizer on lam x^2 / 2 from x = 1."""
    x = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer, path = make_optimizer([x]), []
    if prepare:
        prepare(optimizer, x)
    for _ in range(steps):
        x.grad = lam * x.detach().clone()
        optimizer.step()
        path.append(float(x.detach()))
    return path


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.7, True)])
def test_sgd_is_torchs(momentum, nesterov):
    """The recurrence of `sgd(...)` is torch.optim.SGD step by step."""
    path = _torch_path(lambda p: torch.optim.SGD(p, lr=0.3, momentum=momentum, nesterov=nesterov), 2.0, 6)
    assert path == pytest.approx(predicted(sgd(momentum, nesterov), 0.3, 2.0, 6), rel=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_adamw_with_its_preconditioner_frozen_is_the_recurrence(decay):
    """torch.optim.AdamW with beta2 -> 1 and v given: x' = (1 - eta w) x - eta m' / P, m' = b1 m + (1 - b1) g."""
    lam, eta, v = 3.0, 0.4, 0.25

    def prepare(optimizer, x):
        state = {
            "step": torch.tensor(1e16, dtype=torch.float64),
            "exp_avg": torch.zeros_like(x),
            "exp_avg_sq": torch.full_like(x, v),
        }
        optimizer.state[x] = state

    path = _torch_path(
        lambda p: torch.optim.AdamW(p, lr=eta, betas=(0.9, 1 - 1e-13), eps=0.0, weight_decay=decay), lam, 6, prepare
    )
    M, state, expected = adam(0.9).step(eta, lam / v**0.5, decay), torch.tensor([1.0, 0.0], dtype=torch.float64), []
    for _ in range(6):
        state = M @ state
        expected.append(float(state[0]))
    assert path == pytest.approx(expected, rel=1e-9)


def test_the_preconditioner_is_what_torch_divides_by_next(data, batches):
    """P = sqrt(v_{t+1} / (1 - b2^{t+1})) + eps, v_{t+1} being what AdamW's next step on the same gradient makes."""
    model = make(data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99))
    for _ in range(3):
        optimizer.zero_grad()
        model.loss(batches[0]).backward()
        optimizer.step()
    risk = Risk(model, None, batches[0], quiet=True)
    gradient = risk.gradient()
    P = read_optimizer(optimizer, model).preconditioner(gradient, risk.params)
    for name, p in model.named_parameters():
        p.grad = gradient[name].clone()
    optimizer.step()
    for name, p in model.named_parameters():
        v, t = optimizer.state[p]["exp_avg_sq"], int(optimizer.state[p]["step"])
        torch.testing.assert_close(P[name], (v / (1 - 0.99**t)).sqrt() + 1e-8, rtol=1e-12, atol=0)


def test_the_operator_has_the_eigenvalues_of_P_inverse_H(data, batches):
    """S (H + D) S + W / kappa is similar to R P^-1 (H + D) + R W / kappa, and is symmetric."""
    model = make(data, heads=1)
    risk = Risk(model, None, batches, quiet=True)
    H = hessian(risk)
    names = tuple(risk.params)
    stepper = Stepper(
        adam(0.8),
        names,
        rates={n: 0.5 if "mlp" in n else 1.0 for n in names},
        coupled=dict.fromkeys(names, 0.3),
        decoupled={n: 0.1 for n in names if "attn" in n},
    )
    P = stepper.preconditioner(risk.gradient(), risk.params)
    dense, flat = H.dense(), risk.space.flatten

    def diagonal(values):
        return flat({n: torch.full_like(risk.params[n], values.get(n, 0.0)) for n in names})

    rate = diagonal(stepper.rates)
    other = (rate / flat(P))[:, None] * (dense + torch.diag(diagonal(stepper.coupled)))
    other += torch.diag(rate * diagonal(stepper.decoupled) / stepper.rule.kappa)
    A = stepper.operator(H, P).dense()
    torch.testing.assert_close(A, A.T)
    top = torch.linalg.eigvalsh(A)[-1]
    assert float(top) == pytest.approx(float(torch.linalg.eigvals(other).real.max()), rel=1e-8)


def test_groups_are_read(data):
    """Learning rates count relative to the largest; AdamW's decay is decoupled, Adam's and SGD's are not."""
    model = make(data)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]

    def groups():
        return [{"params": matrices, "lr": 0.2, "weight_decay": 0.1}, {"params": rest, "lr": 0.1, "weight_decay": 0.0}]

    found = read_optimizer(torch.optim.AdamW(groups()), model)
    assert (found.lr, found.decay) == (0.2, 0.1)
    assert found.rates["layers.0.attn.W_Q"] == 1
    assert found.rates["final_norm.bias"] == 0.5
    assert "layers.0.attn.W_Q" in found.decoupled
    assert not found.coupled
    assert "layers.0.attn.W_Q" in read_optimizer(torch.optim.SGD(groups(), lr=0.1), model).coupled


# --- the measurement ------------------------------------------------------------------------------------------------
def quadratic(eigenvalues: list[float], shift: float = 0.0):
    """A function model whose loss is sum lam (x - shift)^2 / 2, scaled by the batch."""
    lam = torch.tensor(eigenvalues, dtype=torch.float64)
    params = {"x": torch.full_like(lam, 0.5)}
    return (
        lambda p, batch: (p["x"] - shift, batch),
        lambda out, batch: (out[1][0] * lam * out[0] ** 2).sum() / 2,
        params,
    )


def test_the_ceiling_of_a_lower_bound_is_an_upper_bound():
    """2 / lambda with the residual of lambda: what bounds lambda from below bounds the ceiling from above."""
    lam = Estimate(4.0, 0.1, "bound", 9, False, "a note", "residual", "lower")
    found = ceiling_of(2, lam)
    assert (found.value, found.error, found.error_kind, found.side) == (0.5, 0.0125, "residual", "upper")
    assert (found.kind, found.matvecs, found.converged, found.note) == ("bound", 9, False, "a note")


def test_a_quadratic_has_the_ceiling_of_the_book():
    """lambda_max = 4: 2 / 4 for SGD, 3.8 / 4 with momentum; on batches scaled by 1/2 and 3/2 it is 1 and 1/3."""
    f, loss, params = quadratic([4.0, 1.0, -2.0])
    scaled = [(torch.tensor([c], dtype=torch.float64), torch.zeros(1)) for c in (0.5, 1.5)]
    found = lr(f, scaled, loss, optimizer="sgd", params=params, verify=0, progress=False)
    assert found.ceiling.value == pytest.approx(0.5, rel=1e-9)
    assert found.interval == pytest.approx((1 / 3, 1.0), rel=1e-6)
    assert found.rule == "2 / lambda_max(H)"
    assert found.suggest(0.2) == pytest.approx(0.1, rel=1e-9)
    assert found.table().column("ceiling") == pytest.approx((0.5, 0.95), rel=1e-9)


def test_without_upward_curvature_there_is_no_ceiling():
    """lambda_max <= 0: the ceiling is infinite and the words say so."""
    f, loss, params = quadratic([-1.0, -3.0])
    batch = (torch.ones(1, dtype=torch.float64), torch.zeros(1))
    found = lr(f, batch, loss, optimizer="sgd", params=params, verify=0, progress=False)
    assert found.ceiling.value == math.inf
    assert "sets no ceiling" in str(found)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adamw"])
def test_the_trial_on_a_copy_goes_as_theory_says(name, data, batches):
    """0.5x shrinks, 1x holds, 2x grows, each within 1 % of the recurrence's multiplier."""
    found = lr(make(data), batches, None, optimizer=name, verify=10, progress=False)
    assert [t.word for t in found.trials] == ["shrinks", "holds", "grows"]
    assert found.trials[1].measured == pytest.approx(found.trials[1].predicted, rel=2e-3)
    assert found.trials[2].measured == pytest.approx(found.trials[2].predicted, rel=0.01)
    assert found.ok


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"momentum": 0.7, "nesterov": True}, {"momentum": 0.9, "weight_decay": 0.3}],
    ids=str,
)
def test_the_plain_run_is_torchs(options, data, batches):
    """The losses "seen, not predicted" are those of torch.optim.SGD on the same batches, step by step."""
    model, eta = make(data), 0.5
    risk = Risk(model, None, batches, quiet=True)
    stepper = read_optimizer(torch.optim.SGD(model.parameters(), lr=eta, **options), model)
    S = stepper.operator(hessian(risk), stepper.preconditioner({}, risk.params)).S
    losses = Pair(risk, stepper, S, risk.space.random(), size=1e-3).plain(eta, 5)
    twin, path = copy.deepcopy(model), []
    optimizer = torch.optim.SGD(twin.parameters(), lr=eta, **options)
    for _ in range(6):
        loss = sum(twin.loss(batch) for batch in batches) / len(batches)
        path.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses == pytest.approx(path, rel=1e-9)
    assert abs(path[5] - path[0]) > 0.05


def test_the_plain_run_of_adamw_has_its_preconditioner_frozen(data, batches):
    """m' = b1 m + (1 - b1) g, x' = (1 - eta w) x - eta m' / P with the P of the next step, on the plain loss."""
    model, eta = make(data), 0.03
    risk = Risk(model, None, batches, quiet=True)
    stepper = read_optimizer(torch.optim.AdamW(model.parameters(), lr=eta, weight_decay=0.2), model)
    P = stepper.preconditioner(risk.gradient(), risk.params)
    losses = Pair(risk, stepper, stepper.operator(hessian(risk), P).S, risk.space.random(), size=1e-3).plain(eta, 5)
    theta, m, path = {n: t.detach().clone() for n, t in risk.params.items()}, dict.fromkeys(risk.params, 0.0), []
    for _ in range(6):
        path.append(float(risk.value(theta)))
        g = risk.gradient(theta)
        m = {n: 0.9 * m[n] + 0.1 * g[n] for n in theta}
        theta = {n: (1 - eta * 0.2) * t - eta * m[n] / P[n] for n, t in theta.items()}
    assert losses == pytest.approx(path, rel=1e-9)
    assert abs(path[5] - path[0]) > 0.05


def test_a_wrong_ceiling_is_found_out(data, batches):
    """With lambda 20 % too small the pair grows at "1x": the trial can fail."""
    risk = Risk(make(data, heads=1), None, batches, quiet=True)
    stepper = stepper_by_name("sgd", tuple(risk.params))
    A = stepper.operator(hessian(risk), stepper.preconditioner({}, risk.params))
    found = eigenpairs(A, top=1)
    pair = Pair(risk, stepper, A.S, {n: t[0] for n, t in found.vectors.items()})
    wrong = 0.8 * found.top[0].value
    trials = try_out(pair, 2 / wrong, wrong, 5)
    assert trials[1].word == "grows"
    assert not trials[1].as_expected


@pytest.mark.parametrize("seed", [1, 2])
def test_a_model_that_rounds_inside_is_tried_within_its_resolution(seed):
    """Llama's norms round to float32 whatever the weights: two displacements see curvatures 1e-3 apart, and Adam's
    threshold multiplies that by 38. The trial allows what it can resolve, and still finds a ceiling 20 % off."""
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**small, num_attention_heads=2, max_position_embeddings=16)
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0 if p.ndim > 1 else 1.0)
    ids = torch.randint(0, 64, (2, 4, 8))
    batches = [{"input_ids": rows, "labels": rows} for rows in ids]
    found = lr(model, batches, None, optimizer="adamw", verify=8, progress=False)
    assert [t.word for t in found.trials] == ["shrinks", "holds", "grows"], found.trials
    assert found.ok
    risk = Risk(model, None, batches, quiet=True)
    stepper = stepper_by_name("adamw", tuple(risk.params)).after(
        Risk(model, None, b, quiet=True).gradient() for b in batches
    )
    A = stepper.operator(hessian(risk), stepper.preconditioner(risk.gradient(), risk.params))
    pairs = eigenpairs(A, top=1)
    pair = Pair(double_copy(risk), stepper, A.S, {n: t[0] for n, t in pairs.vectors.items()})
    for wrong in (0.8 * pairs.top[0].value, 1.25 * pairs.top[0].value):
        trials = try_out(pair, 38 / wrong, wrong, 8)
        assert not all(t.as_expected for t in trials), (wrong, trials)


@given(rule=st.sampled_from(RULES), error=st.floats(1e-6, 3e-3))
@settings(max_examples=30, deadline=None)
def test_the_tolerance_is_what_the_error_of_lambda_makes_of_theory(rule, error):
    """Every lambda within the error has its multiplier within the tolerance; momentum b takes (2 + 2b) / (1 - b)."""
    lam = 3.0
    allowed = tolerance(rule, rule.factor / lam, lam, 0.0, error)
    for share in (-1, -0.5, 0.3, 1):
        assert abs(rule.multiplier(rule.factor / lam, lam * (1 + share * error)) - 1) <= allowed
    if rule.adaptive and rule.b == 0.9 and error < 1e-4:
        assert allowed - HOLDS >= 0.9 * 38 * error


def test_a_failed_check_says_which_one_why_and_what_to_do(data, batches):
    """The trial that disagrees and the eigenvalue that did not converge are named; else nothing is said."""
    found = lr(make(data), batches, None, optimizer="sgd", verify=4, progress=False)
    assert found.ok
    assert not any(line.startswith("red") for line in found.lines())
    found.record.tensors["verify/measured"][1] = 1.3
    [told] = [line for line in found.lines() if "contradicts the ceiling" in line]
    assert told.startswith("red: ")
    assert "at 1x a step multiplies a perturbation by 1.3, predicted is 1 ±" in told
    assert "float64" in told
    assert not found.ok
    cut = lr(make(data), batches, None, optimizer="sgd", products=2, tol=1e-12, verify=0, progress=False)
    assert any("did not converge in" in line and "more products" in line for line in cut.lines())


def test_the_displacement_is_clear_of_the_noise(data, batches):
    """Where the loss is computed in float32 whatever the weights, the displacement is longer than its resolution, and
    the curvature seen there is that of the product."""
    model = make(data)
    tokens, labels = batches[0]["tokens"], batches[0]["labels"]
    for coarse in (False, True):

        def loss(out, batch, coarse=coarse):
            return nn.functional.cross_entropy((out.float() if coarse else out).mT, labels).double()

        risk = Risk(model, loss, {"tokens": tokens}, count=lambda b: 1.0, quiet=True)
        stepper = stepper_by_name("sgd", tuple(risk.params))
        A = stepper.operator(hessian(risk), stepper.preconditioner({}, risk.params))
        found = eigenpairs(A, top=1, max_products=40)
        pair = Pair(risk, stepper, A.S, {n: t[0] for n, t in found.vectors.items()})
        v = pair.u
        seen = float(v @ (pair.gradient(pair.theta + pair.size * v) - pair.slope)) / pair.size
        assert seen == pytest.approx(found.top[0].value, rel=2e-3)
        assert pair.size >= (1e-5 if coarse else 1e-8)


def test_the_double_copy_has_the_same_loss(data, batches):
    """The copy the trial runs on is the model in float64: same loss to float32 rounding, other storage."""
    model = make(data, dtype=torch.float32)
    risk = Risk(model, None, batches, quiet=True)
    twin = double_copy(risk)
    assert twin.dtype == torch.float64
    assert twin.model is not model
    assert float(twin.value()) == pytest.approx(float(risk.value()), rel=1e-5)


def test_the_model_is_left_untouched(data, batches):
    """Weights, gradients, modes, requires_grad, random state and hooks are as they were."""
    model = make(data, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters())
    model.loss(batches[0]).backward()
    optimizer.step()

    def look():
        grads = [p.grad.clone() for p in model.parameters()]
        states = [optimizer.state[p]["exp_avg_sq"].clone() for p in model.parameters()]
        hooks = sum(len(m._forward_hooks) for m in model.modules())
        modes = [m.training for m in model.modules()]
        return weights_hash(model), grads, states, hooks, modes, torch.get_rng_state()

    before = look()
    lr(model, batches, None, optimizer=optimizer, verify=3, progress=False)
    after = look()
    assert before[0] == after[0]
    assert before[3:5] == after[3:5]
    assert all(torch.equal(a, b) for i in (1, 2) for a, b in zip(before[i], after[i], strict=True))
    assert torch.equal(before[5], after[5])


def test_gradients_seen_are_adams_own_state():
    """`Stepper.after` of B gradients is the second moment torch's AdamW has after B steps that move nothing."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(7, dtype=torch.float64))
    optimizer = torch.optim.AdamW([p], lr=0.0, betas=(0.9, 0.97))
    gradients = [torch.randn(7, dtype=torch.float64) for _ in range(3)]
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    stepper = stepper_by_name("adamw", ("p",), beta2=0.97).after({"p": g} for g in gradients)
    assert torch.allclose(stepper.second["p"], optimizer.state[p]["exp_avg_sq"], rtol=1e-14)
    assert stepper.steps == {"p": 3}
    assert "after 3 batches" in stepper.source
    assert stepper_by_name("sgd", ("p",)).after(iter([])).second == {}


def test_entries_near_zero_by_accident_do_not_set_the_ceiling(data, batches):
    """At step 0 one gradient has entries near 0, and the top direction is one of them; several have none."""
    model = Transformer("pre-ln", depth=2, d_model=48, heads=2, seed=0, **data.settings)
    row = {k: t[:1] for k, t in batches[0].items()}
    one, batch, several = (
        lr(model, probe, None, optimizer="adamw", verify=0, progress=False) for probe in (row, batches[:1], batches)
    )
    assert batch.ceiling.value > 5 * one.ceiling.value
    assert batch.ceiling.value == pytest.approx(several.ceiling.value, rel=0.5)
    assert f"after {len(batches)} batches" in str(several)


def test_the_ceiling_at_step_0_is_told(tmp_path, capsys):
    """A training run: its model is drawn again with its seed, and the ceiling before its first step is told."""
    words = ["train", "--data", "add:digits=1", "--d-model", "8", "--heads", "2", "--depth", "1", "--steps", "30"]
    assert main([*words, "--test", "0", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    ask = ["lr", str(tmp_path / "run"), "--verify", "0", "--quiet"]
    assert main([*ask, "--out", str(tmp_path / "lr")]) == 0
    said = capsys.readouterr().out
    record = Record.load(tmp_path / "lr")
    first = record.scalars["first_ceiling"]
    assert f"The ceiling at step 0 was {first.value:.2e}" in said
    fresh = Transformer(open_run(tmp_path / "run").model.config, seed=0)
    probe = list(itertools.islice(dataset("add", digits=1).batches("valid", 8, 0), 4))
    optimizer = torch.optim.AdamW(fresh.parameters(), betas=open_run(tmp_path / "run").config.betas, weight_decay=0.0)
    expected = lr(fresh, probe, None, optimizer=optimizer, verify=0, progress=False).ceiling.value
    assert first.value == pytest.approx(expected, rel=0.02)  # weight decay is left out here
    (tmp_path / "run" / "scores.json").write_text('{"start_from": "elsewhere"}')
    assert main(ask) == 0
    said = capsys.readouterr().out
    assert "The ceiling at step 0 is unknown: the run began with the weights of another." in said
    assert "The ceiling at step 0 was" not in said


def trained_as_drawn(folder, seed, **options):
    """A model of `seed` trained for 3 steps under the seed 0."""
    data = dataset("add", digits=1)
    model = Transformer("pre-ln", depth=1, d_model=8, heads=2, seed=seed, **options, **data.settings)
    first = {n: p.detach().clone() for n, p in model.named_parameters()}
    train(model, data, TrainConfig(steps=3, batch_size=4, accumulate=2, seed=0), out=folder, progress=False)
    return first


def test_the_plan_counts_the_gradients_of_the_trial(data, batches, monkeypatch):
    """Gradients the trial takes, a loss as a third of one: at most what the plan says, and not less than half of it."""
    model, spent = make(data), []
    gradient, loss = Pair.gradient, Pair.loss
    monkeypatch.setattr(Pair, "gradient", lambda pair, x: spent.append(1.0) or gradient(pair, x))
    monkeypatch.setattr(Pair, "loss", lambda pair, x: spent.append(1 / 3) or loss(pair, x))
    lr(model, batches, optimizer="sgd", verify=6, progress=False)
    assert 0.5 < sum(spent) / trial_gradients(6) < 1.05
    plans = [lr.plan(model, batches, optimizer="sgd", verify=verify) for verify in (0, 600)]
    assert "gradients" not in plans[0].text
    assert f"up to {trial_gradients(600)} gradients" in plans[1].text
    assert plans[1].seconds > 5 * plans[0].seconds


def test_step_0_is_the_model_that_was_trained(tmp_path):
    """The model before the first step is drawn again bit for bit, dropout and accumulated batches or not."""
    for options in ({}, {"dropout": 0.2}):
        first = trained_as_drawn(tmp_path / str(len(options)), 0, **options)
        found, why = first_model(open_run(tmp_path / str(len(options))))
        assert found is not None, why
        assert all(torch.equal(p, first[n]) for n, p in found.named_parameters())


def test_step_0_of_a_model_of_another_seed_is_not_told(tmp_path, capsys):
    """Python may train a model of another seed than the training's: none is drawn in its place, and that is said."""
    trained_as_drawn(tmp_path / "run", 7)
    assert main(["lr", str(tmp_path / "run"), "--verify", "0", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "The ceiling at step 0 was" not in said
    assert "The ceiling at step 0 is unknown: the run's first loss was" in said


def test_step_0_is_not_told_where_all_seeds_begin_alike(tmp_path):
    """A first loss that models of every seed have says nothing about which of them was trained."""
    trained_as_drawn(tmp_path, 0)
    run = open_run(tmp_path)
    alike = dataclasses.replace(run, config=dataclasses.replace(run.config, precision="bf16"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "SAME_BF16", 10.0)
        assert first_model(alike) == (None, "at its start models of all seeds have the same loss")


def test_entries_adam_has_not_seen_are_told():
    """A direction that lies where P = eps is worth a sentence; one elsewhere is not."""
    P = {"a": torch.tensor([1e-8, 1.0])}
    assert floor_share(P, 1e-8, {"a": torch.tensor([1.0, 0.0])}) == 1
    assert floor_share(P, 1e-8, {"a": torch.tensor([0.0, 1.0])}) == 0


def test_weight_decay_lowers_the_ceiling(data, batches):
    """Decoupled decay adds (1 + b1) / (1 - b1) W: the ceiling falls, and the words name the shift."""
    model = make(data)
    plain = lr(
        model,
        batches,
        None,
        optimizer=torch.optim.AdamW(model.parameters(), weight_decay=0.0),
        verify=0,
        progress=False,
    )
    pulled = lr(
        model,
        batches,
        None,
        optimizer=torch.optim.AdamW(model.parameters(), weight_decay=50.0),
        verify=0,
        progress=False,
    )
    assert pulled.ceiling.value < plain.ceiling.value
    share = pulled.record.scalars["decay_share"].value
    assert pulled.ceiling.value == pytest.approx(plain.ceiling.value * (1 - share), rel=0.05)
    assert "weight decay 50 lowers the ceiling by" in str(pulled)
    assert pulled.rule == "38 / lambda_max(P^-1 H + 19 W)"


# --- resume ---------------------------------------------------------------------------------------------------------
class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", [random.Random(7).randint(1, 25), 34])
def test_killed_at_any_moment_and_resumed_gives_the_same(moment, data, batches, tmp_path):
    """Stopped after any step of the bar and asked again with the same folder: bit for bit the same answer."""
    model, count = make(data), 0

    def kill(done, total, left, text):
        nonlocal count
        count += 1
        if count == moment:
            raise Killed

    options = {"verify": 4, "products": 40}
    whole = lr(model, batches, None, optimizer="adamw", progress=False, **options)
    with pytest.raises(Killed):
        lr(model, batches, None, optimizer="adamw", out=tmp_path / "r", progress=kill, **options)
    again = lr(model, batches, None, optimizer="adamw", out=tmp_path / "r", resume=True, progress=False, **options)
    assert {k: e.value for k, e in again.record.scalars.items()} == {
        k: e.value for k, e in whole.record.scalars.items()
    }
    for name, t in whole.record.tensors.items():
        torch.testing.assert_close(again.record.tensors[name], t, rtol=0, atol=0, equal_nan=True)


def test_other_weights_are_refused(data, batches, tmp_path):
    """A folder of another model is not taken up; the text names both hashes."""
    lr(make(data), batches, None, optimizer="sgd", out=tmp_path, resume=True, verify=0, progress=False)
    with pytest.raises(InputError, match=r"other weights \(hash \w{8} / \w{8}\)"):
        lr(make(data, seed=1), batches, None, optimizer="sgd", out=tmp_path, resume=True, verify=0, progress=False)


def stepped(model, batches, steps):
    """AdamW after so many steps that move nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for batch in itertools.islice(itertools.cycle(batches), steps):
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
    optimizer.zero_grad()
    return optimizer


def test_where_p_came_from_belongs_to_the_question(data, batches, tmp_path):
    """The same weights with an optimizer of another step, or other moments of the same step, are another question; the
    object itself leaves the question plain."""
    model = make(data)
    options = {"out": tmp_path, "resume": True, "verify": 0, "progress": False}
    found = lr(model, batches, optimizer=stepped(model, batches, 1), **options)
    asked = found.record.inputs["question"]
    assert json.loads(json.dumps(asked)) == asked
    assert (asked["optimizer"], asked["P"], asked["P_step"]) == ("auto", "P from the optimizer state at step 1", 1)
    again = lr(model, batches, optimizer=stepped(model, batches, 1), **options)
    assert again.record.made == found.record.made  # read, not measured
    with pytest.raises(InputError, match="P_step 1 / 2"):
        lr(model, batches, optimizer=stepped(model, batches, 2), **options)
    with pytest.raises(InputError, match=r"other settings \(optimizer_hash"):
        lr(model, batches, optimizer=stepped(model, batches[1:], 1), **options)
    with pytest.raises(InputError, match=r"other settings \(optimizer"):
        lr(model, batches, optimizer="sgd", **options)
    with pytest.raises(InputError, match=r"other settings \(batches"):
        lr(model, batches[:1], optimizer=stepped(model, batches, 1), **options)


def test_the_step_of_a_state_file_belongs_to_the_question(data, batches, tmp_path):
    """`state` names a file; the same file after more steps is another question."""
    model, file = make(data), tmp_path / "optimizer.pt"
    options = {"state": file, "out": tmp_path / "lr", "resume": True, "verify": 0, "progress": False}
    torch.save(stepped(model, batches, 1).state_dict(), file)
    assert lr(model, batches, **options).record.inputs["P"] == "P from optimizer.pt at step 1"
    torch.save(stepped(model, batches, 2).state_dict(), file)
    with pytest.raises(InputError, match="P_step 1 / 2"):
        lr(model, batches, **options)
    with pytest.raises(InputError, match="give the object or state"):
        lr(model, batches, **options, optimizer=stepped(model, batches, 1))


def test_a_function_has_no_optimizer_object():
    """Its tensors are no parameters of a module that an optimizer or its state could name."""
    f, loss, params = quadratic([4.0, 1.0])
    batch = (torch.ones(1, dtype=torch.float64), torch.zeros(1))
    with pytest.raises(InputError, match="belongs to a module"):
        lr(f, batch, loss, optimizer=torch.optim.SGD(list(params.values())), params=params, progress=False)


def test_an_eigenvalue_that_did_not_converge_goes_on(data, batches, tmp_path):
    """`products` may grow in a resumed run: the bounds become eigenvalues, those of one long run."""
    model = make(data)
    options = {"optimizer": "adamw", "verify": 0, "tol": 1e-6, "progress": False}
    short = lr(model, batches, products=4, out=tmp_path, **options)
    assert not short.ok
    long = lr(model, batches, products=80, out=tmp_path, resume=True, **options)
    assert long.ok
    assert not (tmp_path / "work").exists()
    assert (
        long.record.scalars["lambda_max_P"] == lr(model, batches, products=80, **options).record.scalars["lambda_max_P"]
    )


def test_time_that_is_over_gives_a_partial_bound(data, batches, tmp_path):
    """`max_time`: the best eigenvalue so far is a lower bound, the ceiling an upper one, and PARTIAL is said."""
    model = make(data)
    cut = lr(model, batches, None, optimizer="sgd", max_time=1e-9, out=tmp_path, resume=True, verify=0, progress=False)
    assert cut.record.inputs["partial"]
    assert not cut.ok
    assert "PARTIAL" in str(cut)
    whole = lr(model, batches, None, optimizer="sgd", out=tmp_path, resume=True, verify=0, progress=False)
    assert whole.ceiling.value <= cut.ceiling.value
    assert whole.ok


# --- words, files, refusals -----------------------------------------------------------------------------------------
def test_saved_and_loaded_it_says_the_same(data, batches, tmp_path):
    found = lr(make(data), batches, None, optimizer="adamw", verify=3, progress=False)
    found.save(tmp_path / "kept")
    again = StepSize.load(tmp_path / "kept")
    assert str(again) == str(found)
    assert json.loads(again.json())["kind"] == "step-size"
    assert "<pre>" in again._repr_html_()


def test_the_words_follow_their_limits(data, batches):
    """Above and below the ceiling, and between them, within its error, undecided."""
    found = lr(make(data), batches, None, optimizer="sgd", verify=0, progress=False)
    inside = 1 - 0.5 * found.ceiling.reach / found.ceiling.value
    places = {}
    for share in (2.0, inside, 0.1):
        found.record.inputs.update(lr=share * found.ceiling.value, lr_is="yours")
        rate = found.verdicts()[0]
        places[share] = (rate.status, rate.sentence())
    assert places[2.0][0] == "red"
    assert "is 2 times the ceiling, and steps along the sharpest direction grow" in places[2.0][1]
    assert places[inside][0] == "undecided"
    assert "too close to tell" in places[inside][1]
    assert places[0.1][0] == "yellow"  # not tested
    assert "it is 0.1 times the ceiling" in places[0.1][1]
    assert places[2.0][1].startswith("Lower the learning rate below")


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adma", "Did you mean `adam`"),
        (torch.optim.Adagrad([nn.Parameter(torch.ones(1))]), "trains no parameter of this model"),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), "trains no parameter of this model"),
    ],
)
def test_optimizers_without_a_known_ceiling(optimizer, message, data, batches):
    with pytest.raises((UnknownName, InputError), match=message):
        lr(make(data), batches, None, optimizer=optimizer, verify=0, progress=False)


TINY = ["new:pre-ln,depth=1,d_model=4,heads=2", "--data", "add:digits=1", "--batch-size", "4", "--batches", "2"]
TINY += ["--short-run", "0"]


def test_the_verb(capsys, tmp_path):
    """The command line prints table, trial and limits; the saved record is the answer."""
    assert main(["lr", *TINY, "--verify", "4", "--out", str(tmp_path / "r"), "--quiet"]) == 0
    out = capsys.readouterr().out
    for words in ("model left untouched", "<- yours", "Tested on a copy", "not a recommendation", "saved"):
        assert words in out
    assert StepSize.load(tmp_path / "r").ok


def test_the_verb_in_json_and_dry(capsys):
    """--json is strict JSON on stdout; --dry-run tells products, time and memory and measures no eigenvalue."""
    assert main(["lr", *TINY, "--optimizer", "sgd", "--verify", "0", "--json", "--quiet"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["scalars"]["ceiling/yours"]["value"] > 0
    assert body["ok"] is True
    assert main(["lr", *TINY, "--dry-run"]) == 0
    assert "products" in (text := capsys.readouterr().out)
    assert "in all" in text


def test_the_run_of_a_trainer_gives_its_optimizer(capsys, tmp_path, data):
    """A run folder: AdamW with P from its own checkpoint, and `--state` reads the same for another folder."""
    from quadform.train import TrainConfig, train

    model = make(data, dtype=torch.float32)
    train(model, data, TrainConfig(steps=5, batch_size=8), out=tmp_path / "run", progress=False)
    words = ["--batch-size", "4", "--batches", "1", "--verify", "0", "--quiet"]
    assert main(["lr", str(tmp_path / "run"), *words]) == 0
    first = capsys.readouterr().out
    assert "P from the optimizer state at step 5" in first
    assert "2.00e-04, the learning rate in force at this step, is" in first  # the last of five, decayed from 0.001
    assert (
        main(
            ["lr", str(tmp_path / "run" / "model"), *words, "--state", str(tmp_path / "run"), "--data", "add:digits=1"]
        )
        == 0
    )
    second = capsys.readouterr().out
    assert second.splitlines()[3] == first.splitlines()[3]


def test_state_of_torch_is_read_without_names(tmp_path, data, batches):
    """optimizer.pt with groups (matrices, rest), as trainers save it: the shapes tell the order."""
    from quadform.applications.step_size.state import stepper_of_file

    model = make(data)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    model.loss(batches[0]).backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    names = tuple(n for n, _ in model.named_parameters())
    found, own = stepper_of_file(tmp_path / "optimizer.pt", model, names), read_optimizer(optimizer, model)
    assert all(torch.equal(found.second[n], own.second[n]) for n in names)
    assert dict(found.decoupled) == dict(own.decoupled)
    assert found.rule == own.rule


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["new:pre-ln", "--optimizer", "adamv"], 2, "adamw"),
        (["new:pre-ln", "--beta1", "1.5"], 2, "beta1=1.5: give a number below 1."),
        (["new:pre-ln", "--state", "nowhere"], 2, "no optimizer state at `nowhere`"),
        (["new:pre-ln,depth=1,d_model=8", "--params", "nothing.*"], 2, "match 0 of"),
        (["new:pre-ln", "--max-time", "soon"], 2, "not a length of time"),
    ],
)
def test_refusals(words, code, message, capsys):
    assert main(["lr", *words]) == code
    assert message in capsys.readouterr().err


def test_a_pickle_with_code_is_refused(tmp_path, capsys):
    """A file that would run code when unpickled is refused, and does not run it."""
    mark = tmp_path / "ran"
    (tmp_path / "evil.pt").write_bytes(b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
    assert main(["lr", TINY[0], "--state", str(tmp_path / "evil.pt"), "--data", "add:digits=1"]) == 2
    assert not mark.exists()
    assert "evil.pt" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_kill_minus_nine_and_resume(tmp_path, capsys):
    """The process killed once it has written a piece: `--resume` ends with the numbers of an undisturbed run."""
    words = ["lr", *TINY, "--verify", "4", "--json", "--quiet"]
    command = [sys.executable, "-m", "quadform.cli.main", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "run"
    child = subprocess.Popen([*command, "--out", str(folder)], env=env, stdout=subprocess.DEVNULL)
    until, events = time.monotonic() + 120, folder / "work" / "pieces.jsonl"
    while not events.exists() or b"piece" not in events.read_bytes():
        assert child.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    resumed = subprocess.run([*command, "--out", str(folder), "--resume"], env=env, capture_output=True, check=True)
    assert main(words) == 0
    a, b = json.loads(resumed.stdout), json.loads(capsys.readouterr().out)
    assert a["scalars"] == b["scalars"]
    assert a["tensors"] == b["tensors"]
    assert Path(folder / "record.json").exists()


def test_measure_names_what_it_measured(data, batches):
    """Coverage, probe, rule and dtype are in the record: no number without where it comes from."""
    record = lr(make(data), batches, optimizer="momentum", verify=0, progress=False).record
    assert record.inputs["coverage"].endswith("parameters")
    assert record.inputs["probe"] == [8, 6]
    assert record.made.dtype == "float64"
    assert record.inputs["rule"] == "SGD, momentum 0.9"


# --- any model ------------------------------------------------------------------------------------------------------
def test_any_module_with_any_loss():
    """A module of torch's own, a loss of output and batch, Nesterov momentum: (2 + 2b) / (1 + 2b) / lambda_max."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    batch = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def loss(out, batch):
        return (out - batch[1]).square().mean()

    found = lr(net, batch, loss=loss, optimizer=optimizer, verify=5, progress=False)
    lam = torch.linalg.eigvalsh(hessian(Risk(net, loss, batch, quiet=True)).dense())[-1]
    assert found.ceiling.value == pytest.approx(3.8 / 2.8 / float(lam), rel=1e-4)
    assert found.ok
    assert str(found).startswith("probe 8 x 3, float64")


def test_a_hugging_face_model():
    """The model's own loss, AdamW over its parameters (tied embedding, fused c_attn)."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=1, n_embd=4, vocab_size=6, n_positions=6, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    ids_ = torch.randint(6, (3, 6), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = lr(model, {"input_ids": ids_, "labels": ids_}, optimizer=optimizer, verify=4, progress=False)
    assert [t.word for t in found.trials] == ["shrinks", "holds", "grows"]
    assert "c_attn split into query/key/value" in str(found)
