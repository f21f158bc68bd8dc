"""Comparison models: linear MLPs of any depth (dense or convolutional weights) and the one-hidden-layer MLP.

The Hessian of a linear MLP depends on the data only through `Sigma = X^T X / N` (outer part) and
`Omega = X^T (F - Y) / N` (functional part), at every depth: the contrast to attention. Source: [SBH21], [ODS25].
Also here, because every comparison model uses it: `BlockModel`, named blocks and operators from closed forms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.operator import Operator
from ..core.space import Space
from .loss import OutputLoss, output_loss


def token_wise_loss(loss: str | tuple[Tensor, Tensor], F: Tensor, Y: Tensor | None) -> OutputLoss:
    """The loss at outputs F (..., o), which must be a sum of one term per token."""
    made = output_loss(loss, F.reshape(-1, F.shape[-1]), Y)
    if not made.token_wise:
        raise InputError("this model needs a token-wise loss: 'mse', 'cross-entropy' or (g, Hl) with one Hl per token.")
    return made


def gathered(loss: OutputLoss, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`(S, Hl, sequence)` with `sum_n x_n x_n^T kron Hl_n = sum_k S_k kron Hl_k`, for inputs X (B, L, d).

    One term per sequence where one Hl is shared by all tokens (`S = X^T X`), else one per token; `sequence[k]` says
    whose.
    """
    B, L, d = X.shape
    Hl, which = loss.token_matrices(), torch.arange(B, device=X.device)
    if loss.shared_matrix() is not None:
        return X.mT @ X, Hl.expand(B, -1, -1), which
    x = X.reshape(B * L, d)
    return x[:, :, None] * x[:, None, :], Hl, which.repeat_interleave(L)


def kron_sum(S: Tensor, E: Tensor) -> Tensor:
    """`sum_k S_k kron E_k` for stacks (G, p, q) and (G, r, s): one matrix product; the result is (p r, q s)."""
    (G, p, q), (_, r, s) = S.shape, E.shape
    flat = S.reshape(G, p * q).T @ E.reshape(G, r * s)
    return flat.reshape(p, q, r, s).transpose(1, 2).reshape(p * r, q * s)


class BlockModel(ABC):
    """A model whose loss Hessian is known block by block: H = H_o + H_f, over the named `weights`.

    A subclass gives `_outer` and `_functional` for names in the order of `weights` (a not after b), and `_hvp`.
    """

    weights: dict[str, Tensor]
    loss: OutputLoss
    prefix: str = ""

    @abstractmethod
    def _outer(self, a: str, b: str) -> Tensor: ...

    @abstractmethod
    def _functional(self, a: str, b: str) -> Tensor: ...

    @abstractmethod
    def _hvp(self, U: Mapping[str, Tensor], outer: bool, functional: bool) -> dict[str, Tensor]: ...

    @abstractmethod
    def gradients(self) -> dict[str, Tensor]:
        """`dL/dW` for every weight."""

    def loss_value(self) -> Tensor:
        if self.loss.value is None:
            raise InputError("this loss was given by its derivatives (g, Hl); its value is not known.")
        return self.loss.value

    def space(self) -> Space:
        return Space.of({self.prefix + name: W for name, W in self.weights.items()})

    def _ordered(self, part: Callable[[str, str], Tensor], a: str, b: str) -> Tensor:
        names = list(self.weights)
        for name in (a, b):
            if name not in names:
                raise UnknownName(
                    f"no weight is called {name!r}; this model has {', '.join(names)}.{did_you_mean(name, names)}"
                )
        return part(a, b) if names.index(a) <= names.index(b) else part(b, a).T

    def outer(self, a: str, b: str) -> Tensor:
        """`H_o(a, b) = J_a^T (d2l/dF2) J_b`, dense (size_a, size_b), row-major."""
        return self._ordered(self._outer, a, b)

    def functional(self, a: str, b: str) -> Tensor:
        """`H_f(a, b) = <dl/dF, d2F/da db>`, dense (size_a, size_b), row-major."""
        return self._ordered(self._functional, a, b)

    def block(self, a: str, b: str) -> Tensor:
        """`H(a, b) = H_o(a, b) + H_f(a, b)`."""
        return self.outer(a, b) + self.functional(a, b)

    def hessian(self) -> Operator:
        return _ModelOperator(self, outer=True, functional=True)

    def outer_operator(self) -> Operator:
        return _ModelOperator(self, outer=True, functional=False)

    def functional_operator(self) -> Operator:
        return _ModelOperator(self, outer=False, functional=True)


