"""Rank collapse in numbers: definitions per sequence, and streams that average them over batches with error bars.

Each measure is a function of one sequence X (T, d) of real tokens (padding is left out), vectorised over leading axes:

    cosine          mean over i != j of <x_i, x_j> / (|x_i| |x_j|); 1 = all tokens point the same way
    participation   (tr Sigma)^2 / ||Sigma||_F^2, Sigma = X X^T; 1 = rank one, at most min(T, d)
    effective_rank  exp(entropy of the normalised eigenvalues of Sigma); 1 = rank one, at most min(T, d)
    residual        ||X - 1 m^T|| / ||X||, m the mean token, ||.|| = sqrt(||.||_1 ||.||_inf) with the induced norms
                    (largest absolute column sum, largest absolute row sum); 0 = all tokens equal
    rms             sqrt(tr Sigma / (T d)): the size of one coordinate

Attention maps A (heads, queries, keys), averaged over the queries that see at least two keys:

    entropy         -sum_j A_ij log A_ij in nats
    entropy_share   the same over log(number of visible keys); 1 = uniform attention
    sink            A_i,first: the weight on the first visible key

The unit of replication is the sequence: a standard error is the spread over sequences / sqrt(their number). Sequences a
measure is undefined on (fewer than two tokens, all zero) are left out of it and counted in the note.

Source: the residual and its norm are those of [DCL21] in their code (m the mean, with the square root);
effective rank is Roy and Vetterli's 2007; the rest are standard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quadform.core.errors import InputError, UnknownName, did_you_mean
from quadform.core.record import Estimate

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

NAN = math.nan


# ------------------------------------------------------------------------------------------------ measures of tokens
def token_cosine(
    X: Float[Tensor, "*batch T d"], mask: Bool[Tensor, "*batch T"] | None = None
) -> Float[Tensor, "*batch"]:
    """Mean off-diagonal cosine of X (..., T, d), (...,). NaN below two non-zero tokens. O(T d), no (T, T) matrix.

    With unit rows u_i: (|sum u_i|^2 - n) / (n (n - 1)).
    """
    X = _real_rows(X, mask)
    norm = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    unit = X / torch.where(norm > 0, norm, 1.0)
    n = (norm > 0).sum((-2, -1)).to(X.dtype)
    total = unit.sum(-2).square().sum(-1)
    return torch.where(n > 1, (total - n) / (n * (n - 1)), NAN)


def participation_ratio(
    X: Float[Tensor, "*batch T d"], mask: Bool[Tensor, "*batch T"] | None = None
) -> Float[Tensor, "*batch"]:
    """(tr Sigma)^2 / ||Sigma||_F^2 of X (..., T, d), (...,). NaN for an all-zero sequence."""
    G = _gram(_real_rows(X, mask))
    trace = G.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.where(trace > 0, trace.square() / G.square().sum((-2, -1)), NAN)


def effective_rank(
    X: Float[Tensor, "*batch T d"], mask: Bool[Tensor, "*batch T"] | None = None
) -> Float[Tensor, "*batch"]:
    """exp(-sum p log p), p = eigenvalues of X X^T over their sum, for X (..., T, d), (...,). One SVD a sequence."""
    energy = torch.linalg.svdvals(_real_rows(X, mask)).square()
    total = energy.sum(-1, keepdim=True)
    p = energy / torch.where(total > 0, total, 1.0)
    return torch.where(total[..., 0] > 0, torch.exp(torch.special.entr(p).sum(-1)), NAN)


def residual_ratio(
    X: Float[Tensor, "*batch T d"], mask: Bool[Tensor, "*batch T"] | None = None
) -> Float[Tensor, "*batch"]:
    """||X - 1 m^T|| / ||X||, ||Z|| = sqrt(||Z||_1 ||Z||_inf), for X (..., T, d), (...,). NaN when X is all zero."""
    weight = _weights(X, mask)
    X = _real_rows(X, mask)
    mean = X.sum(-2, keepdim=True) / weight.sum(-2, keepdim=True).clamp_min(1)
    whole = _composite_norm(X)
    return torch.where(whole > 0, _composite_norm((X - mean) * weight) / whole, NAN)


def rms(X: Float[Tensor, "*batch T d"], mask: Bool[Tensor, "*batch T"] | None = None) -> Float[Tensor, "*batch"]:
    """sqrt(mean of the squared coordinates) of the real tokens of X (..., T, d), (...,)."""
    count = _weights(X, mask).sum((-2, -1)) * X.shape[-1]
    energy = _real_rows(X, mask).square().sum((-2, -1))
    return torch.where(count > 0, torch.sqrt(energy / count.clamp_min(1)), NAN)


# ------------------------------------------------------------------------------------------------ measures of kernels
def kernel_cosine(Sigma: Float[Tensor, "*batch T T"]) -> Float[Tensor, "*batch"]:
    """`token_cosine` read off a kernel Sigma (..., T, T) instead of the tokens, (...,)."""
    scale = torch.sqrt(Sigma.diagonal(dim1=-2, dim2=-1))
    C = Sigma / scale[..., :, None] / scale[..., None, :]
    T = Sigma.shape[-1]
    if T == 1:
        return torch.full(Sigma.shape[:-2], NAN, dtype=Sigma.dtype, device=Sigma.device)
    return (C.sum((-2, -1)) - T) / (T * (T - 1))


def kernel_participation(Sigma: Float[Tensor, "*batch T T"], dim: int | None = None) -> Float[Tensor, "*batch"]:
    """`participation_ratio` read off a kernel Sigma (..., T, T), (...,).

    With `dim`, what tokens of that width show: their kernel S has E[S_ij^2] = Sigma_ij^2 + (Sigma_ii Sigma_jj +
    Sigma_ij^2) / d for Gaussian coordinates, so even uncorrelated tokens stay below min(T, d). [own]
    """
    trace2, squares = Sigma.diagonal(dim1=-2, dim2=-1).sum(-1).square(), Sigma.square().sum((-2, -1))
    return trace2 / (squares if dim is None else squares + (trace2 + squares) / dim)


def kernel_effective_rank(Sigma: Float[Tensor, "*batch T T"]) -> Float[Tensor, "*batch"]:
    """`effective_rank` read off a kernel Sigma (..., T, T), (...,)."""
    lam = torch.linalg.eigvalsh(Sigma).clamp_min(0)
    return torch.exp(torch.special.entr(lam / lam.sum(-1, keepdim=True)).sum(-1))


# ------------------------------------------------------------------------------------------------ measures of attention
def attention_entropy(A: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(entropy, entropy_share) of A (..., heads, queries, keys), each (..., heads); `visible` broadcasts to A."""
    visible = _visible(A, visible)
    keys = visible.sum(-1)
    rows = torch.special.entr(torch.where(visible, A, 0.0)).sum(-1)
    share = rows / torch.log(keys.clamp_min(2).to(A.dtype))
    return _query_mean(rows, keys), _query_mean(share, keys)


