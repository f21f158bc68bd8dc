"""Depth profiles of a running model: every collapse measure after every block, streamed over batches with error bars.

    profiler = Profiler(stacks)
    for batch in batches:
        profiler.forward(model, lambda: model(batch), mask=...)      # tokens and attention
        profiler.backward(model, lambda: loss(batch), mask=...)      # gradient-norm ratios
    profiler.profiles[0].layers("cosine")                            # depth + 1 Estimates

What it keeps are running sums, so two profilers of one model merge exactly, and a profile can be put in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quadform.core.errors import InputError
from quadform.core.record import Estimate

from ...propagation.collapse import MEASURES, AttentionCollapse, MeanKernel, Moments, NormRatio, TokenCollapse
from .observe import Stack, watching

#: The token measures of a profile.
TOKENS: tuple[str, ...] = tuple(MEASURES)
#: The measures of one head.
HEADS = ("entropy", "entropy_share", "sink")
#: A padding mask of the tokens a stack sees: (stack, X) -> boolean (batch, T) or None.
Masks = Callable[[int, Tensor], Tensor | None]


class Profile:
    """One stack: token measures, growth and gradient ratio after 0, ..., depth blocks; heads of blocks 1 to depth.

    growth     rms(X_l) / rms(X_0), geometric mean over sequences
    gradient   rms(dL/dX_l) / rms(dL/dX_depth), likewise; 1 everywhere = neither vanishing nor exploding
    """

    def __init__(self, stack: Stack, kernels: Iterable[int] = (0,)) -> None:
        self.stack = stack
        layers = range(stack.depth + 1)
        self.tokens = [TokenCollapse(TOKENS) for _ in layers]
        self.growth = [NormRatio("growth") for _ in layers]
        self.gradient = [NormRatio("gradient") for _ in layers]
        self.heads = [AttentionCollapse() for _ in range(stack.depth)]
        self.kernels = {l: MeanKernel() for l in sorted(set(kernels)) if 0 <= l <= stack.depth}
        self.d_model = 0

    def layers(self, measure: str) -> list[Estimate]:
        """depth + 1 estimates of a token measure, `growth` or `gradient`; a gradient not measured gives none."""
        streams: list[Any] = {"growth": self.growth, "gradient": self.gradient}.get(measure, self.tokens)
        found = [s.result().get(measure) for s in streams]
        return [] if any(e is None for e in found) else [e for e in found if e is not None]

    def head_layers(self, measure: str) -> list[list[Estimate]]:
        """For each block, one estimate a head of `entropy`, `entropy_share` or `sink`; empty where none was seen."""
        rows = []
        for stream in self.heads:
            found = stream.result()
            names = [f"{measure}[{h}]" for h in range(len(found) // len(HEADS))]
            rows.append([found[name] for name in names])
        return rows

    # --- keeping and joining -----------------------------------------------------------------------------------------
    def _moments(self) -> dict[str, Moments]:
        named: dict[str, Any] = {
            "tokens": self.tokens,
            "growth": self.growth,
            "gradient": self.gradient,
            "heads": self.heads,
        }
        return {f"{kind}/{l}": s.moments for kind, streams in named.items() for l, s in enumerate(streams)}

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """(plain numbers, tensors): all that was seen."""
        tensors = {}
        for l, kernel in self.kernels.items():
            tensors[f"{l}/total"], tensors[f"{l}/count"] = kernel.state()
        return {"d_model": self.d_model, "moments": {name: m.state() for name, m in self._moments().items()}}, tensors

    def load(self, numbers: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what another profile of the same stack saw. Kernels of another length end those kept."""
        mine = self._moments()
        if set(mine) != set(numbers["moments"]):
            raise InputError("this profile belongs to a stack of another depth.")
        for name, state in numbers["moments"].items():
            mine[name].load(state)
        self.d_model = int(numbers["d_model"])
        try:
            for l, kernel in self.kernels.items():
                kernel.load(tensors[f"{l}/total"], tensors[f"{l}/count"])
        except (KeyError, InputError):
            self.kernels = {}


