"""Depth and designs: blocks of `quadform.nn` on given tokens, and the exact Hessian of one layer's attention weights.

    X_0 = scale X,   X_l = block_l(X_{l-1}),   F = final_norm(X_D),   loss = ||F - Y||^2 / (L d)

No closed form exists for a whole stack. H_f comes from double backward over unit vectors, the Jacobian J from backward
over the outputs, H_o = (2 / (L d)) J^T J: exact up to rounding. Blocks in front of the layer are evaluated once.
Reverse mode only: torch's forward mode keeps one level for the whole process, and derivatives that another thread of a
notebook takes would meet it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call

from ..applications.problem import Problem
from ..core.designs import design
from ..core.errors import InputError
from ..core.rng import stream
from ..core.space import Space
from ..core.spec import BlockSpec, Gain, Mixing, ModelConfig
from ..nn.attention import Attention
from ..nn.frame import Frame
from ..nn.transformer import Transformer
from .state import ALONE, ControlError, State

#: Unit vectors in one pass.
CHUNK = 256
_SHOWN = ("W_Q", "W_K", "W_QK", "W_V")


def config_of(state: State, dim: int) -> ModelConfig:
    """The model a state describes, one head of full width."""
    linear, merged = state.attention == "linear", state.factor == "single"
    if state.design == ALONE:
        mixing = Mixing(kind="linear" if linear else "softmax", scores="merged" if merged else "factored")
        block = BlockSpec(norm="none", attn=Gain(skip=0.0), mlp=None, proj=None, mixing=mixing)
        return ModelConfig(
            kind="encoder",
            blocks=(block,) * state.depth,
            d_model=dim,
            heads=1,
            d_ff=dim,
            vocab=1,
            positions="none",
            final_norm="none",
        )
    try:
        return design(
            state.design,
            depth=state.depth,
            d_model=dim,
            heads=1,
            vocab=1,
            kind="encoder",
            positions="none",
            linear=linear,
            merged=merged,
        )
    except InputError as error:
        raise ControlError("design", "other", text=str(error)) from error


@dataclass(frozen=True)
class Stack:
    """Blocks on tokens X (L, d) with targets Y (L, d), looked at in layer `index`."""

    model: Transformer
    X: Tensor
    Y: Tensor
    scale: float
    index: int
    seen: list[Tensor]

    @classmethod
    def of(cls, state: State, problem: Problem, given: Mapping[str, Tensor]) -> Stack:
        """The stack of a state; weights of attention alone are those of the toy problem, layer after layer, and those
        that were given in the first; designs start as they are made to start."""
        d = problem.X.shape[1]
        if any(tuple(t.shape) != (d, d) for name, t in given.items() if name.startswith("W_")):
            raise ControlError("upload", "upload_square", need=f"{d} × {d}")
        model = Transformer(config_of(state, d), seed=state.seed, dtype=torch.float64).requires_grad_(False)
        seen: list[Tensor] = []

        def attend(q, k, v, *, causal=False, mask=None, bias=None, scale=None):
            """softmax(scale Q K^T + bias + sink) V; keeps the last attention matrix for looking at it."""
            T = scale * (q @ k.mT)
            T = T if bias is None else T + bias
            if state.sink:
                T = T + state.sink * (torch.arange(T.shape[-1]) == 0)
            A = T.softmax(-1)
            seen[:] = [A]
            return A @ v

        model.attend = attend
        for layer, attn in enumerate(_attentions(model)):
            attn.scale /= state.temperature
            if state.design == ALONE:
                _as_in_the_toy(attn, layer, d, state.seed, given)
        return cls(model, problem.X, problem.Y, state.scale, state.layer - 1, seen)

    def at(self, scale: float) -> Stack:
        """The same stack on tokens of another size."""
        return replace(self, scale=scale)

    @cached_property
    def frame(self) -> Frame:
        return Frame.of(len(self.X), None, False, self.X.device)

    @cached_property
    def entering(self) -> Tensor:
        """What enters the layer, (1, L, d): the tokens behind the blocks in front of it."""
        X = (self.scale * self.X)[None]
        for block in self.model.layers[: self.index]:
            X = block(X, self.frame)
        return X

    def streams(self) -> list[Tensor]:
        """X_0, ..., X_D, each (L, d)."""
        X = [(self.scale * self.X)[None]]
        for block in self.model.layers:
            X.append(block(X[-1], self.frame))
        return [x[0] for x in X]

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """W_Q, W_K (or W_QK) and W_V of the layer, those it has."""
        own = dict(_attentions(self.model)[self.index].named_parameters())
        return {name: own[name].detach() for name in _SHOWN if name in own}

    @property
    def space(self) -> Space:
        return Space(tuple((name, tuple(w.shape[-2:])) for name, w in self.weights.items()))

    def output(self, flat: Tensor) -> Tensor:
        """F (L, d) with the layer's weights replaced by a flat vector."""
        space = Space.of(self.weights)
        X = self.entering
        for i, block in enumerate(self.model.layers[self.index :]):
            new = {f"attn.{name}": t for name, t in space.unflatten(flat).items()} if i == 0 else {}
            X = functional_call(block, new, (X, self.frame)) if new else block(X, self.frame)
        X = X if self.model.final_norm is None else self.model.final_norm(X)
        return X[0]

    @cached_property
    def flat(self) -> Tensor:
        return Space.of(self.weights).flatten(self.weights)

    def loss(self, flat: Tensor | None = None) -> Tensor:
        """||F - Y||^2 / (L d)."""
        return (self.output(self.flat if flat is None else flat) - self.Y).square().mean()

    def parts(self) -> tuple[Tensor, Tensor]:
        """H_o and H_f, each (P, P)."""
        w = self.flat.clone().requires_grad_()
        F = self.output(w)
        c = 2 / self.Y.numel()
        g = c * (F.detach() - self.Y)
        pulled = torch.autograd.grad((g * F).sum(), w, create_graph=True)[0]  # d<g, F>/dw with g held fixed
        H_f = _rows(pulled, w, torch.eye(len(w), dtype=w.dtype))
        J = _rows(F.flatten(), w, torch.eye(F.numel(), dtype=w.dtype))  # (outputs, P)
        return c * (J.T @ J), (H_f + H_f.T) / 2

    def difference(self, H: Tensor, step: float = 1e-5) -> float:
        """max |H v - central difference of the gradient| / max |H v| along one random direction."""
        v = torch.randn(len(H), generator=stream(0, "explorer/check"), dtype=H.dtype)

        def slope(w: Tensor) -> Tensor:
            w = w.clone().requires_grad_()
            return torch.autograd.grad(self.loss(w), w)[0]

        seen = (slope(self.flat + step * v) - slope(self.flat - step * v)) / (2 * step)
        return float((H @ v - seen).abs().max() / (H @ v).abs().max().clamp_min(1e-300))

    def pattern(self) -> tuple[Tensor, Tensor]:
        """The attention matrix A (L, L) of the layer (without softmax: the scores) and its input (L, d)."""
        attn = _attentions(self.model)[self.index]
        caught: list[Tensor] = []
        hook = attn.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
        try:
            self.model.layers[self.index](self.entering, self.frame)
        finally:
            hook.remove()
        N = caught[0]
        if attn.mixing.kind == "linear":
            return (attn.scale * attn.queries(N) @ attn.keys(N).mT)[0, 0], N[0]
        return self.seen[0][0, 0], N[0]


