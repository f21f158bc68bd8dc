"""Optimizers as theory sees them: a linear recurrence in the gradient, with the preconditioner frozen.

    m' = b m + a g,      x' = (1 - eta w) x - eta P^-1 (c g + e m')

On a quadratic with g = H x a direction with P^-1 H x = lambda x flips its sign for ever (multiplier -1) at

    eta = 2 / (w + kappa lambda),     kappa = c + e a / (1 + b)

and grows above that. So the ceiling is (2 / kappa) / lambda_max(P^-1/2 H P^-1/2 + W / kappa):

    gradient descent      2 / lambda_max(H)
    momentum b            (2 + 2b) / lambda_max(H)
    Nesterov momentum b   (2 + 2b) / (1 + 2b) / lambda_max(H)
    Adam, AdamW           (2 + 2 b1) / (1 - b1) / lambda_max(P^-1 H)

Source: [Coh21] for gradient descent and both momenta, [Coh22] for Adam; decoupled decay W, decay inside the gradient
(H + D) and learning rates that differ by group [own], all from the same recurrence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from ...core.errors import InputError, UnknownName, did_you_mean
from ...core.operator import Operator
from ...core.space import Vector
from ...distributed.processes import ALONE, Group
from ...preconditioners import as_of_torch

#: Entries of P within this factor of eps have seen no gradient: what Adam divides by there is about to change.
AT_FLOOR = 2.0


@dataclass(frozen=True)
class Rule:
    """The scalars b, a, c, e of the recurrence, and what people call it."""

    name: str
    adaptive: bool = False
    b: float = 0.0
    a: float = 1.0
    c: float = 0.0
    e: float = 1.0

    @property
    def kappa(self) -> float:
        return self.c + self.e * self.a / (1 + self.b)

    @property
    def factor(self) -> float:
        """The numerator of the ceiling."""
        return 2 / self.kappa

    @property
    def steady(self) -> float:
        """How many times P^-1 g a step is where the gradient stays the same: 1 for Adam, 1 / (1 - b) for momentum."""
        return self.c + self.e * self.a / (1 - self.b)

    @property
    def formula(self) -> str:
        """The ceiling in words: `38 / lambda_max(P^-1 H)`."""
        top = f"lambda_max({'P^-1 H' if self.adaptive else 'H'})"
        return f"{self.factor:.4g} / {top}"

    def step(self, eta: float, lam: float, w: float = 0.0) -> Tensor:
        """The update of (x, m) along a direction of curvature lam, as a (2, 2) matrix."""
        b, a, c, e = self.b, self.a, self.c, self.e
        rows = [[1 - eta * w - eta * lam * (c + e * a), -eta * e * b], [a * lam, b]]
        return torch.tensor(rows, dtype=torch.float64)

    def multiplier(self, eta: float, lam: float, w: float = 0.0) -> float:
        """By how much a step multiplies the slowest mode along that direction: below 1 it dies out."""
        return float(torch.linalg.eigvals(self.step(eta, lam, w)).abs().max())


def sgd(momentum: float = 0.0, nesterov: bool = False, dampening: float = 0.0) -> Rule:
    """Gradient descent, with heavy-ball or Nesterov momentum as torch writes them."""
    _share("momentum", momentum)
    if not momentum:
        return Rule("SGD")
    name = f"SGD, {'Nesterov ' if nesterov else ''}momentum {momentum:g}"
    if nesterov:
        return Rule(name, b=momentum, a=1 - dampening, c=1.0, e=momentum)
    return Rule(name, b=momentum, a=1 - dampening)


def adam(beta1: float = 0.9, name: str = "Adam") -> Rule:
    """Adam with P frozen: momentum is a mean, so a = 1 - b1."""
    _share("beta1", beta1)
    return Rule(f"{name}, b1 {beta1:g}", adaptive=True, b=beta1, a=1 - beta1)


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} lies between 0 and 1; got {value:g}.")


@dataclass(frozen=True, eq=False)
class Stepper:
    """An optimizer at one moment: its rule, and for each tensor it trains what the recurrence needs.

    `rates` are learning rates over the largest one, `lr` that one: what the next step takes. `peak` is the largest of
    its schedule, where that is known. `coupled` is decay inside the gradient, `decoupled`
    decay of the weights themselves. `second` and `steps` are Adam's second moments and how often each was updated.
    """

    rule: Rule
    names: tuple[str, ...]
    lr: float | None = None
    peak: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    coupled: Mapping[str, float] = field(default_factory=dict)
    decoupled: Mapping[str, float] = field(default_factory=dict)
    second: Mapping[str, Tensor] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    beta2: float = 0.999
    eps: float = 1e-8
    source: str = ""

    @property
    def decay(self) -> float:
        """The largest weight decay of any tensor."""
        return max([0.0, *self.coupled.values(), *self.decoupled.values()])

    def after(self, gradients: Iterable[Vector]) -> Stepper:
        """This optimizer once it has seen these gradients while the weights stood still; without Adam it is the same.

        P of one gradient alone is |g|: of a hundred thousand entries some are near 0 by accident, and the largest
        eigenvalue of P^-1 H is then the curvature along one of those. Two gradients or more have no such entries.
        """
        if not self.rule.adaptive:
            return self
        second, steps = {n: t.clone() for n, t in self.second.items()}, dict(self.steps)
        count = 0
        for g in gradients:
            count += 1
            for n in self.names:
                square = (1 - self.beta2) * g[n].detach().square()
                second[n] = self.beta2 * second[n] + square if n in second else square
                steps[n] = steps.get(n, 0) + 1
        source = f"no optimizer state, so P is what Adam has after {count} batches, the weights held"
        return replace(self, second=second, steps=steps, source=source)

    def preconditioner(self, gradient: Vector, theta: Vector) -> dict[str, Tensor]:
        """P of the next step on this gradient: sqrt((b2 v + (1 - b2) g^2) / (1 - b2^(t+1))) + eps; ones without Adam.

        One step ahead of the stored state, as Adam itself updates v before it divides; with no state it is |g| + eps.
        """
        if not self.rule.adaptive:
            return {n: torch.ones_like(theta[n]) for n in self.names}
        P = {}
        for n in self.names:
            g = gradient[n] + self.coupled.get(n, 0.0) * theta[n]
            v = (1 - self.beta2) * g.square()
            if n in self.second:
                v = v + self.beta2 * self.second[n].to(v)
            P[n] = (v / (1 - self.beta2 ** (self.steps.get(n, 0) + 1))).sqrt() + self.eps
        return P

    def update(self, gradient: Vector, theta: Vector) -> dict[str, Tensor]:
        """The next step at learning rate 1 without its momentum: -rate (P^-1 (g + D x) + W x)."""
        P = self.preconditioner(gradient, theta)
        return {
            n: -self.rates.get(n, 1.0)
            * ((gradient[n] + self.coupled.get(n, 0.0) * theta[n]) / P[n] + self.decoupled.get(n, 0.0) * theta[n])
            for n in self.names
        }

    def operator(self, H: Operator, P: Vector) -> Preconditioned:
        """S (H + D) S + W / kappa over the tensors it trains, S = (rate / P)^1/2: its lambda_max gives the ceiling."""
        rate = {n: self.rates.get(n, 1.0) for n in self.names}
        S = {n: (rate[n] / P[n]).sqrt() for n in self.names}
        shift = {
            n: S[n].square() * self.coupled.get(n, 0.0) + rate[n] * self.decoupled.get(n, 0.0) / self.rule.kappa
            for n in self.names
        }
        return Preconditioned(H, S, shift)


@final
class Preconditioned(Operator):
    """v -> S H S v + shift v, S and shift diagonal: similar to P^-1 H + ..., and symmetric."""

    def __init__(self, H: Operator, S: Vector, shift: Vector) -> None:
        if set(S) != set(H.domain.names):
            raise InputError(
                f"the optimizer trains {len(S)} tensors, the Hessian is over {len(H.domain)}; give both the same."
            )
        super().__init__(H.domain, dtype=H.dtype, device=H.device, symmetric=True)
        self.H, self.S, self.shift = H, S, shift

    def apply(self, V: Vector) -> dict[str, Tensor]:
        image = self.H.apply({n: self.S[n] * t for n, t in V.items()})
        return {n: self.S[n] * image[n] + self.shift[n] * t for n, t in V.items()}


# --- reading optimizers ---------------------------------------------------------------------------------------------
#: Optimizers the ceiling is known for, by the name the command line uses.
KNOWN = ("sgd", "momentum", "adam", "adamw")


def stepper_by_name(
    name: str,
    names: tuple[str, ...],
    *,
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> Stepper:
    """An optimizer that has not stepped yet: P of Adam is then that of the first step, |g| + eps (see `fresh.held`)."""
    source = "no optimizer state, so P is that of the first step, |gradient| + eps"
    if name in ("sgd", "momentum"):
        return Stepper(sgd(momentum if name == "momentum" else 0.0), names)
    if name in ("adam", "adamw"):
        rule = adam(beta1, "Adam" if name == "adam" else "AdamW")
        return Stepper(rule, names, beta2=beta2, eps=eps, source=source)
    raise UnknownName(
        f"no ceiling is known for the optimizer {name!r} (known: {', '.join(KNOWN)}).{did_you_mean(name, KNOWN)}"
    )


def unwrapped(optimizer: Any) -> Any:
    """The torch optimizer inside accelerate's, Lightning's and others'."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


