"""`quadform attention`: the exact Hessian of one attention layer, its spectrum, how its blocks grow with the input."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError, did_you_mean
from ..core.memory import in_words
from ..core.progress import Progress, Report, clock, say
from ..core.record import Estimate, Provenance, Record
from ..theory.moments import moment_norms
from .configs.attention import BLOCKS, MERGED_BLOCKS, AttentionConfig, Vary
from .machine import DTYPES, MATRICES, device_of, guard, guard_tokens
from .problem import Problem, toy_problem

PARTS = ("outer", "functional", "total")

#: Exponents of the block norms in the input scale. Source: [ODS25, Thm 3.1 and 3.2], softmax treated as bounded; for
#: linear attention [own], F homogeneous of degree 3 in X; for the single matrix W_QK the term X^3 of H_f(Q, K), the
#: curvature of the product W_Q W_K^T, is gone. Blocks that are exactly zero have none.
PAPER: dict[str, dict[str, dict[str, float]]] = {
    "softmax": {
        "outer": dict(zip(BLOCKS, (6, 6, 6, 4, 4, 2), strict=True)),
        "functional": dict(zip(BLOCKS, (5, 3, 5, 3, 3, 0), strict=True)),
    },
    "linear": {
        "outer": dict.fromkeys(BLOCKS, 6),
        "functional": dict(zip(BLOCKS, (0, 3, 0, 3, 3, 0), strict=True)),
    },
    "single": {
        "outer": dict(zip(MERGED_BLOCKS, (6, 4, 2), strict=True)),
        "functional": dict(zip(MERGED_BLOCKS, (5, 3, 0), strict=True)),
    },
}
_ZERO = "the block is exactly 0"
_MIX = "3 (small inputs) and 5 mix"

#: Slopes are fitted at scales up to this one: above it the softmax saturates and the powers mix.
FIT_UP_TO = 0.1
#: Above this many parameters the closed form is compared with autodiff on some columns only.
_FULL_CHECK = 800
_COLUMNS = 64
#: A whole answer without its sweep takes about as long as this many Hessians: spectra, the autodiff twin, the timing.
AS_MANY = 60


# --- Python ---------------------------------------------------------------------------------------------------------
def toy(tokens: int = 8, dim: int = 8, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """X, W_Q, W_K, W_V, Y of a seeded toy problem in float64: X and Y ~ N(0, 1), weights ~ N(0, 1/dim)."""
    p = toy_problem(tokens=tokens, dim=dim, seed=seed)
    return p.X, p.W_Q, p.W_K, p.W_V, p.Y


def attention_hessian(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, Y: Tensor, **options: Any) -> Any:
    """The exact Hessian of one attention head: `theory.AttentionLayer(X, W_Q, W_K, W_V, Y, **options)`."""
    from ..theory.attention import AttentionLayer

    return AttentionLayer(X, W_Q, W_K, W_V, Y, **options)


@dataclass(frozen=True)
class Sweep:
    """Block norms along a grid: `norms[part]` (points, blocks) for outer, functional and total."""

    name: str
    blocks: tuple[str, ...]
    values: Tensor
    norms: dict[str, Tensor]

    @classmethod
    def of(
        cls, name: str, blocks: tuple[str, ...], grid: Sequence[float], rows: Sequence[dict[tuple[str, str], float]]
    ) -> Sweep:
        """From one `block_norms` per grid point."""
        norms = {part: [[row[part, block] for block in blocks] for row in rows] for part in PARTS}
        return cls(
            name,
            blocks,
            torch.tensor(grid, dtype=torch.float64),
            {part: torch.tensor(table, dtype=torch.float64) for part, table in norms.items()},
        )

    def slopes(self, part: str = "outer", fit: tuple[float, float] | None = None) -> dict[tuple[str, str], float]:
        """Fitted exponent d log ||block|| / d log value of every block that is not exactly zero."""
        return {tuple(b.split(",")): e.value for b, e in self.fits(part, fit).items()}  # type: ignore[misc]

    def fits(self, part: str = "outer", fit: tuple[float, float] | None = None) -> dict[str, Estimate]:
        """The exponents with the standard error of the log-log fit."""
        if part not in self.norms:
            raise InputError(f"{part!r} is not a part of the Hessian ({', '.join(PARTS)}).{did_you_mean(part, PARTS)}")
        lo, hi = fit or self.fit_range
        inside = (self.values >= lo) & (self.values <= hi)
        found = {}
        for i, block in enumerate(self.blocks):
            norms = self.norms[part][inside, i]
            if len(norms) >= 2 and bool((norms > 0).all()):
                found[block] = _log_log_slope(self.values[inside], norms)
        return found

    @property
    def fit_range(self) -> tuple[float, float]:
        """The scales up to 0.1, three points at least; the whole sweep where it begins above 0.1."""
        small = int((self.values <= FIT_UP_TO * (1 + 1e-9)).sum())
        used = self.values[: max(small, 3)] if small else self.values
        return float(used[0]), float(used[-1])


def _log_log_slope(x: Tensor, y: Tensor) -> Estimate:
    """Least squares of log y on log x; the standard error is the residuals' (0 for two points, which fit exactly)."""
    u, v = x.log(), y.log()
    u, v = u - u.mean(), v - v.mean()
    slope = (u * v).sum() / u.square().sum()
    rest = (v - slope * u).square().sum()
    stderr = (rest / (len(u) - 2) / u.square().sum()).sqrt() if len(u) > 2 else torch.zeros(())
    return Estimate(float(slope), error=float(stderr), kind="estimate", note=f"fit over {len(u)} points")


