"""The linear Transformer of any depth, exact at any input scale.

`X_{l+1} = sc X_l W_Q W_K^T (X_l^T X_l) W_V`, no residual, F = X_D. Each layer is cubic in its input, so F is of degree
3^D in X and every block of H_o of degree 2 * 3^D (6, 18, 54, ...), while a linear MLP stays at 2 for every depth.
Source: [ODS25]; the exponent bookkeeping and the functional part [own].

Numbers of degree 54 leave the range of floating point at modest input scales (the paper's float32 curves break off at
depth 3). Here inputs, weights and layer outputs are divided by their norms once, as constants, and the logarithms of
these are kept beside the results: `F = e^Lambda F_hat(W_hat)` holds identically in W, so all derivatives follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.operator import Operator
from ..core.space import Space, Vector, paper_name
from .inputs import finite, one_kind
from .layer import Part, known_part


@dataclass(frozen=True)
class Ranged:
    """A tensor `e^log mantissa`, whatever the size of log."""

    mantissa: Tensor
    log: float

    @classmethod
    def of(cls, tensor: Tensor, log: float = 0.0) -> Ranged:
        """The mantissa scaled to norm 1 (a zero tensor stays as it is)."""
        top = float(tensor.abs().max()) if tensor.numel() else 0.0
        if top == 0.0 or not math.isfinite(top):
            return cls(tensor, log)
        shrunk = tensor / top  # the norm of a very small or large tensor leaves floating point before its entries do
        norm = float(shrunk.norm())
        return cls(shrunk / norm, log + math.log(top) + math.log(norm))

    def __add__(self, other: Ranged) -> Ranged:
        low, high = sorted((self, other), key=lambda r: r.log if bool(r.mantissa.any()) else -math.inf)
        if not bool(low.mantissa.any()):
            return high
        return Ranged(high.mantissa + math.exp(low.log - high.log) * low.mantissa, high.log)

    def log_norm(self) -> float:
        """The natural logarithm of the Frobenius norm; -inf for zero."""
        norm = float(self.mantissa.norm())
        return self.log + math.log(norm) if norm > 0 else -math.inf

    def value(self) -> Tensor:
        """The tensor itself, where it fits its dtype."""
        info, size = torch.finfo(self.mantissa.dtype), self.log_norm()
        if size > math.log(info.max) or -math.inf < size < math.log(info.tiny):
            raise InputError(
                f"a tensor of norm e^{size:.1f} does not fit {self.mantissa.dtype}; use `mantissa` and `log`, or"
                " `log_norm()`."
            )
        return self.flushed()

    def flushed(self) -> Tensor:
        """The tensor itself in plain floating point: too small becomes 0, too large infinite."""
        half = math.exp(min(max(self.log / 2, -700.0), 700.0))
        return (self.mantissa.double() * half * half).to(self.mantissa.dtype)


@dataclass(frozen=True)
class _Layer:
    """One layer with norm-1 weights: `X -> s X W_Q W_K^T (X^T X) W_V` on X (B, n, d)."""

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    s: float

    def forward(self, X: Tensor) -> Tensor:
        return self.s * X @ (self.W_Q @ self.W_K.T @ (X.mT @ X) @ self.W_V)

    def push(self, X: Tensor, dX: Tensor, U_Q: Tensor, U_K: Tensor, U_V: Tensor) -> Tensor:
        """The tangent of the output: dX (k, B, n, d), U (k, ., .)."""
        M, G = self.W_Q @ self.W_K.T, X.mT @ X
        dM = (U_Q @ self.W_K.T + self.W_Q @ U_K.mT)[:, None]
        dG = dX.mT @ X + X.mT @ dX
        inner = dM @ (G @ self.W_V) + M @ dG @ self.W_V + (M @ G) @ U_V[:, None]
        return self.s * (dX @ (M @ G @ self.W_V) + X @ inner)

    def pull(self, X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Gradients of `<g, output>` in X, W_Q, W_K, W_V; with Gamma = X^T g that of X is
        `g (M G W_V)^T + X (M^T Gamma W_V^T + W_V Gamma^T M)`."""
        M, G, Gamma = W_Q @ W_K.T, X.mT @ X, X.mT @ g
        mixed = M.T @ Gamma @ W_V.T
        g_X = g @ (M @ G @ W_V).mT + X @ (mixed + mixed.mT)
        g_Q, g_K, g_V = Gamma @ W_V.T @ G @ W_K, G @ W_V @ Gamma.mT @ W_Q, G @ M.T @ Gamma
        return self.s * g_X, self.s * g_Q.sum(0), self.s * g_K.sum(0), self.s * g_V.sum(0)


