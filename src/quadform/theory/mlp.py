"""Comparison models: linear MLPs of any depth (dense or convolutional weights) and the one-hidden-layer MLP.

The Hessian of a linear MLP depends on the data only through `Sigma = X^T X / N` (outer part) and
`Omega = X^T (F - Y) / N` (functional part), at every depth: the contrast to attention. Source: [SBH21], [ODS25].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.space import Vector
from ..core.spec import choose
from .factors import FactorLayer, Loss
from .head import Factor
from .inputs import one_kind
from .layer import Part
from .terms import Term


# --- linear MLP -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Structured:
    """A weight that is linear in fewer numbers: `W = sum_p w_p T_p`, T (p, in, out), w of any shape with p entries."""

    w: Tensor
    T: Tensor

    def matrix(self) -> Tensor:
        return torch.einsum("p,pio->io", self.w.reshape(-1), self.T)


def convolution(kernel: Tensor, size: int | Sequence[int], *, stride: int = 1, padding: int = 0) -> Structured:
    """A 1-, 2- or 3-dimensional convolution as a structured (Toeplitz) linear map on flattened images.

    `kernel` (c_out, c_in, *k); an image (c_in, *size) is the row vector of its entries, so `x @ W` is torch's `conv`.
    """
    one_kind({"kernel": kernel})
    size = (size,) if isinstance(size, int) else tuple(size)
    n = len(size)
    if kernel.dim() != n + 2 or n not in (1, 2, 3):
        raise InputError(
            f"a kernel for images of {n} axes has shape (c_out, c_in, *{n} widths), 1 to 3 widths; got"
            f" {tuple(kernel.shape)}."
        )
    if stride < 1 or padding < 0 or min(size) < 1:
        raise InputError(f"sizes and stride are at least 1 and padding at least 0; got {size}, {stride} and {padding}.")
    if any(k > m + 2 * padding for k, m in zip(kernel.shape[2:], size, strict=True)):
        raise InputError(
            f"the kernel {tuple(kernel.shape[2:])} is larger than the image {size} with padding {padding} on each"
            " side; take a smaller kernel or more padding."
        )
    c_in, c_out, p = kernel.shape[1], kernel.shape[0], kernel.numel()
    conv = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[n - 1]
    units = torch.eye(p, dtype=kernel.dtype, device=kernel.device).reshape(p * c_out, *kernel.shape[1:])
    m = c_in * math.prod(size)
    images = torch.eye(m, dtype=kernel.dtype, device=kernel.device).reshape(m, c_in, *size)
    return Structured(kernel, conv(images, units, stride=stride, padding=padding).reshape(m, p, -1).transpose(0, 1))


class LinearMLP(FactorLayer):
    """`F = X W_1 ... W_D` on X (..., d), any loss; weights "W_1" ... "W_D", each a matrix or `Structured`.

    With A_l = W_1..W_{l-1}, B_l = W_{l+1}..W_D, C_lm = W_{l+1}..W_{m-1} and mean squared error:
    `H_o(l, m) = (2/d_out) (A_l^T Sigma A_m) kron (B_l B_m^T)`,
    `H_f(l<m)[(p,q),(r,s)] = (2/d_out) C_lm[q,r] (A_l^T Omega B_m^T)[p,s]`, `H_f(l, l) = 0`: O(Sigma) and O(Omega) at
    every depth. A structured weight enters linearly, so its rows are `T_l` times those of the full matrix.
    Source: [SBH21], [ODS25]; structured weights and general losses [own].
    """

    def __init__(
        self,
        X: Tensor,
        weights: Sequence[Tensor | Structured],
        Y: Tensor | None = None,
        *,
        loss: Loss = "mse",
        prefix: str = "",
    ) -> None:
        if not weights:
            raise InputError("a linear MLP has at least one weight; got none.")
        self.structure = [W.T if isinstance(W, Structured) else None for W in weights]
        self.matrices = [W.matrix() if isinstance(W, Structured) else W for W in weights]
        one_kind({"X": X, **{f"W_{i + 1}": W for i, W in enumerate(self.matrices)}})
        for W, V in zip([X, *self.matrices], self.matrices, strict=False):
            if V.dim() != 2 or W.shape[-1] != V.shape[0]:
                raise InputError(f"shapes {tuple(W.shape)} and {tuple(V.shape)} of consecutive factors do not match.")
        named = {f"W_{i + 1}": W.w if isinstance(W, Structured) else W for i, W in enumerate(weights)}
        self.index = {name: i for i, name in enumerate(named)}

        def eye(n: int) -> Tensor:
            return torch.eye(n, dtype=X.dtype, device=X.device)

        self.A, self.B = [eye(X.shape[-1])], [eye(self.matrices[-1].shape[1])]
        for W in self.matrices[:-1]:
            self.A.append(self.A[-1] @ W)
        for W in reversed(self.matrices[1:]):
            self.B.insert(0, W @ self.B[0])
        self.X = X
        self._settle(named, X @ (self.A[-1] @ self.matrices[-1]), Y, loss, prefix)
        self.x = X.reshape(-1, X.shape[-1])
        self.one = self.x.new_ones(self.x.shape[0], 1)
        self.inputs = [self.x @ A for A in self.A]
        self._fits()

    @property
    def Sigma(self) -> Tensor:
        """`X^T X / N` (d, d)."""
        return self.x.T @ self.x / self.x.shape[0]

    def factor(self, name: str) -> Factor:
        l = self.index[name]
        T, left, right = self.structure[l], self.inputs[l], self.B[l].T[None]
        if T is None:
            return Factor(left, right, True)
        return Factor(self.one, torch.einsum("ni,pij,oj->nop", left, T, right[0]), True)

    def functional_terms(self, a: str, b: str) -> list[Term]:
        m, l = self.index[a], self.index[b]
        if l == m:
            return []
        C = torch.eye(self.matrices[l].shape[1], dtype=self.x.dtype, device=self.x.device)
        for W in self.matrices[l + 1 : m]:
            C = C @ W
        r, c, T_m, T_l = self.output.g @ self.B[m].T, self.inputs[l], self.structure[m], self.structure[l]
        if T_m is None and T_l is None:
            return [Term(r, c, C.T[None], rows_vector_first=False)]
        E = C.T if T_m is None else torch.einsum("prs,ns,qr->npq", T_m, r, C)  # rows (r | p), columns q
        if T_l is None:
            return [Term(self.one, c, E)]
        E = E @ torch.einsum("pij,ni->njp", T_l, c)
        return [Term(r, self.one, E, rows_vector_first=False) if T_m is None else Term(self.one, self.one, E)]

    def products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        """The tangent of the gradient `A^T Gamma B^T`, Gamma = X^T g: H_o moves Gamma, H_f moves A and B."""
        dW = [
            V[n] if T is None else torch.einsum("kp,pij->kij", V[n].flatten(1), T)
            for n, T in zip(self.weights, self.structure, strict=True)
        ]
        dA = [torch.zeros_like(self.A[0]).expand(len(dW[0]), -1, -1)]
        for A, W, d in zip(self.A, self.matrices, dW, strict=True):
            dA.append(dA[-1] @ W + A @ d)
        out = [torch.zeros_like(d) for d in dW]
        if part != "functional":
            dGamma = self.x.T @ self.curved(self.x @ dA[-1])
            out = [A.T @ dGamma @ B.T for A, B in zip(self.A, self.B, strict=True)]
        if part != "outer":
            Gamma = self.x.T @ self.output.g
            dB = [torch.zeros_like(self.B[-1]).expand(len(dW[0]), -1, -1)]
            for B, W, d in zip(self.B[:0:-1], self.matrices[:0:-1], dW[:0:-1], strict=True):
                dB.insert(0, d @ B + W @ dB[0])
            for l, (A, B) in enumerate(zip(self.A, self.B, strict=True)):
                out[l] = out[l] + dA[l].mT @ Gamma @ B.T + A.T @ Gamma @ dB[l].mT
        return self._collect(out)

    def _collect(self, full: list[Tensor]) -> dict[str, Tensor]:
        """Gradients of the matrices (k, in, out) as gradients of the weights."""
        return {
            n: G if T is None else torch.einsum("kij,pij->kp", G, T).reshape(-1, *self.weights[n].shape)
            for n, T, G in zip(self.weights, self.structure, full, strict=True)
        }

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """dL/dW for every weight."""
        Gamma = self.x.T @ self.output.g
        full = self._collect([(A.T @ Gamma @ B.T)[None] for A, B in zip(self.A, self.B, strict=True)])
        return {self.prefix + n: G[0] for n, G in full.items()}

    def forward(self, weights: Vector) -> Tensor:
        F = self.x
        for n, T in zip(self.weights, self.structure, strict=True):
            F = F @ (weights[n] if T is None else torch.einsum("p,pij->ij", weights[n].reshape(-1), T))
        return F


@dataclass(frozen=True)
class Ranks:
    """Ranks of the outer part, the functional part and the whole Hessian."""

    outer: int
    functional: int
    total: int


def linear_mlp_ranks(r: int, K: int, hidden: Sequence[int], *, loss: str = "mse") -> Ranks:
    """Ranks of H_o, H_f and H of a linear MLP with generic weights, inputs of rank r, K outputs, hidden widths M_i.

    q = min(r, K, M_1, ...), s = min(r, K), D = number of weight matrices:
    `rank H_o = q (r + K - q)`, `rank H_f = 2 q sum M + 2 q s - D q^2`, `rank H = rank H_o + rank H_f + q (q - 2 s)`.
    Cross-entropy sees K - 1 outputs (its curvature and gradient are blind to a constant shift of the logits).
    Source: [SBH21].
    """
    if not hidden or min(r, K, *hidden) < 1:
        raise InputError(f"rank formulas need one hidden layer or more and sizes >= 1; got r={r}, K={K}, {hidden}.")
    if choose("loss", loss, ("mse", "cross-entropy")) == "cross-entropy":
        K = K - 1
    D, q, s = len(hidden) + 1, min(r, K, *hidden), min(r, K)
    outer, functional = q * (r + K - q), 2 * q * sum(hidden) + 2 * q * s - D * q * q
    return Ranks(outer, functional, outer + functional + q * (q - 2 * s))


# --- one hidden layer -----------------------------------------------------------------------------------------------
def _gelu(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    Phi = 0.5 * (1 + torch.erf(h / math.sqrt(2)))
    pdf = torch.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    return h * Phi, Phi + h * pdf, pdf * (2 - h * h)


def _relu(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    on = (h > 0).to(h.dtype)
    return h * on, on, torch.zeros_like(h)


def _tanh(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    t = torch.tanh(h)
    return t, 1 - t * t, -2 * t * (1 - t * t)


#: h -> (phi, phi', phi''), elementwise.
Activation = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]

#: By name. ReLU's second derivative is taken as zero, as autograd does.
ACTIVATIONS: dict[str, Activation] = {
    "relu": _relu,
    "gelu": _gelu,
    "tanh": _tanh,
    "identity": lambda h: (h, torch.ones_like(h), torch.zeros_like(h)),
}


class HiddenLayerMLP(FactorLayer):
    """`F = phi(X W_1 + b_1) W_2 + b_2` on X (..., d): the MLP of a Transformer block, any loss.

    Per token, `J(W_1) = x^T kron W_2^T diag(phi')`, `J(W_2) = phi^T kron I`; a bias is a weight whose input is 1.
    `H_o(a, b) = sum l_a l_b^T kron R_a^T Hl R_b`; `H_f(W_1, W_1) = sum x x^T kron diag(phi'' o W_2 g)` (zero for ReLU),
    `H_f(W_1, W_2)[(a,m),(m',o)] = delta_mm' sum x_a phi'_m g_o`, `H_f(W_2, W_2) = 0`. Source: [own].
    """

    def __init__(
        self,
        X: Tensor,
        W_1: Tensor,
        W_2: Tensor,
        Y: Tensor | None = None,
        *,
        b_1: Tensor | None = None,
        b_2: Tensor | None = None,
        activation: str | Activation = "relu",
        loss: Loss = "mse",
        prefix: str = "",
    ) -> None:
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise UnknownName(
                f"no activation {activation!r}; there are {', '.join(ACTIVATIONS)}, or pass h -> (phi, phi', phi'')."
                f"{did_you_mean(activation, ACTIVATIONS)}"
            )
        given = {"W_1": W_1, "b_1": b_1, "W_2": W_2, "b_2": b_2}
        weights = {name: W for name, W in given.items() if W is not None}
        one_kind({"X": X, "W_1": W_1, "W_2": W_2, **weights})
        if not W_1.dim() == W_2.dim() == 2 or X.shape[-1] != W_1.shape[0] or W_1.shape[1] != W_2.shape[0]:
            raise InputError(
                f"shapes of X {tuple(X.shape)}, W_1 {tuple(W_1.shape)} and W_2 {tuple(W_2.shape)} do not match."
            )
        for name, b, W in (("b_1", b_1, W_1), ("b_2", b_2, W_2)):
            if b is not None and b.shape != W.shape[1:]:
                raise InputError(f"{name} has shape {tuple(b.shape)}; this layer needs {tuple(W.shape[1:])}.")
        self.X, self.x = X, X.reshape(-1, X.shape[-1])
        self.activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        self.phi, self.d_phi, self.dd_phi = self.activation(self._pre(weights))
        F = self.phi @ W_2 + weights.get("b_2", 0)
        self._settle(weights, F.reshape(*X.shape[:-1], -1), Y, loss, prefix)
        one = self.x.new_ones(self.x.shape[0], 1)
        self.inputs = {"W_1": self.x, "b_1": one, "W_2": self.phi, "b_2": one}
        self.gamma = self.output.g @ W_2.T
        self._fits()

    def _pre(self, weights: Vector) -> Tensor:
        return self.x @ weights["W_1"] + weights.get("b_1", 0)

    def forward(self, weights: Vector) -> Tensor:
        return self.activation(self._pre(weights))[0] @ weights["W_2"] + weights.get("b_2", 0)

    def factor(self, name: str) -> Factor:
        if name.endswith("1"):
            return Factor(self.inputs[name], self.d_phi[:, None, :] * self.weights["W_2"].T, True)
        eye = torch.eye(self.F.shape[-1], dtype=self.x.dtype, device=self.x.device)
        return Factor(self.inputs[name], eye[None], True)

    def functional_terms(self, a: str, b: str) -> list[Term]:
        if a.endswith("1") and b.endswith("1"):
            return [Term(self.inputs[a], self.inputs[b], torch.diag_embed(self.dd_phi * self.gamma))]
        if a == "W_2" and b.endswith("1"):
            return [Term(self.output.g, self.inputs[b], torch.diag_embed(self.d_phi), rows_vector_first=False)]
        return []

    def _pull(self, first: Tensor, second: Tensor, phi: Tensor) -> dict[str, Tensor]:
        """Weight gradients from those at the pre-activations (k, N, M) and at the outputs (k, N, o)."""
        pulled = {"W_1": self.x.T @ first, "b_1": first.sum(1), "W_2": phi.mT @ second, "b_2": second.sum(1)}
        return {name: pulled[name] for name in self.weights}

    def products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        bias = {name: V[name][:, None] if name in V else 0 for name in ("b_1", "b_2")}
        dh, W_2 = self.x @ V["W_1"] + bias["b_1"], self.weights["W_2"]
        out = {name: torch.zeros_like(t) for name, t in V.items()}
        if part != "functional":
            dg = self.curved((self.d_phi * dh) @ W_2 + self.phi @ V["W_2"] + bias["b_2"])
            out = self._pull(self.d_phi * (dg @ W_2.T), dg, self.phi)
        if part != "outer":
            first = self.dd_phi * dh * self.gamma + self.d_phi * (self.output.g @ V["W_2"].mT)
            curve = self._pull(first, self.output.g[None], self.d_phi * dh)
            out = {name: t if name == "b_2" else t + curve[name] for name, t in out.items()}
        return out

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """dL/dW for every weight."""
        pulled = self._pull((self.d_phi * self.gamma)[None], self.output.g[None], self.phi)
        return {self.prefix + name: t[0] for name, t in pulled.items()}
