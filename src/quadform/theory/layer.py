"""What every layer with a closed-form Hessian offers, written once.

A layer gives two things: `terms(part, a, b)`, the block between two of its weights as a sum over tokens, and
`products(V, part)`, the analytic Hessian-vector product. From these follow dense blocks, named operators, exact norms,
traces, diagonals and token shares that never build a block, and the check against automatic differentiation. All are
plain values: weights that are being trained may be given, no derivative is kept.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from typing import Any, Literal, final

import torch
from torch import Tensor

from ..core.errors import CheckFailed, InputError, UnknownName
from ..core.memory import empty_matrix, guard_memory
from ..core.operator import Block, Operator
from ..core.record import Estimate
from ..core.space import Space, Vector, paper_name
from ..core.spec import choose
from .loss import OutputLoss
from .norms import block_norm
from .terms import Term, attribution, in_range
from .writing import block

Part = Literal["total", "outer", "functional"]
PARTS: tuple[Part, ...] = ("total", "outer", "functional")


def known_part(part: str) -> Part:
    """`part`, if the Hessian has such a one."""
    return choose("part of a Hessian", part, PARTS)


class TokenLayer(ABC):
    """A layer F(W) over tokens, at a point W, under a loss: H = H_o + H_f with H_o = J^T (d2l) J, H_f = <dl, d2F>."""

    space: Space
    prefix: str
    weights: dict[str, Tensor]
    output: OutputLoss

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.space}, {type(self.output).__name__}>"

    # --- what a layer gives -----------------------------------------------------------------------------------------
    @abstractmethod
    def terms(self, part: Part, a: str, b: str) -> list[Term]:
        """The block of `part` between two pieces as a sum over tokens; bare names, a not before b in the space."""

    @abstractmethod
    def products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        """`part` of the Hessian times k vectors, bare names, analytically."""

    @abstractmethod
    def jacobian(self, name: str) -> Tensor:
        """dF/dW for one weight, `(N, d_out, size)`: used where the loss couples tokens."""

    @abstractmethod
    def forward(self, weights: Vector) -> Tensor:
        """F at other weights, `(N, d_out)`, in plain differentiable torch: the oracle's side of `check`."""

    def pieces(self, name: str) -> list[tuple[str, tuple[slice, slice]]]:
        """The matrices a weight is made of (its heads), each with its place in it; `terms` speaks of pieces."""
        return [(name, (slice(None), slice(None)))]

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a weight or of one of its pieces."""
        return tuple(self.weights[name].shape)

    # --- dense blocks -----------------------------------------------------------------------------------------------
    def outer(self, a: str, b: str) -> Tensor:
        """H_o(a, b), the Gauss-Newton part, `(size_a, size_b)` in row-major order."""
        return self.dense("outer", a, b)

    def functional(self, a: str, b: str) -> Tensor:
        """H_f(a, b), the part from the layer's own curvature, `(size_a, size_b)` in row-major order."""
        return self.dense("functional", a, b)

    def block(self, a: str, b: str) -> Tensor:
        """H(a, b) = H_o(a, b) + H_f(a, b)."""
        return self.dense("total", a, b)

    def dense(self, part: Part, a: str, b: str) -> Tensor:
        """One block of one part; see `outer`, `functional`, `block`."""
        part = known_part(part)
        a, b = self._name(a), self._name(b)
        out = self._empty(math.prod(self.shape_of(a)), math.prod(self.shape_of(b)))
        self._write(part, a, b, out, None)
        return out

    def matrix(self, part: Part = "total", names: Sequence[str] | None = None, out: Tensor | None = None) -> Tensor:
        """The whole matrix over `names` (default: all weights, in the order of the space), block by block."""
        part = known_part(part)
        chosen = [self._name(n) for n in names] if names is not None else list(self.weights)
        if len(set(chosen)) < len(chosen):
            raise InputError(f"a matrix has each weight once; got {', '.join(chosen)}.")
        sizes = [math.prod(self.shape_of(n)) for n in chosen]
        starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        if out is None:
            out = self._empty(starts[-1], starts[-1])
        for i, a in enumerate(chosen):
            for j, b in enumerate(chosen[: i + 1]):
                rows, cols = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
                self._write(part, a, b, out[rows, cols], out[cols, rows] if i != j else None)
        return out

    def _empty(self, rows: int, cols: int) -> Tensor:
        return empty_matrix(rows, cols, self.dtype, self.device)

    def _write(self, part: Part, a: str, b: str, out: Tensor, mirror: Tensor | None) -> None:
        """Block (a, b) into the `(size_a, size_b)` view `out`, and its transpose into `mirror`."""
        if part != "functional" and not self.output.token_wise:
            self._write_coupled(part, a, b, out)
            if mirror is not None:
                mirror.copy_(out.T)
            return
        out = _four(out, self.shape_of(a), self.shape_of(b))
        mirror = out if a == b else None if mirror is None else _four(mirror, self.shape_of(b), self.shape_of(a))
        for i, (piece_a, at_a) in enumerate(self.pieces(a)):
            for j, (piece_b, at_b) in enumerate(self.pieces(b)):
                if a == b and j > i:
                    continue  # written as the mirror of (j, i)
                lower = self._later(piece_a, piece_b)
                terms = (
                    self.terms(part, piece_a, piece_b) if lower else [t.T for t in self.terms(part, piece_b, piece_a)]
                )
                twin = None if mirror is None or piece_a == piece_b else mirror[at_b + at_a]
                block(terms, out[at_a + at_b], twin)

    def _write_coupled(self, part: Part, a: str, b: str, out: Tensor, chunk: int = 256) -> None:
        """J_a^T (d2l/dF2) J_b, where d2l/dF2 is an operator over all outputs; plus H_f for the total."""
        J_a, J_b = self.jacobian(a), self.jacobian(b)
        for start in range(0, J_b.shape[2], chunk):
            cols = slice(start, min(start + chunk, J_b.shape[2]))
            out[:, cols] = J_a.flatten(0, 1).T @ self.output.hessian_times(J_b[:, :, cols]).flatten(0, 1)
        if part == "total":
            out += self.functional(a, b)

    # --- operators --------------------------------------------------------------------------------------------------
    def hessian(self) -> Operator:
        """H as an operator over this layer's weights; its products are analytic, its dense form is the closed form."""
        return LayerOperator(self, "total")

    def outer_operator(self) -> Operator:
        """H_o as an operator."""
        return LayerOperator(self, "outer")

    def functional_operator(self) -> Operator:
        """H_f as an operator."""
        return LayerOperator(self, "functional")

    def hvp(self, vector: Vector) -> dict[str, Tensor]:
        """H v for one vector, or a stack of them, given by the names of the space."""
        return self.hessian() @ vector

    # --- exact scalars, no block kept -------------------------------------------------------------------------------
    def norms(self, part: Part = "total") -> dict[tuple[str, str], Estimate]:
        """The Frobenius norm of every block (a not before b), exact; see `norms.py`."""
        names = [piece for name in self.weights for piece, _ in self.pieces(name)]
        return {(a, b): self.norm(a, b, part) for i, a in enumerate(names) for b in names[: i + 1]}

    @torch.no_grad()
    def norm(self, a: str, b: str, part: Part = "total") -> Estimate:
        """The Frobenius norm of one block, between weights or pieces of them."""
        part = known_part(part)
        a, b = self._name(a), self._name(b)
        if part != "functional" and not self.output.token_wise:
            M = self.dense(part, a, b)
            size = float(M.abs().max())
            value = size * float((M / size).norm()) if size > 0 else 0.0  # squares may leave floating point
            return Estimate(value, note="from the dense block: the loss couples tokens")
        norm = block_norm(self._found(part, a, b))
        if self.dtype != torch.float64 and norm.value < torch.finfo(self.dtype).tiny / torch.finfo(self.dtype).eps:
            return block_norm(in_float64(self)._found(part, a, b))  # small matrices may have left float32
        return norm

    @torch.no_grad()
    def diagonal(self, part: Part = "total") -> dict[str, Tensor]:
        """The diagonal of the Hessian, shaped like the weights."""
        part = known_part(part)
        out = {}
        for name, w in self.weights.items():
            if part != "functional" and not self.output.token_wise:
                out[self.prefix + name] = self.dense(part, name, name).diagonal().reshape(w.shape)
                continue
            whole = torch.zeros(self.shape_of(name), dtype=w.dtype, device=w.device)
            for piece, at in self.pieces(name):
                for term in self.terms(part, piece, piece):
                    whole[at] += term.diagonal().reshape(self.shape_of(piece))
            out[self.prefix + name] = whole.reshape(w.shape)
        return out

    def trace(self, part: Part = "total", name: str | None = None) -> Estimate:
        """The trace of the Hessian, or of one diagonal block."""
        whole = self.diagonal(part)
        chosen = list(whole.values()) if name is None else [whole[self.prefix + self._name(name)]]
        return Estimate(float(sum(d.sum() for d in chosen)))

    @torch.no_grad()
    def attribution(self, a: str, b: str, part: Part = "total") -> Tensor:
        """The share of every token in `||block||_F^2`, `(batch, tokens)`; shares sum to 1 and may be negative.

        A block is a sum over tokens, B = sum_n B_n; the share of token n is <B_n, B> / ||B||^2. [own]
        """
        part = known_part(part)
        a, b = self._name(a), self._name(b)
        if part != "functional" and not self.output.token_wise:
            raise InputError("token shares need a token-wise loss; this one couples tokens. Ask for part='functional'.")
        found = self._found(part, a, b)
        pieces = [attribution(terms) for terms in in_range(found)[0]]
        total = sum(float(p.sum()) for p in pieces)
        if total == 0.0:
            raise InputError(f"the {part} block ({a}, {b}) is 0 at this point; there is nothing to attribute.")
        return self.per_token(reduce(torch.add, pieces) / total)

    def per_token(self, values: Tensor) -> Tensor:
        """Values `(N, ...)` over all tokens in the batch shape of the input."""
        return values

    # --- the oracle -------------------------------------------------------------------------------------------------
    def loss_at(self, weights: Vector) -> Tensor:
        """What the loss gains from here to other weights, to second order in the output: `<g, dF> + dF Hl dF / 2`."""
        step = self.forward(weights) - self.forward(self.weights).detach()
        curved = self.output.hessian_times(step[:, :, None])[:, :, 0]
        return (self.output.g * step).sum() + 0.5 * (step * curved).sum()

    def check(self, part: Part = "total", *, tolerance: float | None = None) -> Estimate:
        """max |closed form - automatic differentiation| / max |H|; raises where it is above `tolerance`.

        |H| is the largest entry of H, H_o and H_f: a part may be nothing but the rounding of the others.
        """
        part = known_part(part)
        H = {"total": autodiff_hessian(self.loss_at, self.weights)}
        H["functional"] = autodiff_hessian(lambda w: (self.output.g * self.forward(w)).sum(), self.weights)
        H["outer"] = H["total"] - H["functional"]
        size = max(float(M.abs().max()) for M in H.values())
        off = float((self.matrix(part) - H[part]).abs().max())
        error = off / size if size > 0 else math.inf if off else 0.0
        if tolerance is None:
            tolerance = 1e-8 if self.dtype == torch.float64 else 1e-2
        if not error <= tolerance:
            raise CheckFailed(
                f"closed form and automatic differentiation differ by {error:.1e} of max|H| (> {tolerance:.0e})."
            )
        return Estimate(error, kind="bound", note="max |closed form - autodiff| / max |H|")

    # --- names ------------------------------------------------------------------------------------------------------
    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.weights.values())).dtype

    @property
    def device(self) -> torch.device:
        return next(iter(self.weights.values())).device

    def _name(self, name: str) -> str:
        bare = paper_name(name.removeprefix(self.prefix))
        if bare not in self.weights and bare not in self._turn:
            raise UnknownName(f"no parameter matches {name!r}; this space has {', '.join(self.weights)}.")
        return bare

    @cached_property
    def _turn(self) -> dict[str, int]:
        """The place of every piece in the order of the weights."""
        order = [piece for name in self.weights for piece, _ in self.pieces(name)]
        return {piece: i for i, piece in enumerate(order)}

    def _later(self, a: str, b: str) -> bool:
        return self._turn[a] >= self._turn[b]

    def _terms(self, part: Part, a: str, b: str) -> list[Term]:
        """The terms of a block of pieces in either order; norms and token shares do not see the difference."""
        return self.terms(part, a, b) if self._later(a, b) else self.terms(part, b, a)

    def _found(self, part: Part, a: str, b: str) -> list[list[Term]]:
        """The terms of every block of pieces that has any."""
        return [t for x, _ in self.pieces(a) for y, _ in self.pieces(b) if (t := self._terms(part, x, y))]