class DeepLinearTransformer:
    """D linear attention layers in a row on X (n, d) or (B, n, d) with targets Y, mean squared error.

    `layers` is a sequence of (W_Q, W_K, W_V); W_V of one layer gives the width of the next. Weights are called
    `layers.0.attn.W_Q` ... H_f is block-hollow in the LAST layer only: earlier ones enter F more than once.
    """

    def __init__(
        self,
        X: Tensor,
        layers: Sequence[tuple[Tensor, Tensor, Tensor]],
        Y: Tensor,
        *,
        temperature: float = 1.0,
    ) -> None:
        finite("X", X)
        if not layers or X.dim() not in (2, 3):
            raise InputError(
                f"a linear Transformer needs X (n, d) or (B, n, d) and a layer; got {tuple(X.shape)} and {len(layers)}."
            )
        if any(len(triple) != 3 for triple in layers):
            raise InputError("a layer is (W_Q, W_K, W_V); got another number of weights.")
        if not 0 < temperature < math.inf:
            raise InputError(f"the temperature is a positive number; got {temperature}.")
        named = {
            f"{n} of layer {l}": W for l, t in enumerate(layers) for n, W in zip(("W_Q", "W_K", "W_V"), t, strict=True)
        }
        one_kind({"X": X, "Y": Y, **named})
        width = X.shape[-1]
        for l, (W_Q, W_K, W_V) in enumerate(layers):
            matrices = W_Q.dim() == W_V.dim() == 2
            if not matrices or W_Q.shape != W_K.shape or W_Q.shape[0] != width or W_V.shape[0] != width:
                raise InputError(
                    f"layer {l} takes tokens of width {width}; got W_Q {tuple(W_Q.shape)}, W_K {tuple(W_K.shape)}, W_V"
                    f" {tuple(W_V.shape)}."
                )
            width = W_V.shape[1]
        if Y.shape != (*X.shape[:-1], width):
            raise InputError(f"targets Y have shape {(*X.shape[:-1], width)}; got {tuple(Y.shape)}.")
        self.weights = {
            f"layers.{l}.attn.{name}": W
            for l, triple in enumerate(layers)
            for name, W in zip(("W_Q", "W_K", "W_V"), triple, strict=True)
        }
        self.space = Space.of(self.weights)
        self.depth = len(layers)
        ranged = {name: Ranged.of(W) for name, W in self.weights.items()}
        self.log_weight = {name: r.log for name, r in ranged.items()}
        start = Ranged.of(X if X.dim() == 3 else X[None])
        self.streams, self.layers, Lambda = [start.mantissa], [], start.log
        for l in range(self.depth):
            names = self._names(l)
            W_Q, W_K, W_V = (ranged[name].mantissa for name in names)
            log_sc = -math.log(temperature) - 0.5 * math.log(W_Q.shape[1])
            raw = Ranged.of(_Layer(W_Q, W_K, W_V, 1.0).forward(self.streams[-1]))
            self.layers.append(_Layer(W_Q, W_K, W_V, math.exp(-raw.log)))
            self.streams.append(raw.mantissa)
            Lambda = 3 * Lambda + log_sc + raw.log + sum(self.log_weight[name] for name in names)
        self.F = Ranged(self.streams[-1], Lambda)
        self.c = 2.0 / Y.numel()
        target = Ranged.of(Y.reshape(self.streams[-1].shape))
        residual = self.F + Ranged(-target.mantissa, target.log)
        self.g = Ranged(self.c * residual.mantissa, residual.log)

    @property
    def degree(self) -> int:
        """The degree of F in X, 3^D; H_o has twice that, H_f this one while |F| << |Y| and twice it when |F| >> |Y|."""
        return 3**self.depth

    def log_loss(self) -> float:
        """The logarithm of the mean squared error."""
        return 2 * self.g.log_norm() - math.log(2 * self.c)

    # --- blocks -----------------------------------------------------------------------------------------------------
    def outer(self, a: str, b: str) -> Ranged:
        """`H_o(a, b) = c J_a^T J_b`, (size_a, size_b) row-major, of degree 2 * 3^D in X exactly."""
        a, b = self._known(a), self._known(b)
        J_a, J_b = self._jacobian(a), self._jacobian(b)
        return Ranged(self.c * J_a @ J_b.T, 2 * self.F.log - self.log_weight[a] - self.log_weight[b])

    def functional(self, a: str, b: str) -> Ranged:
        """`H_f(a, b) = <dl/dF, d2F/da db>`."""
        a, b = self._known(a), self._known(b)
        log = self.F.log + self.g.log - self.log_weight[a] - self.log_weight[b]
        return Ranged(self._curvature(a)[b], log)

    def block(self, a: str, b: str) -> Ranged:
        """`H(a, b)`, the sum of both."""
        return self.outer(a, b) + self.functional(a, b)

    def log_norms(self, part: Part = "total") -> dict[tuple[str, str], float]:
        """The natural logarithm of the Frobenius norm of every block (a not before b)."""
        block = {"outer": self.outer, "functional": self.functional, "total": self.block}[known_part(part)]
        names = list(self.weights)
        return {(a, b): block(a, b).log_norm() for i, a in enumerate(names) for b in names[: i + 1]}

    def gradients(self) -> dict[str, Tensor]:
        """dL/dW for every weight in the order of the space, where they fit floating point."""
        log, grads = self.F.log + self.g.log, self._backward[1]
        return {name: Ranged(grads[name], log - self.log_weight[name]).value() for name in self.weights}

    def hessian(self) -> Operator:
        return _DeepOperator(self, "total")

    def outer_operator(self) -> Operator:
        return _DeepOperator(self, "outer")

    def functional_operator(self) -> Operator:
        return _DeepOperator(self, "functional")

    # --- the normalised network -------------------------------------------------------------------------------------
    def _names(self, l: int) -> tuple[str, str, str]:
        return f"layers.{l}.attn.W_Q", f"layers.{l}.attn.W_K", f"layers.{l}.attn.W_V"

    def _known(self, name: str) -> str:
        if paper_name(name) not in self.weights:
            raise UnknownName(
                f"no parameter matches {name!r}; this space has {', '.join(self.weights)}."
                f"{did_you_mean(name, self.weights)}"
            )
        return paper_name(name)

    def _tangents(self, U: Vector) -> list[Tensor]:
        """dX_0 ... dX_D for k directions U of the norm-1 weights."""
        k = len(next(iter(U.values())))
        dX = [torch.zeros_like(self.streams[0]).expand(k, -1, -1, -1)]
        for l, layer in enumerate(self.layers):
            dX.append(layer.push(self.streams[l], dX[l], *(U[name] for name in self._names(l))))
        return dX

    @cached_property
    def _backward(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        """dl/dX_hat at every layer output, and the gradients of the norm-1 weights."""
        at = [self.g.mantissa]
        grads: dict[str, Tensor] = {}
        for l in range(self.depth - 1, -1, -1):
            layer = self.layers[l]
            g_X, *g_W = layer.pull(self.streams[l], layer.W_Q, layer.W_K, layer.W_V, at[0])
            grads.update(zip(self._names(l), g_W, strict=True))
            at.insert(0, g_X)
        return at, grads

    def _gradient_tangents(self, dX: list[Tensor], U: Vector, dg: Tensor) -> dict[str, Tensor]:
        """The tangent of every weight gradient: forward mode through the closed-form gradient, k directions at once."""
        at = self._backward[0]
        out: dict[str, Tensor] = {}
        for l in range(self.depth - 1, -1, -1):
            layer = self.layers[l]
            point = (self.streams[l], layer.W_Q, layer.W_K, layer.W_V, at[l + 1])

            def along(*step: Tensor, layer: _Layer = layer, point: tuple[Tensor, ...] = point) -> tuple[Tensor, ...]:
                return torch.func.jvp(layer.pull, point, step)[1]

            dg, *d_W = torch.func.vmap(along)(dX[l], *(U[name] for name in self._names(l)), dg)
            out.update(zip(self._names(l), d_W, strict=True))
        return out

    def _units(self, name: str) -> dict[str, Tensor]:
        """Unit directions of one weight, zero for the others."""
        W = self.weights[name]
        zeros = {n: torch.zeros_like(w).expand(W.numel(), *w.shape) for n, w in self.weights.items()}
        return zeros | {name: torch.eye(W.numel(), dtype=W.dtype, device=W.device).reshape(-1, *W.shape)}

    def _jacobian(self, name: str) -> Tensor:
        """dF_hat/dW_hat, (size, outputs)."""
        if name not in self._jacobians:
            self._jacobians[name] = self._tangents(self._units(name))[-1].flatten(1)
        return self._jacobians[name]

    def _curvature(self, name: str) -> dict[str, Tensor]:
        """`<g_hat, d2F_hat>` between one weight and all, {name: (size, size of name)}."""
        if name not in self._curvatures:
            U = self._units(name)
            dX = self._tangents(U)
            rows = self._gradient_tangents(dX, U, torch.zeros_like(dX[-1]))
            self._curvatures[name] = {n: t.flatten(1) for n, t in rows.items()}
        return self._curvatures[name]

    @cached_property
    def _jacobians(self) -> dict[str, Tensor]:
        return {}

    @cached_property
    def _curvatures(self) -> dict[str, dict[str, Tensor]]:
        return {}

    def _products(self, V: Vector, part: Part) -> dict[str, Tensor]:
        U = {name: math.exp(-self.log_weight[name]) * t for name, t in V.items()}
        dX = self._tangents(U)
        outer = self._pull_back(self.c * dX[-1]) if part != "functional" else {}
        functional = self._gradient_tangents(dX, U, torch.zeros_like(dX[-1])) if part != "outer" else {}
        out = {}
        for name in self.weights:
            total = Ranged(torch.zeros_like(V[name]), 0.0)
            if outer:
                total = total + Ranged(outer[name], 2 * self.F.log - self.log_weight[name])
            if functional:
                total = total + Ranged(functional[name], self.F.log + self.g.log - self.log_weight[name])
            out[name] = total.flushed()
        return out

    def _pull_back(self, g: Tensor) -> dict[str, Tensor]:
        """J_hat^T g for k cotangents (k, B, n, d_out)."""
        out: dict[str, Tensor] = {}
        for l in range(self.depth - 1, -1, -1):
            layer, X = self.layers[l], self.streams[l]
            pull = torch.func.vmap(lambda t, layer=layer, X=X: layer.pull(X, layer.W_Q, layer.W_K, layer.W_V, t))
            g, *g_W = pull(g)
            out.update(zip(self._names(l), g_W, strict=True))
        return out


@final
class _DeepOperator(Operator):
    """H, H_o or H_f of a deep linear Transformer, matrix-free, in plain floating point."""

    def __init__(self, model: DeepLinearTransformer, part: Part) -> None:
        W = next(iter(model.weights.values()))
        super().__init__(model.space, dtype=W.dtype, device=W.device, symmetric=True, psd=part == "outer")
        self.model, self.part = model, part

    def apply(self, V: Vector) -> dict[str, Tensor]:
        return self.model._products(V, self.part)
