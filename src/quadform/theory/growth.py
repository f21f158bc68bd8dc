"""Growth calculus: how every Hessian block scales in the data, in each weight and in the temperature, derived.

A stack of stages is described once, as the monomials its output is made of: softmax attention is `kappa1 S W_V`, where
kappa1 stands for the softmax, a bounded function of the score `T = S^2 W_Q W_K / t`. Differentiating such records needs
two rules only: a power loses one, and `d kappa_k = kappa_{k+1} dT` (derivatives of softmax are cumulants). Blocks are

    H_o(a, b) ~ J_a J_b,     H_f(a, b) ~ dl dJ_a/db,     J_a = dF/da

so every exponent is derived; no table is stored. Dropping the bounded factors gives the paper's big-O tables:
O(X^6), O(W_K^2 W_V^2), and with `kappa_k X^k = M_k`, O(M2^2). Layer normalisation is a function of degree 0 whose k-th
derivative has degree -k. Sums hold several monomials: the smallest exponent wins for small scales, the largest for
large ones. Zero blocks (H_f(V, V), hollow diagonals of linear attention) come out as empty sums. Coefficients are taken
as positive: where a symmetry cancels a leading one the block grows slower at small scales (see `GrowthModel`).
Source of the tables: [ODS25]; the calculus, LN, temperature and depth: [own].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any, Literal, TypeVar

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.space import paper_name
from ..core.spec import choose

Regime = Literal["small", "large"]
Key = TypeVar("Key")


# --- monomials and sums of them -------------------------------------------------------------------------------------
@dataclass(frozen=True, order=True)
class Symbol:
    """X, a weight, t, dl, or (order >= 0) a derivative of a stage's nonlinearity, `kappa` or `norm` or `relu`."""

    name: str
    order: int = -1

    def __str__(self) -> str:
        return self.name if self.order < 0 else f"{self.name}{self.order}"


@dataclass(frozen=True)
class Monomial:
    """A product of powers of symbols, constants left out."""

    powers: tuple[tuple[Symbol, int], ...] = ()

    @classmethod
    def of(cls, powers: Mapping[Symbol, int]) -> Monomial:
        return cls(tuple(sorted((s, p) for s, p in powers.items() if p)))

    def __mul__(self, other: Monomial) -> Monomial:
        powers = dict(self.powers)
        for symbol, p in other.powers:
            powers[symbol] = powers.get(symbol, 0) + p
        return Monomial.of(powers)

    def __str__(self) -> str:
        return " ".join(str(s) if p == 1 else f"{s}^{p}" for s, p in self.powers) or "1"


