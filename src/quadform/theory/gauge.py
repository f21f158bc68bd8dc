"""Gauge symmetry of factorised weights: Hessian directions known from the gradient alone.

Attention sees W_Q, W_K only through W_Q W_K^T, and W_V, W_O (per head) only through W_V W_O. For such a pair (P, Q),
seen through P Q^T, the loss is constant along `P e^{sB}, Q e^{-sB^T}` for every matrix B, whatever the loss and
whatever network surrounds the layer. Differentiating the gradient along it,

    H (P B, -Q B^T) = (-g_P B^T, g_Q B),  0 on every other parameter;     w^T H w = -2 tr(B^T Gam B^T),  Gam = P^T g_P

so r^2 Hessian products come for free, and with them directions of negative curvature, exact eigenvectors when tokens
are low-dimensional, and rebalancings that change the Hessian but not the function. Source: [own].
Biases are further rows of P and Q; heads that share a key projection are one P, their W_Q below each other. Rotary
positions and QK normalisation shrink or remove the symmetry; `Gauge.defect` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.showing import fields_in_brief
from .deep_linear import DeepLinearTransformer
from .linear_attention import LinearAttentionLayer
from .linear_stages import Attention
from .merged_qk import MergedLayer
from .mlp import LinearMLP
from .score_split import ScoreSplit
from .softmax import SoftmaxLayer


@dataclass(frozen=True)
class NegativeDirection:
    """A direction with `w^T H w = curvature < 0`; `rayleigh`, the same over w^T w, bounds lambda_min(H) from above."""

    B: Tensor
    vector: dict[str, Tensor]
    curvature: float
    rayleigh: float

    __repr__ = fields_in_brief


@dataclass(frozen=True)
class Gauge:
    """A pair P (m, r), Q (n, r) that the loss sees only through P Q^T, with its gradients.

    `names` are those of the two weights; `transposed` says that the second is stored as Q^T (W_O). Where P or Q is made
    of several weights (biases, grouped heads), `rows` says how many rows each of them has.
    """

    P: Tensor
    Q: Tensor
    g_P: Tensor
    g_Q: Tensor
    names: tuple[str, ...]
    transposed: bool = False
    rows: tuple[int, ...] = ()

    __repr__ = fields_in_brief

    def __post_init__(self) -> None:
        if self.P.shape[1] != self.Q.shape[1] or self.P.shape != self.g_P.shape or self.Q.shape != self.g_Q.shape:
            raise InputError(
                f"a gauge pair shares its inner width and has gradients of its shapes; got {tuple(self.P.shape)},"
                f" {tuple(self.Q.shape)} with gradients {tuple(self.g_P.shape)}, {tuple(self.g_Q.shape)}."
            )

    @classmethod
    def qk(cls, W_Q: Tensor, W_K: Tensor, g_Q: Tensor, g_K: Tensor, names: tuple[str, str] = ("W_Q", "W_K")) -> Gauge:
        """The pair of one head's query and key weights."""
        return cls(W_Q, W_K, g_Q, g_K, names)

    @classmethod
    def vo(cls, W_V: Tensor, W_O: Tensor, g_V: Tensor, g_O: Tensor, names: tuple[str, str] = ("W_V", "W_O")) -> Gauge:
        """The pair of one head's value and output weights, W_V (d, d_V) and W_O (d_V, d_out)."""
        return cls(W_V, W_O.T, g_V, g_O.T, names, transposed=True)

    def named(self, P: Tensor, Q: Tensor) -> dict[str, Tensor]:
        """Matrices of the shapes of P and Q as the weights they are made of."""
        rows = self.rows or (P.shape[-2], Q.shape[-2])
        first = next(i for i in range(len(rows)) if sum(rows[:i]) == P.shape[-2])
        of_Q = (q.mT if self.transposed else q for q in Q.split(list(rows[first:]), -2))
        parts = zip(self.names, (*P.split(list(rows[:first]), -2), *of_Q), strict=True)
        return {name: t.squeeze(-2) if name.rpartition(".")[2].startswith("b_") else t for name, t in parts}

    # --- what the gradient knows ------------------------------------------------------------------------------------
    def direction(self, B: Tensor) -> dict[str, Tensor]:
        """The tangent `(P B, -Q B^T)` of the orbit, for B (..., r, r)."""
        return self.named(self.P @ B, -self.Q @ B.mT)

    def action(self, B: Tensor) -> dict[str, Tensor]:
        """`H direction(B)`, on the two weights; it is zero on every other parameter of the model."""
        return self.named(-self.g_P @ B.mT, self.g_Q @ B)

    @property
    def Gam(self) -> Tensor:
        """`P^T g_P` (r, r), equal to `(Q^T g_Q)^T` where the symmetry holds."""
        return self.P.T @ self.g_P

    @property
    def defect(self) -> float:
        """`|P^T g_P - g_Q^T Q| / max`: 0 up to rounding where the loss has the symmetry, of order 1 where not."""
        other = self.g_Q.T @ self.Q
        size = torch.maximum(self.Gam.abs().max(), other.abs().max())
        return float((self.Gam - other).abs().max() / size) if float(size) > 0 else 0.0

    def curvature(self, B: Tensor) -> Tensor:
        """`w^T H w = -2 tr(B^T Gam B^T) = -2 <Gam, B^2>` along `w = direction(B)`."""
        return -2 * (self.Gam * (B @ B)).sum((-2, -1))

    def negative_direction(self) -> NegativeDirection:
        """The steepest of the explicit descent curvatures below; exists for r >= 2 wherever Gam is not zero.

        With e, f eigenvectors of the symmetric part of Gam: `B = e e^T` gives -2 e^T Gam e (negative for positive
        eigenvalues), the rotation `B = e f^T - f e^T` gives 2 (e^T Gam e + f^T Gam f) (negative for negative ones), and
        where the symmetric part vanishes, `B = e e^T + e f^T` in the plane of the skew part gives -2 e^T Gam f.
        """
        r = self.P.shape[1]
        values, E = torch.linalg.eigh((self.Gam + self.Gam.T) / 2)
        U, _, Vh = torch.linalg.svd((self.Gam - self.Gam.T) / 2)
        top, low = E[:, -1], E[:, 0]
        candidates = [torch.outer(top, top)]
        if r >= 2:
            turn = torch.outer(low, E[:, 1])
            candidates += [turn - turn.T, torch.outer(U[:, 0], U[:, 0]) + torch.outer(U[:, 0], Vh[0])]
        B = torch.stack(candidates)
        length = (self.P @ B).square().sum((-2, -1)) + (self.Q @ B.mT).square().sum((-2, -1))
        curvature = self.curvature(B)
        rayleigh = torch.where(length > 0, curvature / length.clamp_min(1e-300), torch.zeros_like(length))
        best = int(rayleigh.argmin())
        if not float(curvature[best]) < 0:
            why = "Gam = P^T g_P is zero: a critical point of this pair" if not values.any() else f"inner width {r}"
            raise InputError(f"the gauge directions show no negative curvature here ({why}).")
        vector = {name: t[best] for name, t in self.direction(B).items()}
        return NegativeDirection(B[best], vector, float(curvature[best]), float(rayleigh[best]))

    def ritz(self) -> Tensor:
        """Rayleigh-Ritz values of H on the whole orbit tangent (at most r^2), ascending, from the gradient alone.

        By interlacing the smallest bounds lambda_min(H) from above and the largest bounds lambda_max(H) from below, for
        any model around the layer. O(r^6).
        """
        r = self.P.shape[1]
        B = torch.eye(r * r, dtype=self.P.dtype, device=self.P.device).reshape(-1, r, r)
        basis = torch.cat([t.flatten(1) for t in self.direction(B).values()], 1)
        image = torch.cat([t.flatten(1) for t in self.action(B).values()], 1)
        U, s, _ = torch.linalg.svd(basis, full_matrices=False)
        # What is left out only loosens the bounds; rounding kept would put them beyond the spectrum.
        keep = s > s.max() * torch.finfo(s.dtype).eps ** 0.5
        T = (U[:, keep] / s[keep]).T  # rows: combinations of B whose directions are orthonormal
        K = (T @ image) @ (T @ basis).T
        return torch.linalg.eigvalsh((K + K.T) / 2)


