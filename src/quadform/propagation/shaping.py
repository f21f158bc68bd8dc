"""Signal-preserving attention: matrices A_l that carry one chosen token kernel into the next, exactly.

An attention-only layer with orthogonal values acts on the token kernel as Sigma' = A Sigma A^T. Choose unit-diagonal
targets Sigma_0, ..., Sigma_L and their Cholesky factors Sigma_l = L_l L_l^T; then A_l = L_l L_{l-1}^{-1} does it. A
softmax gives rows that sum to one, so A = diag(D) P with D the row sums and P = softmax(B), B = log P.

Two families, each with one strength per layer (`prev` -> `next`):

    u-spa   Sigma = (1 - rho) I + rho 11^T          rho in [0, 1)     must not fall with depth
    e-spa   Sigma_ij = exp(-gamma |i - j|)          gamma in (0, inf] must not rise with depth

Everything is computed in float64 from sums of positive terms, so no entry that is positive is ever rounded to zero: the
bias is finite in float32 at any length. Source: [HMZ23, Sec. 3]; positive closed forms, log domain and measured starts
are [own].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from quadform.core.errors import InputError, UnknownName, did_you_mean

from .mixing import centring as centring  # shaping's vocabulary includes the centring matrix C
from .mixing import running_mean as running_mean

if TYPE_CHECKING:
    from jaxtyping import Float

Family = Literal["u-spa", "e-spa"]
FAMILIES: tuple[Family, ...] = ("u-spa", "e-spa")
#: The strength whose target is Sigma = I: where a schedule starts when tokens are uncorrelated.
START: dict[str, float] = {"u-spa": 0.0, "e-spa": math.inf}


# ------------------------------------------------------------------------------------------------ targets and factors
def u_spa_target(rho: float, seq_len: int, dtype: torch.dtype = torch.float64) -> Float[Tensor, "T T"]:
    """The uniform kernel (1 - rho) I + rho 11^T, (T, T). Source: [HMZ23, Sec. 3]."""
    rho, T = _strength("u-spa", rho), _length(seq_len)
    return ((1 - rho) * torch.eye(T, dtype=torch.float64) + rho).to(dtype)


def e_spa_target(gamma: float, seq_len: int, dtype: torch.dtype = torch.float64) -> Float[Tensor, "T T"]:
    """The exponential kernel exp(-gamma |i - j|), (T, T); gamma = inf is the identity. Source: [HMZ23, Sec. 3]."""
    gamma, T = _strength("e-spa", gamma), _length(seq_len)
    if math.isinf(gamma):
        return torch.eye(T, dtype=dtype)
    position = torch.arange(T, dtype=torch.float64)
    return torch.exp(-gamma * (position[:, None] - position).abs()).to(dtype)


def target(family: Family, strength: float, seq_len: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The target kernel of either family, (T, T)."""
    return (u_spa_target if _family(family) == "u-spa" else e_spa_target)(strength, seq_len, dtype)


def u_spa_factor(rho: float, seq_len: int, dtype: torch.dtype = torch.float64) -> Float[Tensor, "T T"]:
    """Cholesky factor of `u_spa_target`: with u_j = 1 + (j-1) rho (j from 1),

    L_jj^2 = (1 - rho) u_j / u_{j-1},   L_ij = rho (1 - rho) / (u_{j-1} L_jj) for i > j.
    """
    rho, T = _strength("u-spa", rho), _length(seq_len)
    u = 1 + torch.arange(-1, T, dtype=torch.float64) * rho  # u_0 ... u_T
    diagonal = torch.sqrt((1 - rho) * u[1:] / u[:-1])
    below = rho * (1 - rho) / (u[:-1] * diagonal)
    return (torch.tril(below.expand(T, T), -1) + torch.diag(diagonal)).to(dtype)


def e_spa_factor(gamma: float, seq_len: int, dtype: torch.dtype = torch.float64) -> Float[Tensor, "T T"]:
    """Cholesky factor of `e_spa_target`: with lam = e^-gamma and s = sqrt(1 - lam^2),

    L_i1 = lam^{i-1},   L_ij = s lam^{i-j} for 2 <= j <= i.
    """
    gamma, T = _strength("e-spa", gamma), _length(seq_len)
    L = torch.tril(e_spa_target(gamma, T))
    L[:, 1:] *= math.sqrt(-math.expm1(-2 * gamma))
    return L.to(dtype)


