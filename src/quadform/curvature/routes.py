"""How products are run: step by step, through a traced program, through a compiled one; chosen by predicted time.

`eager`     the model's own code. Of a Hessian the gradient's graph is kept, and a product is one more backward pass
            (`retained`); else, or where that fails, `jvp(grad)`, several vectors at once.
`traced`    two aten programs (`linear`): what no vector touches runs once and is kept, the rest runs for every vector.
`compiled`  the second of them through torch's compiler: a minute or more at first, then fastest. On a GPU replayed from
            a CUDA graph for each batch; where torch may take TF32, large products are then in scaled float16.
`units`     the repeated blocks of a model keep their inputs alone and are run again backwards (`units`): twice the time
            of an eager product, at the memory of one block. Taken where the others do not fit the memory.
`compiled-units`  the same with one block compiled, for all that compute the same.
`auto`      the default: whichever is predicted to end first; the prediction is said in one line. Where it is not known
            how many products there will be, eager until the products so far would have paid for preparing another
            (`Rent`). Work that can be resumed stays eager (`core.steady`): its bits do not depend on the clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.progress import say
from ..core.space import Vector
from ..core.steady import is_steady
from ..distributed.processes import group_of
from .by_units import ByUnits
from .kept import Kept
from .prediction import FEW, Rent, fastest, in_time, measure, slower, timed
from .retained import TooLarge
from .sharded import BySharded
from .strategies import ByForward, ByProgram, ByRetained, ByReverse, Kind, Route, Strategy, Unsuitable

if TYPE_CHECKING:
    from .linear import Linearised

ROUTES = ("eager", "traced", "compiled", "units", "compiled-units", "auto")

#: Programs of a route in the order in which they are tried, by whether they are compiled.
_COMPILE: dict[Route, tuple[bool, ...]] = {"traced": (False,), "compiled": (True, False)}
#: Vectors that share one pass step by step. A program takes one: what they would share is kept anyway.
CHUNK = 8
#: Vectors that share one pass by units, whose tangents all live at a time.
TOGETHER = 4


@dataclass(frozen=True)
class Choice:
    """Ways to products in the order in which they are tried, the first in use, and why others are not."""

    ways: tuple[Strategy, ...]
    why: tuple[str, ...] = ()
    short: bool = False  # others take more memory than there is

    def without(self, error: Unsuitable) -> Choice:
        """What is left when the first does not suit; `InputError` where nothing is."""
        first, *rest = self.ways
        left = [way for way in rest if not error.also(way)]
        if not left:
            nothing = _TOO_LARGE.format(error) if self.short else _nothing_left(first.kind, error)
            raise InputError(f"{first.kind.what}: {nothing}") from error
        instead = left[0].how
        if first.route != "eager":
            instead = f"{instead if left[0].route != 'eager' else 'step by step'} instead"
        return self._said(left, f"{first.kind.what}: {error}; {instead}{_cost(first, left[0])}.")

    def smaller(self, error: torch.OutOfMemoryError, alone: bool) -> Choice:
        """What takes less memory than the first: no program, half as many vectors at once, or units; an error where
        nothing does.

        `alone`: it was one vector that did not fit.
        """
        first, *rest = self.ways
        if isinstance(first, ByProgram):
            reason = f"{first.cannot(1)} (its program does not fit the memory)"
            return self.without(Unsuitable(reason, lambda way: isinstance(way, ByProgram)))
        if alone or isinstance(first, ByRetained):
            if not any(isinstance(way, ByUnits) for way in rest):
                raise error if first.kind.risk.shards is not None else _too_large(first, error) from error
            reason = str(error) if isinstance(error, TooLarge) else "a product does not fit the memory"
            found = self.without(Unsuitable(reason, lambda way: not isinstance(way, ByUnits)))
            return dataclasses.replace(found, short=True)
        half = dataclasses.replace(first, together=max(1, first.together // 2))
        text = f"{first.together} vectors at once do not fit the memory; {half.together} at once."
        return self._said([half, *rest], f"{first.kind.what}: {text}")

    def _said(self, ways: list[Strategy], why: str) -> Choice:
        say(why)
        return Choice(tuple(ways), (*self.why, why), self.short)


_TOO_LARGE = (
    "its graph does not fit the memory, and this model {}. Nothing was measured. Give shorter sequences or smaller"
    " batches, or name its parts in `Risk(..., units=)`."
)


def _cost(wanted: Strategy, taken: Strategy) -> str:
    """What another way costs, as a rule; nothing where it is about the same."""
    kind = wanted.kind
    times = slower(wanted.route, taken.route, kind.risk.device.type, retained=kind.scalar is not None)
    return f", about {times:.1f} times as long a product" if times > 1.2 else ""


def _too_large(way: Strategy, error: torch.OutOfMemoryError) -> TooLarge:
    """The error where one product does not fit the memory, whichever way."""
    advice, risk = "Use smaller batches or shorter sequences", way.kind.risk
    if isinstance(way, ByUnits):
        why = ", not even block by block"
    elif risk.units:
        why = ", and this model cannot be run block by block"
    else:
        why = ", and this model has no repeated blocks to run one at a time"
        advice += ", or name its parts in `Risk(..., units=)`"
    reason = str(error).partition(". ")[0]
    return TooLarge(f"{way.kind.what}: a product does not fit the memory{why} ({reason}). {advice}.")


def _nothing_left(kind: Kind, error: Unsuitable) -> str:
    if kind.risk.soundness.forward:
        return (
            f"this model has neither a second backward pass nor a forward derivative ({error}). Nothing was measured."
        )
    return (
        "this model has no second backward pass, and forward derivatives go through its parts under `torch.no_grad`."
        " Nothing was measured; use `.detach()` there."
    )


def choose(kind: Kind, wanted: Route, chunk: int) -> Choice:
    """The ways that the derivatives of the risk allow, those of the wanted route first."""
    if kind.risk.shards is not None:
        return Choice((BySharded(kind, min(chunk, TOGETHER)),))
    risk, by_units = kind.risk, wanted in ("units", "compiled-units")
    why: list[str] = []
    programs = [ByProgram(kind, compile=compile) for compile in _COMPILE.get(wanted, ())]
    if programs and risk.writes:
        why.append(f"{kind.what}: cannot be {wanted} (training mode writes into buffers); step by step instead.")
        programs = []
    forward = risk.trusted(wanted).forward
    if not forward and (programs or by_units or kind.scalar is None):
        why.append(
            f"{kind.what}: forward and reverse derivatives differ, as where a part runs under `torch.no_grad`;"
            " reverse passes alone (eager), which see what training sees."
        )
        programs = []
    units = [ByUnits(kind, min(chunk, TOGETHER))] if forward and (risk.units or by_units) else []
    ways: list[Strategy] = [*programs, *(units if by_units else ())]
    if wanted == "compiled-units" and units:
        ways.insert(0, ByUnits(kind, min(chunk, TOGETHER), compile=True))
    ways += [ByRetained(kind, chunk)] if kind.scalar is not None else []
    ways += [ByForward(kind, k) for k in sorted({chunk, 1}, reverse=True)] if forward else []
    ways += [ByReverse(kind, chunk)] if kind.by_reverse is not None else []
    ways += [] if by_units else units
    for line in why:
        say(line)
    return Choice(tuple(ways), tuple(why))


class Products:
    """k products with the sum over the batches of a risk. The way is chosen at the first one."""

    def __init__(self, kind: Kind, route: Route, *, chunk: int = CHUNK, expected: int | None = None) -> None:
        if route not in ROUTES:
            raise InputError(f"route {route!r} is not one of {', '.join(map(repr, ROUTES))}.")
        self.kind, self.wanted, self.chunk, self.expected = kind, route, chunk, expected
        risk = kind.risk
        self.group = group_of(risk.space)
        group = self.group
        self.kept = Kept(kind.what, len(risk.batches), lambda: group.free_here(risk.device), again=expected != 1)
        self.choice: Choice | None = None
        self.rent = Rent() if route == "auto" and expected is None and risk.shards is None else None

    @property
    def route(self) -> Route:
        """The route in use; before the first product, the one that was asked for."""
        return self.wanted if self.choice is None else self.choice.ways[0].route

    @property
    def asked(self) -> Route:
        """The route for the products of a part: the one in use, or `auto` where that may still change."""
        return self.route if self.rent is None else self.wanted

    @property
    def why(self) -> tuple[str, ...]:
        """Why other ways than the first that was possible are not in use."""
        return () if self.choice is None else self.choice.why

    @property
    def programs(self) -> Mapping[Any, Linearised]:
        """The programs that were made, by shape of batch."""
        way = None if self.choice is None else self.choice.ways[0]
        return way.programs if isinstance(way, ByProgram) else {}

    @property
    def retained(self) -> bool:
        """Whether products go through a retained gradient."""
        return self.choice is not None and isinstance(self.choice.ways[0], ByRetained)

    def by(self, route: Route) -> Products:
        """The same products by another route."""
        return Products(self.kind, route, chunk=self.chunk, expected=self.expected)

    def __call__(self, V: Vector) -> dict[str, Tensor]:
        rent, first = self.rent, self.choice is None
        if rent is not None and first:
            self.choice = choose(self.kind, "eager", self.chunk)
        if rent is None or first or is_steady():  # the first also loads and warms up
            return self._products(V)
        images: dict[str, Tensor] = {}
        before, k = self.route, next(iter(V.values())).shape[0]
        seconds = self.group.most(timed(lambda: images.update(self._products(V)), self.kind.risk.device))
        if self.route != before:  # the memory was short
            self.rent = Rent()
            return images
        if k == 1 or self.retained:  # vectors that share a pass tell nothing about single ones
            rent.add(k, seconds)
        if (route := rent.best(self)) != before:
            say(f"{self.kind.what}: {route} from now on, for which {rent.products} products would have paid")
            self.choice, self.rent = choose(self.kind, route, self.chunk), None
            self.kept.clear()
        return images

    def _products(self, V: Vector) -> dict[str, Tensor]:
        risk, rows, k = self.kind.risk, self.kind.rows, next(iter(V.values())).shape[0]
        if not k:
            return {n: risk.params[n].new_zeros((0, *risk.params[n].shape)) for n in rows}
        with risk.context():
            if self.choice is None:
                self.choice = choose(self.kind, self._chosen({n: t[:1] for n, t in V.items()}), self.chunk)
            if not risk.batches:  # a process without data
                return {n: risk.params[n].new_zeros((k, *risk.params[n].shape)) for n in rows}
            parts: list[dict[str, Tensor]] = []
            start = 0
            while start < k:
                size = self.choice.ways[0].together
                try:
                    parts.append(self._some({n: t[start : start + size] for n, t in V.items()}))
                except Unsuitable as error:
                    self.choice = self.choice.without(error)
                    self.kept.clear()
                    continue
                except torch.OutOfMemoryError as error:
                    self.choice = self.choice.smaller(error, alone=min(size, k) == 1)
                    self.kept.clear()
                    continue
                start += size
        return {n: torch.cat([p[n] for p in parts]) for n in rows} if len(parts) > 1 else parts[0]

    def _some(self, V: Vector) -> dict[str, Tensor]:
        assert self.choice is not None
        way = self.choice.ways[0]
        total: dict[str, Tensor] = {}
        for i in range(len(self.kind.risk.batches)):
            weight = way.weight(i)
            for name, t in way(i, V, self.kept).items():
                part = t if weight == 1 else weight * t
                total[name] = part if name not in total else total[name] + part
        return total

    def _chosen(self, v: Vector) -> Route:
        """The wanted route; of `auto` with a number of products the one that is predicted to end first."""
        if self.wanted != "auto" or self.kind.risk.shards is not None:
            return self.wanted
        few = self.expected is not None and self.expected <= FEW
        return "eager" if few or is_steady() else self._fastest(v)

    def _fastest(self, v: Vector) -> Route:
        predicted = measure(self, v)
        route = fastest(predicted)
        faster = [name for name in predicted if name != route and "units" not in name]  # which save memory, not time
        others = ", ".join(f"{name} {in_time(predicted[name])}" for name in faster)
        if predicted["eager"] >= 2:  # below that nobody waits
            took = in_time(predicted[route])
            say(f"{self.kind.what}: {route} route for {self.expected} products, about {took} ({others})")
        return route