def targets_of(layer: Any, wants: str) -> Tensor:
    """Y of an `AttentionLayer` with loss="mse", from its gradient: F - g / curvature; other layers are refused."""
    from ..theory.attention import AttentionLayer
    from ..theory.loss import MeanSquared

    if not isinstance(layer, AttentionLayer) or not isinstance(layer.output, MeanSquared):
        raise InputError(f"{wants} an AttentionLayer with loss='mse'; got {type(layer).__name__}.")
    if len(layer.weights) > 3 or layer.output.weight is not None:
        raise InputError(f"{wants} an AttentionLayer without biases and token weights.")
    return layer.per_token(layer.head.F - layer.output.g / layer.output.curvature)


def vary(layer: Any, name: str, lo: float, hi: float, points: int = 13) -> Sweep:
    """The block norms of an `AttentionLayer` whose tokens are scaled by every factor of a geometric grid, Y fixed."""
    from ..theory.attention import AttentionLayer

    Y, head = targets_of(layer, "a sweep needs"), layer.head
    grid = Vary(name, lo, hi, points).grid
    layers = (
        AttentionLayer(
            factor * head.X,
            layer.weights["W_Q"],
            layer.weights["W_K"],
            layer.weights["W_V"],
            Y,
            mask=head.bias,
            temperature=layer.temperature,
            context=factor * head.Z,
        )
        for factor in grid
    )
    return Sweep.of(name, BLOCKS, grid, [block_norms(each, BLOCKS) for each in layers])


def block_norms(layer: Any, blocks: Sequence[str]) -> dict[tuple[str, str], float]:
    """(part, block) -> exact Frobenius norm; by token Gram sums where the layer has them, else from the dense block."""
    found = {}
    for part in PARTS:
        for block in blocks:
            a, b = block.split(",")
            if hasattr(layer, "norm"):
                found[part, block] = layer.norm(a, b, part).value
            else:
                found[part, block] = float(getattr(layer, "block" if part == "total" else part)(a, b).norm())
    return found


def entropy(A: Tensor) -> float:
    """Mean entropy of the rows of A (L, L) over its largest value log L: 1 is uniform, 0 is one-hot (or one token)."""
    return float(torch.special.entr(A).sum(-1).mean()) / math.log(A.shape[-1]) if A.shape[-1] > 1 else 0.0


# --- the verb -------------------------------------------------------------------------------------------------------
def problem_of(config: AttentionConfig) -> Problem:
    """The seeded problem a config asks about."""
    tokens, dim, d_k, d_v = config.shape
    return toy_problem(
        tokens=tokens,
        dim=dim,
        d_k=d_k,
        d_v=d_v,
        seed=config.seed,
        dtype=DTYPES[config.dtype],
        device=device_of(config.device),
        scale=config.scale,
        attention=config.attention,
        temperature=config.temperature,
        mask=config.mask,
        factor=config.factor,
        sink=config.sink,
    )


