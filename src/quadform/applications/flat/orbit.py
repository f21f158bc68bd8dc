"""Equal models: what rescalings reach from a model, and one of them that does not depend on where one begins.

    W_Q S, W_K S^-T      of every head (biases are further rows)     seen through W_Q W_K^T alone
    W_V T, T^-1 W_O      of every head                               seen through W_V W_O alone
    unit j of an MLP     times a > 0 before a ReLU, over a after     ReLU is positively homogeneous

The balanced model of an orbit: with P Q^T = U s V^T the pair becomes U s^1/2, V s^1/2, the largest entry of each column
of U positive; the two sides of a ReLU unit get equal lengths. It is the same for all models of the orbit, because the
singular vectors are. Source: [own], [Dinh et al. 2017] for the units. A pair whose loss moves (rotary positions, norms
of queries and keys), or which has no full rank, is left as it is, and that is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]
#: Singular values below this share of the largest count as none.
RANK = 1e-10


@dataclass(frozen=True)
class Part:
    """Columns of a weight, (..., cut); `upright` weights (W_O, W_2) have them as rows."""

    name: str
    cut: slice
    upright: bool = False

    def read(self, weights: Mapping[str, Tensor]) -> Tensor:
        W = weights[self.name]
        return W[self.cut].T if self.upright else W.reshape(-1, W.shape[-1])[:, self.cut]

    def write(self, weights: Weights, M: Tensor) -> None:
        W = weights[self.name].clone()
        if self.upright:
            W[self.cut] = M.T
        else:
            W.reshape(-1, W.shape[-1])[:, self.cut] = M
        weights[self.name] = W


@dataclass(frozen=True)
class Pair:
    """P and Q, seen through P Q^T alone (`relu`: column by column up to a positive factor)."""

    name: str
    P: tuple[Part, ...]
    Q: tuple[Part, ...]
    relu: bool = False

    def _read(self, parts: tuple[Part, ...], weights: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([part.read(weights) for part in parts])

    def _put(self, weights: Mapping[str, Tensor], P: Tensor, Q: Tensor) -> Weights:
        found = dict(weights)
        for parts, M in ((self.P, P), (self.Q, Q)):
            rows = [part.read(weights).shape[0] for part in parts]
            for part, piece in zip(parts, M.split(rows), strict=True):
                part.write(found, piece)
        return found

    def balanced(self, weights: Mapping[str, Tensor]) -> Weights | None:
        """The balanced pair in its place; None where the rank is not full."""
        P, Q = self._read(self.P, weights), self._read(self.Q, weights)
        if self.relu:
            p, q = P.norm(dim=0), Q.norm(dim=0)
            a = torch.where((p > 0) & (q > 0), (q / p).sqrt(), 1.0)
            return self._put(weights, P * a, Q / a)
        if min(P.shape[0], Q.shape[0]) < P.shape[1]:
            return None
        (A, R), (B, S) = torch.linalg.qr(P), torch.linalg.qr(Q)
        U, s, Vh = torch.linalg.svd(R @ S.T)
        if not float(s[-1]) > RANK * float(s[0]):
            return None
        U, V = A @ U, B @ Vh.T
        sign = U.gather(0, U.abs().argmax(0, keepdim=True)).sign()
        return self._put(weights, sign * U * s.sqrt(), sign * V * s.sqrt())

    def scaled(self, weights: Mapping[str, Tensor], t: float) -> Weights:
        """P e^t, Q e^-t."""
        grow = torch.tensor(t, dtype=torch.float64).exp().item()
        return self._put(weights, self._read(self.P, weights) * grow, self._read(self.Q, weights) / grow)


def pairs(model: nn.Module, names: set[str]) -> Iterator[list[Pair]]:
    """The pairs of a model whose weights are all in `names`; those that are scaled together are one list."""
    for path, module in model.named_modules():
        own = {n.rpartition(".")[2]: n for n, _ in module.named_parameters(path, recurse=False)}
        for group in (*_attention(module, own), *_relu(path, module, own)):
            if group and all(part.name in names for pair in group for part in (*pair.P, *pair.Q)):
                yield group


def _attention(module: nn.Module, own: dict[str, str]) -> Iterator[list[Pair]]:
    H = int(getattr(module, "heads", 1))
    G = int(getattr(module, "key_heads", H))
    for first, second in (("Q", "K"), ("V", "O")):
        if f"W_{first}" not in own or f"W_{second}" not in own:
            continue
        shape = dict(module.named_parameters(recurse=False))
        W = {x: shape[f"W_{x}"] for x in (first, second)}
        many = W["Q"].shape[-1] if first == "Q" else W["O"].shape[0]
        few = W["K" if first == "Q" else "V"].shape[-1]
        if any(w.dim() != 2 for w in W.values()) or many % H or few % G or many // H != few // G:
            continue
        r = few // G
        yield [_head(own, first, second, g, H // G, r) for g in range(G)]


def _head(own: dict[str, str], first: str, second: str, g: int, shared: int, r: int) -> Pair:
    """The pair of the heads that share key or value projection g."""
    one, all_ = [slice(g * r, (g + 1) * r)], [slice(h * r, (h + 1) * r) for h in range(g * shared, (g + 1) * shared)]

    def parts(x: str, cuts: list[slice]) -> tuple[Part, ...]:
        weights = [f"W_{x}", *([f"b_{x}"] if f"b_{x}" in own and x != "O" else [])]
        return tuple(Part(own[w], cut, upright=x == "O") for cut in cuts for w in weights)

    P, Q = parts(first, all_ if first == "Q" else one), parts(second, one if first == "Q" else all_)
    return Pair(f"{own[f'W_{first}']}, W_{second}, head {g}", P, Q)


def _relu(path: str, module: nn.Module, own: dict[str, str]) -> Iterator[list[Pair]]:
    whole = slice(None)
    if "W_1" in own and "W_2" in own and getattr(module, "activation", None) in ("relu", "leaky"):
        P = tuple(Part(own[w], whole) for w in ("W_1", "b_1") if w in own)
        yield [Pair(f"{path}: ReLU units", P, (Part(own["W_2"], whole, upright=True),), relu=True)]
    if not isinstance(module, nn.Sequential):
        return
    parts = list(module.named_children())
    for (a, A), (_, between), (b, B) in zip(parts, parts[1:], parts[2:], strict=False):
        if isinstance(A, nn.Linear) and isinstance(B, nn.Linear) and isinstance(between, nn.ReLU | nn.LeakyReLU):
            lead = f"{path}." if path else ""
            bias = [Part(f"{lead}{a}.bias", whole)] if A.bias is not None else []
            P = (Part(f"{lead}{a}.weight", whole, upright=True), *bias)
            yield [Pair(f"{lead}{a}, {b}: ReLU units", P, (Part(f"{lead}{b}.weight", whole),), relu=True)]