@final
class _ModelOperator(Operator):
    """H, H_o or H_f of a BlockModel, by its closed-form products with vectors."""

    def __init__(self, model: BlockModel, *, outer: bool, functional: bool) -> None:
        first = next(iter(model.weights.values()))
        psd = outer and not functional and model.loss.convex
        super().__init__(model.space(), dtype=first.dtype, device=first.device, symmetric=True, psd=psd)
        self.model, self.parts = model, (outer, functional)

    def apply(self, V: Mapping[str, Tensor]) -> dict[str, Tensor]:
        p = self.model.prefix
        out = self.model._hvp({name: V[p + name] for name in self.model.weights}, *self.parts)
        return {p + name: t for name, t in out.items()}


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
    size = (size,) if isinstance(size, int) else tuple(size)
    n, c_in, c_out, p = len(size), kernel.shape[1], kernel.shape[0], kernel.numel()
    if kernel.dim() != n + 2 or n not in (1, 2, 3):
        raise InputError(
            f"a kernel for images of {n} axes has shape (c_out, c_in, *{n} widths), 1 to 3 widths; got"
            f" {tuple(kernel.shape)}."
        )
    conv = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[n - 1]
    units = torch.eye(p, dtype=kernel.dtype, device=kernel.device).reshape(p * c_out, *kernel.shape[1:])
    m = c_in * math.prod(size)
    images = torch.eye(m, dtype=kernel.dtype, device=kernel.device).reshape(m, c_in, *size)
    return Structured(kernel, conv(images, units, stride=stride, padding=padding).reshape(m, p, -1).transpose(0, 1))


class LinearMLP(BlockModel):
    """`F = X W_1 ... W_D` on X (..., d), any token-wise loss; weights "W_1" ... "W_D", each a matrix or `Structured`.

    With A_l = W_1..W_{l-1}, B_l = W_{l+1}..W_D, C_lm = W_{l+1}..W_{m-1} and mean squared error:
    `H_o(l, m) = (2/d_out) (A_l^T Sigma A_m) kron (B_l B_m^T)`,
    `H_f(l<m)[(p,q),(r,s)] = (2/d_out) C_lm[q,r] (A_l^T Omega B_m^T)[p,s]`, `H_f(l, l) = 0`: O(Sigma) and O(Omega) at
    every depth. A structured weight enters linearly, so its rows are `T_l` times those of the full matrix.
    Source: [SBH21], [ODS25, Sec. 4]; structured weights and general losses [own].
    """

    def __init__(
        self,
        X: Tensor,
        weights: Sequence[Tensor | Structured],
        Y: Tensor | None = None,
        *,
        loss: str | tuple[Tensor, Tensor] = "mse",
        prefix: str = "",
    ) -> None:
        if not weights:
            raise InputError("a linear MLP has at least one weight; got none.")
        self.matrices = [W.matrix() if isinstance(W, Structured) else W for W in weights]
        self.structure = [W.T.flatten(1) if isinstance(W, Structured) else None for W in weights]
        for W, V in zip([X, *self.matrices], self.matrices, strict=False):
            if V.dim() != 2 or W.shape[-1] != V.shape[0]:
                raise InputError(f"shapes {tuple(W.shape)} and {tuple(V.shape)} of consecutive factors do not match.")
        names = [f"W_{i + 1}" for i in range(len(weights))]
        self.weights = {n: W.w if isinstance(W, Structured) else W for n, W in zip(names, weights, strict=True)}
        self.index = {n: i for i, n in enumerate(names)}
        self.prefix = prefix
        D = len(weights)
        self.after: list[Tensor] = [torch.eye(self.matrices[-1].shape[1], dtype=X.dtype, device=X.device)]
        for W in reversed(self.matrices[1:]):
            self.after.insert(0, W @ self.after[0])
        self.before = [torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)]
        for W in self.matrices[: D - 1]:
            self.before.append(self.before[-1] @ W)
        F = X @ (self.before[-1] @ self.matrices[-1])
        self.loss = token_wise_loss(loss, F, Y)
        self.X, self.F, self.g = X.reshape(1, -1, X.shape[-1]), F, self.loss.g.reshape(F.shape)
        self.S, self.Hl, _ = gathered(self.loss, self.X)
        self.Gamma = self.X[0].T @ self.loss.g  # X^T dl/dF; mean squared error: (2/d_out) Omega

    @property
    def Sigma(self) -> Tensor:
        """`X^T X / N` (d, d)."""
        return self.X[0].T @ self.X[0] / self.X.shape[1]

    def _reduced(self, block: Tensor, l: int, m: int) -> Tensor:
        T_l, T_m = self.structure[l], self.structure[m]
        block = block if T_l is None else T_l @ block
        return block if T_m is None else block @ T_m.T

    def _outer(self, a: str, b: str) -> Tensor:
        l, m = self.index[a], self.index[b]
        left = self.before[l].T @ self.S @ self.before[m]
        return self._reduced(kron_sum(left, self.after[l] @ self.Hl @ self.after[m].T), l, m)

    def _functional(self, a: str, b: str) -> Tensor:
        l, m = self.index[a], self.index[b]
        (p, q), (r, s) = self.matrices[l].shape, self.matrices[m].shape
        if l == m:
            return self._reduced(self.Gamma.new_zeros(p * q, r * s), l, m)
        C = torch.eye(q, dtype=self.Gamma.dtype, device=self.Gamma.device)
        for W in self.matrices[l + 1 : m]:
            C = C @ W
        E = self.before[l].T @ self.Gamma @ self.after[m].T
        return self._reduced(torch.einsum("qr,ps->pqrs", C, E).reshape(p * q, r * s), l, m)

    def _expand(self, U: Mapping[str, Tensor]) -> list[Tensor]:
        return [
            U[n] if T is None else (U[n].flatten(1) @ T).reshape(-1, *W.shape)
            for (n, T, W) in zip(self.weights, self.structure, self.matrices, strict=True)
        ]

    def _collect(self, grads: list[Tensor]) -> dict[str, Tensor]:
        return {
            n: G if T is None else (G.flatten(1) @ T.T).reshape(-1, *self.weights[n].shape)
            for n, T, G in zip(self.weights, self.structure, grads, strict=True)
        }

    def _hvp(self, U: Mapping[str, Tensor], outer: bool, functional: bool) -> dict[str, Tensor]:
        """Tangents of the prefix and suffix products, then `d(A^T Gamma B^T)` with d Gamma = X^T Hl dF in H_o."""
        dW, D = self._expand(U), len(self.matrices)
        dA = [torch.zeros_like(dW[0][:, :, :1]).expand(-1, -1, self.before[0].shape[1])]
        for l in range(D):
            dA.append(dA[l] @ self.matrices[l] + self.before[l] @ dW[l])
        out = [torch.zeros_like(dW[l]) for l in range(D)]
        if outer:
            dGamma = torch.einsum("gab,kbo,gop->kap", self.S, dA[D], self.Hl)
            out = [o + self.before[l].T @ dGamma @ self.after[l].T for l, o in enumerate(out)]
        if functional:
            dB: list[Tensor] = [torch.zeros_like(dA[D][:, :1]).expand(-1, self.after[-1].shape[0], -1)]
            for l in range(D - 1, 0, -1):
                dB.insert(0, dW[l] @ self.after[l] + self.matrices[l] @ dB[0])
            out = [
                o + dA[l].mT @ self.Gamma @ self.after[l].T + self.before[l].T @ self.Gamma @ dB[l].mT
                for l, o in enumerate(out)
            ]
        return self._collect(out)

    def gradients(self) -> dict[str, Tensor]:
        grads = [(A.T @ self.Gamma @ B.T)[None] for A, B in zip(self.before, self.after, strict=True)]
        return {n: G[0] for n, G in self._collect(grads).items()}