def _four(out: Tensor, rows: tuple[int, ...], cols: tuple[int, ...]) -> Tensor:
    """A `(rows, cols)` view with the axes of both weights."""
    return out.unflatten(1, cols).unflatten(0, rows)


def in_float64(thing: Any) -> Any:
    """A layer, and whatever of this room it is made of, with all tensors in float64; what is cached is left behind."""
    if isinstance(thing, Tensor):
        return thing.double() if thing.is_floating_point() else thing
    if isinstance(thing, dict):
        return {key: in_float64(value) for key, value in thing.items()}
    if type(thing) in (list, tuple):
        return type(thing)(in_float64(value) for value in thing)
    if not type(thing).__module__.startswith(f"{__package__}."):
        return thing
    twin = object.__new__(type(thing))
    cached = {name for kind in type(thing).__mro__ for name, v in vars(kind).items() if isinstance(v, cached_property)}
    vars(twin).update({name: in_float64(value) for name, value in vars(thing).items() if name not in cached})
    return twin


def autodiff_hessian(scalar: Callable[[Vector], Tensor], weights: Vector) -> Tensor:
    """The dense Hessian of a function of named tensors by double backward, which is right through LayerNorm where
    `torch.func.hessian` is not."""
    space = Space.of(weights)
    w = space.flatten(weights).detach().requires_grad_()
    with torch.enable_grad():
        (g,) = torch.autograd.grad(scalar(space.unflatten(w)), w, create_graph=True)
    units = torch.eye(len(w), dtype=w.dtype, device=w.device)
    if not g.requires_grad:  # a linear function
        return torch.zeros_like(units)
    rows = [torch.autograd.grad(g, w, u, is_grads_batched=True, retain_graph=True)[0] for u in units.split(256)]
    return torch.cat(rows)


