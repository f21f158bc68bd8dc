"""Units as compiled programs: traced and compiled for one block, used for all that compute the same.

Whether blocks of one class and one shape do is measured: the first time a block is run through a program, its own code
is run too. Where they differ (other windows, scales that depend on the layer) it gets programs of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..core.forward import jvp
from ..kernels.calls import AttentionBy
from ..kernels.programs import program
from .soundness import ROUNDING, ROUNDING_HALF
from .structures import signature, taken
from .units import Call, Missing, dual

#: Of tensors one after another, whether each has a tangent.
Pattern = tuple[bool, ...]


@dataclass(frozen=True)
class Made:
    """The programs of a unit; its result, with slots for its tensors, `active` of which are differentiated."""

    forward: Callable[[Sequence[Tensor]], list[Tensor]]
    backward: Callable[[Sequence[Tensor]], list[Tensor | None]]
    form: Any
    active: list[int]


@dataclass
class Programs:
    """The programs of the units of a model. `products` is that of `kernels.program`."""

    products: str
    made: dict[Hashable, list[Made]] = field(default_factory=dict)  # by what tells calls apart, without the unit
    own: dict[Hashable, Made] = field(default_factory=dict)  # of each unit

    def forward(self, call: Call) -> tuple[list[Tensor], Any]:
        """`Call.forward` by a program; the first time by the unit's own code, to see that the program does the same."""
        at = call.tensors
        key = (
            type(call.inside.unit), call.by.second, signature(call.shape), tuple(call.weights), tuple(call.moving),
            tuple(call.rows), apart(at)[1], tuple((tuple(t.shape), t.dtype) for t in at),
        )  # fmt: skip
        unit = (id(call.inside.unit), key)
        if unit in self.own:
            made = self.own[unit]
            call.program, call.active = made.backward, made.active
            return made.forward(at), made.form
        results, form = call.forward()
        for made in self.made.setdefault(key, []):
            if _agree(made.forward(at), results):
                self.own[unit] = made
                call.program = made.backward
                return results, form
        raise Missing(partial(self._make, call, key, unit, results, form))

    def _make(self, call: Call, key: Hashable, unit: Hashable, results: list[Tensor], form: Any) -> None:
        """Programs of a unit, compared with its own code; outside torch's forward mode."""
        second, active = call.by.second, call.active
        primals, pattern = [p.primal for p in call.pairs], tuple(p.tangent is not None for p in call.pairs)
        tangents = [p.tangent for p in call.pairs if p.tangent is not None]
        along = [results[i] for i in active]  # without their tangents now; any numbers do
        some = (*pattern, *[second] * len(along)) if second else (False,) * (len(primals) + len(along))

        def forward(at: list[Tensor]) -> list[Tensor]:
            with AttentionBy(call.by.attention):
                return taken(call.run(at)[0])[0]

        def backward(at: list[Tensor]) -> list[Tensor]:
            return call.backward(at[: len(primals)], at[len(primals) :])

        rows = range(len(call.moving), len(call.moving) + len(call.rows))
        runs = []
        for function, at, duals, alone in ((forward, primals, pattern, ()), (backward, [*primals, *along], some, rows)):
            given = tangents if any(duals) else []
            if function is backward and second:  # other tensors: one in two places would be one argument
                given = [*tangents, *(t / 2 for t in along)]
            flat = partial(_with_tangents, function, duals, alone if second else ())
            with torch.no_grad():
                run = program(flat, at, given, products=self.products)
                with torch._C.DisableTorchFunction():  # as in use: the compiler looks at this
                    found = run([t.detach().contiguous() for t in at], [t.contiguous() for t in given])
                _require_same(call.name, found, flat(at, given))
            runs.append(partial(_called, run, any(duals), alone if second else ()))
        made = Made(runs[0], runs[1], form, active)
        self.made[key].append(made)
        self.own[unit] = made


def _with_tangents(
    function: Callable[[list[Tensor]], list[Tensor]], pattern: Pattern, alone: Sequence[int], at: Any, tangents: Any
) -> tuple[list[Tensor | None], list[Tensor]]:
    """(values, their tangents) of a function; of the results `alone` the tangents only."""
    if not any(pattern):
        return list(function(at)), []
    moving = [i for i, dual in enumerate(pattern) if dual]

    def moved(*moved: Tensor) -> list[Tensor]:
        used = list(at)
        for i, t in zip(moving, moved, strict=True):
            used[i] = t
        return function(used)

    values, slopes = jvp(moved, tuple(at[i] for i in moving), tuple(tangents))
    return [None if i in alone else t for i, t in enumerate(values)], list(slopes)


def _called(run: Callable[..., Any], tangents: bool, alone: Sequence[int], tensors: Sequence[Tensor]) -> list[Any]:
    """A program on tensors with tangents."""
    pairs = [forward_ad.unpack_dual(t) for t in tensors]
    given = [p.tangent.detach().contiguous() for p in pairs if p.tangent is not None] if tangents else []
    with torch.no_grad(), torch._C.DisableTorchFunction():
        values, slopes = run([p.primal.detach().contiguous() for p in pairs], given)
        if not slopes:
            return values
        return [
            d if v is None else forward_ad.make_dual(v, d) if v.is_floating_point() else v
            for v, d in zip(values, slopes, strict=True)
        ]


def apart(tensors: Sequence[Tensor]) -> tuple[list[Tensor], Pattern]:
    """Tensors and their tangents one after another, and which have one."""
    pairs = [forward_ad.unpack_dual(t) for t in tensors]
    return [part for pair in pairs for part in pair if part is not None], tuple(p.tangent is not None for p in pairs)


def _agree(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Whether tensors and tangents are the same up to rounding; one that is missing is zero."""
    whole = [[dual(t) if t.is_floating_point() else t for t in ts] for ts in (found, wanted)]
    return all(map(_close, *(apart(ts)[0] for ts in whole)))


def _require_same(name: str, found: Any, wanted: Any) -> None:
    pairs = [(a, b) for some, same in zip(found, wanted, strict=True) for a, b in zip(some, same, strict=True)]
    if not all(a is b or _close(a, b) for a, b in pairs):
        raise RuntimeError(f"the compiled `{name}` differs from its own code")


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return float((a - b).norm()) <= ROUNDING.get(a.dtype, ROUNDING_HALF) * float(b.norm())
