"""Products of a model whose weights lie in several processes, by its units; here, cut by FSDP2.

A unit gathers W and V together, forwards and again backwards, and adds up its part of the image over the processes
(`fsdp`). Vectors and images are local shards. Every process runs the same units in the same order: one with fewer
batches runs its last one again with weight 0, one without data that of another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ..core.errors import InputError
from ..core.forward import alone
from ..core.memory import in_words
from ..core.progress import say
from ..core.space import Vector
from ..distributed.processes import Group
from ..distributed.shards import local
from .alive import Alive
from .by_units import ByUnits, Evaluation, Product, Scalar, add, gradients, moving
from .fsdp import Apartness, Fsdp
from .kept import MAY_KEEP, Kept
from .risk import Risk
from .settings import without_cache
from .several import NotTogether, Several, as_one, parts_of, together
from .soundness import differ, direction, inner, rounding
from .strategies import Prepared
from .strategies import Scalar as BatchScalar
from .units import Call, NoUnit, Recomputed
from .wide import Wide


@dataclass(frozen=True)
class BySharded(ByUnits):
    """Units whose weights are gathered when they run, once for several vectors."""

    at_once: list[int] = field(default_factory=list)  # one, once looked at: how many vectors go together

    def weight(self, i: int) -> float:
        return 1.0  # counted inside, as images are added up there

    def __call__(self, i: int, V: Vector, kept: Kept) -> dict[str, Tensor]:
        try:
            return self.prepare(i, V, kept).apply(V)
        except NoUnit as error:
            raise InputError(f"{self.kind.what}: {self.cannot(1)} ({error}), and its weights are cut.") from error

    def _each(self, one: Callable[[Vector], dict[str, Tensor]], V: Vector) -> dict[str, Tensor]:
        if next(iter(V.values())).shape[0] > 1:
            return super()._each(one, V)
        image = one({n: t[0] for n, t in V.items()})  # added up in storage of its own: not copied
        return {n: image[n].detach()[None] for n in self.kind.rows}

    def _some(self, one: Product, V: Vector) -> dict[str, Tensor]:
        """The products with several vectors, as many in one pass as fit the memory of every process."""
        k, shards = next(iter(V.values())).shape[0], self.kind.risk.shards
        assert shards is not None
        if k > 1 and shards.several and not self.at_once:
            self.at_once.append(self._look(one, V, shards.group))
        size = self.at_once[0] if self.at_once else 1
        if k == 1 or size == 1:
            return self._each(one, V)
        parts = [together(one, {n: t[j : j + size] for n, t in V.items()}) for j in range(0, k, size)]
        return {n: torch.cat([p[n] for p in parts]) for n in self.kind.rows} if len(parts) > 1 else parts[0]

    def _look(self, one: Product, V: Vector, group: Group) -> int:
        """How many vectors go together. k of them take at most k times what one does, which is counted; two together
        are compared with that one. A process that is short of memory inside a product would end all."""
        with Alive() as alive:
            alone = one({n: t[0] for n, t in V.items()})
        size = min(self.together, int(MAY_KEEP * group.free_bytes(self.kind.risk.device) / max(1, alive.peak)))
        if size < 2:
            say(f"{self.kind.what}: one vector after another (a product takes {in_words(alive.peak)} in a process)")
            return 1
        try:
            found = together(one, {n: t[:2] for n, t in V.items()})
        except NotTogether as error:
            say(f"{self.kind.what}: one vector after another ({error})")
            return 1
        gaps = {n: found[n][0] - t for n, t in alone.items()}
        gap, most = group.sum(torch.tensor([inner(v, v) for v in (gaps, alone)], dtype=torch.float64)).sqrt().tolist()
        if gap > rounding(self.kind.risk) * most:
            say(f"{self.kind.what}: one vector after another (the image is not that of the vector alone)")
            return 1
        return size

    def prepare(self, i: int, V: Vector, kept: Kept) -> Prepared:
        risk, split, scalar = self.kind.risk, self.kind.split, self.kind.scalar
        assert risk.shards is not None
        if not self.made:
            first = risk.shards.evaluation(risk, weight=risk.weights[0])
            if differ(risk, partial(first.slopes, risk.batches[0])):
                raise NoUnit("forward and reverse derivatives differ: a tensor leaves a unit beside its output")
            self.made.append(first)
        batch, run = risk.batches[i], risk.shards.evaluation(risk, self.kind.rows, risk.weights[i])

        def product(v: Vector) -> dict[str, Tensor]:
            if scalar is None:
                return run.gauss_newton(batch, v, split)
            if self.kind.fixed:
                return run.functional(batch, v, split, scalar)
            return run.hessian(lambda p: scalar(p, batch), risk.params, v)

        return Prepared(lambda V: self._some(product, V))


class Apart(Evaluation):
    """Derivatives of `weight` times the loss of a batch where the weights lie apart, in several processes."""

    def __init__(
        self,
        risk: Risk,
        apart: Apartness,
        units: Mapping[str, nn.Module],
        rows: tuple[str, ...] | None,
        weight: float,
    ) -> None:
        super().__init__(risk, units, rows)
        self.apart, self.weight = apart, weight

    def _hessian(self, scalar: Scalar, at: Vector, v: Vector) -> dict[str, Tensor]:
        with self.apart.product():
            return super()._hessian(scalar, at, v)

    def transposed(
        self, function: Callable[[Vector], Tensor], at: Vector, v: Vector, curve: Callable[[Tensor], Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        with self.apart.product():
            return super().transposed(function, at, v, curve)

    def functional(self, batch: Any, v: Vector, split: str | None, scalar: BatchScalar) -> dict[str, Tensor]:
        """The product of H_f, the Hessian of a scalar, with v."""
        return self.hessian(lambda p: scalar(p, batch), self.risk.params, v)

    def slopes(self, batch: Any, near: Vector) -> tuple[float, float]:
        v = direction(self.risk, "forward")
        g, slope = self._recorded(lambda: self._slope(batch, near, v))
        group = self.apart.group
        by_forward = float(group.over_data(self.weight * slope.detach().double()))
        along, size = group.sum(torch.tensor([inner(g, v), inner(g, g)], dtype=torch.float64)).tolist()
        return by_forward - along, size**0.5


class Sharded(Apart):
    """Over local shards, added up over the processes; its units are run by `gathered`."""

    @property
    def gathered(self) -> Callable[..., Gathered]:
        return Gathered

    def __init__(self, risk: Risk, fsdp: Fsdp, rows: tuple[str, ...] | None = None, weight: float = 1.0) -> None:
        super().__init__(risk, fsdp, fsdp.units, rows, weight)
        self.fsdp = fsdp
        self.frozen = {n: local(t) for n, t in self.frozen.items()}
        self.k = 1  # vectors in one pass
        self.outside: dict[str, Tensor] = {}  # weights outside the units, whole while a product runs

    def gauss_newton(self, batch: Any, v: Vector, split: str | None) -> dict[str, Tensor]:
        """J^T (d2l/dF2) J v. At the network's output the loss behind it is differentiated in the pass that makes F:
        its gradient in F has (d2l/dF2) J v as its tangent. Nothing is evaluated, or gathered, again."""
        at_once = split is None and not self.fsdp.wide
        found = self._recorded(lambda: self._at_output(batch, v)) if at_once else None
        return super().gauss_newton(batch, v, split) if found is None else found

    def _at_output(self, batch: Any, v: Vector) -> dict[str, Tensor] | None:
        """None where the output is not one tensor, is never whole, or units lie behind it."""
        sums: dict[str, Tensor] = {}
        with self.fsdp.product(), alone, torch.enable_grad():
            with forward_ad.dual_level():
                theta = self._moving(self.risk.params, v)
                run = self._run(theta, partial(add, sums), second=False)
                with run.scope(), without_cache(self.risk.model):
                    value, F = self.risk.run({**self.frozen, **theta}, batch)
                self.fsdp.wide |= isinstance(F, Wide)
                if F is None or self.fsdp.wide or not F.requires_grad:
                    return None
                (g,) = gradients([value], [F], None, self.recording)
                if g is None or sums:
                    return None
                curved = forward_ad.unpack_dual(g).tangent
                curved = torch.zeros_like(g) if curved is None else curved.detach()
            self._back([F], [curved], theta, run)
            return self._whole(sums)

    def _moving(self, at: Vector, v: Vector) -> dict[str, Tensor]:
        self.k = max((len(parts_of(t)) for t in v.values()), default=1)
        names, shards = self.fsdp.outside, {**self.frozen, **at}
        whole, along = self.fsdp.pairs(names, [shards[n] for n in names], [v.get(n) for n in names])
        self.outside = dict(zip(names, whole, strict=True))
        theta = moving({n: t for n, t in at.items() if n not in self.outside}, v)
        tangents = {n: t for n, t in zip(names, along, strict=True) if t is not None}
        return {**self.outside, **theta, **moving({n: t for n, t in self.outside.items() if n in at}, tangents)}

    def _here(self) -> Vector:
        return {**self.risk.params, **self.outside}

    def _run(self, theta: Vector, sink: Callable[[str, Tensor], None], *, second: bool) -> Recomputed:
        rows = self.rows if theta else ()
        options: Any = {"second": second, "cut": self.cut}
        return self.gathered(self._reduced, self.fsdp, self.units, self.risk.attention, theta, rows, sink, **options)

    def _whole(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        beside = self._reduced({n: found.get(n) for n in self.rows if n in self.outside})
        self.outside = {}
        return super()._whole({**found, **beside})

    def _reduced(self, whole: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """Local shards of the sum over the processes of `weight` times what each found, None for zero. Losses that a
        model computes in float32 do not meet the weight before."""
        like = next(iter(self.risk.params.values()))
        own = {n: parts_of(g) * (1 if isinstance(g, Several) else self.k) for n, g in whole.items()}
        found: dict[str, list[Tensor]] = {n: [] for n in whole}
        for j in range(0, self.k, 2):
            parts = [(n, g) for n in whole for g in own[n][j : j + 2]]
            names, every = [n for n, _ in parts], [None if g is None else g.detach() for _, g in parts]
            for n, t in zip(names, self.fsdp.shards.reduce(names, every, self.weight, like), strict=True):
                found[n].append(t)
        return {n: as_one(parts) for n, parts in found.items()}


class Gathered(Recomputed):
    """Units that gather their weights and add up their part of the image."""

    def __init__(self, reduced: Callable[..., dict[str, Tensor]], fsdp: Fsdp, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.reduced, self.fsdp = reduced, fsdp

    @property
    def call(self) -> type[Call]:
        return GatheredCall

    def plain(self, name: str, unit: nn.Module, forward: Callable[..., Any], args: Any, options: Any) -> Any:
        return self.fsdp.run(name, unit, forward, *args, **options)

    def take(self, found: Mapping[str, Tensor | None]) -> None:
        beside = self.fsdp.outside  # a weight that a unit shares with what is outside
        super().take({n: g for n, g in found.items() if n in beside})
        super().take(self.reduced({n: g for n, g in found.items() if n not in beside}))


class GatheredCall(Call):
    """One call of a unit whose weights are cut."""

    by: Gathered

    @property
    def tensors(self) -> list[Tensor]:
        given, held = self.pairs[: self.given], [forward_ad.unpack_dual(p.tensor()) for p in self.pairs[self.given :]]
        names = Fsdp.full(self.name, self.weights)
        weights = self.by.fsdp.gathered(names, [p.primal for p in held], [p.tangent for p in held])
        return [*(p.tensor() for p in given), *weights]