def gauges(
    layer: SoftmaxLayer | LinearAttentionLayer | MergedLayer | LinearMLP | DeepLinearTransformer,
) -> list[Gauge]:
    """Every gauge pair of a layer: (W_Q, W_K) of each head and, with an output matrix, (W_V, W_O) of each head; of a
    linear MLP, every two matrices that follow each other; of a deep linear Transformer, all of these in every layer.
    One matrix W_QK leaves no pair: the list is empty.

    Names are those of the layer's space (`W_Q[2]` for a head), so `layer.hessian().block(pair.names) @
    pair.direction(B)` is `pair.action(B)`.
    """
    if isinstance(layer, SoftmaxLayer):
        return _head_gauges(layer)
    if isinstance(layer, LinearAttentionLayer):
        (Q, W_Q), (K, W_K), _ = ((layer.prefix + name, W) for name, W in layer.weights.items())
        g = layer.gradients()
        return [Gauge.qk(W_Q, W_K, g[Q], g[K], (Q, K))]
    if isinstance(layer, MergedLayer):
        return []
    if isinstance(layer, LinearMLP):
        g, W = layer.gradients(), {layer.prefix + name: W for name, W in layer.weights.items()}
        follow = [
            pair for pair, both in zip(pairwise(W), pairwise(layer.structure), strict=True) if both == (None, None)
        ]
        return [Gauge.vo(W[a], W[b], g[a], g[b], (a, b)) for a, b in follow]
    if isinstance(layer, DeepLinearTransformer):
        return _deep_gauges(layer)
    raise InputError(
        "gauge pairs are available for AttentionLayer, MultiHeadAttentionLayer, LinearAttentionLayer, MergedLayer,"
        f" LinearMLP and DeepLinearTransformer; got {type(layer).__name__}. Any other pair: `Gauge.qk` or `Gauge.vo`"
        " with its gradients."
    )