def _rows(of: Tensor, w: Tensor, units: Tensor) -> Tensor:
    """u^T d(of)/dw for every row u of `units`; zero where `of` does not depend on w."""
    if not of.requires_grad:
        return units.new_zeros(len(units), len(w))
    found = []
    for chunk in units.split(CHUNK):
        (rows,) = torch.autograd.grad(of, w, chunk, is_grads_batched=True, retain_graph=True, allow_unused=True)
        found.append(units.new_zeros(len(chunk), len(w)) if rows is None else rows)
    return torch.cat(found)


def _attentions(model: Transformer) -> list[Attention]:
    """The attention of every block, in order."""
    return [module for module in model.layers.modules() if isinstance(module, Attention)]


def _as_in_the_toy(attn: Attention, layer: int, d: int, seed: int, given: Mapping[str, Tensor]) -> None:
    """Weights ~ N(0, 1/d), drawn as `toy_problem` draws them; later layers have streams of their own."""
    where = "toy" if layer == 0 else f"toy/layers.{layer}"

    def draw(name: str) -> Tensor:
        if layer == 0 and name in given:
            return given[name]
        return torch.randn(d, d, generator=stream(seed, f"{where}/{name}"), dtype=torch.float64) / math.sqrt(d)

    with torch.no_grad():
        for name, p in attn.named_parameters():
            p.copy_(draw("W_Q") @ draw("W_K").T if name == "W_QK" else draw(name))