@final
class LayerOperator(Operator):
    """H, H_o or H_f of a layer over (some of) its weights."""

    def __init__(self, layer: TokenLayer, part: Part, rows: Space | None = None, cols: Space | None = None) -> None:
        rows = layer.space if rows is None else rows
        cols = layer.space if cols is None else cols
        same = rows.parts == cols.parts
        psd = same and part == "outer" and layer.output.convex
        super().__init__(cols, rows, dtype=layer.dtype, device=layer.device, symmetric=same, psd=psd)
        self.layer, self.part = layer, part

    @torch.no_grad()
    def apply(self, V: Vector) -> dict[str, Tensor]:
        prefix = self.layer.prefix
        k = next(iter(V.values())).shape[0]
        bare = {
            name: V[prefix + name] if prefix + name in V else torch.zeros((k, *w.shape), dtype=w.dtype, device=w.device)
            for name, w in self.layer.weights.items()
        }
        image = self.layer.products(bare, self.part)
        return {name: image[name.removeprefix(prefix)] for name in self.codomain.names}

    def adjoint(self) -> Operator:
        return self if self.symmetric else LayerOperator(self.layer, self.part, self.domain, self.codomain)

    def sub(self, rows: Space, cols: Space) -> Operator:
        whole = all(name in self.layer.space for name in (*rows.names, *cols.names))
        return LayerOperator(self.layer, self.part, rows, cols) if whole else Block(self, rows, cols)

    def dense(self, *, chunk: int = 256) -> Tensor:
        prefix = self.layer.prefix
        rows = [n.removeprefix(prefix) for n in self.codomain.names]
        cols = [n.removeprefix(prefix) for n in self.domain.names]
        if rows == cols:
            return self.layer.matrix(self.part, rows)
        guard_memory(*self.shape, self.dtype, self.device)
        blocks = [torch.cat([self.layer.dense(self.part, a, b) for b in cols], dim=1) for a in rows]
        return torch.cat(blocks)
