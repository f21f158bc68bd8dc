"""Frobenius norms: of any operator, of a named block pair, of all block pairs of an operator in one run.

|A|_F^2 = E |A z|^2 is the trace of A^T A, and a few large singular values make most of its spread (and make it skew:
few samples then understate their own error). As for the trace, the large directions are therefore found first and
measured exactly, and only the rest is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.number import Estimate
from ..core.operator import Operator
from ..core.precision import own_precision
from ..core.progress import Progress, Report
from ..core.showing import fields_in_brief
from ..core.space import Vector
from ..distributed.processes import holders
from .resume import Checkpoint, State
from .sampling import batch_size, mean_and_error, sample, sweep
from .traces import Images, left_out_in_turn
from .vectors import AT_ONCE, Probe, at_least, chunks, draw, orthonormal_rows, probes, without, working_dtype


@own_precision()
def frobenius(
    A: Operator,
    products: int = 60,
    *,
    method: Literal["auto", "exact", "sampled", "sketched"] = "auto",
    probe: Probe | None = None,
    tol: float | None = None,
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> Estimate:
    """|A|_F of any operator; for a named block pair give `A.block(rows, cols)`.

    `exact`: unit vectors of the smaller side. `sketched`: half of the products (a third where A is not symmetric; it
    then needs an adjoint) finds the large directions, which are measured exactly, the rest is sampled. `sampled`: plain
    mean of |A z|^2. `auto` takes the first of these that `products` and the memory budget allow. Default probes: normal
    for the sketch, signs for the plain mean.

    The standard error of the root follows from that of the square, s / (2 |A|_F); its bias, -s^2 / (8 |A|_F^3), is
    smaller than it by the relative standard error. Source of the leave-one-out form for symmetric A: [own], after
    XTrace.
    """
    products = at_least("products", products, 2)
    if method not in ("auto", "exact", "sampled", "sketched"):
        raise InputError(f"method is auto, exact, sampled or sketched; got {method!r}.")
    side = smaller_side(A, products if method == "auto" else max(A.shape))
    if method in ("auto", "exact") and side is not None:
        total = 0.0
        for which in chunks(0, side.domain.size, AT_ONCE):
            total += float(side.columns(which.start, which.stop).detach().double().square().sum())
        return Estimate(math.sqrt(total), matvecs=side.domain.size, note=f"exact by {side.domain.size} unit vectors")
    if method == "sketched" or (method == "auto" and _can_sketch(A, products, memory)):
        square, error, used, note = _sketched(A, products, probe or "gaussian", seed, memory, resume, progress)
        return _root(square, error, used, tol, note)
    probe = probe or "rademacher"
    values = sample(
        A,
        lambda Z, AZ: AZ.square().sum(1, dtype=torch.float64),
        "frobenius",
        products,
        probe=probe,
        tol=None if tol is None else 2 * tol,
        seed=seed,
        memory=memory,
        resume=resume,
        progress=progress,
        label="|A|^2",
    )
    mean, spread = mean_and_error(values)
    return _root(float(mean), float(spread), len(values), tol, f"{len(values)} {probe} probes")


def _root(square: float, error: float, products: int, tol: float | None, note: str) -> Estimate:
    norm = math.sqrt(max(square, 0.0))
    spread = error / (2 * norm) if norm else math.sqrt(error)
    return Estimate(norm, spread, "estimate", products, tol is None or spread <= tol * norm, note)


def _memory_of_sketch(A: Operator, products: int, memory: float | None) -> int:
    return batch_size(A, memory, each=4, kept=2 * products + 2, purpose=f"a sketch with {products} products")


def _can_sketch(A: Operator, products: int, memory: float | None) -> bool:
    try:
        _ = A.T, _memory_of_sketch(A, products, memory)
    except InputError:  # no adjoint, or no room
        return False
    return products >= 6


def _sketched(
    A: Operator,
    products: int,
    probe: Probe,
    seed: int,
    memory: float | None,
    resume: str | Path | None,
    progress: bool | Report,
) -> tuple[float, float, int, str]:
    """|A|_F^2 with its standard error, the products used and how. [own]

    Q spans the images of A^T under random vectors. Symmetric A: these are images of A, and every probe is left out of
    Q in turn, t_i = |A Q_(i)|^2 + c_i |A (I - Q_(i) Q_(i)^T) omega_i|^2, all from A Omega and A Q. Else:
    |A Q|^2 + mean of |A (I - Q Q^T) g|^2 over further probes g.
    """
    at_least("products for a sketch", products, 6)
    batch = _memory_of_sketch(A, products, memory)
    settings = {"products": products, "probe": probe, "seed": seed}
    with (
        Checkpoint(resume, "frobenius-sketched", A, settings) as checkpoint,
        Progress(products, "products", show=progress) as shown,
    ):
        images = Images(A, checkpoint, shown, batch)
        m = products // 2 if A.symmetric else products // 3
        Y = images.of("Y", lambda which: probes(A.T, seed, "frobenius/sketch", which, probe), m, A.T)
        Q, R = orthonormal_rows(Y)
        Z = images.of("Z", lambda which: Q[which.start : which.stop], len(Q))
        H = (Z @ Z.T).double().cpu()
        if len(Q) < m:
            noise = torch.finfo(Q.dtype).eps * float(H.norm()) * math.sqrt(max(A.shape))
            return float(H.trace()), noise, m + len(Q), f"the operator has rank {len(Q)}, found whole"
        if A.symmetric:
            W = torch.empty((m, m), dtype=torch.float64)
            length = torch.empty(m, dtype=torch.float64)
            for which in chunks(0, m, AT_ONCE):
                Omega = probes(A, seed, "frobenius/sketch", which, probe)
                W[:, which.start : which.stop] = (Q @ Omega.T).double().cpu()
                length[which.start : which.stop] = Omega.square().sum(1, dtype=torch.float64).cpu()
            cross, own = 2 * (Z @ Y.T).double().cpu(), Y.square().sum(1, dtype=torch.float64).cpu()
            scaled = length if probe != "rademacher" else None
            square, error = left_out_in_turn(R, H, W, cross, own, scaled, A.domain.size)
            return square, error, 2 * m, f"{m} probes left out in turn"
        rest = products - 2 * m
        G = images.of("G", lambda which: without(probes(A, seed, "frobenius/rest", which, probe), Q), rest)
        mean, spread = mean_and_error(G.square().sum(1, dtype=torch.float64).cpu())
    note = f"{m} directions measured, {rest} probes of the rest"
    return float(H.trace() + mean), float(spread), products, note


@dataclass(frozen=True)
class BlockNorms:
    """Frobenius norms of all block pairs: `value[i, j]` = |A(rows i, cols j)|_F with its standard error."""

    names: tuple[str, ...]
    value: Tensor
    stderr: Tensor
    exact: Tensor
    matvecs: int

    __repr__ = fields_in_brief

    def __getitem__(self, pair: tuple[str, str]) -> Estimate:
        try:
            i, j = (self.names.index(name) for name in pair)
        except ValueError:
            raise InputError(f"no block {pair}; the blocks are {', '.join(self.names)}.") from None
        value, error = float(self.value[i, j]), float(self.stderr[i, j])
        if bool(self.exact[i, j]):
            return Estimate(value, matvecs=self.matvecs)
        return Estimate(value, error, "estimate", self.matvecs)

    def heterogeneity(self, sizes: Sequence[int]) -> Estimate:
        """Largest over smallest root mean square eigenvalue |A(b, b)|_F / sqrt(n_b) of the diagonal blocks.

        1 where all blocks are alike; `heterogeneity.heterogeneity` compares their whole spectra. Blocks whose rows are
        all zero, as those of weights that the loss does not use, are left out. Source of the idea: [Zhang24]; the
        definition is [own].
        """
        used = torch.nonzero((self.value != 0).any(1))[:, 0]
        if not len(used):
            return Estimate(1.0, matvecs=self.matvecs, note=f"{self.names[0]} over {self.names[-1]}")
        value = self.value.diagonal() / torch.tensor(sizes, dtype=torch.float64).sqrt()
        error = self.stderr.diagonal() / torch.tensor(sizes, dtype=torch.float64).sqrt()
        high, low = (int(used[i]) for i in (value[used].argmax(), value[used].argmin()))
        note = f"{self.names[high]} over {self.names[low]}"
        if float(value[low]) == 0:
            return Estimate(math.inf, matvecs=self.matvecs, note=f"{note}, which is zero")
        ratio = float(value[high] / value[low])
        if bool(self.exact[high, high]) and bool(self.exact[low, low]):
            return Estimate(ratio, matvecs=self.matvecs, note=note)
        spread = ratio * math.hypot(float(error[high] / value[high]), float(error[low] / value[low]))
        return Estimate(ratio, spread, "estimate", self.matvecs, note=note)


@own_precision()
def block_norms(
    A: Operator,
    blocks: Sequence[str] | Mapping[str, Sequence[str]],
    products: int = 20,
    *,
    probe: Probe = "rademacher",
    seed: int = 0,
    memory: float | None = None,
    resume: str | Path | None = None,
    progress: bool | Report = False,
) -> BlockNorms:
    """|A(a, b)|_F for all pairs of named blocks of a square operator, `products` for each column block.

    A probe that lives on block b alone gives |A(a, b)| for every a at once, so P blocks cost P * products, not P^2.
    Column blocks of at most `products` coordinates are exact. `blocks` are names or globs, or `{label: globs}`. For a
    symmetric operator the pairs (a, b) and (b, a) are two independent estimates of one number and are joined.
    """
    products = at_least("products", products, 2)
    named = {b: (b,) for b in blocks} if not isinstance(blocks, Mapping) else {k: tuple(v) for k, v in blocks.items()}
    names, P = tuple(named), len(named)
    if not names:
        raise InputError("block_norms of nothing: name at least one block.")
    rows = [A.codomain.select(*globs) for globs in named.values()]
    cols = [A.domain.select(*globs) for globs in named.values()]
    held = holders(A.domain)  # of shards no column is known: all are sampled
    few = [space.size <= products and not held.cut for space in cols]
    counts = [space.size if f else products for space, f in zip(cols, few, strict=True)]
    # Which probe of which block: the first of every block, then the second of every block, ...
    todo = [(j, i) for i in range(products) for j in range(P) if i < counts[j]]
    exact = torch.tensor(few).expand(P, P)

    def given(which: range) -> Tensor:
        Z = torch.zeros((len(which), A.domain.size), dtype=working_dtype(A), device=A.device)
        for row, (j, i) in zip(Z, (todo[r] for r in which), strict=True):
            part = torch.zeros(cols[j].size, dtype=Z.dtype, device=Z.device)
            if few[j]:
                part[i] = 1
            else:
                draw(part, seed, f"block_norms/{names[j]}/{i}", probe, cols[j])
            row.copy_(A.domain.flatten(A.domain.embed(cols[j], cols[j].unflatten(part))))
        return Z

    values: list[Tensor] = []

    def take(which: range, Z: Tensor, AZ: Tensor) -> None:
        V: Vector = A.codomain.unflatten(AZ.T)
        parts = [space.flatten(A.codomain.restrict(space, V)) for space in rows]
        values.append(held.sum(torch.stack([p.square().sum(0, dtype=torch.float64) for p in parts], 1).cpu()))

    def state() -> State:
        return {"values": torch.cat(values)}, {"batch": batch}

    settings = {"products": products, "probe": probe, "seed": seed, "blocks": list(names)}
    with (
        Checkpoint(resume, "block_norms", A, settings) as checkpoint,
        Progress(len(todo), "products", show=progress) as shown,
    ):
        batch = batch_size(A, memory, each=4, purpose="block norms")
        if checkpoint.found is not None:
            values, batch = [checkpoint.found[0]["values"]], int(checkpoint.found[1]["batch"])
            shown.step(len(values[0]))
        done = sum(map(len, values))
        sweep(A, range(done, len(todo)), batch, given, take, checkpoint=checkpoint, state=state, shown=shown)
    square, error = torch.zeros((P, P), dtype=torch.float64), torch.zeros((P, P), dtype=torch.float64)
    of = torch.tensor([j for j, _ in todo])
    for j, each in enumerate(torch.cat(values)[of == k] for k in range(P)):
        if few[j]:
            square[:, j] = each.sum(0)
        else:
            square[:, j], error[:, j] = mean_and_error(each)
    if A.symmetric:
        square, error, exact = _joined(square, error, exact)
    value = square.sqrt()
    stderr = torch.where(value > 0, error / (2 * value), torch.zeros_like(value))
    return BlockNorms(names, value, stderr, exact, len(todo))


def _joined(square: Tensor, error: Tensor, exact: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Join the estimates of (a, b) and (b, a): an exact one wins, else the mean (a weighted one would be biased)."""
    one = torch.where(exact & exact.T, (square + square.T) / 2, torch.where(exact, square, square.T))
    mean, spread = (square + square.T) / 2, (error.square() + error.T.square()).sqrt() / 2
    either = exact | exact.T
    diagonal = torch.eye(len(square), dtype=torch.bool)
    square, spread = torch.where(either, one, mean), torch.where(diagonal, error, spread)
    return square, torch.where(either, torch.zeros_like(spread), spread), either


def smaller_side(A: Operator, products: int) -> Operator | None:
    """A or A^T, whichever has at most `products` columns; None where neither has."""
    m, n = A.shape
    if n <= products and n <= m:
        return A
    if m <= products:
        try:
            return A.T
        except InputError:  # an operator without an adjoint
            return A if n <= products else None
    return A if n <= products else None