@dataclass(frozen=True)
class Ranks:
    outer: int
    functional: int
    total: int


def linear_mlp_ranks(r: int, K: int, hidden: Sequence[int], *, loss: str = "mse") -> Ranks:
    """Ranks of H_o, H_f and H of a linear MLP with generic weights, inputs of rank r, K outputs, hidden widths M_i.

    q = min(r, K, M_1, ...), s = min(r, K), D = number of weight matrices:
    `rank H_o = q (r + K - q)`, `rank H_f = 2 q sum M + 2 q s - D q^2`, `rank H = rank H_o + rank H_f + q (q - 2 s)`.
    Cross-entropy sees K - 1 outputs (its curvature and gradient are blind to a constant shift of the logits).
    Source: [SBH21, Thms 3-5].
    """
    if not hidden or min(r, K, *hidden) < 1:
        raise InputError(f"rank formulas need one hidden layer or more and sizes >= 1; got r={r}, K={K}, {hidden}.")
    if loss == "cross-entropy":
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


#: name -> h -> (phi, phi', phi''), elementwise. ReLU's second derivative is taken as zero, as autograd does.
ACTIVATIONS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "relu": _relu,
    "gelu": _gelu,
    "tanh": _tanh,
    "identity": lambda h: (h, torch.ones_like(h), torch.zeros_like(h)),
}


