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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, vjp

from ..core.errors import InputError, closest
from ..kernels.calls import Attention, AttentionBy
from .retained import overwritten, written
from .structures import filled, taken

Sink = Callable[[str, Tensor], None]


class NoUnit(Exception):
    """A part of a model cannot be a unit, and why."""


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
    belong to a unit go to `sink(name, gradient)` as they are made; `anchor` is an input of such units, for
    `torch.autograd.grad` to reach them. `second`: backwards with tangents, inside the level of forward mode in which
    the model was run. `attention` answers torch's fused attention backwards too: torch's reverse pass leaves the scope
    that is around the evaluation.
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
    ) -> None:
        self.units, self.attention, self.sink, self.second = units, attention, sink, second
        self.names = {id(t): n for n, t in theta.items()}
        self.rows = set(rows)
        self.anchor = torch.zeros((), requires_grad=True)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """The units of the model answer by `Recomputed`; as they were afterwards."""
        with contextlib.ExitStack() as stack:
            for name, unit in self.units.items():
                before = unit.__dict__.get("forward")
                stack.callback(_restore, unit, before)
                unit.forward = partial(self._call, name, unit, unit.forward)
            yield

    def _call(self, name: str, unit: nn.Module, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        given, shape = taken((args, options))
        weights: dict[str, Tensor] = dict(unit.named_parameters())
        own = [self.names[id(w)] for w in weights.values() if id(w) in self.names]
        moving = [t.requires_grad for t in given]
        if not torch.is_grad_enabled() or not (own or any(moving)):
            return forward(*args, **options)
        call = _Call(self, _Inside(unit, forward), shape, given, weights)
        out, wrote = call.forward()
        if wrote:
            raise NoUnit(f"`{name}` writes into what it is given, as a cache of keys is")
        results, form = taken(out)
        active = [i for i, t in enumerate(results) if t.is_floating_point()]
        if any(results[i].requires_grad for i in active):
            raise NoUnit(f"`{name}` uses weights from outside it")
        pairs = [forward_ad.unpack_dual(results[i]) for i in active]
        anchor = self.anchor if self.rows & set(own) else None
        inputs = [forward_ad.unpack_dual(t).primal for t, moves in zip(given, moving, strict=True) if moves]
        values = [p.primal.detach() for p in pairs]
        made = _Unit.apply(call, values, anchor, *inputs)  # type: ignore[no-untyped-call]  # torch's
        call.keep(active)
        for i, primal, pair in zip(active, made, pairs, strict=True):
            results[i] = primal if pair.tangent is None else forward_ad.make_dual(primal, pair.tangent.detach())
        return filled(form, results)


def _restore(unit: nn.Module, before: Any) -> None:
    unit.__dict__.pop("forward", None)
    if before is not None:
        unit.__dict__["forward"] = before


class _Inside(nn.Module):
    """A unit without its hooks, which see what it returns once."""

    def __init__(self, unit: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.unit = unit
        self.run = forward

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.run(*args, **options)


class _Call:
    """One call of a unit: what it was given, to run it again."""

    def __init__(self, by: Recomputed, inside: _Inside, shape: Any, given: list[Tensor], weights: dict[str, Tensor]):
        self.by, self.inside, self.shape = by, inside, shape
        self.given = [_Pair(t) for t in given]
        self.weights = {n: _Pair(w) for n, w in weights.items()}
        self.rows = [n for n, w in weights.items() if by.names.get(id(w)) in by.rows]
        self.names = [by.names[id(weights[n])] for n in self.rows]

    def run(self, used: list[Tensor], weights: Mapping[str, Tensor]) -> tuple[Any, Any]:
        """The result for some tensors as arguments and as weights, and the arguments afterwards."""
        args, options = passed = filled(self.shape, used)
        swapped = {f"unit.{n}": w for n, w in weights.items()}
        return functional_call(self.inside, swapped, args, options), passed

    def forward(self) -> tuple[Any, bool]:
        """The result, and whether the arguments were written into."""
        used = [p.tensor() for p in self.given]
        out, passed = self.run(used, {n: p.tensor() for n, p in self.weights.items()})
        after, _ = taken(passed)
        same = len(after) == len(used) and all(a is b for a, b in zip(after, used, strict=True))
        return out, not same

    def keep(self, active: list[int]) -> None:
        """Of results, those with numbers `active` are differentiated."""
        self.active = active
        if not self.by.second:
            for pair in (*self.given, *self.weights.values()):
                pair.tangent = None

    def pull(self, cotangents: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Derivatives in the inputs that move; those in weights go to the sink. What was kept is forgotten."""
        asked = [(i, g) for i, g in zip(self.active, cotangents, strict=True) if g is not None]
        given, weights = [p.tensor() for p in self.given], {n: p.tensor() for n, p in self.weights.items()}
        moving = [i for i, p in enumerate(self.given) if p.moves]

        def outs(*at: Tensor) -> list[Tensor]:
            used = list(given)
            for i, t in zip(moving, at, strict=False):
                used[i] = t
            results, _ = taken(self.run(used, weights | dict(zip(self.rows, at[len(moving) :], strict=True)))[0])
            return [results[i] for i, _ in asked]

        at = [*(given[i] for i in moving), *(weights[n] for n in self.rows)]
        with AttentionBy(self.by.attention):
            found = reverse(self.inside.unit, outs, at, [g for _, g in asked])
        self.given, self.weights = [], {}
        for name, g in zip(self.names, found[len(moving) :], strict=True):
            self.by.sink(name, g)
        return [*found[: len(moving)]]


def reverse(unit: nn.Module, function: Callable[..., Any], at: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
    """vjp of a function of a unit. Of some reverse rules (silu, mish, group norm) torch takes forward derivatives only
    while it records a graph of them."""
    with torch.no_grad():  # tangents need no history
        if unit not in _RECORDING:
            try:
                return list(vjp(function, *at)[1](cotangents, retain_graph=False, create_graph=False))
            except NotImplementedError:
                _RECORDING.add(unit)
        return list(vjp(function, *at)[1](cotangents, retain_graph=False, create_graph=True))


#: Units that have such rules.
_RECORDING: WeakSet[nn.Module] = WeakSet()


class _Pair:
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


class _Unit(torch.autograd.Function):
    """The node of a unit in the graph outside."""

    @staticmethod
    def forward(ctx: Any, call: _Call, made: list[Tensor], *inputs: Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        return (None, None, None, *ctx.call.pull(cotangents))