class Profiler:
    """The profiles of the stacks of one model, filled by passes of it."""

    def __init__(self, stacks: tuple[Stack, ...], kernels: Iterable[int] = (0,)) -> None:
        kernels = tuple(kernels)
        self.stacks, self.profiles = stacks, [Profile(s, kernels) for s in stacks]
        self._mask: Masks = lambda stack, X: None
        self._first: dict[int, Tensor] = {}
        self._real: dict[int, Tensor | None] = {}

    # --- Observer ----------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def tokens(self, stack: int, layer: int, X: Tensor) -> None:
        profile = self.profiles[stack]
        if layer == 0:
            self._first[stack], self._real[stack], profile.d_model = (
                X.detach().clone(),
                self._mask(stack, X),
                X.shape[-1],
            )
        mask = self._real[stack]
        profile.tokens[layer].update(X, mask)
        profile.growth[layer].update(X, self._first[stack], mask)
        if layer in profile.kernels:
            try:
                profile.kernels[layer].update(X, mask)
            except InputError:  # sequences of several lengths have no one kernel
                profile.kernels = {}

    def attention(self, stack: int, layer: int, number: int, A: Tensor, visible: Tensor, rows: slice) -> None:
        if number:
            return  # self-attention comes first; attention to another stack is not its collapse
        mask = self._real[stack]
        if mask is not None:
            visible = visible & mask[rows, None, :, None]  # a padded query has no say
        self.profiles[stack].heads[layer - 1].update(A, visible)

    # --- keeping and joining -----------------------------------------------------------------------------------------
    def state(self) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
        """(plain numbers, tensors) of every profile."""
        parts = [p.state() for p in self.profiles]
        return [n for n, _ in parts], {f"{i}/{name}": t for i, (_, ts) in enumerate(parts) for name, t in ts.items()}

    def load(self, numbers: Sequence[dict[str, Any]], tensors: dict[str, Tensor]) -> None:
        """Take over what another profiler of the same stacks saw."""
        for i, (profile, its) in enumerate(zip(self.profiles, numbers, strict=True)):
            head = f"{i}/"
            profile.load(its, {n.removeprefix(head): t for n, t in tensors.items() if n.startswith(head)})

    # --- passes ------------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def forward(self, model: nn.Module, call: Callable[[], Any], mask: Masks | None = None) -> None:
        """Run the model once and take in every layer's tokens and attention."""
        self._mask = mask or (lambda stack, X: None)
        with watching(model, self.stacks, self, attention=True):
            call()

    def backward(
        self,
        model: nn.Module,
        call: Callable[[], Any],
        mask: Masks | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Run the model once with derivatives and take in the gradient at every layer's tokens.

        `call` returns the loss. With a generator there is no loss: the gradient starts after the last block of each
        stack as a standard normal draw. No parameter gets a gradient.
        """
        seen = _Keep(len(self.stacks))
        with torch.enable_grad(), watching(model, self.stacks, seen, start=lambda s, X: X.detach().requires_grad_()):
            out = call()
            for i, streams in enumerate(seen.streams):
                last = streams[-1]
                if generator is not None:
                    u = torch.randn(last.shape, generator=generator, dtype=last.dtype, device=generator.device)
                    found = torch.autograd.grad(
                        last, streams, u.to(last.device), retain_graph=True, allow_unused=True, materialize_grads=True
                    )
                else:
                    found = torch.autograd.grad(
                        out, streams, retain_graph=i + 1 < len(seen.streams), allow_unused=True, materialize_grads=True
                    )
                real = mask(i, last) if mask is not None else None
                for ratio, gradient in zip(self.profiles[i].gradient, found, strict=True):
                    ratio.update(gradient, found[-1], real)


class _Keep:
    """Keeps the tokens between blocks, as they are in the graph."""

    def __init__(self, stacks: int) -> None:
        self.streams: list[list[Tensor]] = [[] for _ in range(stacks)]

    def tokens(self, stack: int, layer: int, X: Tensor) -> None:
        self.streams[stack].append(X)

    def attention(self, *told: Any) -> None:
        pass
