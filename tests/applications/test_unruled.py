"""Optimizers without a rule: their ceiling is measured on copies. And verdicts of `lr` against what the loss does."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from quadform.applications.step_size import lr
from quadform.applications.step_size.unruled import largest_stable
from quadform.core.errors import InputError
from quadform.core.precision import NoHalvesOnCPU
from quadform.curvature import Risk
from quadform.optim import GaussNewtonCG


class Bowl(nn.Module):
    """x^T diag(h) x / 2."""

    def __init__(self, h: list[float]) -> None:
        super().__init__()
        self.register_buffer("h", torch.tensor(h, dtype=torch.float64))
        self.x = nn.Parameter(torch.ones(len(h), dtype=torch.float64))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.h * self.x.square()).sum() / 2


class Lion(torch.optim.Optimizer):
    """x - lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g. [Chen et al. 2023]"""

    def __init__(self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p -= group["lr"] * (b1 * m + (1 - b1) * p.grad).sign()
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def value(out: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return out


def test_where_a_rule_is_known_the_copies_find_it():
    """SGD on a quadratic: 2 / lambda_max, to the width of the bracket."""
    bowl = Bowl([4.0])
    risk = Risk(bowl, value, torch.zeros(1), quiet=True)
    found = largest_stable(bowl, [torch.optim.SGD(bowl.parameters(), lr=1e-3)], risk, 20)
    assert found.value == pytest.approx(2 / 4, abs=found.error + 1e-3)
    assert found.kind == "estimate"


def test_a_sign_step_is_stable_up_to_where_it_lands_as_high_on_the_other_side():
    """Lion from x = 1 on x^2 / 2: the first step goes to 1 - rate, which is as high as x = 1 at rate 2."""
    bowl = Bowl([1.0])
    found = lr(bowl, torch.zeros(1), value, optimizer=Lion(bowl.parameters(), lr=0.1), verify=1, progress=False)
    assert found.ceiling.value == pytest.approx(2.0, rel=0.06)
    assert found.rule == "no rule: measured on a copy, 1 steps"
    assert found.verdicts()[0].status == "green"
    assert "No change needed: 0.1, the learning rate in force at this step," in str(found)
    high = lr(bowl, torch.zeros(1), value, optimizer=Lion(bowl.parameters()), lr=5.0, verify=1, progress=False)
    assert high.verdicts()[0].status == "red"
    assert "on copies the loss rises within 1 steps" in high.verdicts()[0].sentence()
    assert float(bowl.x) == 1.0


def test_adafactor_keeps_its_state_on_the_copies():
    """The state is copied with the model, and neither is touched. Adafactor limits its own steps: a bound."""
    bowl = Bowl([1.0, 30.0])
    optimizer = torch.optim.Adafactor(bowl.parameters(), lr=0.01)
    bowl(None).backward()
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    found = lr(bowl, torch.zeros(1), value, optimizer=optimizer, verify=5, progress=False)
    assert found.optimizer == "Adafactor"
    assert (found.ceiling.kind, found.ceiling.side) == ("bound", "lower")
    after = optimizer.state_dict()["state"][0]
    assert all(torch.equal(torch.as_tensor(after[k]), torch.as_tensor(v)) for k, v in before["state"][0].items())


@pytest.mark.parametrize("name", ["LBFGS", "GaussNewtonCG"])
def test_optimizers_that_choose_the_length_of_a_step_are_refused(name):
    bowl = Bowl([1.0])
    optimizer = torch.optim.LBFGS(bowl.parameters()) if name == "LBFGS" else GaussNewtonCG(bowl, value)
    with pytest.raises(InputError, match=f"{name} chooses the length of a step itself"):
        lr(bowl, torch.zeros(1), value, optimizer=optimizer, progress=False)


def of_package(name: str, model: Bowl, rate: float) -> torch.optim.Optimizer:
    own = {"SophiaH": {"update_period": 2, "hessian_distribution": "rademacher"}}.get(name, {})
    return getattr(pytest.importorskip("pytorch_optimizer"), name)(model.parameters(), lr=rate, **own)


def highest(name: str, rate: float, steps: int) -> float:
    """The highest loss, over the first, of a bowl that is trained by hand."""
    bowl = Bowl([1.0, 3.0])
    optimizer, losses = of_package(name, bowl, rate), []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        loss = bowl(torch.zeros(1))
        losses.append(loss.item())
        loss.backward(create_graph=True)
        optimizer.step()
    return max(losses) / losses[0]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("name", ["Lion", "SophiaH", "SOAP"])
def test_optimizers_of_a_package_are_measured_as_they_step(name):
    """At 0.8 of the ceiling the loss of a bowl trained by hand does not rise by 1 %, at 1.25 of it it does. They have
    attributes of their own; Sophia differentiates the gradient it is given, in steps 1 and 3 here."""
    bowl = Bowl([1.0, 3.0])
    optimizer = of_package(name, bowl, 0.01)
    found = lr(bowl, torch.zeros(1), value, optimizer=optimizer, verify=4, progress=False)
    assert (found.optimizer, found.ceiling.kind) == (name, "estimate")
    low, high = (highest(name, share * found.ceiling.value, 4) for share in (0.8, 1.25))
    assert low <= 1.01 < high
    assert not optimizer.state
    assert bowl.x.tolist() == [1.0, 1.0]


def test_the_step_of_a_scheduler_does_not_move_the_original():
    bowl = Bowl([1.0])
    optimizer = Lion(bowl.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    found = lr(bowl, torch.zeros(1), value, optimizer=optimizer, verify=1, progress=False)
    assert found.ceiling.value == pytest.approx(2.0, rel=0.06)
    assert float(bowl.x) == 1.0


class Codes(torch.Tensor):
    """As torchao keeps a second moment: a class with parts, without `clone` or `view`."""

    def __new__(cls, codes: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, strides=codes.stride(), dtype=torch.float64)

    def __init__(self, codes: torch.Tensor) -> None:
        self.codes = codes

    def __tensor_flatten__(self):
        return ["codes"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(parts["codes"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)

    def dequantize(self):  # type: ignore[override]  # as torchao has it
        return self.codes.double()


class Few(torch.optim.Optimizer):
    """Gradient descent that counts in codes; its rate is a tensor and has to stay one, as in torchao."""

    def __init__(self, params, lr: float) -> None:
        super().__init__(params, {"lr": torch.tensor(lr)})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                raise RuntimeError("lr was changed to a non-Tensor object")
            for p in group["params"]:
                codes = self.state[p].setdefault("exp_avg_sq", Codes(torch.zeros(p.shape, dtype=torch.uint8))).codes
                codes += 1
                p -= group["lr"] * p.grad


def test_states_in_few_bits_are_copied_by_their_parts():
    bowl = Bowl([4.0])
    optimizer = Few(bowl.parameters(), 0.01)
    bowl(None).backward()
    optimizer.step()
    found = lr(bowl, torch.zeros(1), value, optimizer=optimizer, progress=False)
    assert found.ceiling.value == pytest.approx(2 / 4, rel=0.06)
    assert optimizer.state[bowl.x]["exp_avg_sq"].codes.tolist() == [1]
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.01)


class Far(nn.Module):
    """|W - I|^2 / 2 from W = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(3, 3, dtype=torch.float64))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.W - torch.eye(3, dtype=torch.float64)).square().sum() / 2