def run(config: AttentionConfig, progress: bool | Report = True) -> Record:
    """Measure: the Hessian and its parts, their spectra, block norms, and their growth along the sweep."""
    device, dtype = device_of(config.device), DTYPES[config.dtype]
    guard(config.parameters, device, dtype)
    guard_tokens(1, config.tokens, config.dim, 1, device, dtype)
    problem = problem_of(config)
    _tell_cost(config.parameters, dtype)
    sweep = config.sweep
    with Progress(5 + (sweep.points if sweep else 0), "attention", show=progress) as bar:
        layer, H_o, H_f = _finite(problem)
        bar.step(text="Hessian")
        scalars = {"loss": Estimate(float(problem.loss(problem.weights)))}
        spectra = {}
        for name, matrix in (("", H_o + H_f), ("_outer", H_o), ("_functional", H_f)):
            spectra[f"eigenvalues{name}"] = torch.linalg.eigvalsh(matrix)
            bar.step(text="eigenvalues")
        scalars |= spectrum_scalars(spectra["eigenvalues"], H_o + H_f)
        scalars["autodiff_error"] = autodiff_error(problem, H_o + H_f)
        scalars["seconds"] = _seconds(problem)
        bar.step(text="checked against autodiff")
        scalars |= {f"norm/{part}/{b}": Estimate(v) for (part, b), v in block_norms(layer, config.blocks).items()}
        tensors = {"H_o": H_o, "H_f": H_f, **spectra, "A": problem.pattern(problem.weights)}
        if config.attention == "softmax":
            scalars["entropy"] = Estimate(entropy(tensors["A"]))
        inputs = config.inputs()
        if sweep:
            grown, of_attention = _grow(problem, sweep, bar)
            inputs["fit_range"] = list(grown.fit_range)
            scalars |= {f"slope/{part}/{b}": e for part in PARTS[:2] for b, e in grown.fits(part).items()}
            scalars |= paper_scalars("single" if config.factor == "single" else config.attention)
            tensors |= {"scales": grown.values} | {f"growth_{part}": grown.norms[part] for part in PARTS}
            if config.attention == "softmax":
                tensors |= of_attention
    return Record(
        kind="attention",
        inputs=inputs,
        scalars=scalars,
        tensors={name: t.detach().to("cpu", torch.float64) for name, t in tensors.items()},
        made=Provenance.collect(seed=config.seed, dtype=dtype, device=device),
    )


def _finite(problem: Problem) -> tuple[Any, Tensor, Tensor]:
    """The layer with H_o and H_f (P, P); numbers that leave floating point on the way are refused."""
    try:
        layer = problem.layer()
        H_o, H_f = layer.outer_operator().dense(), layer.functional_operator().dense()
        if bool((H_o + H_f).isfinite().all()):
            return layer, H_o, H_f
    except OverflowError:
        pass
    raise InputError(
        f"the curvature is beyond {problem.X.dtype} with scale {problem.scale:g}, temperature {problem.temperature:g}"
        f" and sink {problem.sink:g}. Choose values nearer to 1."
    )


def plan(config: AttentionConfig) -> dict[str, Any]:
    """What `quadform attention --dry-run` tells: memory, and time from one Hessian made now, the second of two."""
    device, dtype = device_of(config.device), DTYPES[config.dtype]
    guard(config.parameters, device, dtype)
    guard_tokens(1, config.tokens, config.dim, 1, device, dtype)
    problem_of(config).layer().hessian().dense()
    start = time.perf_counter()
    problem_of(config).layer().hessian().dense()
    each = time.perf_counter() - start
    points = config.sweep.points if config.sweep else 0
    found = {"parameters": config.parameters, "bytes": float(MATRICES * dtype.itemsize * config.parameters**2)}
    found["seconds"] = (AS_MANY + points) * each
    text = (
        f"plan: the exact Hessian of {config.parameters:,} parameters, three dense spectra, {points} scales;"
        f" {in_words(found['bytes'])}, about {clock(found['seconds'])} in all"
    )
    return {"text": text, **found}


def _tell_cost(parameters: int, dtype: torch.dtype) -> None:
    """Memory and work before a long computation starts."""
    if parameters >= 2000:
        memory = in_words(MATRICES * dtype.itemsize * parameters**2)
        say(f"exact Hessian of {parameters:,} parameters: about {memory}, three dense eigenvalue problems of that size")