class HiddenLayerMLP(BlockModel):
    """`F = phi(X W_1 + b_1) W_2 + b_2` on X (..., d): the MLP of a Transformer block, any token-wise loss.

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
        activation: str | Callable[[Tensor], tuple[Tensor, Tensor, Tensor]] = "relu",
        loss: str | tuple[Tensor, Tensor] = "mse",
        prefix: str = "",
    ) -> None:
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise UnknownName(
                f"no activation {activation!r}; there are {', '.join(ACTIVATIONS)}, or pass h -> (phi, phi', phi'')."
                f"{did_you_mean(activation, ACTIVATIONS)}"
            )
        if X.shape[-1] != W_1.shape[0] or W_1.shape[1] != W_2.shape[0]:
            raise InputError(
                f"shapes of X {tuple(X.shape)}, W_1 {tuple(W_1.shape)} and W_2 {tuple(W_2.shape)} do not match."
            )
        h = X @ W_1 if b_1 is None else X @ W_1 + b_1
        phi, d_phi, dd_phi = (ACTIVATIONS[activation] if isinstance(activation, str) else activation)(h)
        self.F = phi @ W_2 if b_2 is None else phi @ W_2 + b_2
        self.loss = token_wise_loss(loss, self.F, Y)
        self.prefix, M = prefix, W_2.shape[0]
        given = {"W_1": W_1, "b_1": b_1, "W_2": W_2, "b_2": b_2}
        self.weights = {name: W for name, W in given.items() if W is not None}
        x = X.reshape(-1, X.shape[-1])
        self.g, self.Hl = self.loss.g, self.loss.token_matrices()
        self.phi, self.d_phi, self.dd_phi = (t.reshape(-1, M) for t in (phi, d_phi, dd_phi))
        one = x.new_ones(x.shape[0], 1)
        self.inputs = {"W_1": x, "b_1": one, "W_2": self.phi, "b_2": one}
        self.gamma = self.g @ W_2.T

    def _right(self, name: str) -> Tensor:
        """R with J = l^T kron R: (N, o, M) for the first layer, (1, o, o) for the second."""
        if name.endswith("1"):
            return self.d_phi[:, None, :] * self.weights["W_2"].T
        return torch.eye(self.g.shape[1], dtype=self.g.dtype, device=self.g.device)[None]

    def _outer(self, a: str, b: str) -> Tensor:
        E = self._right(a).mT @ self.Hl @ self._right(b)
        if len(E) == 1:  # the same small matrix for every token
            return kron_sum((self.inputs[a].T @ self.inputs[b])[None], E)
        return kron_sum(self.inputs[a][:, :, None] * self.inputs[b][:, None, :], E)

    def _functional(self, a: str, b: str) -> Tensor:
        l, M = self.inputs[a], self.phi.shape[1]
        if a.endswith("1") and b.endswith("1"):
            inner = torch.einsum("na,nb,nm->abm", l, self.inputs[b], self.dd_phi * self.gamma)
            return torch.diag_embed(inner).transpose(1, 2).reshape(l.shape[1] * M, -1)
        if a.endswith("1") and b == "W_2":
            inner = torch.einsum("na,nm,no->aom", l, self.d_phi, self.g)
            return torch.diag_embed(inner).permute(0, 2, 3, 1).reshape(l.shape[1] * M, -1)
        return l.new_zeros(self.weights[a].numel(), self.weights[b].numel())

    def _pull(self, first: Tensor, second: Tensor, phi: Tensor) -> dict[str, Tensor]:
        """Weight gradients from those at the pre-activations (k, N, M) and at the outputs (k, N, o)."""
        pulled = {
            "W_1": self.inputs["W_1"].T @ first,
            "b_1": first.sum(1),
            "W_2": phi.mT @ second,
            "b_2": second.sum(1),
        }
        return {name: pulled[name] for name in self.weights}

    def _hvp(self, U: Mapping[str, Tensor], outer: bool, functional: bool) -> dict[str, Tensor]:
        zero = self.g.new_zeros(1, 1, 1)
        dh = self.inputs["W_1"] @ U["W_1"] + (U["b_1"][:, None] if "b_1" in U else zero)
        d_act, W_2 = self.d_phi * dh, self.weights["W_2"]
        out = {name: torch.zeros_like(t) for name, t in U.items()}
        if outer:
            dF = d_act @ W_2 + self.phi @ U["W_2"] + (U["b_2"][:, None] if "b_2" in U else zero)
            dg = self.loss.hessian_times(dF.permute(1, 2, 0)).permute(2, 0, 1)
            out = {n: out[n] + t for n, t in self._pull(self.d_phi * (dg @ W_2.T), dg, self.phi).items()}
        if functional:
            first = self.dd_phi * dh * self.gamma + self.d_phi * (self.g @ U["W_2"].mT)
            pulled = self._pull(first, self.g.expand(len(first), -1, -1), d_act)
            pulled.pop("b_2", None)
            out = {n: out[n] + pulled[n] if n in pulled else t for n, t in out.items()}
        return out

    def gradients(self) -> dict[str, Tensor]:
        pulled = self._pull((self.d_phi * self.gamma)[None], self.g[None], self.phi)
        return {name: t[0] for name, t in pulled.items()}
