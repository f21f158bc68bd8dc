"""The Jacobian of a block or of a whole stack with respect to its tokens, and its singular values.

J = d vec(X_b) / d vec(X_a) for one sequence, X_a (T, d) the tokens after a blocks. All singular values near 1
(*dynamical isometry*) means that small changes neither die out nor explode on their way through depth: what skips,
shaped attention and signal-preserving attention are after. Source: [HMZ23] for the aim; J of any model is [own].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from ...core.errors import InputError
from ...core.operator import Operator
from ...core.progress import Report
from ...core.record import Estimate
from ...core.space import Space, Vector
from ...curvature.settings import measured
from ...estimate.norms import Gram, singular_ends
from ...estimate.quadrature import density
from .observe import Stack, find_stacks, watching

#: Up to so many coordinates (T d) the matrix is built and all singular values are exact.
DENSE = 1024
#: Levels of the distribution that are kept: from the smallest singular value to the largest.
LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@final
class Jacobian(Operator):
    """dX_b / dX_a at one sequence, (T d) x (T d), from two graphs that are built once.

    A product with the transpose is one backward pass; a product with J differentiates that pass, which is linear in its
    seed u: J v = d<J^T u, v>/du. `k` copies of the sequence stand in a batch, so k products cost one pass.
    """

    def __init__(self, X: Tensor, Y: Tensor, *, transposed: bool = False, pair: Jacobian | None = None) -> None:
        space = Space((("X", tuple(X.shape[1:])),))
        super().__init__(space, space, dtype=X.dtype, device=X.device, symmetric=False)
        self.X, self.Y, self.transposed, self.pair = X, Y, transposed, pair
        self._u: Tensor | None = None
        self._back: Tensor | None = None

    def _once(self, V: Tensor) -> Tensor:
        if self.transposed:
            return _gradient(self.Y, self.X, V)
        if self._u is None or self._back is None:
            self._u = torch.zeros_like(self.Y, requires_grad=True)
            with torch.enable_grad():
                self._back = _gradient(self.Y, self.X, self._u, create_graph=True)
        return _gradient(self._back, self._u, V)

    def apply(self, V: Vector) -> dict[str, Tensor]:
        tangents, k = V["X"], len(self.X)
        out = []
        for a in range(0, len(tangents), k):
            part = tangents[a : a + k]
            full = torch.cat((part, part.new_zeros(k - len(part), *part.shape[1:])))
            out.append(self._once(full)[: len(part)].detach())
        return {"X": torch.cat(out)}

    def adjoint(self) -> Operator:
        if self.pair is None:
            self.pair = Jacobian(self.X, self.Y, transposed=not self.transposed, pair=self)
        return self.pair


def _gradient(of: Tensor, at: Tensor, seed: Tensor, create_graph: bool = False) -> Tensor:
    if not of.requires_grad:  # nothing depends on the tokens: a branch with weight zero everywhere
        return torch.zeros_like(at)
    (g,) = torch.autograd.grad(
        of, at, seed, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return g


def jacobian(
    model: nn.Module,
    call: Callable[[Any], Any],
    batch: Any,
    which: int | str = "stack",
    *,
    stack: int | Stack = 0,
    at_once: int = 8,
) -> Jacobian:
    """J of block `which` (1, 2, ...) or of the whole stack, at the first sequence of `batch`.

    `call(batch)` runs the model. `at_once` copies of the sequence are carried: products that cost one pass, and memory
    for as many sequences.
    """
    rows = repeat_first(batch, at_once)
    with measured(model), torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        found = stack if isinstance(stack, Stack) else find_stacks(model, lambda: call(rows))[stack]
        if which != "stack" and not (isinstance(which, int) and 1 <= which <= found.depth):
            raise InputError(f"a Jacobian is of `stack` or of a block from 1 to {found.depth}; got {which!r}.")
        if which == "stack":
            ends = _Ends(found.depth)
            with torch.enable_grad(), watching(model, (found,), ends, start=lambda s, X: X.detach().requires_grad_()):
                call(rows)
            return Jacobian(ends.X, ends.Y)
        return _of_block(model, found, int(which), lambda: call(rows))


def _of_block(model: nn.Module, stack: Stack, layer: int, run: Callable[[], Any]) -> Jacobian:
    """The block alone, called again as the model called it but with tokens that carry derivatives."""
    part, ends, count = Stack(stack.name, stack.calls[layer - 1 : layer], stack.batch_first), _Ends(1), [0]
    block = model.get_submodule(part.calls[0])
    wanted = stack.calls[:layer].count(part.calls[0])
    kept: list[tuple[Any, Any]] = []

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        count[0] += 1
        if count[0] == wanted:
            kept.append((args, kwargs))

    handle = block.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            run()
    finally:
        handle.remove()
    args, kwargs = kept[0]
    with torch.enable_grad(), watching(model, (part,), ends, start=lambda s, X: X.detach().requires_grad_()):
        block(*args, **kwargs)
    return Jacobian(ends.X, ends.Y)


class _Ends:
    """Keeps the first and the last tokens of a stack."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.X: Tensor = torch.empty(0)
        self.Y: Tensor = torch.empty(0)

    def tokens(self, stack: int, layer: int, X: Tensor) -> None:
        if layer == 0:
            self.X = X
        if layer == self.depth:
            self.Y = X

    def attention(self, *told: Any) -> None:
        pass


