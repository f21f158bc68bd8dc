"""Optimizer state from a file: a run folder of ours, or the state dict torch saves. Nothing in it is executed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...core.errors import FileError, InputError
from ...integrations.trainer_files import optimizer_state, state_file
from ...preconditioners import as_of_torch, factor_names, kind_of
from ...train.folder import is_run
from ...train.runs import Run, open_run
from .rules import Stepper, adam, read_optimizer


@dataclasses.dataclass(frozen=True)
class SavedState:
    """The state dict of a torch optimizer from a file: its groups, and the state of every parameter by name."""

    path: Path
    groups: list[dict[str, Any]]
    labels: dict[int, str]
    states: dict[str, dict[str, Any]]


def read_state(where: str | Path, model: nn.Module) -> SavedState:
    """The optimizer state at `where`, a file or a folder; nothing in it is executed."""
    path = state_file(where)
    try:
        body = optimizer_state(path)
        groups, states = body["param_groups"], {i: as_of_torch(s) for i, s in body["state"].items()}
        labels = _labels(groups, [i for g in groups for i in g["params"]], states, model)
        return SavedState(path, list(groups), labels, {labels[i]: s for i, s in states.items()})
    except (KeyError, TypeError, IndexError) as error:
        raise FileError(f"`{path}` is not the state dict of a torch optimizer (no {error}).") from error


def stepper_of_file(where: str | Path, model: nn.Module, names: tuple[str, ...]) -> Stepper:
    """The optimizer whose state lies at `where`, for the parameters `names` of `model`."""
    if is_run(Path(where)):
        run = open_run(Path(where))
        part = run.optimizer().parts[0]
        stepper = dataclasses.replace(read_optimizer(part, run.model), **rates_of_run(run))
        shapes = {n: p.shape for n, p in model.named_parameters()}
        fits = [n for n, p in run.model.named_parameters() if shapes.get(n) == p.shape]
        if set(stepper.names) - set(fits):
            raise InputError(f"the optimizer state at `{where}` belongs to another model.")
        return stepper
    found = read_state(where, model)
    if kind_of(found.groups[0], found.states) not in ("adam", "") or "betas" not in found.groups[0]:
        raise InputError(f"`{found.path}` holds no state of Adam; name the optimizer instead.")
    return _adam(found, names)


def rates_of_run(run: Run) -> dict[str, Any]:
    """`lr`: what the next step takes, or the last one took where the run is over; `peak`: the largest of all."""
    c, factor = run.config, run.config.schedule.factor
    now = c.lr * factor(min(run.step, c.steps - 1), c.steps)
    return {"lr": now, "peak": c.lr * max(factor(step, c.steps) for step in range(c.steps))}


def _adam(found: SavedState, names: tuple[str, ...]) -> Stepper:
    groups, labels, states = found.groups, found.labels, found.states
    (beta1, beta2), eps = groups[0]["betas"], float(groups[0]["eps"])
    apart = bool(groups[0].get("decoupled_weight_decay", True))
    decay = {labels[i]: float(g["weight_decay"]) for g in groups for i in g["params"] if g["weight_decay"]}
    rates = {labels[i]: float(g.get("initial_lr", g["lr"])) for g in groups for i in g["params"]}
    most = max(rates.values()) or 1.0
    second = {n: s["exp_avg_sq"] for n, s in states.items() if "exp_avg_sq" in s}
    steps = {n: int(s["step"]) for n, s in states.items() if "step" in s}
    kept = tuple(n for n in names if n in rates)
    return Stepper(
        adam(float(beta1), "AdamW" if apart else "Adam"),
        kept,
        lr=max(float(g["lr"]) for g in groups) or None,
        peak=max((float(g["initial_lr"]) for g in groups if "initial_lr" in g), default=None),
        rates={n: rates[n] / most for n in kept},
        decoupled={n: d for n, d in decay.items() if n in kept} if apart else {},
        coupled={} if apart else {n: d for n, d in decay.items() if n in kept},
        second={n: t for n, t in second.items() if n in kept},
        steps={n: t for n, t in steps.items() if n in kept},
        beta2=float(beta2),
        eps=eps,
        source=f"P from {found.path.name} at step {max(steps.values(), default=0)}",
    )


def _labels(groups: Any, order: list[int], states: Any, model: nn.Module) -> dict[int, str]:
    """Index in the state -> parameter name: the names torch saved, or the one order in which all shapes fit."""
    if all("param_names" in g for g in groups):
        return {i: n for g in groups for i, n in zip(g["params"], g["param_names"], strict=True)}
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    matrices = [(n, p) for n, p in trained if p.ndim >= 2]
    rest = [(n, p) for n, p in trained if p.ndim < 2]
    for candidate in (trained, matrices + rest, rest + matrices):
        if len(candidate) == len(order) and all(
            _fits(states.get(i), p) for i, (_, p) in zip(order, candidate, strict=True)
        ):
            return {i: n for i, (n, _) in zip(order, candidate, strict=True)}
    raise InputError(
        f"the optimizer state has {len(order)} tensors whose shapes fit no order of this model's {len(trained)}."
        " Save it with `named_parameters()` so that torch keeps their names, or use Python (`qf.lr(optimizer=...)`)."
    )


def _fits(state: Any, p: Tensor) -> bool:
    """Whether the tensors of a state are those of a parameter of this shape: the moment itself, its means over rows and
    columns (Adafactor), or a factor for each axis (Shampoo)."""
    if not state:
        return True
    if "exp_avg_sq" in state or "variance" in state:
        return state["exp_avg_sq" if "exp_avg_sq" in state else "variance"].shape == p.shape
    for row, col in (("row_var", "col_var"), ("exp_avg_sq_row", "exp_avg_sq_col")):
        if row in state:
            return (state[row].numel(), state[col].numel()) == (p[..., 0].numel(), p[..., 0, :].numel())
    sizes = [len(state[key]) for axis in range(p.dim()) for key in factor_names(axis) if key in state]
    return not sizes or sizes == list(p.shape)
