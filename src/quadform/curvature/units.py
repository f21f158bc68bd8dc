"""Units: parts of a model, as the blocks of a Transformer, that keep their input alone and are run again backwards.

A unit is a pair function and, backwards, the tangent of its reverse derivative:

    (x, x')  ->  (y, y') = (f(W, x), f'(W, x)(W', x'))
    (g, g')  ->  vjp f(W, x; g) and its derivative along (W', x', g')       forward over reverse

Outside the units the model's own code runs in torch's forward mode, tangents riding on the activations, and one reverse
pass inside that mode: forward over reverse again, so layer norms are right wherever they stand (reverse over forward is
wrong through them). Between forward and backward a unit keeps (x, x'); its inside lives while it is run again.
Source: [own]; recomputation is that of gradient checkpointing.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, vjp

from ..core.errors import InputError, closest
from ..kernels.calls import Attention, AttentionBy
from .retained import overwritten, require_rules, written
from .structures import filled, taken
from .wide import Cut, restore

if TYPE_CHECKING:
    from .unit_programs import Programs

Sink = Callable[[str, Tensor], None]


class NoUnit(Exception):
    """A part of a model cannot be a unit, and why."""


class Missing(Exception):
    """A program is wanted that has to be made first; `make()` does, outside torch's forward mode."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__("a program is missing")
        self.make = make


# --- which --------------------------------------------------------------------------------------------------------
def find(model: nn.Module, named: str | None = None) -> dict[str, nn.Module]:
    """The units of a model by name: the modules that match `named`, else those cut by FSDP, else the repeated blocks
    of its lists; none inside another."""
    modules = dict(model.named_modules())
    if named is not None:
        found = _outermost({n: m for n, m in modules.items() if n and fnmatch.fnmatchcase(n, named)})
        if not found:
            near = ", ".join(f"`{n}`" for n in closest(named, modules) or list(modules)[1:4])
            raise InputError(f"units: `{named}` matches none of {len(modules)} modules. Closest names: {near}.")
        return found
    cut = {n: m for n, m in modules.items() if any(c.__name__ == "FSDPModule" for c in type(m).__mro__)}
    if cut:
        return {n: m for n, m in cut.items() if not any(o.startswith(f"{n}." if n else "") for o in cut if o != n)}
    return _outermost(
        {
            f"{n}.{child}" if n else child: block
            for n, m in modules.items()
            if isinstance(m, nn.ModuleList | nn.Sequential | nn.ModuleDict)
            for child, block in _repeated(m)
        }
    )