def repeat_first(batch: Any, times: int) -> Any:
    """The first sequence of a batch, `times` times; a batch is a tensor, or a mapping or sequence of such."""
    if isinstance(batch, Tensor):
        return batch[:1].repeat(times, *[1] * (batch.ndim - 1))
    if isinstance(batch, dict):
        return {k: repeat_first(v, times) for k, v in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(repeat_first(v, times) for v in batch)
    return batch


# ------------------------------------------------------------------------------------------------ singular values
@dataclass(frozen=True)
class Isometry:
    """How far J is from an isometry. `quantiles` of the singular values at `LEVELS`; all 1 for an isometry.

    `values` are all of them, descending, where the matrix was built; else None, the ends are Golub-Kahan's with their
    residuals as error, and the middle is Lanczos quadrature of J^T J.
    """

    largest: Estimate
    smallest: Estimate
    mean_square: Estimate
    quantiles: tuple[float, ...]
    values: Tensor | None

    @property
    def exact(self) -> bool:
        return self.values is not None


def isometry(
    J: Operator,
    *,
    dense: int = DENSE,
    tol: float = 1e-3,
    max_products: int = 120,
    probes: int = 4,
    steps: int = 20,
    seed: int = 0,
    progress: bool | Report = False,
) -> Isometry:
    """Singular values of a Jacobian: all of them up to `dense` coordinates, ends and distribution beyond."""
    n = J.shape[1]
    if n <= dense:
        s = torch.linalg.svdvals(J.T.dense().double().cpu())
        tag = {"matvecs": n, "note": "all singular values of the dense matrix"}
        quantiles = torch.quantile(s, torch.tensor(LEVELS, dtype=s.dtype))
        mean_square = Estimate(float(s.square().mean()), **tag)  # type: ignore[arg-type]  # fields by name
        largest = Estimate(float(s[0]), **tag)  # type: ignore[arg-type]  # fields by name
        floor, least = 10 * torch.finfo(J.dtype).eps * largest.value, float(s[-1])
        smallest = Estimate(least, **tag)  # type: ignore[arg-type]  # fields by name
        if least < floor:
            smallest = Estimate(floor, None, "bound", n, note="below the round-off of the products", side="upper")
        return Isometry(largest, smallest, mean_square, tuple(quantiles.tolist()), s)
    found = singular_ends(J, tol=tol, max_products=max_products, smallest=True, seed=seed, progress=progress)
    spread = density(Gram(J), probes, steps, seed=seed, progress=progress)
    nodes, order = spread.nodes.clamp(min=0).sqrt().double().cpu().reshape(-1).sort()
    weights = spread.weights.double().cpu().reshape(-1)[order]
    below = (weights.cumsum(0) - weights / 2) / weights.sum()
    middle = np.interp(LEVELS[1:-1], below.numpy(), nodes.numpy()).tolist()
    quantiles_ = (found.smallest.value, *middle, found.largest.value)
    return Isometry(found.largest, found.smallest, spread.moment(1), quantiles_, None)