# ------------------------------------------------------------------------------------------------ attention matrices
def spa_matrix(
    family: Family,
    prev: float,
    next: float,
    seq_len: int,
    causal: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """A with A Sigma(prev) A^T = Sigma(next), elementwise non-negative, (T, T).

    Causal: A = L_next L_prev^{-1}, lower triangular; the matrix of T tokens is the leading block of that of T' > T
    tokens. Bidirectional: A = Sigma_next^{1/2} Sigma_prev^{-1/2} with symmetric square roots; no such extension holds.
    Raises InputError when the strengths are in the wrong order, since A would have negative entries.
    """
    prev, next = _ordered(_family(family), prev, next)
    return torch.exp(_log_matrix(family, prev, next, _length(seq_len), causal)).to(dtype)


def spa_bias(
    family: Family,
    prev: float,
    next: float,
    seq_len: int,
    causal: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Attention bias B (T, T) and row scale D (T,): A = diag(D) softmax(B) under the causal mask (if `causal`).

    With zero logits (W_Q = 0), diag(D) softmax(Q K^T / sqrt(d_k) + B) V = A V exactly. B is finite everywhere: entries
    above the diagonal are 0 and mean nothing, the causal mask of the attention removes them. B = log P, P = A / D.
    Row t of B and D_t do not depend on `seq_len` when causal, so a cache may grow them.
    """
    prev, next = _ordered(_family(family), prev, next)
    T = _length(seq_len)
    if prev == next and T > 1:
        raise InputError(
            f"{family} from {prev} to {next} is the identity, which no finite bias gives. "
            f"Choose different strengths, or the identity mixing of V-SkipInit."
        )
    return _bias_of(_log_matrix(family, prev, next, T, causal), causal, dtype)


def _bias_of(log_A: Tensor, causal: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    log_D = torch.logsumexp(log_A, dim=1)
    B = log_A - log_D[:, None]
    if causal:
        B = torch.tril(torch.where(torch.isneginf(B), 0.0, B))
    return B.to(dtype), torch.exp(log_D).to(dtype)


def _log_matrix(family: Family, prev: float, next: float, T: int, causal: bool) -> Tensor:
    """log A in float64; -inf where A is zero."""
    if prev == next:
        return torch.log(torch.eye(T, dtype=torch.float64))
    if family == "u-spa":
        return torch.log(_u_spa_causal(prev, next, T) if causal else _u_spa_symmetric(prev, next, T))
    return _e_spa_causal_log(prev, next, T) if causal else torch.log(_e_spa_symmetric(prev, next, T))


def _u_spa_causal(prev: float, next: float, T: int) -> Tensor:
    """L' L^{-1} for the uniform family, as sums of positive terms.

    With u_k = 1 + (k-1) rho, v_k = u'_k / u_k and kappa = (1 - rho') / (1 - rho):

        A_ii    = sqrt(kappa v_i / v_{i-1})
        A_j+1,j = sqrt(kappa / (v_j v_{j-1})) / u_j * n_j,  n_j = rho' - rho sqrt(v_{j+1} v_{j-1})
              n_j (rho' + rho sqrt(v_{j+1} v_{j-1})) = (rho' - rho)(rho' + rho + 2(j-1) rho rho') / (u_{j+1} u_{j-1})
        A_i,j-1 - A_ij = rho' sqrt(kappa / v_{j-1}) / u_{j-1} * (v_{j-2}^{-1/2} - v_j^{-1/2}) for j < i
        v_m - v_n = (m - n)(rho' - rho) / (u_m u_n)

    Every term is positive when rho' > rho: that is the proof of non-negativity, and no digit is lost. [own]
    """
    k = torch.arange(0, T + 2, dtype=torch.float64)  # index = k of the formulas
    u, w = 1 + (k - 1) * prev, 1 + (k - 1) * next
    v = w / u
    kappa, step = (1 - next) / (1 - prev), next - prev
    diagonal = torch.sqrt(kappa * v[1 : T + 1] / v[:T])
    j = torch.arange(1, T, dtype=torch.long)
    root = torch.sqrt(v[j + 1] * v[j - 1])
    gap = step * (next + prev + 2 * (k[j] - 1) * prev * next) / (u[j + 1] * u[j - 1] * (next + prev * root))
    first = torch.sqrt(kappa / (v[j] * v[j - 1])) / u[j] * gap  # A_{j+1,j}
    j = torch.arange(2, max(T, 2), dtype=torch.long)
    roots = torch.sqrt(v[j]), torch.sqrt(v[j - 2])
    fall = 2 * step / (u[j] * u[j - 2]) / (roots[0] * roots[1] * (roots[0] + roots[1]))
    growth = next * torch.sqrt(kappa / v[j - 1]) / u[j - 1] * fall  # A_{i,j-1} - A_ij
    steps = torch.zeros(T, T, dtype=torch.float64)  # row i: A_{i,i-1} just left of the diagonal, then the growths
    steps[torch.arange(1, T), torch.arange(0, T - 1)] = first
    if T > 2:
        steps[:, : T - 2] += torch.tril(growth.expand(T, T - 2), -2)
    return torch.diag(diagonal) + steps.flip(1).cumsum(1).flip(1)


def _u_spa_symmetric(prev: float, next: float, T: int) -> Tensor:
    """Sigma'^{1/2} Sigma^{-1/2} = a I + (b - a) 11^T / T: both kernels share the eigenvectors 1 and 1-perp."""
    a = math.sqrt((1 - next) / (1 - prev))
    b = math.sqrt((1 + (T - 1) * next) / (1 + (T - 1) * prev))
    return a * torch.eye(T, dtype=torch.float64) + (b - a) / T


def _e_spa_causal_log(prev: float, next: float, T: int) -> Tensor:
    """log of L' L^{-1} for the exponential family. With lam = e^-gamma, s = sqrt(1 - lam^2), primes = next:

    A_11 = 1, A_ii = s'/s, A_i1 = lam'^{i-2} (lam' - lam s'/s), A_ij = (s'/s)(lam' - lam) lam'^{i-j-1}. [own]
    """
    ratio = 0.5 * (_log1mexp(2 * next) - _log1mexp(2 * prev))  # log(s'/s)
    distance = torch.arange(T, dtype=torch.float64)
    distance = distance[:, None] - distance
    log_A = ratio + _log1mexp(prev - next) - next * distance  # (s'/s)(lam' - lam) lam'^{i-j-1}
    if T > 1:
        log_A[1:, 0] = _log1mexp(prev - next - ratio) - next * distance[1:, 0]
    log_A.diagonal()[1:] = ratio
    log_A[0, 0] = 0.0
    return log_A.masked_fill(distance < 0, -math.inf)


def _e_spa_symmetric(prev: float, next: float, T: int) -> Tensor:
    """Sigma'^{1/2} Sigma^{-1/2} for the exponential family, entries below float64 rounding raised to it.

    The exact matrix is positive but decays beyond what an eigendecomposition resolves; the floor keeps its logarithm
    finite and moves A by at most T eps.
    """
    return _floored(_symmetric_map(e_spa_target(prev, T), e_spa_target(next, T)), "e-spa, bidirectional")


# ------------------------------------------------------------------------------------------------ starts from data
def spa_bias_between(
    Sigma_prev: Tensor, Sigma_next: Tensor, causal: bool = True, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """(B, D) with diag(D) softmax(B) Sigma_prev (.)^T = Sigma_next for two given kernels (T, T), any diagonals.

    For a measured, non-unit Sigma_0: the factor of Sigma_prev is taken numerically, so entries are exact to rounding
    only, and positive ones below it are raised to it. Raises InputError when the kernels admit no non-negative A (say
    by how much) or when Sigma_prev is singular (repeated tokens).
    """
    Sigma_prev, Sigma_next = _kernel(Sigma_prev, "Sigma_prev"), _kernel(Sigma_next, "Sigma_next")
    if Sigma_prev.shape != Sigma_next.shape:
        raise InputError(f"two kernels of one size are needed; got {_shape(Sigma_prev)} and {_shape(Sigma_next)}.")
    if causal:
        L_prev, L_next = _cholesky(Sigma_prev, "Sigma_prev"), _cholesky(Sigma_next, "Sigma_next")
        A = torch.linalg.solve_triangular(L_prev, L_next, upper=False, left=False)
        A = torch.tril(_floored(A, "these kernels, causal"))
    else:
        A = _floored(_symmetric_map(Sigma_prev, Sigma_next), "these kernels, bidirectional")
    return _bias_of(torch.log(A), causal, dtype)


def measured_start(family: Family, Sigma_0: Tensor) -> tuple[float, float]:
    """(strength, misfit): the member of the family nearest to a measured kernel Sigma_0 (T, T) after cosine scaling.

    u-spa: rho_0 = mean off-diagonal cosine (the least-squares fit). e-spa: gamma_0 = argmin ||C - exp(-gamma |i-j|)||_F
    by golden section over lam = e^-gamma in [0, 1). Misfit = root-mean-square difference of the off-diagonal cosines.
    Negative correlations start at Sigma = I. Repeated tokens make Sigma_0 singular; this fit is the way to start there.
    """
    C = _kernel(Sigma_0, "Sigma_0")
    scale = torch.sqrt(C.diagonal())
    C = C / scale[:, None] / scale
    T = C.shape[0]
    off = ~torch.eye(T, dtype=torch.bool)
    if T == 1:
        return START[_family(family)], 0.0

    def misfit(strength: float) -> float:
        return float((C - target(family, strength, T))[off].square().mean().sqrt())

    if _family(family) == "u-spa":
        strength = min(max(float(C[off].mean()), 0.0), 1 - 1e-9)
    else:
        lam = _golden(lambda x: misfit(-math.log(x)), 1e-9, 1 - 1e-9)
        strength = -math.log(lam)
        if misfit(math.inf) <= misfit(strength):
            strength = math.inf
    return strength, misfit(strength)


# ------------------------------------------------------------------------------------------------ depth schedules
def e_spa_schedule(gamma_L: float, depth: int, gamma_0: float = math.inf) -> tuple[float, ...]:
    """gamma_0 > ... > gamma_L, depth + 1 values: layer l (from 1) goes from entry l-1 to entry l.

    With a(gamma) = sqrt(1 - e^{-2 gamma}), a_l = a_0^{1-l/L} a_L^{l/L}: the diagonal of every A_l is the same number
    (a_L / a_0)^{1/L}. Source: third-party code after [HMZ23]; the measured start gamma_0 < inf is [own].
    """
    gamma_0, gamma_L = _ordered("e-spa", gamma_0, gamma_L)
    L = _depth(depth)
    start, end = _log1mexp(2 * gamma_0), _log1mexp(2 * gamma_L)  # log a^2
    inner = (-0.5 * _log1mexp(-(start + (end - start) * l / L)) for l in range(1, L))
    return (gamma_0, *inner, gamma_L)


def u_spa_schedule(rho_L: float, depth: int, rho_0: float = 0.0) -> tuple[float, ...]:
    """rho_0 < ... < rho_L, depth + 1 values: layer l (from 1) goes from entry l-1 to entry l.

    1 - rho_l = (1 - rho_0)^{1-l/L} (1 - rho_L)^{l/L}: far from the first token the diagonal of every A_l is the same
    number ((1 - rho_L) / (1 - rho_0))^{1/2L}. The published schedule was not found; this one is [own].
    """
    rho_0, rho_L = _ordered("u-spa", rho_0, rho_L)
    L = _depth(depth)
    start, end = math.log1p(-rho_0), math.log1p(-rho_L)
    return (rho_0, *(-math.expm1(start + (end - start) * l / L) for l in range(1, L)), rho_L)


def check_schedule(family: Family, strengths: Sequence[float]) -> tuple[float, ...]:
    """The schedule as floats, or InputError naming the first layer whose attention matrix would be negative."""
    for l, (prev, next) in enumerate(pairwise(strengths), start=1):
        _ordered(_family(family), prev, next, f" at layer {l}")
    return tuple(_strength(family, s) for s in strengths)


# ------------------------------------------------------------------------------------------------ small tools
def _log1mexp(x: float) -> float:
    """log(1 - e^{-x}) for x > 0, accurate at both ends."""
    return math.log(-math.expm1(-x)) if x < math.log(2) else math.log1p(-math.exp(-x))


def _golden(f: Callable[[float], float], low: float, high: float, steps: int = 80) -> float:
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    f_left, f_right = f(left), f(right)
    for _ in range(steps):
        if f_left < f_right:
            high, right, f_right = right, left, f_left
            left = high - ratio * (high - low)
            f_left = f(left)
        else:
            low, left, f_left = left, right, f_right
            right = low + ratio * (high - low)
            f_right = f(right)
    return (low + high) / 2


def _symmetric_map(Sigma: Tensor, Sigma_next: Tensor) -> Tensor:
    roots = []
    for kernel, power in ((Sigma_next, 0.5), (Sigma, -0.5)):
        lam, U = torch.linalg.eigh(kernel)
        if power < 0 and lam[0] <= 1e-12 * lam[-1]:
            raise InputError(_singular("the kernel of the previous layer"))
        roots.append((U * lam.clamp_min(0) ** power) @ U.T)
    return roots[0] @ roots[1]


def _cholesky(Sigma: Tensor, name: str) -> Tensor:
    L, failed = torch.linalg.cholesky_ex(Sigma)
    if failed or float(L.diagonal().min()) < 1e-7 * float(L.diagonal().max()):
        raise InputError(_singular(name))
    return L


def _singular(name: str) -> str:
    return (
        f"{name} is singular (repeated tokens?), so no matrix maps it to a full-rank target. "
        f"Start the schedule from measured_start(family, Sigma_0), or add a multiple of I."
    )


def _floored(A: Tensor, what: str) -> Tensor:
    """A with entries between -rounding and +rounding raised to +eps; InputError when A is truly negative."""
    rounding = 1e-9 * float(A.abs().max())
    if float(A.min()) < -rounding:
        raise InputError(
            f"{what}: the matrix has the entry {float(A.min()):.3g} < 0, which a softmax cannot give. "
            f"Choose a target nearer to the start (larger rho, smaller gamma raise the kernel)."
        )
    return A.clamp_min(torch.finfo(torch.float64).eps)


def _kernel(Sigma: Tensor, name: str) -> Tensor:
    if Sigma.ndim != 2 or Sigma.shape[0] != Sigma.shape[1]:
        raise InputError(f"{name} must be a square kernel (T, T); got {_shape(Sigma)}.")
    Sigma = Sigma.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(Sigma).all()) or not bool((Sigma.diagonal() > 0).all()):
        raise InputError(f"{name} must be finite with a positive diagonal. Leave padding out before measuring it.")
    return (Sigma + Sigma.T) / 2


def _shape(X: Tensor) -> str:
    return str(tuple(X.shape))


def _family(family: str) -> Family:
    if family not in FAMILIES:
        raise UnknownName(f"no SPA family {family!r}; there are {', '.join(FAMILIES)}.{did_you_mean(family, FAMILIES)}")
    return family


def _strength(family: str, value: float) -> float:
    value = float(value)
    if family == "u-spa" and not 0 <= value < 1:
        raise InputError(f"u-spa needs 0 <= rho < 1; got {value}. rho is the cosine between any two tokens.")
    if family == "e-spa" and not value > 0:
        raise InputError(f"e-spa needs gamma > 0 (inf = uncorrelated tokens); got {value}.")
    return value


def _ordered(family: str, prev: float, next: float, where: str = "") -> tuple[float, float]:
    prev, next = _strength(family, prev), _strength(family, next)
    if family == "u-spa" and next < prev:
        raise InputError(
            f"u-spa: rho must not fall with depth{where}; got {prev} -> {next}, whose attention matrix has negative "
            f"entries. Give the strengths in rising order."
        )
    if family == "e-spa" and next > prev:
        raise InputError(
            f"e-spa: gamma must not rise with depth{where}; got {prev} -> {next}, whose attention matrix has negative "
            f"entries. Give the strengths in falling order."
        )
    return prev, next


def _length(seq_len: int, what: str = "a sequence has a whole number of tokens") -> int:
    if int(seq_len) != seq_len or seq_len < 1:
        raise InputError(f"{what}, at least 1; got {seq_len}.")
    return int(seq_len)


def _depth(depth: int) -> int:
    return _length(depth, "a schedule covers a whole number of layers")
