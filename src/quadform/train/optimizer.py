"""Optimizers by name, no decay on scalars, norms and biases, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadform.core.errors import FileError, InputError
from quadform.core.precision import NoHalvesOnCPU
from quadform.optim.newton import GaussNewtonCG, SecondOrder

from .config import TrainConfig


def decays(p: Tensor) -> bool:
    """Whether a parameter takes weight decay: matrices do; scalars, per-head gains, norms and biases do not."""
    return p.ndim >= 2


class Optimizer:
    """One or two torch optimizers that share the parameters of a model, stepped together.

    Muon orthogonalises the update of the blocks' matrices; AdamW takes the embeddings, the output and all the rest.
    `fused` updates take one kernel (None: where there is one).
    """

    def __init__(self, model: nn.Module, config: TrainConfig, *, fused: bool | None = None) -> None:
        self.names: dict[Tensor, str] = {p: name for name, p in model.named_parameters() if p.requires_grad}
        if not self.names:
            raise InputError("no parameter of this model is trained (requires_grad is off everywhere).")
        adam: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
        wd = config.weight_decay or 0.0
        everything = list(self.names)
        self.fused = all(p.device.type in ("cpu", "cuda") for p in everything) if fused is None else fused
        adam["fused"] = self.fused
        if config.optimizer == "muon":
            inner = [p for p, name in self.names.items() if "layers." in name and p.ndim == 2]
            ids = {id(p) for p in inner}
            rest = [p for p in everything if id(p) not in ids]
            self.parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(_groups(rest, wd), **adam)]
            if inner:
                muon = torch.optim.Muon(inner, lr=config.lr, weight_decay=wd, adjust_lr_fn="match_rms_adamw")
                self.parts.append(muon)
        elif config.optimizer == "gauss-newton":
            self.parts = [GaussNewtonCG(model, lr=config.lr)]
        elif config.optimizer == "sgd":
            self.parts = [
                torch.optim.SGD(_groups(everything, wd), lr=config.lr, momentum=config.momentum, fused=self.fused)
            ]
        else:
            kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[config.optimizer]
            self.parts = [kind(_groups(everything, wd), **adam)]

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.names)
        return f"Optimizer({', '.join(type(part).__name__ for part in self.parts)} over {count:,} parameters)"

    @property
    def skips(self) -> bool:
        """Whether `step` can leave the weights alone by a decision that is taken on the device."""
        return self.fused and all(getattr(part, "_step_supports_amp_scaling", False) for part in self.parts)

    def capturable(self) -> None:
        """Make updates that a CUDA graph can record: learning rates and counts lie on the device."""
        for part in self.parts:
            for group in part.param_groups:
                device = group["params"][0].device
                group |= {"capturable": True, "lr": torch.tensor(group["lr"], device=device)}

    def set_rate(self, lr: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], Tensor) else lr

    def step(self, lr: float | None, skip: Tensor | None = None, batches: Sequence[Any] = ()) -> None:
        """One update at learning rate `lr` (None: the one it has); gradients are dropped afterwards.

        Where `skip` is 1 nothing is changed. Gauss-Newton differentiates the loss of the batches itself.
        """
        if lr is not None:
            self.set_rate(lr)
        for part in self.parts:
            part.found_inf = skip  # type: ignore[attr-defined]  # how torch's fused optimizers are told
            if isinstance(part, SecondOrder):
                part.step(list(batches))
            elif isinstance(part, torch.optim.Muon):
                with NoHalvesOnCPU():
                    part.step()
            else:
                part.step()
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The state, `exp_avg/layers.0.attn.W_Q` and so on; of Gauss-Newton its damping."""
        damped: dict[str, Tensor] = {}
        if isinstance(self.parts[0], SecondOrder):
            damped["damping/"] = torch.tensor(self.parts[0].param_groups[0]["damping"], dtype=torch.float64)
        return damped | {
            f"{key}/{self.names[p]}": value
            for part in self.parts
            for p, state in part.state.items()
            for key, value in state.items()
            if isinstance(value, Tensor)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up the state that `tensors` gave."""
        owner = {self.names[p]: (p, part) for part in self.parts for g in part.param_groups for p in g["params"]}
        found: dict[str, dict[str, Any]] = {}
        for full, value in tensors.items():
            key, _, name = full.partition("/")
            if full == "damping/":
                self.parts[0].param_groups[0]["damping"] = float(value)
                continue
            if name not in owner:
                raise FileError(f"the checkpoint has optimizer state of {name!r}, which this model does not train.")
            found.setdefault(name, {})[key] = value
        for name, state in found.items():
            p, part = owner[name]
            part.state[p] = {
                k: v.clone() if k == "step" and not self.fused else v.to(p.device, copy=True) for k, v in state.items()
            }


def _groups(parameters: Sequence[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    groups = (
        {"params": [p for p in parameters if decays(p)], "weight_decay": weight_decay},
        {"params": [p for p in parameters if not decays(p)], "weight_decay": 0.0},
    )
    return [g for g in groups if g["params"]]
