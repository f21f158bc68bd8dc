"""Rank collapse over depth in one table: attention-only stacks at initialisation, drawn and predicted.

Seven causal stacks (and the bidirectional one without skips) of depth up to 100, with Gaussian queries and keys and
orthogonal values and projections: the mean off-diagonal token cosine of drawn networks, beside the mean-field limit.
`CLAIMS` are numbers measured earlier for this project, kept as data; `check(record)` says which of them hold.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.progress import Progress, Report
from ..core.record import Estimate, Provenance, Record
from ..core.rng import stream
from ..propagation import kernels, shaping
from ..propagation.collapse import Moments, kernel_cosine, residual_ratio, token_cosine

#: Depths the claims are stated at.
DEPTHS = (1, 3, 10, 20, 50, 100)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stack: X -> [norm](skip X + attention([norm] X)); `spa` names a target family with its final strength."""

    skip: float = 0.0
    norm: str = "none"  # none, pre, post
    identity: bool = False  # V-SkipInit and shaped attention start here: A = I
    spa: tuple[str, float] | None = None
    causal: bool = True


ROWS: dict[str, Row] = {
    "no skip": Row(),
    "no skip + RMSNorm": Row(norm="pre"),
    "Post-LN": Row(skip=1.0, norm="post"),
    "Pre-LN": Row(skip=1.0, norm="pre"),
    "V-SkipInit / shaped": Row(identity=True),
    "U-SPA": Row(spa=("u-spa", 0.8)),
    "E-SPA": Row(spa=("e-spa", 0.005)),
    "no skip, bidirectional": Row(causal=False),
}


@dataclass(frozen=True)
class Claim:
    """A statement about one scalar of the record.

    `most`: value <= expect. Otherwise `expect` is itself a mean over `networks` drawn networks, written to `rounding`:
    the two means must agree at the 99.7 % level of Student's t, both standard errors from the spread in the record.
    """

    statement: str
    key: str
    expect: float
    rounding: float = 0.0
    networks: int = 2
    most: bool = False

    def holds(self, record: Record) -> bool:
        e = record.scalars[self.key]
        if self.most:
            return e.value <= self.expect
        from scipy.stats import t

        stderr, seeds = e.stderr or 0.0, int(record.inputs["seeds"])
        if seeds < 2:
            raise InputError("a claim about a mean of drawn networks needs the spread of at least two; got one seed.")
        width = float(t.ppf(1 - 0.003 / 2, seeds - 1)) * stderr * math.sqrt(1 + seeds / self.networks)
        return abs(e.value - self.expect) <= self.rounding + width


def _cosine_claims() -> tuple[Claim, ...]:
    stated = {
        "no skip": (0.274, 0.955, 0.9998, 1.0, 1.0, 1.0),
        "no skip + RMSNorm": (0.274, 0.914, 0.9994, 1.0, 1.0, 1.0),
        "Post-LN": (0.018, 0.149, 0.916, 0.995, 1.0, 1.0),
        "Pre-LN": (0.018, 0.128, 0.637, 0.823, 0.922, 0.938),
        "V-SkipInit / shaped": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        "U-SPA": (0.015, 0.046, 0.144, 0.269, 0.551, 0.801),
        "E-SPA": (0.005, 0.011, 0.029, 0.064, 0.293, 0.855),
    }
    return tuple(
        Claim(f"{row}: cosine {value} at depth {depth}", f"{row}/cosine/{depth}", value, 5e-4)
        for row, values in stated.items()
        for depth, value in zip(DEPTHS, values, strict=True)
    )


CLAIMS: tuple[Claim, ...] = (
    *_cosine_claims(),
    Claim("normalisation alone does not stop collapse", "no skip + RMSNorm/one minus cosine/20", 1e-3, most=True),
    Claim("bidirectional collapse: residual 0.65 at depth 1", "no skip, bidirectional/residual/1", 0.65, 5e-3),
    Claim("bidirectional collapse: residual 2.5e-3 at depth 2", "no skip, bidirectional/residual/2", 2.5e-3, 5e-5),
    Claim("doubly exponential: below 1e-8 at depth 3", "no skip, bidirectional/residual/3", 1e-8, most=True),
    Claim("causal collapse is slow: still above 1e-5 at depth 20", "no skip/inverse residual/20", 1e5, most=True),
)


