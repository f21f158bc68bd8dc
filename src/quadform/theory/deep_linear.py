"""The linear Transformer of any depth, exact at any input scale.

`X -> s X + (M o sc X W_Q W_K^T X^T) X W_V W_O`, then, where a layer has an MLP, `X -> s' X + MLP(X)`; F is the last X.
Without skips around attention each layer is cubic in its input, so F is of degree 3^D in X and every block of H_o of
degree 2 * 3^D (6, 18, 54, ...), while a linear MLP stays at 2 for every depth. Source: [ODS25]; the exponent
bookkeeping, skips and the functional part [own].

Numbers of degree 54 leave the range of floating point at modest input scales (the paper's float32 curves break off at
depth 3). Here inputs, weights and streams are divided by their norms once, as constants, and the logarithms of these
are kept beside the results: `F = e^Lambda F_hat(W_hat)` holds identically in W, so all derivatives follow. A skip and
its branch differ in size by a factor that is kept with the directions of the branch's weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, final

import torch
from torch import Tensor

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.operator import Operator
from ..core.space import Space, Vector, paper_name
from .inputs import finite, one_kind
from .layer import Part, known_part
from .linear_attention import multiplier
from .linear_stages import MLP, Attention, Branch
from .ranged import Ranged

#: A layer: (W_Q, W_K, W_V), or weights by name: these, W_O and the matrices W_1, W_2, ... of an MLP.
Layer = Sequence[Tensor] | Mapping[str, Tensor]


@dataclass(frozen=True)
class _Stage:
    """`X -> skip X + gain branch(X)` between streams of norm 1; `log_gain` is the logarithm of the gain.

    Directions of the weights carry the gain: U here is gain dW_hat, and gradients are those in gain W_hat.
    """

    branch: Branch
    names: tuple[str, ...]
    W: tuple[Tensor, ...]
    skip: float
    log_gain: float

    @property
    def gain(self) -> float:
        return math.exp(self.log_gain)

    def push(self, X: Tensor, dX: Tensor, U: Vector) -> Tensor:
        moved = self.branch.push(X, self.gain * dX, self.W, [U[name] for name in self.names])
        return moved + self.skip * dX if self.skip else moved

    def pull(self, X: Tensor, W: tuple[Tensor, ...], g: Tensor) -> tuple[Tensor, ...]:
        g_X, *g_W = self.branch.pull(X, W, g)
        g_X = self.gain * g_X
        return g_X + self.skip * g if self.skip else g_X, *g_W


class DeepLinearTransformer:
    """D linear attention layers in a row on X (n, d) or (B, n, d) with targets Y, mean squared error.

    A layer is (W_Q, W_K, W_V), or a mapping with these names and, if it has them, W_O and the MLP's W_1, W_2, ...; its
    output gives the width of the next. `mask` is that of `LinearAttentionLayer`. `attn_skip` and `mlp_skip` are the
    strengths of the skips around attention and MLP (0: none). `slope` is that of the MLP's activation below 0: 1 is a
    linear MLP, 0 a ReLU; other activations are not homogeneous and have no exact form at any scale: for those take
    `curvature.hessian`. The model of the paper's Figures 4 and 7 has mask "causal", mlp_skip 1 and slope 0.

    Weights are called `layers.0.attn.W_Q`, `layers.0.mlp.W_1` ... Without MLPs, H_f is block-hollow in the LAST layer
    only: earlier ones enter F more than once.
    """

    def __init__(
        self,
        X: Tensor,
        layers: Sequence[Layer],
        Y: Tensor,
        *,
        mask: Literal["causal"] | Tensor | None = None,
        temperature: float = 1.0,
        attn_skip: float = 0.0,
        mlp_skip: float = 0.0,
        slope: float = 1.0,
    ) -> None:
        finite("X", X)
        if not layers or X.dim() not in (2, 3):
            raise InputError(
                f"a linear Transformer needs X (n, d) or (B, n, d) and a layer; got {tuple(X.shape)} and {len(layers)}."
            )
        if not 0 < temperature < math.inf:
            raise InputError(f"the temperature is a positive number; got {temperature}.")
        if not all(map(math.isfinite, (attn_skip, mlp_skip, slope))):
            raise InputError(f"skips and slope are finite numbers; got {attn_skip}, {mlp_skip} and {slope}.")
        parts = [part for l, layer in enumerate(layers) for part in _parts(l, layer)]
        self.weights = {name: W for part in parts for name, W in part.items()}
        one_kind({"X": X, "Y": Y, **self.weights})
        width = X.shape[-1]
        for part in parts:
            width = _output_width(part, width, mlp_skip if _is_mlp(part) else attn_skip)
        if Y.shape != (*X.shape[:-1], width):
            raise InputError(f"targets Y have shape {(*X.shape[:-1], width)}; got {tuple(Y.shape)}.")
        self.space = Space.of(self.weights)
        self.depth, self.slope = len(layers), slope
        ranged = {name: Ranged.of(W) for name, W in self.weights.items()}
        tokens = X if X.dim() == 3 else X[None]
        attention, mlp = Attention(multiplier(mask, tokens, tokens)), MLP(slope)
        stream = Ranged.of(tokens)
        self.streams: list[Tensor] = [stream.mantissa]
        self.stages: list[_Stage] = []
        #: The logarithm of the unit in which the directions and gradients of each weight are kept.
        self.log_unit: dict[str, float] = {}
        for part in parts:
            branch, skip = (mlp, mlp_skip) if _is_mlp(part) else (attention, attn_skip)
            W = tuple(ranged[name].mantissa for name in part)
            log = branch.degree * stream.log + sum(ranged[name].log for name in part)
            if branch is attention:
                log -= math.log(temperature) + 0.5 * math.log(W[0].shape[1])
            after = Ranged.of(branch.value(stream.mantissa, W), log)
            if skip:
                total = after + Ranged(skip * stream.mantissa, stream.log)
                after = Ranged.of(total.mantissa, total.log)
            log_gain = log - after.log
            if abs(log_gain) > math.log(torch.finfo(X.dtype).max) / 2:
                raise InputError(
                    f"the branch of {', '.join(part)} is e^{log_gain:.0f} of its stream, beyond {X.dtype}; bring X or"
                    " these weights nearer to the size of the others."
                )
            kept = skip * math.exp(stream.log - after.log) if skip else 0.0
            self.stages.append(_Stage(branch, tuple(part), W, kept, log_gain))
            self.log_unit |= {name: ranged[name].log - log_gain for name in part}
            self.streams.append(after.mantissa)
            stream = after
        self.F = stream
        self.c = 2.0 / Y.numel()
        target = Ranged.of(Y.reshape(self.streams[-1].shape))
        residual = self.F + Ranged(-target.mantissa, target.log)
        self.g = Ranged(self.c * residual.mantissa, residual.log)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.space}>"

    @property
    def degree(self) -> int:
        """The degree of F in X, 3^D; H_o has twice that, H_f this one while |F| << |Y| and twice it when |F| >> |Y|.

        With a skip around attention it is the largest degree, seen at large scales; `growth` has the others.
        """
        return 3**self.depth

    def log_loss(self) -> float:
        """The logarithm of the mean squared error."""
        return 2 * self.g.log_norm() - math.log(2 * self.c)

    # --- blocks -----------------------------------------------------------------------------------------------------
    def outer(self, a: str, b: str) -> Ranged:
        """`H_o(a, b) = c J_a^T J_b`, (size_a, size_b) row-major, of degree 2 * 3^D in X exactly."""
        a, b = self._known(a), self._known(b)
        J_a, J_b = self._jacobian(a), self._jacobian(b)
        return Ranged(self.c * J_a @ J_b.T, 2 * self.F.log - self.log_unit[a] - self.log_unit[b])

    def functional(self, a: str, b: str) -> Ranged:
        """`H_f(a, b) = <dl/dF, d2F/da db>`."""
        a, b = self._known(a), self._known(b)
        log = self.F.log + self.g.log - self.log_unit[a] - self.log_unit[b]
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
        return {name: Ranged(grads[name], log - self.log_unit[name]).value() for name in self.weights}

    def hessian(self) -> Operator:
        return _DeepOperator(self, "total")

    def outer_operator(self) -> Operator:
        return _DeepOperator(self, "outer")

    def functional_operator(self) -> Operator:
        return _DeepOperator(self, "functional")

    # --- the normalised network -------------------------------------------------------------------------------------
    def _known(self, name: str) -> str:
        if paper_name(name) not in self.weights:
            raise UnknownName(
                f"no parameter matches {name!r}; this space has {', '.join(self.weights)}."
                f"{did_you_mean(name, self.weights)}"
            )
        return paper_name(name)

    def _tangents(self, U: Vector) -> list[Tensor]:
        """The tangent of every stream for k directions U."""
        k = len(next(iter(U.values())))
        dX = [torch.zeros_like(self.streams[0]).expand(k, -1, -1, -1)]
        for X, stage in zip(self.streams, self.stages, strict=False):
            dX.append(stage.push(X, dX[-1], U))
        return dX

    @cached_property
    def _backward(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        """dl/dX_hat at every stream, and the gradients of the weights."""
        at = [self.g.mantissa]
        grads: dict[str, Tensor] = {}
        for X, stage in zip(self.streams[-2::-1], reversed(self.stages), strict=True):
            g_X, *g_W = stage.pull(X, stage.W, at[0])
            grads |= dict(zip(stage.names, g_W, strict=True))
            at.insert(0, g_X)
        return at, grads

    def _gradient_tangents(self, dX: list[Tensor], U: Vector, dg: Tensor) -> dict[str, Tensor]:
        """The tangent of every weight gradient: forward mode through the closed-form gradient, k directions at once."""
        at = self._backward[0]
        out: dict[str, Tensor] = {}
        for l in range(len(self.stages) - 1, -1, -1):
            stage, X, g = self.stages[l], self.streams[l], at[l + 1]

            def along(
                dX: Tensor, dW: tuple[Tensor, ...], dg: Tensor, stage: _Stage = stage, X: Tensor = X, g: Tensor = g
            ) -> tuple[Tensor, ...]:
                return torch.func.jvp(stage.pull, (X, stage.W, g), (dX, dW, dg))[1]

            dW = tuple(U[name] / stage.gain for name in stage.names)
            dg, *d_W = torch.func.vmap(along)(dX[l], dW, dg)
            out |= dict(zip(stage.names, d_W, strict=True))
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
        U = {name: Ranged(t, -self.log_unit[name]).flushed() for name, t in V.items()}
        dX = self._tangents(U)
        outer = self._pull_back(self.c * dX[-1]) if part != "functional" else {}
        functional = self._gradient_tangents(dX, U, torch.zeros_like(dX[-1])) if part != "outer" else {}
        out = {}
        for name in self.weights:
            total = Ranged(torch.zeros_like(V[name]), 0.0)
            if outer:
                total = total + Ranged(outer[name], 2 * self.F.log - self.log_unit[name])
            if functional:
                total = total + Ranged(functional[name], self.F.log + self.g.log - self.log_unit[name])
            out[name] = total.flushed()
            if not bool(out[name].isfinite().all()):
                raise InputError(
                    f"the rows {name} of this product are of norm e^{total.log_norm():.1f}, which leaves"
                    f" {out[name].dtype}; `log_norms` tells blocks of any size."
                )
        return out

    def _pull_back(self, g: Tensor) -> dict[str, Tensor]:
        """J_hat^T g for k cotangents (k, B, n, d_out)."""
        out: dict[str, Tensor] = {}
        for X, stage in zip(self.streams[-2::-1], reversed(self.stages), strict=True):
            g, *g_W = torch.func.vmap(lambda t, stage=stage, X=X: stage.pull(X, stage.W, t))(g)
            out |= dict(zip(stage.names, g_W, strict=True))
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


# --- what a layer may be --------------------------------------------------------------------------------------------
def _parts(l: int, layer: Layer) -> list[dict[str, Tensor]]:
    """The weights of layer l by name, those of attention first and then, if there are any, those of the MLP."""
    if not isinstance(layer, Mapping):
        if len(layer) != 3:
            raise InputError(f"layer {l} is (W_Q, W_K, W_V), or weights by name; got {len(layer)} of them.")
        layer = dict(zip(("W_Q", "W_K", "W_V"), layer, strict=True))
    attention = ["W_Q", "W_K", "W_V", *(["W_O"] if "W_O" in layer else [])]
    mlp = [f"W_{i + 1}" for i in range(len(layer) - len(attention))]
    if set(layer) != {*attention, *mlp}:
        raise InputError(f"layer {l} has W_Q, W_K, W_V and may have W_O, W_1, W_2, ...; got {', '.join(layer)}.")
    parts = [{f"layers.{l}.attn.{name}": layer[name] for name in attention}]
    return [*parts, {f"layers.{l}.mlp.{name}": layer[name] for name in mlp}] if mlp else parts


def _is_mlp(part: Mapping[str, Tensor]) -> bool:
    return next(iter(part)).endswith(".mlp.W_1")


def _output_width(part: Mapping[str, Tensor], width: int, skip: float) -> int:
    """The width of what attention or an MLP gives to tokens of a width."""
    shapes = [tuple(W.shape) for W in part.values()]
    got = ", ".join(f"{name} {shape}" for name, shape in zip(part, shapes, strict=True))
    chain = shapes if _is_mlp(part) else shapes[2:]
    fits = all(len(s) == 2 for s in shapes) and all(a[1] == b[0] for a, b in pairwise([(0, width), *chain]))
    if not fits or (not _is_mlp(part) and not shapes[0] == shapes[1] == (width, shapes[0][1])):
        raise InputError(f"this part takes tokens of width {width}; got {got}.")
    if skip and chain[-1][1] != width:
        raise InputError(f"a skip needs an output as wide as its input, {width}; got {got}.")
    return chain[-1][1]
