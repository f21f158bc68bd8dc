"""Lines about Kronecker preconditioners of one attention head: scalars `kronecker/W_Q/K-FAC expand`, ..."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..core.record import Estimate
from .answer import Grid
from .texts import line

HEAD = "kronecker/"


def kronecker_lines(scalars: Mapping[str, Estimate]) -> Iterator[str]:
    """How far each kind is from the blocks H_o(W, W), as a table; nothing where it was not asked for."""
    found = {tuple(key.removeprefix(HEAD).split("/")): e.value for key, e in scalars.items() if key.startswith(HEAD)}
    if not found:
        return
    kinds = tuple(dict.fromkeys(kind for _, kind in found))
    weights = dict.fromkeys(name for name, _ in found)
    yield line("line_kronecker")
    yield from str(
        Grid(("block", *kinds), tuple((n, *(found[n, kind] for kind in kinds)) for n in weights))
    ).splitlines()
