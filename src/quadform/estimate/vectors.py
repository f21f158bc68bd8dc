"""Vectors of an operator as rows of one matrix: random probes, products, orthonormal rows, how many fit the memory.

Inside this room a vector is one row of a `(k, n)` tensor in the working precision: float64 for float64 operators,
float32 for all others (a bfloat16 operator is multiplied in bfloat16, but its Krylov basis is not kept in it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError, TooLarge
from ..core.memory import in_words
from ..core.operator import Operator
from ..core.rng import by_place, stream
from ..core.space import Space
from ..distributed.processes import ALONE, Group, group_of, holders

Probe = Literal["rademacher", "gaussian", "sphere"]

#: Vectors given to one call of `apply`; operators that need more room for each cut the batch themselves.
AT_ONCE = 16

#: Entries from which rows on a GPU go to cuBLAS in pieces: with 13 rows of 1.24e9 float32 entries it reads outside of
#: the matrix (as in pytorch#17897 and #31708); with 48 rows of 1.24e8 it does not.
WIDE = 2**28
_COLUMNS = 2**24

#: What is used of the memory that is free beside a product; the rest is lost between allocations.
BESIDE = 0.9

#: Entries of a shard that are drawn at a time.
_PIECE = 2**20

#: Streams of probes whose inner products are added up over the processes that hold the shards of a vector.
_OF_SHARDS = ("eigenpairs", "density", "trace", "xtrace", "hutch++", "fingerprint")


def working_dtype(A: Operator) -> torch.dtype:
    """float64 for a float64 operator, float32 for every other."""
    return torch.float64 if A.dtype == torch.float64 else torch.float32


def need_symmetric(A: Operator, what: str) -> None:
    """Refuse an operator that is not symmetric."""
    if not A.symmetric:
        raise InputError(f"{what} needs a symmetric operator; got {A!r}. Use `singular_ends`, or `nuclear_norm`.")


def need_square(A: Operator, what: str) -> None:
    """Refuse an operator between two different spaces."""
    if A.domain.parts != A.codomain.parts:
        raise InputError(f"{what} needs an operator of a space into itself; got {A.domain} -> {A.codomain}.")


def at_least(name: str, value: int, least: int) -> int:
    """An integer argument that may not be smaller than `least`."""
    try:
        whole = not isinstance(value, bool) and int(value) == value and value >= least
    except (TypeError, ValueError, OverflowError):  # None, NaN, infinity
        whole = False
    if not whole:
        raise InputError(f"{name} is a whole number of at least {least}; got {value!r}.")
    return int(value)


def multiply(A: Operator, rows: Tensor) -> Tensor:
    """`A` times each row: `(k, n)` -> `(k, m)`. A product that is not finite is an error."""
    image = A.codomain.flatten(A.apply(A.domain.unflatten(rows.to(A.dtype).T))).T.detach()
    if holders(A.codomain).any(not bool(image.isfinite().all())):
        raise InputError("a product of the operator is NaN or infinite. Nothing was measured; check loss and weights.")
    return image.to(working_dtype(A))


def probes(A: Operator, seed: int, name: str, which: Sequence[int], kind: Probe) -> Tensor:
    """The random rows number `which` of a named stream: each depends on its number only, not on its neighbours.

    `rademacher`: signs +-1; `gaussian`: standard normal; `sphere`: uniform of squared length n. E z z^T = I for all.
    """
    if group_of(A.domain).cut and name.partition("/")[0] not in _OF_SHARDS:
        raise refused_of_shards(name)
    out = torch.empty((len(which), A.domain.size), dtype=working_dtype(A), device=A.device)
    for row, number in zip(out, which, strict=True):
        draw(row, seed, f"{name}/{number}", kind, A.domain)
    return out


def refused_of_shards(what: str) -> InputError:
    """What does not add up its inner products over the processes that hold the shards of a vector."""
    return InputError(
        f"{what}: the weights are sharded (FSDP), for which products, `eigenpairs`, `density`, `trace` and"
        " `block_norms` are supported. Gather the weights for this one: see docs/distributed.md."
    )


def draw(row: Tensor, seed: int, name: str, kind: Probe, space: Space) -> None:
    """Fill one vector of a space, or this process's shard of it, with the probe of that name, see `probes`.

    An entry of a shard depends on its place in the whole vector, not on how that is cut.
    """
    if kind not in ("rademacher", "gaussian", "sphere"):
        raise InputError(f"probes are 'rademacher', 'gaussian' or 'sphere'; got {kind!r}.")
    group = holders(space)
    if group.cut:
        for part, where in zip(row.split([math.prod(s) for _, s in space]), space.names, strict=True):
            for start in range(0, len(part), _PIECE):
                piece = part[start : start + _PIECE]
                at = torch.arange(start, start + len(piece), device=row.device)
                piece.copy_(_at_places(seed, name, kind, *group.places(where, at)))  # type: ignore[attr-defined]  # of shards
    elif kind == "rademacher":
        generator = stream(seed, name, row.device)
        row.copy_(torch.randint(0, 2, (len(row),), generator=generator, device=row.device, dtype=torch.int8))
        row.mul_(2).sub_(1)
    else:
        torch.randn(len(row), generator=stream(seed, name, row.device), out=row)
    if kind == "sphere":
        row.mul_(group.size(len(row)) ** 0.5 / group.norm(row))


def _at_places(seed: int, name: str, kind: Probe, where: str, at: Tensor) -> Tensor:
    u = by_place(seed, f"{name}/{where}", at)
    if kind == "rademacher":
        return torch.where(u < 0.5, -1.0, 1.0)
    angle = 2 * math.pi * by_place(seed, f"{name}/{where}/angle", at)
    return (-2 * u.log()).sqrt() * angle.cos()  # Box and Muller


def rows_that_fit(A: Operator, memory: float | None, *, least: int, purpose: str, sliced: bool = False) -> int:
    """How many rows of the longer space fit the budget in bytes (default: half of what is free on the device, and on a
    GPU where that is too little, what is free beside a product).

    The budget is that of each process; `sliced` rows are kept in slices, one in each process.
    """
    group = group_of(A.domain)
    entries = group.longest(max(A.shape)) if sliced or group.cut else max(A.shape)
    each = entries * working_dtype(A).itemsize
    budget = group.free_bytes(A.device) / 2 if memory is None else float(memory)
    if memory is None and budget < least * each and A.device.type == "cuda":
        budget = free_beside_a_product(A)
    if budget < least * each:
        raise TooLarge(
            f"{purpose} keeps at least {least} vectors of {entries:,} entries, {in_words(least * each)};"
            f" the budget is {in_words(budget)}. Measure a named block, or raise `memory=`."
        )
    return int(budget // each)


def free_beside_a_product(A: Operator) -> float:
    """Bytes of a GPU that stay free while A multiplies a vector: it multiplies one, to see what that takes.

    What it took is at most the peak of this process since its beginning, so that nobody's statistics are reset.
    """
    held = torch.cuda.memory_allocated(A.device)
    multiply(A, probes(A, 0, "free", [0], "gaussian"))
    taken = torch.cuda.max_memory_allocated(A.device) - held
    group = group_of(A.domain)
    return group.least(BESIDE * (group.free_here(A.device) - taken))


def chunks(start: int, stop: int, size: int) -> list[range]:
    """`start .. stop` in pieces of at most `size`."""
    return [range(a, min(a + size, stop)) for a in range(start, stop, size)]


def orthogonalise(w: Tensor, Q: Tensor, passes: int = 2, group: Group = ALONE) -> tuple[Tensor, Tensor]:
    """`w` without its part in the span of the orthonormal rows `Q`, and the coefficients of that part (float64, CPU).

    Classical Gram-Schmidt; two passes leave an orthogonality of the size of round-off (Giraud, Langou, Rozloznik 2005).
    With a group `w` and `Q` are this process's slices of them.
    """
    h = torch.zeros(len(Q), dtype=torch.float64)
    if not len(Q):
        return h, w
    for _ in range(passes):
        part = group.sum(sum((columns(Q, p) @ w[p] for p in pieces(Q)), w.new_zeros(len(Q))))
        rest = [torch.addmv(w[p], columns(Q, p).T, part, alpha=-1) for p in pieces(Q)]
        w = rest[0] if len(rest) == 1 else torch.cat(rest)
        h += part.double().cpu()
    return h, w


def wide(Q: Tensor) -> bool:
    """Whether a product with these rows is made in pieces."""
    return Q.is_cuda and Q.stride(0) >= WIDE


def pieces(Q: Tensor) -> list[slice]:
    """The columns of Q in one product, or in several where it is wide."""
    size = _COLUMNS if wide(Q) else max(1, Q.shape[1])
    return [slice(p.start, p.stop) for p in chunks(0, Q.shape[1], size)] or [slice(0, 0)]


def columns(Q: Tensor, piece: slice) -> Tensor:
    """`Q[:, piece]`, of a wide Q as a matrix of its own."""
    return Q[:, piece].contiguous() if wide(Q) else Q[:, piece]


def orthonormal_rows(Y: Tensor, group: Group = ALONE) -> tuple[Tensor, Tensor]:
    """`Q` with orthonormal rows and `R` with `Y^T = Q^T R`; rows that depend on earlier ones give none in Q.

    `R` is `(r, k)`, float64 on the CPU, upper triangular where Y has full rank r = k. With a group `Y` and `Q` are this
    process's shards.
    """
    k, n = len(Y), group.size(Y.shape[1])
    Q = torch.empty((min(k, n), Y.shape[1]), dtype=Y.dtype, device=Y.device)
    R = torch.zeros((min(k, n), k), dtype=torch.float64)
    noise = 100 * torch.finfo(Y.dtype).eps * max(map(group.norm, Y))
    r = 0
    for j in range(k):
        h, w = orthogonalise(Y[j], Q[:r], group=group)
        R[:r, j] = h
        size = group.norm(w)
        if size > noise and r < n:
            Q[r], R[r, j] = w / size, size
            r += 1
    return Q[:r], R[:r]


def without(rows: Tensor, Q: Tensor, group: Group = ALONE) -> Tensor:
    """Rows less their parts in the span of the orthonormal rows Q."""
    rows = rows - group.sum(rows @ Q.T) @ Q
    return rows - group.sum(rows @ Q.T) @ Q
