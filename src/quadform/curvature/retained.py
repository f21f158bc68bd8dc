"""The gradient with its graph, kept: a Hessian product is then one more backward pass through it.

    H(rows, cols) v = d/d rows <g_cols, v>,   g = grad scalar

Reverse over reverse. Nothing is prepared beyond one gradient, and that one is not run again for the next vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core.errors import InputError
from ..core.memory import in_words
from ..core.space import Vector


class TooLarge(torch.OutOfMemoryError):
    """A graph would hold more than it may."""


class Retained:
    """`scalar` at `theta` (`value`), its gradient in `cols`, and the graph of both; `bytes` is what the graph holds.

    `TooLarge` as soon as that is more than `most`.
    """

    def __init__(
        self, scalar: Callable[[Vector], Tensor], theta: Vector, cols: Sequence[str], most: float = math.inf
    ) -> None:
        held: dict[int, int] = {}
        with torch.enable_grad(), counted(held, most):
            self.theta = {n: t.detach().requires_grad_() for n, t in theta.items()}
            value = scalar(self.theta)
            self.depends = value.requires_grad
            g: Sequence[Tensor | None] = [None] * len(cols)
            if self.depends:
                g = torch.autograd.grad(value, [self.theta[n] for n in cols], create_graph=True, allow_unused=True)
        self.value, self.gradient = value.detach(), dict(zip(cols, g, strict=True))
        require_twice(g)
        own = {t.untyped_storage()._cdata for t in self.theta.values()}
        self.bytes = sum(size for where, size in held.items() if where not in own)

    def __call__(self, v: Vector, rows: Sequence[str]) -> dict[str, Tensor]:
        """The product with one vector of the columns."""
        used = [(g, v[n]) for n, g in self.gradient.items() if g is not None and g.requires_grad]
        at = [self.theta[n] for n in rows]
        if not used:  # the scalar is linear in these parameters
            return {n: torch.zeros_like(t) for n, t in zip(rows, at, strict=True)}
        outs, weights = zip(*used, strict=True)
        image = torch.autograd.grad(outs, at, list(weights), retain_graph=True, allow_unused=True)
        return {n: torch.zeros_like(t) if h is None else h for n, t, h in zip(rows, at, image, strict=True)}


def counted(held: dict[int, int], most: float = math.inf) -> torch.autograd.graph.saved_tensors_hooks:
    """A scope in which `held` learns what graphs keep: {storage: its bytes}; not more than `most`.

    A tensor is handed over detached. With its graph, an operator that saves its own result (softmax) would hold itself,
    by a reference that Python's collector cannot see, and nothing would ever be freed. Torch checks no versions of
    tensors that hooks keep, so writes in place are looked for here.
    """

    left = [most]

    def pack(t: Tensor) -> tuple[Tensor, int]:
        if t.layout is torch.strided:  # sparse ones, data as a rule, have no storage
            storage = t.untyped_storage()
            left[0] += held.get(storage._cdata, 0) - storage.nbytes()
            held[storage._cdata] = storage.nbytes()  # without numbers (meta) the address of all is 0
            if left[0] < 0:
                raise TooLarge(f"the graph of the gradient takes more than {in_words(most)}")
        return t.detach(), written(t)

    def unpack(kept: tuple[Tensor, int]) -> Tensor:
        t, before = kept
        if written(t) != before:
            raise overwritten(t)
        return t

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def written(t: Tensor) -> int:
    """How often a tensor was written in place; those made in inference mode do not tell."""
    return 0 if t.is_inference() else t._version


def overwritten(t: Tensor) -> InputError:
    """The error for a tensor that the model has written over."""
    return InputError(
        f"a tensor of shape {tuple(t.shape)} that the derivative needs was overwritten by an inplace operation."
        " Nothing was measured. Write that step of the model without writing in place."
    )


def gradients(value: Tensor, at: Vector, weight: Tensor | None = None) -> dict[str, Tensor]:
    """d value / d at, of several values J^T weight; zeros where they do not depend on it."""
    found: Sequence[Tensor | None] = [None] * len(at)
    if value.requires_grad:
        found = torch.autograd.grad(value, list(at.values()), weight, allow_unused=True)
    return {n: torch.zeros_like(t) if g is None else g.detach() for (n, t), g in zip(at.items(), found, strict=True)}


def require_twice(gradients: Sequence[Tensor | None]) -> None:
    """Refuse gradients with an operator behind them whose rule says that it can be differentiated once only.

    Its node has no way on to the parameters: a second backward pass would not meet it and give silent zeros, and so
    would `jvp(grad)`.
    """
    if any(type(node).__name__ == "Error" for node in _nodes(gradients)):
        raise _once()


def require_rules(values: Sequence[Tensor]) -> None:
    """The same, seen in the graph of the values: the rules of their operators say so."""
    for node in _nodes(values):
        rule = getattr(getattr(type(node), "_forward_cls", None), "backward", None)
        if getattr(rule, "__code__", None) is _ONCE:
            raise _once()


#: The code of every rule that `once_differentiable` has marked.
_ONCE: Any = getattr(once_differentiable(lambda ctx: None), "__code__", object())


def _once() -> InputError:
    return InputError(
        "an operator of the model says that it can be differentiated once only (`once_differentiable`); its second"
        " derivative would come out as zero. Nothing was measured. Replace that operator."
    )


def _nodes(values: Sequence[Tensor | None]) -> set[Any]:
    """The graph of some tensors."""
    seen: set[Any] = set()
    left: list[Any] = [t.grad_fn for t in values if t is not None]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [other for other, _ in node.next_functions]
    return seen
