"""The vectors of a product split over processes: each multiplies some of them with the whole operator.

For data that cannot be split (one batch of one row), or products that are cheap and many: random probes of a trace,
a diagonal, a density. Every process sees all images, so means and standard errors are those of one process, bit for
bit.
"""

from __future__ import annotations

import dataclasses
from typing import final

from torch import Tensor

from ..core.operator import Operator
from ..core.space import Space, Vector
from .processes import Group


def spread(A: Operator, group: Group) -> Operator:
    """A, whose products with k vectors at once are dealt to the processes of the group, k / world each.

    Every process holds all of A; give it an operator of a risk that is not sharded.
    """
    return A if group.world == 1 else _Spread(A, group)


@final
class _Spread(Operator):
    def __init__(self, A: Operator, group: Group) -> None:
        super().__init__(
            _shared(A.domain, group),
            _shared(A.codomain, group),
            dtype=A.dtype,
            device=A.device,
            symmetric=A.symmetric,
            psd=A.psd,
        )
        self.A, self.group = A, group

    def apply(self, V: Vector) -> dict[str, Tensor]:
        k = next(iter(V.values())).shape[0]
        start, stop = (k * r // self.group.world for r in (self.group.rank, self.group.rank + 1))
        out = self.codomain.zeros(k, dtype=self.dtype, device=self.device)
        if stop > start:
            image = self.A.apply({n: t[start:stop] for n, t in V.items()})
            for n, t in image.items():
                out[n][start:stop] = t
        return self.group.total(out, V)

    def adjoint(self) -> Operator:
        return self if self.symmetric else _Spread(self.A.adjoint(), self.group)

    def sub(self, rows: Space, cols: Space) -> Operator:
        return _Spread(self.A.sub(rows, cols), self.group)


def _shared(space: Space, group: Group) -> Space:
    return dataclasses.replace(space, group=group)