#: The Adam of bitsandbytes and torchao, by the names of their classes.
_FEW_BITS = re.compile(r"(Paged)?Adam(W)?(4bit|8bit|32bit|Fp8)?")


def read_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> Stepper:
    """An optimizer as it stands: torch's SGD, Adam or AdamW, or an Adam of few bits; its groups and its state."""
    optimizer = unwrapped(optimizer)
    kind = type(optimizer).__name__
    adaptive = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW) or _FEW_BITS.fullmatch(kind) is not None
    if not adaptive and not isinstance(optimizer, torch.optim.SGD):
        raise UnknownName(
            f"no ceiling is known for the optimizer {kind}; known: torch's SGD, Adam, AdamW, and the Adam and AdamW of"
            " bitsandbytes and torchao."
        )
    names = {id(p): n for n, p in model.named_parameters()}
    groups = [(g, [names[id(p)] for p in g["params"] if id(p) in names]) for g in optimizer.param_groups]
    groups = [(g, found) for g, found in groups if found]
    if not groups:
        raise InputError("this optimizer trains no parameter of this model; give the one that trains it.")
    keys = ("betas", "eps", "amsgrad") if adaptive else ("momentum", "nesterov", "dampening")
    first = groups[0][0]
    for key in keys:
        if any(g.get(key) != first.get(key) for g, _ in groups):
            raise InputError(
                f"the optimizer's groups differ in {key}, so no single ceiling holds. Measure each group with params=."
            )
    if first.get("maximize") or first.get("amsgrad"):
        raise InputError(f"no ceiling is known for {kind} with maximize or amsgrad.")
    rates = {n: _number(g["lr"]) for g, found in groups for n in found}
    base = max(rates.values())
    if base <= 0:  # the end of a schedule
        rates = {n: _number(g.get("initial_lr", 1.0)) for g, found in groups for n in found}
    most = max(rates.values()) or 1.0
    decays = {n: float(g["weight_decay"]) for g, found in groups for n in found if g["weight_decay"]}
    apart = "AdamW" in kind or bool(first.get("decoupled_weight_decay"))
    common: dict[str, Any] = {
        "names": tuple(rates),
        "lr": base or None,
        "peak": max((_number(g["initial_lr"]) for g, _ in groups if "initial_lr" in g), default=None),
        "rates": {n: r / most for n, r in rates.items()},
        "decoupled": decays if apart else {},
        "coupled": {} if apart else decays,
    }
    if not adaptive:
        return Stepper(sgd(first["momentum"], first["nesterov"], first["dampening"]), **common)
    (beta1, beta2), second, steps = first["betas"], {}, {}
    for g, _ in groups:
        for p in g["params"]:
            state = as_of_torch(optimizer.state.get(p, {}))
            if state and "exp_avg_sq" not in state:
                raise UnknownName(
                    f"the state of {kind} cannot be read (it has {', '.join(state)}), so it has no ceiling."
                )
            if "exp_avg_sq" in state and id(p) in names:
                second[names[id(p)]] = state["exp_avg_sq"].detach()
                steps[names[id(p)]] = int(_number(state["step"]))
    source = f"P from the optimizer state at step {max(steps.values())}" if steps else ""
    source = source or "the optimizer has not stepped, so P is that of its first step, |gradient| + eps"
    rule = adam(beta1, "AdamW" if apart else "Adam")
    extra = {"second": second, "steps": steps, "beta2": beta2, "eps": float(first["eps"]), "source": source}
    return Stepper(rule, **common, **extra)


def _number(value: Any) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def floor_share(P: Vector, eps: float, direction: Vector, group: Group = ALONE) -> float:
    """The share of a direction's squared length that lies in entries of P near eps; `group` holds its shards."""
    inside = sum(float(direction[n].square()[P[n] <= AT_FLOOR * eps].sum()) for n in P)
    whole = sum(float(t.square().sum()) for t in direction.values())
    inside, whole = group.sum(torch.tensor([inside, whole], dtype=torch.float64)).tolist()
    return inside / whole if whole and math.isfinite(whole) else 0.0
