"""What softmax layers of one and of several heads share: biases, and heads that share their keys.

A bias is the last row of its weight, for tokens that end in 1: `x W_Q + b_Q = [x, 1] [W_Q; b_Q]`, and so for keys and
values. The theorems hold for the whole weights as they stand; a block with a bias is some rows or columns of theirs.
`joined` puts biases below their weights, `parted` takes them apart again. Source: [own].
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.space import Vector
from .head import Factor, Head
from .inputs import one_kind
from .layer import Part, TokenLayer
from .terms import Term


class SoftmaxLayer(TokenLayer):
    """Heads over the same tokens. `weights` are those of the space, biases last; `whole` has biases as last rows."""

    heads: list[Head]
    whole: dict[str, Tensor]
    #: Whether the layer is one head without an output matrix.
    single = False
    #: The heads that share one key and value projection.
    groups: list[list[int]]

    # --- what a layer gives -----------------------------------------------------------------------------------------
    @abstractmethod
    def whole_terms(self, part: Part, a: str, b: str) -> list[Term]:
        """`terms` between whole weights, or heads of them; a not before b."""

    @abstractmethod
    def whole_products(self, V: Vector, part: Part, *, bend: bool = True) -> dict[str, Tensor]:
        """`products` between whole weights; without `bend`, less the curvature of the product W_Q W_K^T itself."""

    @abstractmethod
    def whole_gradients(self) -> dict[str, Tensor]:
        """dL/dW of the whole weights."""

    @abstractmethod
    def whole_forward(self, whole: Vector) -> Tensor:
        """F at other whole weights, `(N, d_out)`."""

    @abstractmethod
    def factor(self, name: str, h: int) -> Factor:
        """The token Jacobian of the layer's output with respect to head h's part of a whole weight."""

    @abstractmethod
    def at(self, name: str, h: int) -> tuple[slice, slice]:
        """Where head h's part of a whole weight lies."""

    def owners(self, piece: str) -> tuple[str, list[int]]:
        """The whole weight a piece is cut from, and the heads that use it."""
        return piece, [0]

    # --- biases -----------------------------------------------------------------------------------------------------
    def joined(self, V: Vector) -> dict[str, Tensor]:
        """Vectors over the space as vectors over the whole weights."""
        out = {}
        for name, whole in self.whole.items():
            v = V[name]
            if name.startswith("b_"):  # the output bias is a weight of its own
                out[name] = v[..., None, :]
                continue
            if whole.shape[0] > self.matrix_shape(name)[0]:
                row = V.get(_bias_of(name))
                row = v.new_zeros((*v.shape[:-2], v.shape[-1])) if row is None else row
                v = torch.cat([v, row[..., None, :]], dim=-2)
            out[name] = v
        return out

    def parted(self, V: Vector) -> dict[str, Tensor]:
        """Vectors over the whole weights as vectors over the space."""
        out = {}
        for name in self.weights:
            whole, rows = self.place(name)
            out[name] = V[whole] if rows is None else V[whole][..., rows, :]
            if name.startswith("b_"):
                out[name] = out[name].squeeze(-2)
        return out

    def place(self, piece: str) -> tuple[str, slice | None]:
        """The whole weight, or head of it, that holds a piece, and in which of its rows; None for all."""
        name, bracket, rest = piece.partition("[")
        if name in self.whole:
            rows = self.matrix_shape(name)[0]
            return piece, None if rows == self.whole[name].shape[0] else slice(0, rows)
        owner = _weight_of(name)
        return owner + bracket + rest, slice(self.whole[owner].shape[0] - 1, None)

    def parameter_rows(self, name: str) -> int:
        """How many rows of a whole weight are parameters: a row of 1 that meets another bias is none."""
        return self.matrix_shape(name)[0] + (_bias_of(name) in self.weights)

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """The shape of a weight; a bias is one row."""
        w = self.weights[name]
        return (1, w.shape[0]) if w.dim() == 1 else (w.shape[0], w.shape[1])

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.matrix_shape(name)

    # --- what every layer gives -------------------------------------------------------------------------------------
    def terms(self, part: Part, a: str, b: str) -> list[Term]:
        (whole_a, rows), (whole_b, cols) = self.place(a), self.place(b)
        if self._order(whole_a) < self._order(whole_b):
            return [t.T for t in self.terms(part, b, a)]
        return [_cut(_cut(t, rows).T, cols).T for t in self.whole_terms(part, whole_a, whole_b)]

    def _order(self, piece: str) -> tuple[int, int]:
        name, owners = self.owners(piece)
        return list(self.whole).index(name), owners[0]

    def products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        return self.parted(self.whole_products(self.joined(V), part))

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """dL/dW for every weight."""
        return {self.prefix + name: g for name, g in self.parted(self.whole_gradients()).items()}

    def forward(self, weights: Vector) -> Tensor:
        return self.whole_forward(self.joined(weights))

    def jacobian(self, name: str) -> Tensor:
        N, d_out = self.output.g.shape
        out = torch.zeros((N, d_out, *self.shape_of(name)), dtype=self.dtype, device=self.device)
        for piece, at in self.pieces(name):
            whole, rows = self.place(piece)
            owner, heads = self.owners(whole)
            factors = [self.factor(owner, h) for h in heads]
            J = torch.stack([f.dense().unflatten(2, f.shape) for f in factors]).sum(0)
            out[(slice(None), slice(None), *at)] = J if rows is None else J[:, :, rows]
        return out.flatten(2)

    # --- what the layer computes ------------------------------------------------------------------------------------
    @property
    def X(self) -> Tensor:
        """Query tokens, `(batch, tokens, d)`."""
        return self.heads[0].X[..., : self.weights["W_Q"].shape[0]]

    @property
    def loss(self) -> Tensor | None:
        """The value of the loss; None for a loss given by (g, Hl)."""
        return self.output.value

    @property
    def F(self) -> Tensor:
        """The output, `(batch, tokens, d_out)`."""
        return self.per_token(self.forward(self.weights))

    @property
    def g(self) -> Tensor:
        """dl/dF, `(batch, tokens, d_out)`."""
        return self.per_token(self.output.g)

    def per_token(self, values: Tensor) -> Tensor:
        return values.unflatten(0, self.heads[0].A.shape[:2])