@dataclass(frozen=True)
class Growth:
    """A sum of monomials with positive, unspecified coefficients; the empty sum is exactly zero."""

    terms: frozenset[Monomial] = frozenset()

    @classmethod
    def symbol(cls, name: str, power: int = 1, order: int = -1) -> Growth:
        return cls(frozenset([Monomial.of({Symbol(name, order): power})]))

    @property
    def zero(self) -> bool:
        return not self.terms

    def __add__(self, other: Growth) -> Growth:
        return Growth(self.terms | other.terms)

    def __mul__(self, other: Growth) -> Growth:
        return Growth(frozenset(a * b for a in self.terms for b in other.terms))

    def __pow__(self, n: int) -> Growth:
        if n < 0:
            raise InputError(f"a sum of monomials has powers of 0 and above; got {n}.")
        return reduce(Growth.__mul__, [self] * n, ONE)

    def only(self, *names: str) -> Growth:
        """The dependence on the named symbols, all others set to 1: `only("X")`, `only("W_Q", "W_K", "W_V")`."""
        kept = (Monomial.of({s: p for s, p in m.powers if s.name in names or str(s) in names}) for m in self.terms)
        return Growth(frozenset(kept))

    def in_moments(self) -> Growth:
        """With `kappa_k X^k` written as the centred attention moment M_k (one softmax layer)."""
        out = []
        for m in self.terms:
            powers: dict[Symbol, int] = {}
            for s, p in m.powers:
                moment = s.name == "kappa"
                pairs = [(Symbol(f"M{s.order}"), p), (Symbol("X"), -s.order * p)] if moment else [(s, p)]
                for key, power in pairs:
                    powers[key] = powers.get(key, 0) + power
            out.append(Monomial.of(powers))
        return Growth(frozenset(out))

    def in_covariances(self) -> Growth:
        """With X paired off into `Sigma = X^T X / L` and `Omega = X^T dl` (linear models; powers of L left out)."""
        out = []
        for m in self.terms:
            powers = dict(m.powers)
            X, dl = powers.pop(Symbol("X"), 0), powers.pop(Symbol("dl"), 0)
            if (X - dl) % 2 or dl not in (0, 1) or any(s.order >= 0 for s in powers):
                raise InputError(f"{m} is not a product of X^T X and X^T dl; this form is for linear models.")
            out.append(Monomial.of(powers | {Symbol("Sigma"): (X - dl) // 2, Symbol("Omega"): dl}))
        return Growth(frozenset(out))

    def __str__(self) -> str:
        return "O(" + " + ".join(sorted(str(m) for m in self.terms)) + ")" if self.terms else "0"


ONE = Growth(frozenset([Monomial()]))


@dataclass(frozen=True)
class Nonlinearity:
    """A function of `argument` whose k-th derivative has degree `degree - k` in it, or is bounded (degree None).

    Derivatives above `last` vanish (ReLU: 1).
    """

    argument: Growth
    degree: int | None = None
    last: float = math.inf


# --- stages ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SoftmaxAttention:
    """`S -> softmax(S W_Q W_K^T S^T / t) S W_V`: `kappa1 S W_V`, kappa1 bounded."""

    def __call__(self, S: Growth, build: _Builder) -> Growth:
        T, V = build.scores(S)
        return build.function("kappa", T, order=1) * S * V


@dataclass(frozen=True)
class LinearAttention:
    """`S -> S W_Q W_K^T S^T S W_V / t`."""

    def __call__(self, S: Growth, build: _Builder) -> Growth:
        T, V = build.scores(S)
        return T * S * V


@dataclass(frozen=True)
class Dense:
    """`S -> S W`; weights are called W_1, W_2, ..."""

    def __call__(self, S: Growth, build: _Builder) -> Growth:
        build.dense += 1
        return S * build.parameter(f"W_{build.dense}")


@dataclass(frozen=True)
class LayerNorm:
    """Layer or RMS normalisation without its own weights: of degree 0."""

    def __call__(self, S: Growth, build: _Builder) -> Growth:
        return build.function("norm", S, degree=0)


@dataclass(frozen=True)
class Relu:
    """Of degree 1, with no second derivative."""

    def __call__(self, S: Growth, build: _Builder) -> Growth:
        return build.function("relu", S, degree=1, last=1)


@dataclass(frozen=True, init=False)
class Residual:
    """`S -> S + branch(S)`."""

    branch: tuple[Any, ...]

    def __init__(self, *branch: Any) -> None:
        object.__setattr__(self, "branch", branch)

    def __call__(self, S: Growth, build: _Builder) -> Growth:
        return S + reduce(lambda s, stage: stage(s, build), self.branch, S)


@dataclass
class _Builder:
    attentions: int
    functions: dict[str, Nonlinearity] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    seen: int = 0
    dense: int = 0

    def scores(self, S: Growth) -> tuple[Growth, Growth]:
        """`S^2 W_Q W_K / t` and W_V of the next attention stage, named by its place where there are several."""
        prefix = f"layers.{self.seen}.attn." if self.attentions > 1 else ""
        self.seen += 1
        Q, K, V = (self.parameter(prefix + name) for name in ("W_Q", "W_K", "W_V"))
        return S * S * Q * K * Growth.symbol("t", -1), V

    def parameter(self, name: str) -> Growth:
        self.parameters.append(name)
        return Growth.symbol(name)

    def function(self, kind: str, argument: Growth, order: int = 0, **how: Any) -> Growth:
        """The value of a new nonlinearity: `kappa`, then `kappa'`, `kappa''` for those of later stages."""
        name = kind + "'" * sum(known.rstrip("'") == kind for known in self.functions)
        self.functions[name] = Nonlinearity(argument, **how)
        return Growth.symbol(name, order=order)


def _known_stages(stages: Iterable[Any]) -> None:
    """Refuse what is no stage, also inside residual branches."""
    for stage in stages:
        if isinstance(stage, type) or not callable(stage):
            raise InputError(
                f"{stage!r} is not a stage; give SoftmaxAttention(), LinearAttention(), Dense(), LayerNorm(), Relu() or"
                " Residual(stage, ...): objects, one argument each."
            )
        if isinstance(stage, Residual):
            _known_stages(stage.branch)


def _attentions(stages: Iterable[Any]) -> int:
    nested = sum(_attentions(s.branch) for s in stages if isinstance(s, Residual))
    return nested + sum(isinstance(s, SoftmaxAttention | LinearAttention) for s in stages)


# --- the calculus ---------------------------------------------------------------------------------------------------
class GrowthModel:
    """A stack of stages acting on X, and the growth of every block of its loss Hessian.

    `GrowthModel(SoftmaxAttention())`, `GrowthModel(*[LinearAttention()] * 3)`, `GrowthModel(Dense(), Dense())`,
    `GrowthModel(Residual(LayerNorm(), SoftmaxAttention()), LayerNorm(), Dense())`.
    The split is at the output of the stack: H_o = J^T (d2l) J, H_f = <dl, d2F>, with d2l constant.
    Known cancellation: without a mask, tokens of scale -> 0 all get the SAME update from the first (uniform) attention,
    which the centred moments of the second do not see; H_f(V, V) of the first layer is then X^5, not X^3. Under a
    causal mask the updates differ and X^3 is seen, as in the paper's experiments.
    """

    def __init__(self, *stages: Any) -> None:
        _known_stages(stages)
        build = _Builder(_attentions(stages))
        self.output = reduce(lambda S, stage: stage(S, build), stages, Growth.symbol("X"))
        self.functions = build.functions
        self.parameters = tuple(build.parameters)

    def derivative(self, growth: Growth, name: str) -> Growth:
        """d growth / d name: a power loses one; a nonlinearity raises its order, times its inner derivative."""
        out = Growth()
        for m in growth.terms:
            for symbol, p in m.powers:
                rest = m * Monomial.of({symbol: -1})
                if symbol.name == name and p > 0:
                    out = out + Growth(frozenset([rest]))
                elif symbol.name in self.functions:
                    function = self.functions[symbol.name]
                    if symbol.order < function.last:
                        inner = self.derivative(function.argument, name)
                        raised = Growth.symbol(symbol.name, order=symbol.order + 1)
                        out = out + Growth(frozenset([rest])) * raised * inner
        return out

    def _known(self, name: str) -> str:
        if paper_name(name) not in self.parameters:
            raise UnknownName(
                f"no parameter matches {name!r}; this stack has {', '.join(self.parameters)}."
                f"{did_you_mean(name, self.parameters)}"
            )
        return paper_name(name)

    def jacobian(self, a: str) -> Growth:
        return self.derivative(self.output, self._known(a))

    def outer(self, a: str, b: str) -> Growth:
        """The growth of H_o(a, b)."""
        return self.jacobian(a) * self.jacobian(b)

    def functional(self, a: str, b: str) -> Growth:
        """The growth of H_f(a, b), with dl as a symbol; zero where the block is exactly zero."""
        return Growth.symbol("dl") * self.derivative(self.jacobian(a), self._known(b))

    def with_squared_loss(self, growth: Growth, *, targets: bool = True) -> Growth:
        """dl replaced by what it is under mean squared error: F - Y, or F where the targets are zero."""
        dl = self.output + Growth.symbol("Y") if targets else self.output
        out = Growth()
        for m in growth.terms:
            powers = dict(m.powers)
            n = powers.pop(Symbol("dl"), 0)
            out = out + Growth(frozenset([Monomial.of(powers)])) * dl**n
        return out

    # --- exponents --------------------------------------------------------------------------------------------------
    def exponent(self, growth: Growth, path: str | Mapping[str, float], regime: Regime = "small") -> float:
        """The exponent of s when the symbols scale as `s^path`, s -> 0 ("small") or infinity ("large"); -inf for zero.

        `path` is a symbol, or exponents for several: `{"X": 1, "t": 2}` scales the data and holds the scores fixed.
        """
        choose("regime", regime, ("small", "large"))
        path = {path: 1.0} if isinstance(path, str) else path
        known = {"X", "t", "Y", "dl", *self.parameters}
        for name in path:
            if name not in known:
                raise UnknownName(f"no symbol {name!r}; this stack has {', '.join(sorted(known))}.")
        if growth.zero:
            return -math.inf
        each = [sum(p * self._degree(s, path, regime) for s, p in m.powers) for m in growth.terms]
        return min(each) if regime == "small" else max(each)

    def _degree(self, symbol: Symbol, path: Mapping[str, float], regime: Regime) -> float:
        if symbol.name not in self.functions:
            return path.get(symbol.name, 0.0)
        function = self.functions[symbol.name]
        if function.degree is None:
            return 0.0
        return (function.degree - symbol.order) * self.exponent(function.argument, path, regime)

    def holds_scores(self, path: Mapping[str, float]) -> bool:
        """Whether every softmax keeps its scores along the path: predictions are then exact, not only leading order."""
        bounded = [f.argument for f in self.functions.values() if f.degree is None]
        return all(self.exponent(T, path, "small") == self.exponent(T, path, "large") == 0 for T in bounded)

    def exponents(
        self,
        part: Literal["outer", "functional"],
        path: str | Mapping[str, float],
        regime: Regime = "small",
        *,
        dl: Literal["constant", "squared", "squared, Y = 0"] = "constant",
    ) -> dict[tuple[str, str], float]:
        """The exponent of every block (a not before b); -inf for blocks that are exactly zero."""
        choose("part", part, ("outer", "functional"))
        choose("dl", dl, ("constant", "squared", "squared, Y = 0"))
        out = {}
        for i, a in enumerate(self.parameters):
            for b in self.parameters[: i + 1]:
                growth = self.outer(a, b) if part == "outer" else self.functional(a, b)
                if dl != "constant":
                    growth = self.with_squared_loss(growth, targets=dl == "squared")
                out[a, b] = self.exponent(growth, path, regime)
        return out


# --- measurement ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Slope:
    """The fitted exponent, and how far the local exponents between neighbouring scales lie apart."""

    value: float
    spread: float


def measure(log_norms: Callable[[float], Mapping[Key, float]], scales: Sequence[float]) -> dict[Key, Slope]:
    """Exponents from exact norms: the least-squares slope of the log norm of each block against the log of the scale.

    `log_norms(s)` gives the logarithm of every block's norm at scale s. A block that is zero everywhere has slope -inf.
    """
    if len(set(scales)) < 2 or not all(0 < s < math.inf for s in scales):
        raise InputError(f"a slope needs two positive scales or more; got {list(scales)}.")
    x = [math.log(s) for s in scales]
    rows = [log_norms(s) for s in scales]
    mean = sum(x) / len(x)
    out: dict[Key, Slope] = {}
    for key in rows[0]:
        y = [row[key] for row in rows]
        if max(y) == -math.inf:
            out[key] = Slope(-math.inf, 0.0)
            continue
        if not all(map(math.isfinite, y)):
            at = next(s for s, value in zip(scales, y, strict=True) if not math.isfinite(value))
            raise InputError(
                f"the norm of block {key} is zero or infinite at scale {at:g} and not at others; leave that scale out."
            )
        slope = sum((a - mean) * b for a, b in zip(x, y, strict=True)) / sum((a - mean) ** 2 for a in x)
        local = [(b1 - b0) / (a1 - a0) for (a0, b0), (a1, b1) in pairwise(zip(x, y, strict=True))]
        out[key] = Slope(slope, max(local) - min(local))
    return out


def log_norms(layer: Any, part: Literal["total", "outer", "functional"]) -> dict[tuple[str, str], float]:
    """The logarithm of every block's exact norm, of any layer of this room (attention, linear attention, MLP, deep)."""
    if hasattr(layer, "log_norms"):
        return layer.log_norms(part)
    return {pair: math.log(e.value) if e.value > 0 else -math.inf for pair, e in layer.norms(part).items()}
