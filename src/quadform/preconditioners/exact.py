"""The parts of an operator itself that can be inverted: its diagonal, and diagonal blocks of whole tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.errors import InputError
from ..core.operator import Dense, Operator
from ..core.structured import Diagonal
from ..estimate import diagonals
from .operators import Blocks


def diagonal(A: Operator, products: int = 60, *, seed: int = 0) -> Blocks:
    """|diag A|: exact where the dimension is at most `products`, else from as many products, with `stderr`.

    A Hessian has diagonal entries of both signs; P takes their size, and `notes` say how many are below 0.
    """
    found = diagonals.diagonal(A, products, seed=seed)
    below = sum(int((d < 0).sum()) for d in found.value.values())
    notes = [f"|diagonal| ({found.note})", *[f"{below:,} of {A.domain.size:,} entries are below 0"] * bool(below)]
    size = {n: d.abs().to(A.dtype) for n, d in found.value.items()}
    stderr = {} if found.kind == "exact" else found.stderr
    return Blocks([Diagonal(size, A.domain)], A.domain, notes, stderr)


def block_diagonal(A: Operator, blocks: Mapping[str, Sequence[str]] | None = None) -> Blocks:
    """The diagonal blocks of a symmetric operator, exact: of every tensor by itself, or of the given groups of tensors
    (`curvature.groups.groups`) with each of the others by itself."""
    if not A.symmetric:
        raise InputError(f"a preconditioner needs a symmetric operator; got {A!r}.")
    groups = [tuple(names) for names in (blocks or {}).values()]
    taken = [n for names in groups for n in names]
    if len(set(taken)) < len(taken) or not set(taken) <= set(A.domain.names):
        raise InputError("blocks are disjoint groups of whole tensors of the operator; use `H.block(...)` for parts.")
    groups += [(n,) for n in A.domain.names if n not in taken]
    found: list[Operator] = []
    for names in groups:
        space = A.domain.select(*names)
        matrix = A.sub(space, space).dense()
        found.append(Dense(0.5 * (matrix + matrix.mT), space, symmetric=True, psd=A.psd))
    widest = max(block.domain.size for block in found)
    return Blocks(found, A.domain, [f"exact blocks: {len(found)}, the largest {widest:,} wide"])