def spectrum_scalars(eigenvalues: Tensor, H: Tensor) -> dict[str, Estimate]:
    """Extreme eigenvalues, share of negative ones, trace and step ceiling, from the eigenvalues in ascending order."""
    low, high = float(eigenvalues[0]), float(eigenvalues[-1])
    sure = eigenvalues.dtype == torch.float64  # in float32 small eigenvalues are rounding: a share of the others
    tolerance = 1e-10 if sure else 10 * math.sqrt(len(H)) * torch.finfo(eigenvalues.dtype).eps
    negative = eigenvalues < -tolerance * max(abs(low), abs(high))
    return {
        "lambda_max": Estimate(high),
        "lambda_min": Estimate(low),
        "negative_share": Estimate(
            float(negative.double().mean()),
            kind="exact" if sure else "bound",
            note=f"eigenvalues below -{tolerance:.2g} |lambda|max",
        ),
        "trace": Estimate(float(H.diagonal().sum())),
        "ceiling_sgd": Estimate(2 / high if high > 0 else math.inf, note="2 / lambda_max; a ceiling, no advice"),
    }


def autodiff_error(problem: Problem, H: Tensor) -> Estimate:
    """max |closed form - autodiff| / max |H|, on every column or, for a large H, on some of them."""
    P = len(H)
    columns = None
    if P > _FULL_CHECK:
        columns = torch.linspace(0, P - 1, _COLUMNS, device=H.device).round().long()
    closed = H if columns is None else H[:, columns]
    error = float((closed - problem.autodiff(columns)).abs().max() / H.abs().max().clamp_min(1e-300))
    return Estimate(error, note="all columns" if columns is None else f"{_COLUMNS} of {P:,} columns")


def _seconds(problem: Problem) -> Estimate:
    """Time of one exact Hessian, from the tensors to the dense matrix: median of the runs of half a second."""
    problem.layer().hessian().dense()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 0.5 and len(times) < 20):
        start = time.perf_counter()
        problem.layer().hessian().dense()
        if problem.X.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    runs = torch.tensor(times, dtype=torch.float64)
    return Estimate(
        float(runs.median()), error=float(runs.std() / len(times) ** 0.5), kind="estimate", note=f"{len(times)} runs"
    )


def _grow(problem: Problem, sweep: Vary, bar: Progress) -> tuple[Sweep, dict[str, Tensor]]:
    """Block norms at every scale; of the attention there its entropy, the weight its least decided query gives to all
    but one token, and norms of its moments."""
    rows, entropies, undecided, moments = [], [], [], []
    for scale in sweep.grid:
        at = problem.at(scale)
        A = at.pattern(at.weights)
        norms: dict[tuple[str, str], float] = {}
        with contextlib.suppress(OverflowError, torch.linalg.LinAlgError, InputError):  # the scale alone is new here
            norms = block_norms(at.layer(), problem.blocks)
        if not norms or not all(map(math.isfinite, norms.values())):
            raise InputError(f"at scale {scale:.3g} the curvature is beyond {A.dtype}. End the sweep below it.")
        rows.append(norms)
        entropies.append(entropy(A))
        undecided.append(float(A.sort(-1).values[:, :-1].sum(-1).max()))
        moments.append(moment_norms(A, at.scale * at.X))
        bar.step(text=f"scale {scale:.3g}")
    of_attention = {
        "growth_entropy": torch.tensor(entropies, dtype=torch.float64),
        "growth_undecided": torch.tensor(undecided, dtype=torch.float64),
    }
    if len(problem.X) > 1:  # one token has one key: nothing spreads
        of_attention["growth_moments"] = torch.stack(moments)
    return Sweep.of(sweep.name, problem.blocks, sweep.grid, rows), of_attention


def paper_scalars(kind: str) -> dict[str, Estimate]:
    """The exponents of `PAPER` as numbers of a record: kind is softmax, linear or single."""
    notes = {("functional", "W_Q,W_K"): _MIX} if kind == "softmax" else {}
    return {
        f"paper/{part}/{block}": Estimate(power, note=notes.get((part, block), "" if power else _ZERO))
        for part, table in PAPER[kind].items()
        for block, power in table.items()
    }