def sink_share(A: Tensor, visible: Tensor | None = None) -> Tensor:
    """Mean weight on the first visible key of A (..., heads, queries, keys), (..., heads)."""
    visible = _visible(A, visible)
    first = visible.to(torch.uint8).argmax(-1, keepdim=True)
    return _query_mean(A.gather(-1, first)[..., 0], visible.sum(-1))


# ------------------------------------------------------------------------------------------------ streams
MEASURES: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "cosine": token_cosine,
    "participation": participation_ratio,
    "effective_rank": effective_rank,
    "residual": residual_ratio,
    "rms": rms,
}
#: What a stream measures unless told: everything that costs no SVD.
CHEAP: tuple[str, ...] = ("cosine", "participation", "residual", "rms")


class Moments:
    """Running mean and spread of named numbers, one sample a sequence (Welford's recurrence, merged in batches)."""

    def __init__(self) -> None:
        self._state: dict[str, tuple[int, float, float]] = {}
        self._left_out: dict[str, int] = {}

    def add(self, name: str, samples: Tensor) -> None:
        """Take samples of any shape; NaN marks a sequence the measure is undefined on."""
        flat = samples.detach().to("cpu", torch.float64).reshape(-1)
        good = flat[~torch.isnan(flat)]
        self._left_out[name] = self._left_out.get(name, 0) + flat.numel() - good.numel()
        mean = float(good.mean()) if good.numel() else 0.0
        self._merge(name, good.numel(), mean, float((good - mean).square().sum()))

    def _merge(self, name: str, n: int, mean: float, spread: float) -> None:
        n0, mean0, spread0 = self._state.get(name, (0, 0.0, 0.0))
        if n0 + n == 0:
            self._state[name] = (0, 0.0, 0.0)
            return
        delta = mean - mean0
        total = n0 + n
        self._state[name] = (total, mean0 + delta * n / total, spread0 + spread + delta**2 * n0 * n / total)

    def merge(self, other: Moments) -> None:
        """Take over what another stream saw (another worker, another part of the data)."""
        self.load(other.state())

    def state(self) -> dict[str, list[float]]:
        """name -> [samples, mean, sum of squared deviations, left out]: plain numbers, for a file."""
        return {name: [*state, self._left_out[name]] for name, state in self._state.items()}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Take over what `state` said."""
        for name, (n, mean, spread, left_out) in state.items():
            self._merge(name, int(n), mean, spread)
            self._left_out[name] = self._left_out.get(name, 0) + int(left_out)

    def result(self, of: Callable[[float, float], tuple[float, float]] | None = None) -> dict[str, Estimate]:
        """Mean and standard error of each name; `of` maps (mean, stderr) to another pair (say, through exp)."""
        out = {}
        for name, (n, mean, spread) in self._state.items():
            stderr = math.sqrt(spread / (n - 1) / n) if n > 1 else math.inf
            if n == 0:
                mean = NAN
            value, stderr = of(mean, stderr) if of else (mean, stderr)
            note = f"{n} sequence{'' if n == 1 else 's'}"
            note += ", no spread from one" if n == 1 else ""
            note += f", {self._left_out[name]} left out (undefined)" if self._left_out[name] else ""
            out[name] = Estimate(value, stderr, "estimate", converged=n > 1, note=note)
        return out


class TokenCollapse:
    """Streaming collapse measures of one layer's tokens.

    `update(X, mask)` takes X (..., T, d) with a boolean padding mask (..., T), True = a real token; `result()` gives
    name -> Estimate over all sequences seen. Half precision is raised to float32 first.
    """

    def __init__(self, measures: Iterable[str] = CHEAP) -> None:
        self.measures = tuple(measures)
        for name in self.measures:
            if name not in MEASURES:
                raise UnknownName(
                    f"no collapse measure {name!r}; there are {', '.join(MEASURES)}.{did_you_mean(name, MEASURES)}"
                )
        self.moments = Moments()

    @torch.no_grad()
    def update(self, X: Tensor, mask: Tensor | None = None) -> None:
        X = _at_least_float32(X)
        for name in self.measures:
            self.moments.add(name, MEASURES[name](X, mask))

    def result(self) -> dict[str, Estimate]:
        return self.moments.result()


class MeanKernel:
    """Streaming mean of Sigma = X X^T / d over sequences of one length: what `predict(..., Sigma_0=)` takes.

    An entry is averaged over the sequences in which both of its tokens are real; NaN where there is none.
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._count: Tensor | None = None

    @torch.no_grad()
    def update(self, X: Tensor, mask: Tensor | None = None) -> None:
        X = _at_least_float32(X)
        T, d = X.shape[-2:]
        if self._total is None or self._count is None:
            self._total, self._count = torch.zeros(2, T, T, dtype=torch.float64)
        if self._total.shape[0] != T:
            raise InputError(
                f"a mean kernel is of sequences of one length; got {T} tokens after {self._total.shape[0]}. "
                f"Pad to one length and pass the mask."
            )
        weight = _weights(X, mask)
        rows = _real_rows(X, mask)
        self._total += (rows @ rows.mT / d).reshape(-1, T, T).sum(0).to("cpu", torch.float64)
        self._count += (weight @ weight.mT).reshape(-1, T, T).sum(0).to("cpu", torch.float64)

    def load(self, total: Tensor, count: Tensor) -> None:
        """Take over sums and counts, each (T, T)."""
        if self._total is None or self._count is None:
            self._total, self._count = torch.zeros_like(total), torch.zeros_like(count)
        if self._total.shape != total.shape:
            raise InputError(f"a mean kernel is of sequences of one length; got {len(total)} after {len(self._total)}.")
        self._total, self._count = self._total + total, self._count + count

    def state(self) -> tuple[Tensor, Tensor]:
        """Sums and counts, each (T, T) float64."""
        if self._total is None or self._count is None:
            raise InputError("no sequence was seen yet; call update(X) first.")
        return self._total, self._count

    def result(self) -> Tensor:
        """(T, T) float64."""
        total, count = self.state()
        return total / count