def _repeated(container: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children that are made of modules, where two of them are of one class."""
    blocks = [(n, m) for n, m in container.named_children() if any(True for _ in m.children())]
    classes = [type(m) for _, m in blocks]
    return blocks if len(set(classes)) < len(classes) else []


def _outermost(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    for name, module in modules.items():  # parents first
        if not any(name.startswith(f"{other}.") for other in found) and any(True for _ in module.parameters()):
            found[name] = module
    return found


# --- how ----------------------------------------------------------------------------------------------------------
class Recomputed:
    """Where the units of a model are run again backwards.

    `theta` are the tensors that stand for the measured parameters in this evaluation. Gradients in those of `rows` that
    belong to a unit, or their tangents, go to `sink(name, gradient)` as they are made; `anchor` is an input of such
    units, for `torch.autograd.grad` to reach them. `second`: backwards with tangents, inside the level of forward mode
    in which the model was run. `attention` answers torch's fused attention backwards too: torch's reverse pass leaves
    the scope that is around the evaluation. `programs` run the units in place of their own code. `cut`: head and loss
    are units too, some tokens each (`wide`), outside of these modules.
    """

    def __init__(
        self,
        units: Mapping[str, nn.Module],
        attention: Attention,
        theta: Mapping[str, Tensor],
        rows: tuple[str, ...],
        sink: Sink,
        *,
        second: bool,
        programs: Programs | None = None,
        cut: Mapping[str, nn.Module] | None = None,
    ) -> None:
        self.units, self.attention, self.sink, self.second = units, attention, sink, second
        self.programs = programs
        self.cut = cut
        self.names = {id(t): n for n, t in theta.items()}
        self.rows = set(rows)
        self.anchor = torch.zeros((), requires_grad=True)

    def wanted(self, g: Tensor) -> Tensor | None:
        """What of a gradient is wanted: backwards with tangents, its tangent."""
        return forward_ad.unpack_dual(g).tangent if self.second else g

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """The units of the model answer by `Recomputed`; as they were afterwards."""
        with contextlib.ExitStack() as stack:
            if self.cut is not None:
                stack.enter_context(Cut(self.cut.values(), self.part))
            for name, unit in self.units.items():
                stack.callback(restore, unit, unit.__dict__.get("forward"))
                unit.forward = partial(self._call, name, unit, unit.forward)
            yield

    def part(self, run: Callable[..., Tensor], *args: Any) -> Tensor:
        """Some rows from head to loss."""
        found: Tensor = self._call("head and loss", ROWS, run, *args)
        return found

    def _call(self, name: str, unit: nn.Module, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        given, shape = taken((args, options))
        weights: dict[str, Tensor] = {**dict(unit.named_parameters()), **dict(unit.named_buffers())}
        own = {self.names[id(w)] for w in weights.values() if id(w) in self.names}
        if not torch.is_grad_enabled() or not (own or any(t.requires_grad for t in given)):
            return self.plain(name, unit, forward, args, options)
        call = self.call(self, name, Inside(unit, forward), shape, given, weights)
        results, form = call.forward() if self.programs is None else self.programs.forward(call)
        call.keep()
        pairs = [forward_ad.unpack_dual(results[i]) for i in call.active]
        inputs = [forward_ad.unpack_dual(t).primal for t in given if t.requires_grad]
        values, anchor = [p.primal for p in pairs], self.anchor if self.rows & own else None
        made = _Unit.apply(call, values, anchor, *inputs)  # type: ignore[no-untyped-call]  # torch's
        for i, primal, pair in zip(call.active, made, pairs, strict=True):
            results[i] = primal if pair.tangent is None else forward_ad.make_dual(primal, pair.tangent)
        return filled(form, results)

    @property
    def call(self) -> type[Call]:
        """What one call of a unit is."""
        return Call

    def plain(self, name: str, unit: nn.Module, forward: Callable[..., Any], args: Any, options: Any) -> Any:
        """A unit that nothing is differentiated in."""
        return forward(*args, **options)

    def take(self, found: Mapping[str, Tensor | None]) -> None:
        """The derivatives in the weights of one call."""
        for name, g in found.items():
            if g is not None:
                self.sink(name, g)


class Looked(Recomputed):
    """Units run once, forwards, to look at the rules of their operators; none is refused for its memory."""

    def _call(self, name: str, unit: nn.Module, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        given, shape = taken((args, options))
        require_rules(given)  # of what is before this unit, outside
        args, options = filled(shape, _leaves(given))
        results, form = taken(forward(*args, **options))
        require_rules(results)
        return filled(form, _leaves(results))


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().requires_grad_(t.requires_grad) for t in tensors]


class _Rows(nn.Module):
    """Some rows from head to loss, whose weights are arguments."""


ROWS = _Rows()


class Inside(nn.Module):
    """A unit without its hooks, which see what it returns once."""

    def __init__(self, unit: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.unit = unit
        self.run = forward

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.run(*args, **options)


class Call:
    """One call of a unit: tensors in its arguments, then its weights and buffers, to run it again."""

    def __init__(
        self, by: Recomputed, name: str, inside: Inside, shape: Any, given: list[Tensor], weights: dict[str, Tensor]
    ) -> None:
        self.by, self.name, self.inside, self.shape, self.given = by, name, inside, shape, len(given)
        self.weights = list(weights)
        self.pairs = [Pair(t) for t in (*given, *weights.values())]
        self.moving = [i for i, t in enumerate(given) if t.requires_grad]
        named = {i: by.names.get(id(w)) for i, w in enumerate(weights.values(), len(given))}
        self.rows = {i: n for i, n in named.items() if n in by.rows}
        self.active: list[int] = []  # numbers of the results that are differentiated
        self.program: Callable[[list[Tensor]], list[Tensor | None]] | None = None  # does what `backward` does

    @property
    def tensors(self) -> list[Tensor]:
        return [p.tensor() for p in self.pairs]

    def run(self, at: Sequence[Tensor]) -> tuple[Any, Any]:
        """The result with some tensors in place of its own, and the arguments afterwards."""
        args, options = passed = filled(self.shape, at[: self.given])
        swapped = {f"unit.{n}": w for n, w in zip(self.weights, at[self.given :], strict=True)}
        return functional_call(self.inside, swapped, args, options), passed

    def forward(self) -> tuple[list[Tensor], Any]:
        """The tensors of the result, and its structure."""
        at = self.tensors
        out, passed = self.run(at)
        after, _ = taken(passed)
        if len(after) != self.given or any(a is not b for a, b in zip(after, at, strict=False)):
            raise NoUnit(f"`{self.name}` writes into what it is given, as a cache of keys is")
        results, form = taken(out)
        if any(t.requires_grad for t in results):
            raise NoUnit(f"`{self.name}` uses weights from outside it")
        self.active = [i for i, t in enumerate(results) if t.is_floating_point()]
        return results, form

    def keep(self) -> None:
        """Forget what running again does not need."""
        if not self.by.second:
            for pair in self.pairs:
                pair.tangent = None

    def backward(self, at: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[Tensor]:
        """Derivatives in the arguments that move and in the rows."""
        asked = [(i, g) for i, g in zip(self.active, cotangents, strict=True) if g is not None]
        places = [*self.moving, *self.rows]

        def outs(*moved: Tensor) -> list[Tensor]:
            used = list(at)
            for i, t in zip(places, moved, strict=True):
                used[i] = t
            results, _ = taken(self.run(used)[0])
            return [results[i] for i, _ in asked]

        with AttentionBy(self.by.attention):
            return reverse(self.inside.unit, outs, [at[i] for i in places], [g for _, g in asked])

    def wanted(self, found: list[Tensor]) -> list[Tensor | None]:
        """Of what `backward` gives: in rows, with tangents, the tangent alone."""
        rows = found[len(self.moving) :]
        return [*found[: len(self.moving)], *map(self.by.wanted, rows)]

    def pull(self, cotangents: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Derivatives in the arguments that move; those in weights go to the sink. What was kept is forgotten."""
        along = [dual(g) if self.by.second else g for g in cotangents if g is not None]
        if self.program is None or len(along) < len(cotangents):
            found: list[Tensor | None] = self.wanted(self.backward(self.tensors, cotangents))
        else:
            with AttentionBy(self.by.attention):  # as when it was compiled: the compiler looks at scopes
                found = self.program([*self.tensors, *along])
        self.pairs = []
        self.by.take(dict(zip(self.rows.values(), found[len(self.moving) :], strict=True)))
        return found[: len(self.moving)]


def reverse(
    unit: nn.Module, function: Callable[..., Any], at: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """vjp of a function of a unit. Of some reverse rules (silu, mish, group norm) torch takes forward derivatives only
    while it records a graph of them."""
    with torch.no_grad():  # tangents need no history
        if unit not in RECORDING:
            try:
                return list(vjp(function, *at)[1](cotangents, retain_graph=False, create_graph=False))
            except NotImplementedError:
                RECORDING.add(unit)
        return list(vjp(function, *at)[1](cotangents, retain_graph=False, create_graph=True))


#: Units that have such rules.
RECORDING: WeakSet[nn.Module] = WeakSet()


class Pair:
    """A tensor and its tangent, without history."""

    def __init__(self, t: Tensor) -> None:
        primal, tangent = forward_ad.unpack_dual(t)
        self.primal, self.tangent = primal.detach(), None if tangent is None else tangent.detach()
        self.moves = t.requires_grad
        self.written = written(self.primal)

    def tensor(self) -> Tensor:
        """Both as one again."""
        if written(self.primal) != self.written:
            raise overwritten(self.primal)
        primal = self.primal.detach()
        return primal if self.tangent is None else forward_ad.make_dual(primal, self.tangent)


def dual(t: Tensor) -> Tensor:
    """A tensor with its tangent, or one of zeros."""
    primal, tangent = forward_ad.unpack_dual(t)
    return forward_ad.make_dual(primal, torch.zeros_like(primal)) if tangent is None else t


class _Unit(torch.autograd.Function):
    """The node of a unit in the graph outside."""

    @staticmethod
    def forward(ctx: Any, call: Call, made: list[Tensor], *inputs: Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        return (None, None, None, *ctx.call.pull(cotangents))
