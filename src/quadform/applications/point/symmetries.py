"""Directions along which the loss of a model cannot change, from its weights: what the zeros of a Hessian are.

A symmetry moves the weights along an orbit on which the function stays the same. At a stationary point H annihilates
its tangents. Known are

    W_Q B, -W_K B^T    of every head, any B (d_K, d_K); with rotary positions the B that commute with turns of pairs
    W_V B, -B W_O      of every head, any B (d_V, d_V)             [theory.gauge]
    b_K                softmax does not see a shift of all keys
    column j of W_1 (with b_1), minus row j of W_2                  ReLU is positively homogeneous; of gated units the
                                                                    column of the value
    1 added to a row of what a layer norm alone reads               the norm takes the mean away

and, of a whole `Transformer`, those of `stream`. Together they are all there are: of Pre-LN, Post-LN, parallel and
other designs the tests compare their dimension with that of the kernel of the Jacobian.
A family counts where H is seen to annihilate it: a tied output breaks the last for W_E.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...core.spec import GATED
from ...curvature.risk import Risk
from ...nn.transformer import Transformer
from ...theory.gauge import Gauge
from .stream import EPS, Rows, eye, generators, scalings


@dataclass(frozen=True)
class Family:
    """Generators of one symmetry: `{parameter: (k, *shape)}`, zero on all others."""

    name: str
    rows: Rows

    @property
    def near(self) -> bool:
        """Whether it is a symmetry up to the eps of the norms only."""
        return self.name.endswith(EPS)

    def flat(self, risk: Risk) -> Tensor:
        """The generators as rows (k, n), each of length 1; those that vanish at these weights are left out."""
        k = len(next(iter(self.rows.values())))
        whole = risk.space.zeros(k, dtype=torch.float64, device=risk.device)
        flat = risk.space.flatten({n: self.rows[n].double() if n in self.rows else t for n, t in whole.items()}).T
        size = flat.norm(dim=1)
        return flat[size > 0] / size[size > 0, None]


def families(risk: Risk) -> Iterator[Family]:
    """All candidates of a module whose parameters are all measured; none of a function."""
    if not isinstance(risk.model, nn.Module):
        return
    made = [m for m in risk.model.modules() if isinstance(m, Transformer)]
    rotary = any(m.config.positions == "rotary" for m in made)
    for path, module in risk.model.named_modules():
        own = _Own(risk.params, path, module, rotary)
        found = [*_attention(own), *_relu(own), *_means(own)]
        if isinstance(module, Transformer):
            lead = f"{path}." if path else ""
            found += [Family(name, rows) for name, rows in generators(module, risk.params, lead)]
        for family in found:
            if family.rows.keys() <= risk.params.keys():
                yield family


@dataclass(frozen=True)
class _Own:
    """A module and the measured tensors of its own."""

    params: Any
    path: str
    module: nn.Module
    rotary: bool

    def name(self, tensor: str) -> str:
        return f"{self.path}.{tensor}" if self.path else tensor

    def __getitem__(self, tensor: str) -> Tensor:
        found: Tensor = self.params[self.name(tensor)]
        return found

    def has(self, *tensors: str) -> bool:
        return all(self.name(t) in self.params for t in tensors)

    def said(self, what: str) -> str:
        return f"{self.path}: {what}" if self.path else what


# --- attention ------------------------------------------------------------------------------------------------------
def _attention(own: _Own) -> Iterator[Family]:
    for first, second, columns in (("Q", "K", True), ("V", "O", False)):
        if own.has(f"W_{first}", f"W_{second}") and own[f"W_{first}"].dim() == 2:
            yield from _pairs(own, first, second, columns)
    if own.has("W_K", "b_K"):
        b = own["b_K"]
        yield Family(own.said("b_K"), {own.name("b_K"): torch.eye(len(b), dtype=b.dtype, device=b.device)})


def _pairs(own: _Own, first: str, second: str, columns: bool) -> Iterator[Family]:
    """The gauge pairs of an attention module: heads that share a key projection are one pair."""
    H = int(getattr(own.module, "heads", 1))
    G = int(getattr(own.module, "key_heads", H))
    W = {x: own[f"W_{x}"] for x in (first, second)}
    P = W[first]
    Q = W[second] if columns else W[second].T
    many, few = (P, Q) if columns else (Q, P)  # one part a head, and one part a key head
    if many.shape[1] % H or few.shape[1] % G or many.shape[1] // H != few.shape[1] // G:
        return
    r = few.shape[1] // G
    for g in range(G):
        heads = range(g * (H // G), (g + 1) * (H // G))
        cut = {"few": [slice(g * r, (g + 1) * r)], "many": [slice(h * r, (h + 1) * r) for h in heads]}
        side = {first: "many" if columns else "few", second: "few" if columns else "many"}
        name = own.said(f"W_{first}, W_{second}" + (f" of head {g}" if G > 1 else ""))
        B = _by_pairs(r, P) if columns and own.rotary else eye(r * r, P).reshape(-1, r, r)
        yield Family(name, _gauge(own, side, cut, B))


def _by_pairs(r: int, like: Tensor) -> Tensor:
    """The B that commute with rotations of the pairs (i, i + r/2): a turn and a scaling of each; (r, r, r)."""
    i = torch.arange(r // 2)
    j = i + r // 2
    B = torch.zeros((2, r // 2, r, r), dtype=like.dtype, device=like.device)
    B[0, i, i, i] = B[0, i, j, j] = B[1, i, i, j] = 1.0
    B[1, i, j, i] = -1.0
    return B.flatten(0, 1)


def _gauge(own: _Own, side: dict[str, str], cut: dict[str, list[slice]], B: Tensor) -> Rows:
    first, second = side
    count, r = len(B), B.shape[-1]
    rows: Rows = {}
    for x, sign in ((first, 1), (second, -1)):
        for tensor in (f"W_{x}", f"b_{x}"):
            if not own.has(tensor) or tensor == "b_O":
                continue
            M = own[tensor]
            out = torch.zeros((count, *M.shape), dtype=M.dtype, device=M.device)
            for part in cut[side[x]]:
                if tensor == "W_O":
                    pair = Gauge.qk(M[part].T, M[part].T, M[part].T, M[part].T)
                    out[:, part] += pair.direction(B)["W_K"].mT
                else:
                    columns = M[..., part].reshape(-1, r)
                    pair = Gauge.qk(columns, columns, columns, columns)
                    out[..., part] += pair.direction(B)["W_Q" if sign > 0 else "W_K"].reshape(out[..., part].shape)
            rows[own.name(tensor)] = out
    return rows


# --- scalings -------------------------------------------------------------------------------------------------------
def _relu(own: _Own) -> Iterator[Family]:
    module = own.module
    if own.has("W_1", "W_2") and getattr(module, "activation", None) in ("relu", "leaky"):
        into = {"W_1": 1, "b_1": 0}
        ways = {own.name(t): (own[t], axis, 1.0) for t, axis in into.items() if own.has(t)}
        yield Family(own.said("ReLU scalings"), scalings(ways | {own.name("W_2"): (own["W_2"], 0, -1.0)}))
    if own.has("W_1", "W_2") and getattr(module, "activation", None) in GATED:
        units = len(own["W_2"])
        ways = {}
        for t in ("W_1", "b_1"):
            if own.has(t):
                values = own[t].clone()
                values[..., :units] = 0.0  # the gate
                ways[own.name(t)] = (values, own[t].dim() - 1, 1.0)
        rows = scalings(ways)
        rows = {n: M[units:] for n, M in rows.items()} | scalings({own.name("W_2"): (own["W_2"], 0, -1.0)})
        yield Family(own.said("scalings of gated units"), rows)
    if not isinstance(module, nn.Sequential):
        return
    parts = list(module.named_children())
    for (a, A), (_, between), (b, B) in zip(parts, parts[1:], parts[2:], strict=False):
        if isinstance(A, nn.Linear) and isinstance(B, nn.Linear) and isinstance(between, nn.ReLU | nn.LeakyReLU):
            names = [(f"{a}.weight", 0, 1.0), (f"{a}.bias", 0, 1.0), (f"{b}.weight", 1, -1.0)]
            ways = {own.name(t): (own[t], axis, sign) for t, axis, sign in names if own.has(t)}
            if own.has(f"{a}.weight", f"{b}.weight"):
                yield Family(own.said(f"ReLU scalings of {a}, {b}"), scalings(ways))


def _means(own: _Own) -> Iterator[Family]:
    """1 added to each row of a matrix, or to a vector, that writes into the stream."""
    for tensor in ("W_O", "W_2", "b_O", "b_2", "W_E", "W_pos"):
        if own.has(tensor):
            M = own[tensor]
            lead = M.shape[:-1].numel()
            eye = torch.eye(lead, dtype=M.dtype, device=M.device).reshape(lead, *M.shape[:-1], 1)
            yield Family(own.said(f"mean of {tensor}"), {own.name(tensor): eye.expand(lead, *M.shape).clone()})