def test_muon_on_a_cpu_keeps_the_precision_of_its_weights():
    """One step of torch's Muon: w - rate p(p(...g / |g|)), five times p(x) = a x + b x^3 + c x^5; g is -I here, so
    that all singular values are one number. In bfloat16, which ends the process on some CPUs, it is off by 1e-3."""
    far = Far()
    optimizer = torch.optim.Muon(far.parameters(), lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0)
    far(None).backward()
    with NoHalvesOnCPU():
        optimizer.step()
    x = 3**-0.5
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    torch.testing.assert_close(far.W.detach(), 0.1 * x * torch.eye(3, dtype=torch.float64))


def test_muon_is_measured_on_copies():
    """From 0 the first step goes to rate x I, as high as the start where rate x = 2."""
    far, x = Far(), 3**-0.5
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    optimizer = torch.optim.Muon(far.parameters(), lr=0.1, weight_decay=0.0)
    found = lr(far, torch.zeros(1), value, optimizer=optimizer, verify=1, progress=False)
    assert (found.optimizer, found.ceiling.kind) == ("Muon", "estimate")
    assert found.ceiling.value == pytest.approx(2 / x, rel=0.06)
    assert not far.W.any()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_verdict_and_outcome_agree(name):
    """Far below the ceiling the loss does not rise in 30 steps, far above it does."""
    path = Path(__file__).parents[2] / "benchmarks" / "step_verdicts.py"
    spec = importlib.util.spec_from_file_location("step_verdicts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = module.grade(name, 2, (0.2, 3.0))
    assert [row["verdict"] for row in rows] == ["below", "above"]
    assert [row["rises"] for row in rows] == [False, True]
