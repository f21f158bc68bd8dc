"""Directions along which the loss of a model cannot change, from its weights: what the zeros of a Hessian are.

A symmetry moves the weights along an orbit on which the function stays the same. At a stationary point H annihilates
its tangents. Known are

    W_Q B, -W_K B^T    of every head, any B (d_K, d_K)             [theory.gauge]
    W_V B, -B W_O      of every head, any B (d_V, d_V)             [theory.gauge]
    b_K                softmax does not see a shift of all keys
    column j of W_1 (with b_1), minus row j of W_2                  ReLU is positively homogeneous
    gain and bias j of a norm, minus row j of what reads it
    1 added to a row of what a layer norm alone reads               the norm takes the mean away

A family counts where H is seen to annihilate it: rotary positions break the first, a second reader the fifth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...curvature.risk import Risk
from ...theory.gauge import Gauge

Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """Generators of one symmetry: `{parameter: (k, *shape)}`, zero on all others."""

    name: str
    rows: Rows

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
    for path, module in risk.model.named_modules():
        own = _Own(risk.params, path, module)
        for family in (*_attention(own), *_relu(own), *_norms(own), *_means(own)):
            if family.rows.keys() <= risk.params.keys():
                yield family


@dataclass(frozen=True)
class _Own:
    """A module and the measured tensors of its own."""

    params: Any
    path: str
    module: nn.Module

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
        yield Family(own.said(f"W_{first}, W_{second}" + (f" of head {g}" if G > 1 else "")), _gauge(own, side, cut, r))


def _gauge(own: _Own, side: dict[str, str], cut: dict[str, list[slice]], r: int) -> Rows:
    first, second = side
    B = torch.eye(r * r, dtype=own[f"W_{first}"].dtype, device=own[f"W_{first}"].device).reshape(-1, r, r)
    rows: Rows = {}
    for x, sign in ((first, 1), (second, -1)):
        for tensor in (f"W_{x}", f"b_{x}"):
            if not own.has(tensor) or tensor == "b_O":
                continue
            M = own[tensor]
            out = torch.zeros((r * r, *M.shape), dtype=M.dtype, device=M.device)
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
        yield Family(own.said("ReLU scalings"), _scalings(ways | {own.name("W_2"): (own["W_2"], 0, -1.0)}))
    if not isinstance(module, nn.Sequential):
        return
    parts = list(module.named_children())
    for (a, A), (_, between), (b, B) in zip(parts, parts[1:], parts[2:], strict=False):
        if isinstance(A, nn.Linear) and isinstance(B, nn.Linear) and isinstance(between, nn.ReLU | nn.LeakyReLU):
            names = [(f"{a}.weight", 0, 1.0), (f"{a}.bias", 0, 1.0), (f"{b}.weight", 1, -1.0)]
            ways = {own.name(t): (own[t], axis, sign) for t, axis, sign in names if own.has(t)}
            if own.has(f"{a}.weight", f"{b}.weight"):
                yield Family(own.said(f"ReLU scalings of {a}, {b}"), _scalings(ways))


def _norms(own: _Own) -> Iterator[Family]:
    """Gain and bias of a norm against the rows of the matrices that read it."""
    readers = {"attn": ("W_Q", "W_K", "W_V", "W_QK"), "mlp": ("W_1",)}
    for branch, matrices in readers.items():
        norm = f"norm_{branch}"
        inside = [f"{branch}.{W}" for W in matrices if own.has(f"{branch}.{W}") and own[f"{branch}.{W}"].dim() == 2]
        if not own.has(f"{norm}.weight") or not inside:
            continue
        ways = {
            own.name(f"{norm}.{t}"): (own[f"{norm}.{t}"], 0, 1.0) for t in ("weight", "bias") if own.has(f"{norm}.{t}")
        }
        ways |= {own.name(W): (own[W], 0, -1.0) for W in inside}
        yield Family(own.said(f"scalings of {norm}"), _scalings(ways))


def _scalings(ways: dict[str, tuple[Tensor, int, float]]) -> Rows:
    """Generator j: entry j along an axis of each tensor, times a sign; zero elsewhere."""
    rows: Rows = {}
    for name, (M, axis, sign) in ways.items():
        moved = M.movedim(axis, 0)
        out = sign * torch.diag_embed(moved.movedim(0, -1)).movedim((-2, -1), (0, 1))
        rows[name] = out.movedim(1, axis + 1)
    return rows


def _means(own: _Own) -> Iterator[Family]:
    """1 added to each row of a matrix, or to a vector, that writes into the stream."""
    for tensor in ("W_O", "W_2", "b_O", "b_2", "W_pos"):
        if own.has(tensor):
            M = own[tensor]
            lead = M.shape[:-1].numel()
            eye = torch.eye(lead, dtype=M.dtype, device=M.device).reshape(lead, *M.shape[:-1], 1)
            yield Family(own.said(f"mean of {tensor}"), {own.name(tensor): eye.expand(lead, *M.shape).clone()})