def _cut(term: Term, rows: slice | None) -> Term:
    return term if rows is None else term.rows(rows)


def _bias_of(name: str) -> str:
    return "b" + name[1:]


def _weight_of(name: str) -> str:
    return "W" + name[1:]


def with_biases(
    X: Tensor, Z: Tensor, weights: Vector, biases: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Tokens X and Z that end in 1 where a bias meets them, whole weights, and the biases that were given."""
    given = {name: b for name, b in biases.items() if b is not None}
    one_kind({"X": X, "context": Z, **weights, **given})
    for name, b in given.items():
        W = weights[_weight_of(name)]
        if b.dim() != 1 or W.dim() != 2 or b.shape[0] != W.shape[1]:
            raise InputError(
                f"{name} has shape {tuple(b.shape)}; {_weight_of(name)} {tuple(W.shape)} needs ({W.shape[-1]},)."
            )
    meets = {"W_Q": {"b_Q"}, "W_K": {"b_K", "b_V"}, "W_V": {"b_K", "b_V"}}
    whole = dict(weights)
    for name, any_of in meets.items():
        if any_of & given.keys() and weights[name].dim() == 2:
            row = given.get(_bias_of(name), weights[name].new_zeros(weights[name].shape[1]))
            whole[name] = torch.cat([weights[name], row[None]])
    X = _ending_in_one(X) if "b_Q" in given else X
    Z = _ending_in_one(Z) if {"b_K", "b_V"} & given.keys() else Z
    return X, Z, whole, given


def _ending_in_one(X: Tensor) -> Tensor:
    return torch.cat([X, torch.ones_like(X[..., :1])], dim=-1)
