"""Units as compiled programs: traced and compiled for one block, used for all that compute the same.

Whether blocks of one class and one shape do is measured: the first time a block is run through a program, its own code
is run too. Where they differ (other windows, scales that depend on the layer) it gets programs of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from ..core.forward import jvp
from ..kernels.calls import AttentionBy
from ..kernels.programs import program
from .several import NotTogether, Several, stacked
from .soundness import ROUNDING, ROUNDING_HALF
from .structures import signature, taken
from .units import Call, Missing, dual

#: Of tensors one after another, whether each has a tangent.
Pattern = tuple[bool, ...]
#: A tensor, or of several that stand for one its parts: what a program is given.
Opened = Tensor | list[Tensor]


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
            tuple(call.rows), tuple(map(_kind, at)),
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
        k = max(map(_count, tangents), default=1)  # vectors
        along = [results[i] if second else _times(results[i], k) for i in active]  # any numbers do
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
                given = [*tangents, *(_times(t / 2, k) for t in along)]
            flat = partial(_with_tangents, function, duals, alone if second else ())
            example = [_opened(t) for t in at], [_opened(t) for t in given]
            with torch.no_grad():
                run = program(flat, *example, products=self.products)
                with _as_in_use():
                    found = run(*example)
                _require_same(call.name, found, flat(*example))
            counts = [_count(t) for t in at], [_count(t) for t in given]
            runs.append(partial(_called, run, counts, alone if second else ()))
        made = Made(runs[0], runs[1], form, active)
        self.made[key].append(made)
        self.own[unit] = made


def _with_tangents(
    function: Callable[[list[Tensor]], list[Tensor]], pattern: Pattern, alone: Sequence[int], *given: list[Opened]
) -> tuple[list[Opened | None], list[Opened]]:
    """(values, their tangents) of a function; of the results `alone` the tangents only."""
    at, tangents = ([_closed(t) for t in some] for some in given)
    if not any(pattern):
        return [_opened(t) for t in function(at)], []
    moving = [i for i, dual in enumerate(pattern) if dual]

    def moved(*moved: Tensor) -> list[Tensor]:
        used = list(at)
        for i, t in zip(moving, moved, strict=True):
            used[i] = t
        return function(used)

    values, slopes = jvp(moved, tuple(at[i] for i in moving), tuple(tangents))
    return [None if i in alone else _opened(t) for i, t in enumerate(values)], [_opened(t) for t in slopes]


def _called(
    run: Callable[..., Any], counts: tuple[list[int], list[int]], alone: Sequence[int], tensors: Sequence[Tensor]
) -> list[Any]:
    """A program on tensors with tangents, each of which stands for as many as when it was traced."""
    pairs = [forward_ad.unpack_dual(t) for t in tensors]
    given = [p.tangent for p in pairs if p.tangent is not None] if counts[1] else []
    at = [
        [_opened(t, k) for t, k in zip(ts, ks, strict=True)]
        for ts, ks in zip(([p.primal for p in pairs], given), counts, strict=True)
    ]
    with torch.no_grad(), _as_in_use():
        values, slopes = ([_closed(t) for t in some] for some in run(*at))
        if not slopes:
            return values
        return [
            d if v is None else forward_ad.make_dual(v, d) if v.is_floating_point() else v
            for v, d in zip(values, slopes, strict=True)
        ]


def _count(t: Tensor) -> int:
    """How many tensors one stands for."""
    return len(t.parts) if isinstance(t, Several) else 1


def _times(t: Tensor, k: int) -> Tensor:
    """k tensors as one."""
    return t if k == 1 else Several([t / (1 + j) for j in range(k)])


def _opened(t: Tensor, k: int | None = None) -> Opened:
    """A tensor as a program takes it that was traced for k in its place."""
    if not isinstance(t, Several):
        own = t.detach().contiguous()
        return own if k in (None, 1) else [own.clone() for _ in range(k or 1)]
    if k not in (None, len(t.parts)):
        raise NotTogether("a program takes one tensor for all")
    return [part.detach().contiguous() for part in t.parts]


def _closed(t: Any) -> Any:
    return Several(t) if isinstance(t, list) else t


def _kind(t: Tensor) -> Hashable:
    """What a program depends on of a tensor and its tangent."""
    primal, tangent = forward_ad.unpack_dual(t)
    return tuple(t.shape), t.dtype, _count(primal), 0 if tangent is None else _count(tangent)


@contextlib.contextmanager
def _as_in_use() -> Iterator[None]:
    """No scope that answers torch's functions: the compiler looks at them, and would compile again for others."""
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


def _agree(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Whether tensors and tangents are the same up to rounding; one that is missing is zero."""
    pairs = [[forward_ad.unpack_dual(dual(t) if t.is_floating_point() else t) for t in ts] for ts in (found, wanted)]
    both = [(a, b) for p, q in zip(*pairs, strict=True) for a, b in zip(p, q, strict=True) if a is not None]
    return all(_close(stacked(a, k), stacked(b, k)) for a, b in both for k in [max(_count(a), _count(b))])


def _require_same(name: str, found: Any, wanted: Any) -> None:
    if not all(a is b or _close(a, b) for a, b in zip(*(tree_leaves(ts) for ts in (found, wanted)), strict=True)):
        raise RuntimeError(f"the compiled `{name}` differs from its own code")


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return float((a - b).norm()) <= ROUNDING.get(a.dtype, ROUNDING_HALF) * float(b.norm())
