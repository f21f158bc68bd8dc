"""`why` and `lr` tell one AdamW ceiling of one model on one probe, and it is that of Adam in training."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from quadform.applications.step_size.call import lr
from quadform.applications.step_size.ceiling import adamw_ceiling
from quadform.applications.step_size.fresh import held
from quadform.applications.step_size.rules import stepper_by_name
from quadform.applications.why.call import why
from quadform.cli.main import main
from quadform.core.record import Estimate
from quadform.corpora import dataset
from quadform.curvature import Risk, hessian
from quadform.nn import Transformer

WORDS = ["--batch-size", "8", "--quiet", "--json"]


@pytest.fixture(scope="module")
def data():
    return dataset("add", digits=2)


def make(data, name="pre-ln", seed=0, dtype=torch.float32) -> Transformer:
    return Transformer(name, depth=2, d_model=16, heads=2, seed=seed, dtype=dtype, **data.settings)


def agree(a: Estimate, b: Estimate) -> bool:
    return abs(a.value - b.value) <= 2 * ((a.error or 0.0) + (b.error or 0.0)) + 1e-9 * abs(b.value)


def asked(words: list[str], capsys) -> dict[str, Estimate]:
    assert main([*words, *WORDS]) == 0
    found = json.loads(capsys.readouterr().out)["scalars"]
    return {n: Estimate(e["value"], e["error"], e["kind"], error_kind=e["error_kind"]) for n, e in found.items()}


# --- one answer to one question ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fresh_model_has_one_ceiling(data, count, dtype):
    model = make(data, dtype=dtype)
    batches = list(itertools.islice(data.batches("valid", 8), count))
    a = why(model, batches, remove=("norm",), progress=False).get("full", "ceiling_adamw")
    b = lr(model, batches, verify=0, progress=False).ceiling
    assert agree(a, b), (a, b)


@pytest.mark.parametrize("count", ["1", "4"])
def test_a_fresh_model_has_one_ceiling_on_the_command_line(count, capsys):
    words = ["new:pre-ln,depth=2,d_model=16,heads=2", "--data", "add:digits=2", "--batches", count]
    a = asked(["why", *words, "--remove", "norm"], capsys)["full/0/ceiling_adamw"]
    b = asked(["lr", *words, "--verify", "0", "--short-run", "0"], capsys)["ceiling/yours"]
    assert agree(a, b), (a, b)


def test_a_run_has_one_ceiling_with_the_state_of_its_optimizer(tmp_path, capsys):
    """The variants have no state; the answer says so."""
    run = str(tmp_path / "run")
    train = ["train", "--data", "add:digits=1", "--d-model", "8", "--heads", "2", "--depth", "1", "--steps", "30"]
    assert main([*train, "--test", "0", "--out", run, "--quiet"]) == 0
    capsys.readouterr()
    words = [run, "--batches", "2"]
    a = asked(["why", *words, "--remove", "norm"], capsys)["full/0/ceiling_adamw"]
    b = asked(["lr", *words, "--verify", "0", "--checkpoints", "0"], capsys)["ceiling/yours"]
    assert agree(a, b), (a, b)
    told = why(run, remove=("norm",), progress=False)
    assert "P from the optimizer state at step 30" in str(told)
    assert told.P["no norm"] != told.P["full"]
    assert main(["why", run, "--remove", "norm", "--quiet", "--lang", "ko"]) == 0
    assert "P: `full`은 옵티마이저 상태(30단계)" in capsys.readouterr().out


# --- the right one ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["pre-ln", "post-ln"])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_batch_tells_the_ceiling_of_adam_in_training(data, name, seed):
    """P of the parts of one batch against what Adam has after 64 training batches of as many rows, the weights held."""
    model, batch = make(data, name, seed), next(data.batches("valid", 8))
    risk = Risk(model, None, batch, quiet=True)
    fresh = stepper_by_name("adamw", tuple(risk.params))
    many = itertools.islice(data.batches("train", 8), 64)
    late = fresh.after(Risk(model, None, b, quiet=True).gradient() for b in many)
    options = {"progress": lambda *_: None, "resume": None}
    want = adamw_ceiling(hessian(risk), risk, late, 60, **options).value
    found = adamw_ceiling(hessian(risk), risk, held(fresh, risk), 60, **options).value
    first = adamw_ceiling(hessian(risk), risk, fresh, 60, **options).value
    assert 0.4 * want < found < 1.3 * want
    assert first < want / 4


def test_the_noise_of_a_batch_is_that_of_its_parts():
    """v of the next step is g^2 and 8 of 9 parts of the variance of a batch, whatever the sizes of the parts."""
    torch.manual_seed(0)
    x, y = torch.randn(11, 3, dtype=torch.float64), torch.randint(4, (11,))
    model = torch.nn.Linear(3, 4, dtype=torch.float64)
    risk = Risk(model, cross_entropy, (x, y), quiet=True)
    g, v = risk.gradient(), {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for rows in torch.arange(11).tensor_split(8):
        part = Risk(model, cross_entropy, (x[rows], y[rows]), quiet=True).gradient()
        v = {n: t + len(rows) / 11 / 7 * (part[n] - g[n]).square() for n, t in v.items()}
    stepper = dataclasses.replace(stepper_by_name("adamw", tuple(risk.params)), beta2=1 - 1e-7)
    P = held(stepper, risk).preconditioner(g, risk.params)
    for n in g:
        torch.testing.assert_close(P[n], (g[n].square() + 8 / 9 * v[n]).sqrt() + 1e-8, rtol=1e-4, atol=0)


def test_a_batch_that_has_no_parts_is_told():
    """One row, or a loss that sums over rows: P is that of the first step, and the answer says so."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4, dtype=torch.float64)
    one = torch.randn(1, 3, dtype=torch.float64), torch.tensor([2])
    found = lr(model, one, cross_entropy, optimizer="adamw", verify=0, progress=False)
    assert found.P == "no optimizer state, so P is that of the first step, |gradient| + eps"
    several = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3])

    def summed(output, batch):
        return cross_entropy(output, batch[1], reduction="sum")

    found = lr(model, several, summed, optimizer="adamw", verify=0, progress=False)
    assert "|gradient| + eps" in found.P
    found = lr(model, several, cross_entropy, optimizer="adamw", verify=0, progress=False)
    assert "4 parts" in found.P