def _deep_gauges(model: DeepLinearTransformer) -> list[Gauge]:
    g, W, pairs = model.gradients(), model.weights, []
    for stage in model.stages:
        chain = stage.names
        if isinstance(stage.branch, Attention):
            Q, K, chain = *chain[:2], chain[2:]
            pairs.append(Gauge.qk(W[Q], W[K], g[Q], g[K], (Q, K)))
        elif model.slope != 1.0:  # what stands between two matrices is no product
            continue
        pairs += [Gauge.vo(W[a], W[b], g[a], g[b], (a, b)) for a, b in pairwise(chain)]
    return pairs


def _head_gauges(layer: SoftmaxLayer) -> list[Gauge]:
    pairs = []
    for j in range(len(layer.groups)):
        pairs.append(query_key_pair(layer, j))
        if "W_O" in layer.whole:
            pairs.append(_value_output_pair(layer, j))
    return pairs


@dataclass(frozen=True)
class _Stack:
    """Parts of whole weights below each other: their values, gradients, names and numbers of rows."""

    W: Tensor
    g: Tensor
    names: tuple[str, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, layer: SoftmaxLayer, name: str, used: dict[int, int]) -> _Stack:
        """`used`: number of the part -> a head that uses it."""
        gradients, count = layer.whole_gradients(), layer.parameter_rows(name)

        def stacked(M: Tensor) -> Tensor:
            parts = [M[layer.at(name, h)] for h in used.values()]
            return torch.cat([part.T if name == "W_O" else part[:count] for part in parts])

        W, g = stacked(layer.whole[name]), stacked(gradients[name])
        rows = [layer.matrix_shape(name)[name == "W_O"], 1]
        weights = [n for n in (name, "b" + name[1:]) if n in layer.weights and n != "b_O"]
        names = [layer.prefix + n + ("" if layer.single else f"[{i}]") for i in used for n in weights]
        return cls(W, g, tuple(names), tuple(rows[: len(weights)] * len(used)))


