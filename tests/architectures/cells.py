"""One cell of the table: products and named blocks of a model on a batch against a double backward written out here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any
from unittest.mock import patch

import torch
from tiny_models import Architecture, Batch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from quadform.core.errors import QuadformError
from quadform.curvature import Risk, functional, gauss_newton, hessian

#: What rounding may leave. Models compute norms, softmax or the loss in float32 whatever they are given.
ALLOWED = {"float64": 1e-5, "float32": 1e-3}
KINDS: dict[str, Callable[..., Any]] = {"H": hessian, "H_o": gauss_newton, "H_f": functional}
ROUTES = ("eager", "units", "traced")

Vector = Mapping[str, Tensor]


class DoubleBackward:
    """H, H_o = J^T (d2l/dF2) J and H_f = <dl/dF, d2F> with F the logits of a model, by reverse passes of torch."""

    def __init__(self, architecture: Architecture, batch: Batch, dtype: torch.dtype = torch.float64) -> None:
        model = architecture.reference(dtype)
        self.architecture, self.batch, self.model = architecture, batch, model
        self.params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.leaves = list(self.params.values())
        with sdpa_kernel(SDPBackend.MATH), patch("torch._weight_norm", _weight_norm):
            out = model(**batch)
        self.loss, self.F = out.loss, out.logits

    def along(self, v: Vector) -> dict[str, dict[str, Tensor]]:
        """The products with v, by kind."""
        return {"H": self.twice(self.gradient, v), "H_o": self.outer(v), "H_f": self.twice(self.fixed, v)}

    @cached_property
    def gradient(self) -> list[Tensor]:
        return self.reverse(self.loss)

    @cached_property
    def fixed(self) -> list[Tensor]:
        """The gradient of <dl/dF, F> with dl/dF held."""
        F = self.F.detach().requires_grad_()
        (g,) = torch.autograd.grad(self.architecture.loss(F, self.batch), F)
        return self.reverse(self.F, g)

    def reverse(self, out: Tensor, cotangent: Tensor | None = None) -> list[Tensor]:
        return list(torch.autograd.grad(out, self.leaves, cotangent, create_graph=True, materialize_grads=True))

    def twice(self, gradient: Sequence[Tensor], v: Vector) -> dict[str, Tensor]:
        slope = sum((g * v[n]).sum() for n, g in zip(self.params, gradient, strict=True))
        found = torch.autograd.grad(slope, self.leaves, retain_graph=True, materialize_grads=True)
        return dict(zip(self.params, found, strict=True))

    def outer(self, v: Vector) -> dict[str, Tensor]:
        u = torch.zeros_like(self.F, requires_grad=True)
        pulled = self.reverse(self.F, u)
        slope = sum((g * v[n]).sum() for n, g in zip(self.params, pulled, strict=True))
        (dF,) = torch.autograd.grad(slope, u, retain_graph=True)
        F = self.F.detach().requires_grad_()
        (g,) = torch.autograd.grad(self.architecture.loss(F, self.batch), F, create_graph=True)
        (curved,) = torch.autograd.grad(g, F, dF)
        found = torch.autograd.grad(self.F, self.leaves, curved, retain_graph=True, materialize_grads=True)
        return dict(zip(self.params, found, strict=True))

    def dense(self, names: Sequence[str]) -> Tensor:
        """The Hessian between some parameters, row by row."""
        own = [self.params[n] for n in names]
        gradient = torch.autograd.grad(self.loss, own, create_graph=True)
        rows = []
        for entry in torch.cat([g.reshape(-1) for g in gradient]):
            row = torch.autograd.grad(entry, own, retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([t.reshape(-1) for t in row]))
        return torch.stack(rows)


def _weight_norm(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """As it is defined: torch's own has a wrong second derivative."""
    return g * v / v.square().sum([i for i in range(v.dim()) if i != dim], keepdim=True).sqrt()


