"""Attention records made by autograd alone: an independent producer for the tests of the report.

Nothing here knows the closed forms. H is `jacfwd(grad(loss))`, H_o is J^T (2 / (L d_V)) J, and H_f is
`jacfwd(grad(<dloss/dF, F>))` with dloss/dF held fixed, all in float64, at the scales asked for.
"""

from __future__ import annotations

import math
import time
from functools import lru_cache

import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev

from quadform.core.record import Estimate, Provenance, Record

BLOCKS = ("W_Q,W_Q", "W_Q,W_K", "W_K,W_K", "W_V,W_Q", "W_V,W_K", "W_V,W_V")
PAPER = {"outer": (6, 6, 6, 4, 4, 2), "functional": (5, 3, 5, 3, 3, None)}
LINEAR_PAPER = {"outer": (6, 6, 6, 6, 6, 6), "functional": (None, 3, None, 3, 3, None)}


class Layer:
    """One head on one sequence, mean squared error against a fixed target."""

    def __init__(self, tokens: int, dim: int, seed: int, attention: str) -> None:
        g = torch.Generator().manual_seed(seed)
        self.tokens, self.dim, self.attention = tokens, dim, attention
        self.X = torch.randn(tokens, dim, generator=g, dtype=torch.float64)
        self.Y = torch.randn(tokens, dim, generator=g, dtype=torch.float64)
        self.w = torch.randn(3 * dim * dim, generator=g, dtype=torch.float64) / math.sqrt(dim)

    def mixing(self, w: Tensor, X: Tensor) -> Tensor:
        W_Q, W_K, _ = w.reshape(3, self.dim, self.dim)
        T = X @ W_Q @ (X @ W_K).T / math.sqrt(self.dim)
        return torch.softmax(T, dim=-1) if self.attention == "softmax" else T

    def output(self, w: Tensor, X: Tensor) -> Tensor:
        return self.mixing(w, X) @ X @ w.reshape(3, self.dim, self.dim)[2]

    def loss(self, w: Tensor, X: Tensor) -> Tensor:
        return ((self.output(w, X) - self.Y) ** 2).mean()

    def split(self, scale: float) -> tuple[Tensor, Tensor]:
        """H_o and H_f at inputs `scale * X`."""
        X = scale * self.X
        J = jacrev(self.output)(self.w, X).reshape(self.Y.numel(), -1)
        g = 2 * (self.output(self.w, X) - self.Y) / self.Y.numel()
        H_f = jacfwd(grad(lambda w: (g * self.output(w, X)).sum()))(self.w)
        return 2 / self.Y.numel() * J.T @ J, H_f

    def whole(self, scale: float) -> Tensor:
        return jacfwd(grad(self.loss))(self.w, scale * self.X)

    def moments(self, scale: float) -> list[float]:
        """Mean norms of mean, covariance and third central moment of the tokens under each row of attention."""
        X, found = scale * self.X, []
        for row in self.mixing(self.w, X):
            c = X - row @ X
            M2 = sum(p * torch.outer(z, z) for p, z in zip(row, c, strict=True))
            M3 = sum(p * torch.einsum("a,b,c->abc", z, z, z) for p, z in zip(row, c, strict=True))
            found.append(torch.stack([(row @ X).norm(), M2.norm(), M3.norm()]))
        return torch.stack(found).mean(0).tolist()

    def entropy(self, scale: float) -> float:
        A = self.mixing(self.w, scale * self.X)
        if self.attention != "softmax" or self.tokens == 1:
            return 1.0
        return float(torch.special.entr(A).sum(-1).mean() / math.log(self.tokens))


def block_norms(H: Tensor, size: int) -> Tensor:
    at = {"W_Q": slice(0, size), "W_K": slice(size, 2 * size), "W_V": slice(2 * size, 3 * size)}
    pairs = [name.split(",") for name in BLOCKS]
    return torch.stack([torch.linalg.norm(H[at[a], at[b]]) for a, b in pairs])