def query_key_pair(layer: SoftmaxLayer, j: int) -> Gauge:
    """The queries and keys of the heads that share key projection j."""
    P, Q = _Stack.of(layer, "W_Q", {h: h for h in layer.groups[j]}), _Stack.of(layer, "W_K", {j: layer.groups[j][0]})
    return Gauge(P.W, Q.W, P.g, Q.g, P.names + Q.names, rows=P.rows + Q.rows)


def _value_output_pair(layer: SoftmaxLayer, j: int) -> Gauge:
    P, Q = _Stack.of(layer, "W_V", {j: layer.groups[j][0]}), _Stack.of(layer, "W_O", {h: h for h in layer.groups[j]})
    return Gauge(P.W, Q.W, P.g, Q.g, P.names + Q.names, transposed=True, rows=P.rows + Q.rows)


# --- exact eigenvectors for low-dimensional tokens ------------------------------------------------------------------
@dataclass(frozen=True)
class Bulk:
    """Eigenvectors `(u z^T, sign v z^T) / sqrt 2` of the FULL Hessian to the eigenvalue `sign s`, one per row of Z."""

    eigenvalue: float
    u: Tensor
    v: Tensor
    Z: Tensor
    sign: int
    pair: Gauge | None = field(default=None, repr=False)

    __repr__ = fields_in_brief

    @property
    def multiplicity(self) -> int:
        return self.Z.shape[0]

    def vectors(self) -> dict[str, Tensor]:
        """Orthonormal eigenvectors on (W_Q, W_K), (multiplicity, d, d_K) each; zero on all other parameters."""
        Z = self.Z / 2**0.5
        P, Q = self.u[:, None] * Z[:, None, :], self.sign * self.v[:, None] * Z[:, None, :]
        return {"W_Q": P, "W_K": Q} if self.pair is None else self.pair.named(P, Q)


def bulk(W_Q: Tensor, W_K: Tensor, G: Tensor) -> list[Bulk]:
    """For each singular value s of `G = dL/d(W_Q W_K^T)`, the part of the eigenspaces of +s and -s that is explicit.

    `(u z^T, +-v z^T)` with `W_K z = a v`, `W_Q z = -+a u` for some a does not move W_Q W_K^T, so only the T-functional
    part acts on it. There are at least d_K - d - d_Z + 1 independent z (d_K - 2d + 1 in self-attention), for any loss
    and any other parameters; none need exist for d_K < d + d_Z. d = 1 is the scalar-token bulk. Source: [own].
    """
    if G.shape != (W_Q.shape[0], W_K.shape[0]) or W_Q.shape[1] != W_K.shape[1]:
        raise InputError(
            f"G has shape (rows of W_Q, rows of W_K); got {tuple(G.shape)} with W_Q {tuple(W_Q.shape)} and W_K"
            f" {tuple(W_K.shape)}."
        )
    U, s, Vh = torch.linalg.svd(G, full_matrices=False)
    both = torch.cat([W_K, W_Q])
    found = []
    for sign in (1, -1):
        column = torch.cat([-Vh, sign * U.T], 1)[..., None]  # (k, d_Z + d, 1)
        system = torch.cat([both.expand(len(s), -1, -1), column], 2)
        _, values, Nh = torch.linalg.svd(system)
        rank = (values > 1e-12 * values.max()).sum(1)
        for k in range(len(s)):
            z = Nh[k, int(rank[k]) :, :-1]  # the last coordinate is a; z determines it
            found.append(Bulk(sign * float(s[k]), U[:, k], Vh[k], torch.linalg.qr(z.T).Q.T, sign))
    return found


def layer_bulk(layer: SoftmaxLayer) -> list[Bulk]:
    """`bulk` of every head of a layer, eigenvectors under the names of its space; heads that share their keys are one
    pair, with their G below each other."""
    return [
        replace(part, pair=pair)
        for j, G in enumerate(ScoreSplit(layer).stacked())
        for pair in [query_key_pair(layer, j)]
        for part in bulk(pair.P, pair.Q, G)
    ]
