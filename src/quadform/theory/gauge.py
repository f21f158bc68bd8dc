"""Gauge symmetry of factorised weights: Hessian directions known from the gradient alone.

Attention sees W_Q, W_K only through W_Q W_K^T, and W_V, W_O (per head) only through W_V W_O. For such a pair (P, Q),
seen through P Q^T, the loss is constant along `P e^{sB}, Q e^{-sB^T}` for every matrix B, whatever the loss and
whatever network surrounds the layer. Differentiating the gradient along it,

    H (P B, -Q B^T) = (-g_P B^T, g_Q B),  0 on every other parameter;     w^T H w = -2 tr(B^T Gam B^T),  Gam = P^T g_P

so r^2 Hessian products come for free, and with them directions of negative curvature, exact eigenvectors when tokens
are low-dimensional, and rebalancings that change the Hessian but not the function. Source: [own].
Biases in queries or keys, rotary positions and QK normalisation shrink or remove the symmetry; `Gauge.defect` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..core.errors import InputError
from .attention import AttentionLayer
from .inputs import one_kind
from .linear_attention import LinearAttentionLayer
from .merged_qk import MergedLayer
from .mlp import LinearMLP
from .multihead import MultiHeadAttentionLayer


@dataclass(frozen=True)
class NegativeDirection:
    """A direction with `w^T H w = curvature < 0`; `rayleigh`, the same over w^T w, bounds lambda_min(H) from above."""

    B: Tensor
    vector: dict[str, Tensor]
    curvature: float
    rayleigh: float


@dataclass(frozen=True)
class Gauge:
    """A pair P (m, r), Q (n, r) that the loss sees only through P Q^T, with its gradients.

    `names` are those of the two weights; `transposed` says that the second is stored as Q^T (W_O).
    """

    P: Tensor
    Q: Tensor
    g_P: Tensor
    g_Q: Tensor
    names: tuple[str, str]
    transposed: bool = False

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

    def _named(self, P: Tensor, Q: Tensor) -> dict[str, Tensor]:
        return {self.names[0]: P, self.names[1]: Q.mT if self.transposed else Q}

    # --- what the gradient knows ------------------------------------------------------------------------------------
    def direction(self, B: Tensor) -> dict[str, Tensor]:
        """The tangent `(P B, -Q B^T)` of the orbit, for B (..., r, r)."""
        return self._named(self.P @ B, -self.Q @ B.mT)

    def action(self, B: Tensor) -> dict[str, Tensor]:
        """`H direction(B)`, on the two weights; it is zero on every other parameter of the model."""
        return self._named(-self.g_P @ B.mT, self.g_Q @ B)

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
        length = torch.stack([t.square().sum((-2, -1)) for t in self.direction(B).values()]).sum(0)
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
    layer: AttentionLayer | MultiHeadAttentionLayer | LinearAttentionLayer | MergedLayer | LinearMLP,
) -> list[Gauge]:
    """Every gauge pair of a layer: (W_Q, W_K) of each head and, with an output matrix, (W_V, W_O) of each head; of a
    linear MLP, every two matrices that follow each other. One matrix W_QK leaves no pair: the list is empty.

    Names are those of the layer's space (`W_Q[2]` for a head), so `layer.hessian().block(pair.names) @
    pair.direction(B)` is `pair.action(B)`.
    """
    if isinstance(layer, AttentionLayer | LinearAttentionLayer):
        (Q, W_Q), (K, W_K), _ = ((layer.prefix + name, W) for name, W in layer.weights.items())
        g = layer.gradients()
        return [Gauge.qk(W_Q, W_K, g[Q], g[K], (Q, K))]
    if isinstance(layer, MultiHeadAttentionLayer):
        return _head_gauges(layer)
    if isinstance(layer, MergedLayer):
        return []
    if isinstance(layer, LinearMLP):
        g, W = layer.gradients(), {layer.prefix + name: W for name, W in layer.weights.items()}
        follow = [
            pair for pair, both in zip(pairwise(W), pairwise(layer.structure), strict=True) if both == (None, None)
        ]
        return [Gauge.vo(W[a], W[b], g[a], g[b], (a, b)) for a, b in follow]
    raise InputError(
        f"gauge pairs are known for AttentionLayer, MultiHeadAttentionLayer, LinearAttentionLayer, MergedLayer and"
        f" LinearMLP; got {type(layer).__name__}. Any other pair: `Gauge.qk` or `Gauge.vo` with its gradients."
    )


def _head_gauges(layer: MultiHeadAttentionLayer) -> list[Gauge]:
    p, pairs = layer.prefix, []
    for h, (head, W_O) in enumerate(zip(layer.heads, layer.W_O, strict=True)):
        g, (Q, K, V, O) = head.gradients(), (f"{p}{name}[{h}]" for name in layer.weights)
        pairs.append(Gauge.qk(head.W_Q, head.W_K, g["W_Q"], g["W_K"], (Q, K)))
        pairs.append(Gauge.vo(head.W_V, W_O, g["W_V"], head.F.T @ layer.output.g, (V, O)))
    return pairs


# --- exact eigenvectors for low-dimensional tokens ------------------------------------------------------------------
@dataclass(frozen=True)
class Bulk:
    """Eigenvectors `(u z^T, sign v z^T) / sqrt 2` of the FULL Hessian to the eigenvalue `sign s`, one per row of Z."""

    eigenvalue: float
    u: Tensor
    v: Tensor
    Z: Tensor
    sign: int

    @property
    def multiplicity(self) -> int:
        return self.Z.shape[0]

    def vectors(self) -> dict[str, Tensor]:
        """Orthonormal eigenvectors on (W_Q, W_K), (multiplicity, d, d_K) each; zero on all other parameters."""
        Z = self.Z / 2**0.5
        return {"W_Q": self.u[:, None] * Z[:, None, :], "W_K": self.sign * self.v[:, None] * Z[:, None, :]}


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


# --- balancing ------------------------------------------------------------------------------------------------------
def balancing_map(A: Tensor, B: Tensor) -> Tensor:
    """The symmetric positive S with `S A S = S^-1 B S^-1`, for positive definite A and B (r, r).

    With A = W_Q^T W_Q and B = W_K^T W_K, `W_Q -> W_Q S`, `W_K -> W_K S^{-T}` minimises |W_Q|^2 + |W_K|^2 on the orbit:
    the square of S is the geometric mean of A^-1 and B. Other positive A, B minimise tr(S^T A S) + tr(S^-1 B S^-T).
    """
    if A.shape[0] == 0:
        return A
    a, b = torch.linalg.eigvalsh(A), torch.linalg.eigvalsh(B)
    smallest = torch.finfo(A.dtype).eps * A.shape[0]
    if not (float(a[0]) > smallest * float(a[-1]) and float(b[0]) > smallest * float(b[-1])):
        raise InputError(
            "a balancing map needs positive definite Gram matrices; these are singular. `balance` takes any rank."
        )
    other = _root(B)
    _, s, Vh = torch.linalg.svd(_root(A) @ other)
    T = other @ Vh.T / s.sqrt()  # A^(1/2) T = U s^(1/2) and B^(1/2) T^-T = V s^(1/2): nothing is inverted
    X, size, _ = torch.linalg.svd(T)
    return (X * size) @ X.T


def _root(M: Tensor) -> Tensor:
    """The symmetric positive square root of a symmetric positive semi-definite matrix."""
    m, E = torch.linalg.eigh((M + M.T) / 2)
    return (E * m.clamp_min(0).sqrt()) @ E.T


def balance(W_Q: Tensor, W_K: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest pair with the same W_Q W_K^T and W_Q^T W_Q = W_K^T W_K: the least |W_Q|^2 + |W_K|^2, any rank.

    With W_Q W_K^T = U S V^T it is `U S^(1/2) R`, `V S^(1/2) R`, R with orthonormal rows (which leave the spectrum
    of H alone) chosen nearest to the given pair; the least value is twice the nuclear norm of W_Q W_K^T.

    Directions z with W_Q z = 0 or W_K z = 0 alone are not seen by the product. They stay as they are: to shrink them to
    0 would leave the orbit, and weights that start at W_Q = 0 would lose W_K and with it their gradient.
    """
    pair = _Balanced.of(W_Q, W_K)
    return pair.at(pair.left, pair.right)


@dataclass(frozen=True)
class _Balanced:
    """A balanced pair: `left R` and `right R`, and what the product does not see, in directions orthogonal to R."""

    left: Tensor
    right: Tensor
    R: Tensor
    unseen_Q: Tensor
    unseen_K: Tensor

    @classmethod
    def of(cls, W_Q: Tensor, W_K: Tensor) -> _Balanced:
        one_kind({"W_Q": W_Q, "W_K": W_K})
        if W_Q.dim() != 2 or W_K.dim() != 2 or W_Q.shape[1] != W_K.shape[1]:
            raise InputError(f"W_Q {tuple(W_Q.shape)} and W_K {tuple(W_K.shape)} are matrices of one inner width.")
        meet = _Meeting.of(W_Q, W_K)
        (Q_Q, R_Q), (Q_K, R_K) = (torch.linalg.qr(W @ S) for W, S in ((W_Q, meet.seen_Q), (W_K, meet.seen_K)))
        U, s, Vh = torch.linalg.svd(R_Q * meet.cosines @ R_K.T, full_matrices=False)
        keep = s > s[:1] * torch.finfo(s.dtype).eps * max(W_Q.shape)
        left, right = Q_Q @ U[:, keep] * s[keep].sqrt(), Q_K @ Vh[keep].T * s[keep].sqrt()
        aside = torch.linalg.qr(torch.cat([meet.unseen_Q, meet.unseen_K], 1)).Q
        near = left.T @ W_Q + right.T @ W_K
        u, _, vh = torch.linalg.svd(near - near @ aside @ aside.T, full_matrices=False)
        unseen = (W @ z @ z.T for W, z in ((W_Q, meet.unseen_Q), (W_K, meet.unseen_K)))
        return cls(left, right, u @ vh, *unseen)

    def at(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The pair with other balanced factors."""
        return left @ self.R + self.unseen_Q, right @ self.R + self.unseen_K


@dataclass(frozen=True)
class _Meeting:
    """Orthonormal bases `(r, .)` of the row spaces of W_Q and W_K, cut into the principal directions in which they
    meet, `seen_Q^T seen_K = diag(cosines)`, and those in which one is orthogonal to all of the other."""

    seen_Q: Tensor
    seen_K: Tensor
    cosines: Tensor
    unseen_Q: Tensor
    unseen_K: Tensor

    @classmethod
    def of(cls, W_Q: Tensor, W_K: Tensor) -> _Meeting:
        eps = torch.finfo(W_Q.dtype).eps

        def rows(W: Tensor) -> Tensor:
            _, s, Vh = torch.linalg.svd(W, full_matrices=False)
            return Vh[s > s[0] * eps * max(W.shape)].T

        rows_Q, rows_K = rows(W_Q), rows(W_K)
        U, cosines, Vh = torch.linalg.svd(rows_Q.T @ rows_K)
        met = int((cosines > eps**0.5).sum())
        Q, K = rows_Q @ U, rows_K @ Vh.T
        return cls(Q[:, :met], K[:, :met], cosines[:met], Q[:, met:], K[:, met:])


def flattest(layer: AttentionLayer) -> tuple[Tensor, Tensor]:
    """The W_Q, W_K of the orbit (same function) with the least Gauss-Newton trace tr H_o(Q,Q) + tr H_o(K,K).

    tr H_o(Q,Q) = tr(W_K^T C_K W_K) and tr H_o(K,K) = tr(W_Q^T C_Q W_Q), where `C_K = sum |x|^2 B^T Hl B` and
    `C_Q = sum tr(B^T Hl B) x x^T`, B = sc W_V^T M2, do not change along the orbit, so a balancing map in these metrics
    is the minimiser and the least value is twice the nuclear norm of `C_Q^(1/2) W_Q W_K^T C_K^(1/2)`. Source: [own].
    """
    if not layer.output.token_wise:
        raise InputError("the flattest point is known in closed form for token-wise losses; this one couples tokens.")
    factor, x = layer.head.factor("W_K"), layer.head.x
    E = factor.R.mT @ layer.output.hessian_times(factor.R)
    C_K = (x.square().sum(1)[:, None, None] * E).sum(0)
    C_Q = (x * E.diagonal(dim1=1, dim2=2).sum(1)[:, None]).T @ x
    pair = _Balanced.of(layer.weights["W_Q"], layer.weights["W_K"])
    S = balancing_map(pair.left.T @ C_Q @ pair.left, pair.right.T @ C_K @ pair.right)
    return pair.at(pair.left @ S, pair.right @ torch.linalg.inv(S).T)