def fit(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Least-squares slope of log y on log x, and its standard error."""
    x, y = x.log(), y.log()
    x = x - x.mean()
    slope = float((x * y).sum() / (x * x).sum())
    rest = y - y.mean() - slope * x
    return slope, float((rest.square().sum() / max(len(x) - 2, 1) / x.square().sum()).sqrt())


@lru_cache
def make_record(
    tokens: int = 8,
    dim: int = 8,
    seed: int = 0,
    attention: str = "softmax",
    scale: float = 1.0,
    vary: tuple[float, float, int] | None = (0.01, 30.0, 22),
    temperature: object = 1.0,
) -> Record:
    torch.set_num_threads(1)
    layer = Layer(tokens, dim, seed, attention)
    start = time.perf_counter()
    H_o, H_f = layer.split(scale)
    seconds = time.perf_counter() - start
    H = layer.whole(scale)
    spectra = {
        "eigenvalues": torch.linalg.eigvalsh(H),
        "eigenvalues_outer": torch.linalg.eigvalsh(H_o),
        "eigenvalues_functional": torch.linalg.eigvalsh(H_f),
    }
    lam = spectra["eigenvalues"]
    tol = len(lam) * torch.finfo(torch.float64).eps
    scalars = {
        "loss": Estimate(float(layer.loss(layer.w, scale * layer.X))),
        "lambda_max": Estimate(float(lam[-1])),
        "lambda_min": Estimate(float(lam[0])),
        "negative_share": Estimate(float((lam < -tol * lam.abs().max()).double().mean()), note=f"tolerance {tol:.1e}"),
        "trace": Estimate(float(H.trace())),
        "autodiff_error": Estimate(float((H - H_o - H_f).abs().max() / H.abs().max())),
        "entropy": Estimate(layer.entropy(scale)),
        "ceiling_sgd": Estimate(2 / float(lam[-1])),
        "seconds": Estimate(seconds),
    }
    for part, matrix in (("outer", H_o), ("functional", H_f), ("total", H_o + H_f)):
        for block, norm in zip(BLOCKS, block_norms(matrix, dim * dim), strict=True):
            scalars[f"norm/{part}/{block}"] = Estimate(float(norm))
    tensors = {"H_o": H_o, "H_f": H_f, "A": layer.mixing(layer.w, scale * layer.X).detach(), **spectra}
    inputs = {
        "tokens": tokens,
        "dim": dim,
        "d_k": dim,
        "d_v": dim,
        "attention": attention,
        "factor": "qk",
        "scale": scale,
        "temperature": temperature,
        "mask": "none",
        "seed": seed,
        "dtype": "float64",
        "vary": None if vary is None else {"scale": list(vary)},
        "space": [["W_Q", [dim, dim]], ["W_K", [dim, dim]], ["W_V", [dim, dim]]],
        "fit_range": [0.01, 0.1],
    }
    if vary is not None:
        scales = torch.logspace(math.log10(vary[0]), math.log10(vary[1]), vary[2], dtype=torch.float64)
        rows = [layer.split(float(s)) for s in scales]
        tensors["scales"] = scales
        tensors["growth_entropy"] = torch.tensor([layer.entropy(float(s)) for s in scales], dtype=torch.float64)
        if attention == "softmax" and layer.tokens > 1:
            tensors["growth_moments"] = torch.tensor([layer.moments(float(s)) for s in scales], dtype=torch.float64)
        used = (scales >= 0.00999) & (scales <= 0.10001)
        paper = PAPER if attention == "softmax" else LINEAR_PAPER
        for i, part in enumerate(("outer", "functional")):
            norms = torch.stack([block_norms(row[i], dim * dim) for row in rows])
            tensors[f"growth_{part}"] = norms
            for j, block in enumerate(BLOCKS):
                if bool((norms[used, j] > 0).all()):
                    slope, stderr = fit(scales[used], norms[used, j])
                    scalars[f"slope/{part}/{block}"] = Estimate(slope, stderr, "estimate")
                if paper[part][j] is not None:
                    mixed = attention == "softmax" and (part, block) == ("functional", "W_Q,W_K")
                    note = "3 (small inputs) and 5 mix" if mixed else ""
                    scalars[f"paper/{part}/{block}"] = Estimate(paper[part][j], note=note)
    made = Provenance.collect(seed=seed, dtype=torch.float64)
    return Record("attention", inputs, scalars, tensors, made)