def repeat_kernel(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """The kernel of unit, mutually orthogonal embeddings: how often positions i and j hold the same token, (T, T).

    Text repeats its tokens, so Sigma_0 is not the identity even before any training; tokens (..., T) are ids.
    """
    T = tokens.shape[-1]
    flat = tokens.reshape(-1, T)
    real = torch.ones_like(flat, dtype=torch.bool) if mask is None else mask.reshape(-1, T)
    both = (real[:, :, None] & real[:, None, :]).sum(0)
    same = ((flat[:, :, None] == flat[:, None, :]) & real[:, :, None] & real[:, None, :]).sum(0)
    return same.to(torch.float64) / both.to(torch.float64)


class NormRatio:
    """Streaming ratio of sizes, rms(X) / rms(reference): norm growth (a layer over the input), gradient-norm ratio (the
    gradient at an early layer over that at the last one; 1 = neither vanishing nor exploding).

    The geometric mean over sequences: exp(mean log ratio), standard error by the delta method. `update` takes both
    tensors (..., T, d) of the same sequences, so their shared noise cancels.
    """

    def __init__(self, name: str = "growth") -> None:
        self.name = name
        self.moments = Moments()

    @torch.no_grad()
    def update(self, X: Tensor, reference: Tensor, mask: Tensor | None = None) -> None:
        top, bottom = rms(_at_least_float32(X), mask), rms(_at_least_float32(reference), mask)
        ratio = torch.where((top > 0) & (bottom > 0), top / bottom, NAN)
        self.moments.add(self.name, torch.log(ratio))

    def result(self) -> dict[str, Estimate]:
        return self.moments.result(of=lambda mean, stderr: (math.exp(mean), math.exp(mean) * stderr))


class AttentionCollapse:
    """Streaming entropy, entropy share and sink share of each head: `entropy[0]`, `entropy_share[0]`, `sink[0]`, ...

    `update(A, visible)` takes post-softmax weights (..., heads, queries, keys) and a boolean mask that broadcasts to
    them (True = visible); `causal` hides the keys after the query besides.
    """

    def __init__(self, causal: bool = False) -> None:
        self.causal = causal
        self.moments = Moments()

    @torch.no_grad()
    def update(self, A: Tensor, visible: Tensor | None = None) -> None:
        A = _at_least_float32(A)
        if A.ndim < 3:
            raise InputError(f"attention weights have shape (..., heads, queries, keys); got {tuple(A.shape)}.")
        visible = _visible(A, visible)
        if self.causal:
            visible = torch.tril(visible, A.shape[-1] - A.shape[-2])
        entropy, share = attention_entropy(A, visible)
        for name, values in (("entropy", entropy), ("entropy_share", share), ("sink", sink_share(A, visible))):
            for head in range(A.shape[-3]):
                self.moments.add(f"{name}[{head}]", values[..., head])

    def result(self) -> dict[str, Estimate]:
        return self.moments.result()


# ------------------------------------------------------------------------------------------------ small tools
def _at_least_float32(X: Tensor) -> Tensor:
    if not X.is_floating_point():
        raise InputError(f"collapse is measured on real numbers; got {X.dtype}. Pass hidden states, not token ids.")
    return X.detach().to(torch.promote_types(X.dtype, torch.float32))


def _weights(X: Tensor, mask: Tensor | None) -> Tensor:
    """1 for a real token, 0 for padding, (..., T, 1)."""
    if mask is None:
        return torch.ones(*X.shape[:-1], 1, dtype=X.dtype, device=X.device)
    if mask.dtype != torch.bool or mask.shape[-1] != X.shape[-2]:
        raise InputError(
            f"a padding mask is boolean (..., tokens), True = a real token; got {mask.dtype} {tuple(mask.shape)} "
            f"for tokens {tuple(X.shape)}."
        )
    return mask.to(X.dtype)[..., None].expand(*X.shape[:-1], 1)


def _real_rows(X: Tensor, mask: Tensor | None) -> Tensor:
    return X if mask is None else torch.where(_weights(X, mask) > 0, X, 0.0)


def _gram(X: Tensor) -> Tensor:
    """X X^T or X^T X, whichever is smaller: same non-zero eigenvalues."""
    return X @ X.mT if X.shape[-2] <= X.shape[-1] else X.mT @ X


def _composite_norm(X: Tensor) -> Tensor:
    size = X.abs()
    return torch.sqrt(size.sum(-2).amax(-1) * size.sum(-1).amax(-1))


def _visible(A: Tensor, visible: Tensor | None) -> Tensor:
    if visible is None:
        return torch.ones(A.shape, dtype=torch.bool, device=A.device)
    if visible.dtype != torch.bool:
        raise InputError(f"an attention mask is boolean (True = visible); got {visible.dtype}.")
    return visible.expand(A.shape)


def _query_mean(rows: Tensor, keys: Tensor) -> Tensor:
    """Mean over the queries that see at least two keys; NaN when there is none."""
    use = (keys > 1).to(rows.dtype)
    n = use.sum(-1)
    return torch.where(n > 0, (torch.nan_to_num(rows) * use).sum(-1) / n.clamp_min(1), NAN)