def rank_collapse_table(
    *,
    seq_len: int = 100,
    dim: int = 256,
    heads: int = 8,
    depths: tuple[int, ...] = DEPTHS,
    seeds: int = 8,
    schedule_depth: int | None = None,
    predict: bool = True,
    progress: bool | Report = False,
) -> Record:
    """Draw every stack of `ROWS` and return its cosine and residual at `depths`: Record "rank-collapse".

    Scalars `{row}/cosine/{depth}`, `{row}/residual/{depth}` with standard errors over `seeds` networks; tensors
    `cosine` and `predicted` (rows, depth + 1). SPA schedules span `schedule_depth` layers (None: the largest depth),
    with zero queries.
    """
    if dim % heads or seeds < 1 or min(depths) < 1 or (schedule_depth or max(depths)) < max(depths):
        raise InputError(
            f"dim {dim} must divide into {heads} heads; seeds and depths are at least 1 and within schedule_depth."
        )
    depth, moments = max(depths), Moments()
    cosine = torch.zeros(seeds, len(ROWS), depth + 1, dtype=torch.float64)
    A_spa = {name: _spa_matrices(row, schedule_depth or depth, seq_len) for name, row in ROWS.items()}
    with Progress(seeds * depth, "layers drawn", show=progress) as bar:
        drawn = [_draw(seq_len, dim, heads, depth, seed, A_spa, bar) for seed in range(seeds)]
    for seed, profiles in enumerate(drawn):
        for i, profile in enumerate(profiles):
            for l, (c, r) in enumerate(profile):
                cosine[seed, i, l] = c
                if l in (*depths, 1, 2, 3, 20):
                    name = tuple(ROWS)[i]
                    moments.add(f"{name}/cosine/{l}", c)
                    moments.add(f"{name}/one minus cosine/{l}", 1 - c)
                    moments.add(f"{name}/residual/{l}", r)
                    moments.add(f"{name}/inverse residual/{l}", 1 / r)
    tensors = {"cosine": cosine.mean(0)}
    if predict:
        tensors["predicted"] = torch.stack([_predict(row, seq_len, depth, A_spa[n]) for n, row in ROWS.items()])
    return Record(
        kind="rank-collapse",
        inputs={"rows": list(ROWS), "seq_len": seq_len, "dim": dim, "heads": heads, "depths": list(depths),
                "seeds": seeds},
        scalars={k: _of_networks(e) for k, e in moments.result().items()},
        tensors=tensors,
        made=Provenance.collect(seed=0, dtype=torch.float64),
    )  # fmt: skip


def check(record: Record) -> dict[str, bool]:
    """Statement -> holds, for the claims whose scalar the record has."""
    return {claim.statement: claim.holds(record) for claim in CLAIMS if claim.key in record.scalars}


def markdown(record: Record) -> str:
    """The table as text: measured (predicted) cosine of each row at the stated depths."""
    depths, rows = record.inputs["depths"], record.inputs["rows"]
    lines = ["| stack | " + " | ".join(f"L={l}" for l in depths) + " |", "| --- |" + " --- |" * len(depths)]
    for i, row in enumerate(rows):
        cells = []
        for l in depths:
            drawn = f"{float(record.tensors['cosine'][i, l]):.4f}"
            cells.append(f"{drawn} ({float(record.tensors['predicted'][i, l]):.4f})"
                         if "predicted" in record.tensors else drawn)  # fmt: skip
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ drawn stacks
def _draw(
    T: int, d: int, H: int, depth: int, seed: int, A_spa: dict[str, list[Tensor]], bar: Progress
) -> list[list[tuple[Tensor, Tensor]]]:
    """(cosine, residual) of each row after 0, ..., depth layers; all rows share tokens and weights."""
    generator = stream(seed, "rank collapse")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    start = normal(T, d)
    X = dict.fromkeys(ROWS, start)
    out = [[(token_cosine(start), residual_ratio(start))] for _ in ROWS]
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    for l in range(depth):
        W_Q, W_K = (normal(d, d) / math.sqrt(d) for _ in range(2))
        W_V, W_O = (torch.linalg.qr(normal(d, d))[0] for _ in range(2))
        for i, (name, row) in enumerate(ROWS.items()):
            N = _rms_norm(X[name]) if row.norm == "pre" else X[name]
            V = N @ W_V
            if row.spa:
                mixed = A_spa[name][l] @ V
            elif row.identity:
                mixed = V
            else:
                logits = _heads(N @ W_Q, H) @ _heads(N @ W_K, H).mT / math.sqrt(d // H)
                A = (logits.masked_fill(hidden, -math.inf) if row.causal else logits).softmax(-1)
                mixed = (A @ _heads(V, H)).transpose(0, 1).reshape(T, d)
            Y = row.skip * X[name] + mixed @ W_O
            X[name] = _rms_norm(Y) if row.norm == "post" else Y
            out[i].append((token_cosine(X[name]), residual_ratio(X[name])))
        bar.step()
    return out


def _heads(X: Tensor, H: int) -> Tensor:
    """(T, H k) -> (H, T, k)."""
    return X.unflatten(-1, (H, -1)).transpose(0, 1)


def _rms_norm(X: Tensor) -> Tensor:
    return X * X.square().mean(-1, keepdim=True).rsqrt()


def _spa_matrices(row: Row, depth: int, T: int) -> list[Tensor]:
    if row.spa is None:
        return []
    family, final = row.spa
    schedule = (shaping.u_spa_schedule if family == "u-spa" else shaping.e_spa_schedule)(final, depth)
    return [shaping.spa_matrix(family, a, b, T) for a, b in pairwise(schedule)]  # type: ignore[arg-type]  # a checked word


# ------------------------------------------------------------------------------------------------ predicted stacks
def _predict(row: Row, T: int, depth: int, A_spa: list[Tensor]) -> Tensor:
    Sigma = torch.eye(T, dtype=torch.float64)
    out = [kernel_cosine(Sigma)]
    for l in range(depth):
        N = kernels.normalise(Sigma) if row.norm == "pre" else Sigma
        if row.spa:
            mixed = A_spa[l] @ N @ A_spa[l].T
        else:
            mixed = N if row.identity else kernels.attend(N, causal=row.causal, tau2=1.0)[0]
        Sigma = row.skip**2 * Sigma + mixed
        Sigma = kernels.normalise(Sigma) if row.norm == "post" else Sigma
        out.append(kernel_cosine(Sigma))
    return torch.stack(out)


def _of_networks(e: Estimate) -> Estimate:
    return dataclasses.replace(e, note=e.note.replace("sequence", "network"))