def wrong(cell: Mapping[str, Any]) -> list[str]:
    """What is not right in a cell: an error above rounding, a route that was not taken and no reason."""
    found = []
    for asked, by in cell.get("routes", {}).items():
        allowed = ALLOWED[cell["dtype"]]
        found += [f"{asked} {k}: {by[k]:.1e}" for k in KINDS if not isinstance(by[k], str) and not by[k] <= allowed]
        found += [f"{asked}: {by['route']} taken, nothing said"] * (by["route"] != asked and not by["why"])
    return found


def error(found: Vector, wanted: Vector) -> float:
    """|found - wanted| / |wanted|."""
    size = math.sqrt(sum(float(t.square().sum()) for t in wanted.values()))
    return math.sqrt(sum(float((found[n] - t).square().sum()) for n, t in wanted.items())) / size


def products(architecture: Architecture, batch: Batch, routes: Sequence[str] = ROUTES) -> dict[str, Any]:
    """{"dtype": ..., "routes": {route: {"H": error, "H_o": error, "H_f": error, "route": the one taken, "why": ...}}},
    or {"refused": reason}. In float32 where the model's own loss is finite there alone: softmax in float32 of a mask in
    float64 overflows.
    """
    truth = DoubleBackward(architecture, batch, architecture.dtype)
    if not bool(torch.isfinite(truth.loss)):
        truth = DoubleBackward(architecture, batch, torch.float32)
    dtype = truth.leaves[0].dtype
    try:
        risk = Risk(architecture.model(dtype), data=batch, quiet=True)
    except QuadformError as refused:
        return {"refused": str(refused)}
    v = risk.space.random(dtype=dtype, generator=torch.Generator().manual_seed(3))
    wanted = truth.along(v)
    return {"dtype": str(dtype).removeprefix("torch."), "routes": {r: _by(r, risk, v, wanted) for r in routes}}


def _by(route: str, risk: Risk, v: Vector, wanted: Mapping[str, Vector]) -> dict[str, Any]:
    taken: dict[str, None] = {}
    why: dict[str, None] = {}
    errors: dict[str, Any] = {}
    for kind, operator in KINDS.items():
        try:
            A = operator(risk, route=route)
            errors[kind] = error(A @ v, wanted[kind])
        except QuadformError as refused:
            errors[kind] = str(refused)
            continue
        taken[A.route] = None
        why |= dict.fromkeys(line.partition(": ")[2] for line in A.why)
    return {**errors, "route": " ".join(taken), "why": list(why)}


def blocks(architecture: Architecture, batch: Batch) -> float | str:
    """The error of the nine blocks between W_Q, W_K and W_V of the first attention, and of those between its last
    head's queries and its values; or why there are no such names."""
    if isinstance(architecture.qkv, str):
        named = [v.name for v in Risk(architecture.model(), data=batch, quiet=True).space.views]
        return f"named all the same: {named}" if any("W_Q" in n for n in named) else architecture.qkv
    truth = DoubleBackward(architecture, batch, architecture.dtype)
    entries, start = {}, 0
    for of in dict.fromkeys(of for of, _, _ in architecture.qkv.values()):
        entries[of] = start + torch.arange(truth.params[of].numel())
        start += len(entries[of])
    at = {
        name: entries[of].reshape(seen or truth.params[of].shape)[cut]
        for name, (of, seen, cut) in architecture.qkv.items()
    }
    asked = [(tuple(at), tuple(at))]
    query, _, value = at
    if architecture.heads:
        last = f"{query}[{architecture.heads - 1}]"
        of = truth.model.get_submodule(architecture.qkv[query][0].rpartition(".")[0])
        if type(of).__name__ == "Conv1D":  # stores (in, out)
            at[last] = at[query].tensor_split(architecture.heads, 1)[-1]
        else:
            at[last] = at[query].reshape(architecture.heads, -1)[-1]
        asked.append(((last,), (value,)))
    D = truth.dense(list(entries))
    H = hessian(Risk(architecture.model(architecture.dtype), data=batch, quiet=True))
    gap = 0.0
    for rows, cols in asked:
        block = H.block(rows, cols)
        r, c = (torch.cat([at[n].reshape(-1) for n in s.names]) for s in (block.codomain, block.domain))
        gap = max(gap, float((block.dense() - D[r][:, c]).norm()))
    return gap / float(D.norm())
