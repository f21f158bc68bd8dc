"""Products through the units of a model: at the memory of one unit, and of the inputs of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ..core.forward import alone
from ..core.progress import say
from ..core.space import Vector
from ..kernels.choice import default_precision
from .halves import FIXED, OUTER, SLOPE, Half, Halved, NotHalved
from .kept import Kept
from .retained import require_rules
from .risk import Risk
from .runners import Runner
from .settings import without_cache
from .several import NotTogether, together
from .soundness import asymmetry, differ, direction, inner, length, rounding
from .strategies import Prepared, Route, Strategy, Unsuitable
from .units import Looked, Missing, NoUnit, Recomputed
from .wide import NotCut, whole

if TYPE_CHECKING:
    from .unit_programs import Programs

Scalar = Callable[[Vector], Tensor]
Product = Callable[[Vector], dict[str, Tensor]]
T = TypeVar("T")
#: Of the risks whose loss takes the logits whole, what evaluates them.
_UNCUT: WeakSet[Runner] = WeakSet()


@dataclass(frozen=True)
class ByUnits(Strategy):
    """Every unit keeps its input and is run again backwards, once for several vectors."""

    compile: bool = False  # one block, for all that compute the same
    made: list[Evaluation] = field(default_factory=list)  # one, once its derivatives were looked at
    single: list[bool] = field(default_factory=list)  # once looked at: whether vectors go one after another
    fails: ClassVar[type[Exception]] = Exception

    @property
    def route(self) -> Route:
        return "compiled-units" if self.compile else "units"

    @property
    def how(self) -> str:
        return f"by its {len(self.kind.risk.units)} units, which are run again backwards"

    def cannot(self, vectors: int) -> str:
        return "cannot be compiled block by block" if self.compile else "cannot be run by units"

    def prepare(self, i: int, V: Vector, kept: Kept) -> Prepared:
        risk, split = self.kind.risk, self.kind.split or ""
        units = {n: m for n, m in risk.units.items() if not split.startswith(f"{n}.")}
        if not units:
            raise Unsuitable(f"{self.cannot(1)} ({_without(risk)})", lambda way: isinstance(way, ByUnits))
        batch, scalar = risk.batches[i], self.kind.scalar
        if not self.made:
            seen = risk.seen_by_units and len(units) == len(risk.units)
            if not seen and differ(risk, partial(Evaluation(risk, units).slopes, batch)):
                raise NoUnit("forward and reverse derivatives differ: a tensor leaves a unit beside its output")
            self.made.append(Evaluation(risk, units, self.kind.rows, self._programs()))
        half = None if self.kind.split or not (scalar is None or self.kind.fixed) else FIXED if scalar else OUTER

        def product(run: Evaluation, v: Vector) -> dict[str, Tensor]:
            found = None if half is None or not risk.through(self.route) else run.halved(half, batch, risk.params, v)
            if found is not None:
                return found
            if scalar is None:
                return run.gauss_newton(batch, v, self.kind.split)
            return run.hessian(lambda p: scalar(p, batch), risk.params, v)

        own = Evaluation(risk, units, self.kind.rows) if self.compile else self.made[0]
        return Prepared(lambda V: self._together(partial(product, self.made[0]), partial(product, own), V))

    def _together(self, product: Product, own: Product, V: Vector) -> dict[str, Tensor]:
        """The products in one pass, or one after another. The first in one pass are compared with one alone, by the
        model's `own` code. Programs are made for one vector and for as many as go together, not for each number."""
        k = next(iter(V.values())).shape[0]
        if True in self.single or k == 1 or (self.compile and k < self.together):
            return self._each(product, V)
        try:
            found = together(product, V)
            if not self.single:
                self._require_same(own, V, found)
        except NotTogether as error:
            say(f"{self.kind.what}: one vector after another ({error})")
            self.single[:] = [True]
            return self._each(product, V)
        self.single[:] = [False]
        return found

    def _require_same(self, product: Product, V: Vector, found: Vector) -> None:
        alone = product({n: t[-1] for n, t in V.items()})
        if length({n: found[n][-1] - t for n, t in alone.items()}) > rounding(self.kind.risk) * length(alone):
            raise NotTogether("the image is not that of the vector alone")

    def _programs(self) -> Programs | None:
        if not self.compile:
            return None
        from .unit_programs import Programs  # loads torch's tracer

        ten_bits = self.kind.risk.device.type == "cuda" and default_precision() == "tf32"  # torch may take TF32 then
        return Programs("halves" if ten_bits else "torch")


def _without(risk: Risk) -> str:
    if risk.train_mode:
        return "in training mode random numbers would be others the second time"
    return "the model has no repeated blocks; name its parts in `Risk(..., units=)`"


class Evaluation:
    """Derivatives of a risk with some modules as units, over `rows` of its parameters."""

    def __init__(
        self,
        risk: Risk,
        units: Mapping[str, nn.Module],
        rows: tuple[str, ...] | None = None,
        programs: Programs | None = None,
    ) -> None:
        self.risk, self.units, self.programs = risk, units, programs
        self.rows = risk.space.names if rows is None else rows
        assert isinstance(risk.model, nn.Module)
        every = dict(risk.model.named_parameters())
        self.frozen = {n: t.detach() for n, t in every.items() if n not in risk.params}
        self.narrow = False  # the output is made whole
        self.recording = False  # a reverse rule outside the units is of those that `units.reverse` tells of

    @property
    def cut(self) -> Mapping[str, nn.Module] | None:
        """Outside of which modules large results are cut; None where the loss cannot be."""
        return None if self.risk.runner in _UNCUT else self.risk.units

    def hessian(self, scalar: Scalar, at: Vector, v: Vector) -> dict[str, Tensor]:
        """The product of the Hessian of a scalar with v."""
        return self._recorded(lambda: self._hessian(scalar, at, v))

    def _hessian(self, scalar: Scalar, at: Vector, v: Vector) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        with alone, torch.enable_grad(), forward_ad.dual_level():
            theta = self._moving(at, v)
            run = self._run(theta, partial(add, sums), second=True)
            with run.scope(), without_cache(self.risk.model):
                value = scalar({**self.frozen, **theta})
            self._back([_outside(value)], None, theta, run)
            return self._whole(sums)

    def gradient(self, batch: Any, at: Vector) -> dict[str, Tensor]:
        """The gradient of the loss."""
        return self._recorded(lambda: self._slope(batch, at, {})[0])

    def gauss_newton(self, batch: Any, v: Vector, split: str | None) -> dict[str, Tensor]:
        """J^T (d2l/dF2) J v: forwards with tangents, backwards without."""

        def output(p: Vector) -> Tensor:
            return _outside(self.risk.output(p, batch, split))

        curve = partial(self._curved, batch, split)
        return self._recorded(lambda: self.transposed(output, self.risk.params, v, curve)[0])

    def halved(self, half: Half, batch: Any, at: Vector, v: Vector) -> dict[str, Tensor] | None:
        """A half of the Hessian, split at an output that is never whole; None where it is."""
        try:
            found = None if self.narrow else self._recorded(lambda: self._halved(half, batch, at, v))
        except NotHalved:
            found = None
        self.narrow = found is None
        return found

    def _halved(self, half: Half, batch: Any, at: Vector, v: Vector) -> dict[str, Tensor] | None:
        sums: dict[str, Tensor] = {}
        with alone, torch.enable_grad():
            with forward_ad.dual_level():
                theta = self._moving(at, v)
                run = Halved(
                    half, self.units, self.risk.attention, theta, self.rows, partial(add, sums),
                    programs=self.programs, cut=self.cut,
                )  # fmt: skip
                with run.scope(), without_cache(self.risk.model):
                    value = self.risk.run({**self.frozen, **theta}, batch)[0]
                if not run.parts:
                    return None
                leaves = [part.leaf for part in run.parts]
                outs, weights = run.cotangents(gradients([value], leaves, None, self.recording))
                if half.moved:
                    self._back(outs, weights, theta, run)
            if not half.moved:
                self._back(outs, weights, theta, run)
            return self._whole(sums)

    def _slope(self, batch: Any, at: Vector, v: Vector) -> tuple[dict[str, Tensor], Tensor]:
        """The gradient of the loss, and its slope along v."""
        return self.transposed(lambda p: self.risk.run(p, batch)[0], at, v, torch.ones_like)

    def _recorded(self, product: Callable[[], T]) -> T:
        """A product, begun anew where something had to be prepared outside torch's forward mode, or cannot be cut."""
        try:
            return product()
        except Missing as missing:
            missing.make()
        except NotCut as error:
            _UNCUT.add(self.risk.runner)
            say(f"head and loss cannot be cut along tokens ({error}): a product holds the logits several times.")
        except NotImplementedError:
            if self.recording:
                raise
            self.recording = True
        return self._recorded(product)

    def transposed(
        self, function: Callable[[Vector], Tensor], at: Vector, v: Vector, curve: Callable[[Tensor], Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """(J^T curve(J v), J v) of a function F of the parameters."""
        sums: dict[str, Tensor] = {}
        with alone, torch.enable_grad():
            with forward_ad.dual_level():
                theta = self._moving(at, v)
                run = self._run(theta, partial(add, sums), second=False)
                with run.scope(), without_cache(self.risk.model):
                    F = whole(function({**self.frozen, **theta}))
                tangent = forward_ad.unpack_dual(F).tangent
                dF = torch.zeros_like(F).detach() if tangent is None else tangent.detach()
                curved = curve(dF)
            self._back([F], [curved], theta, run)
            return self._whole(sums), dF

    def _curved(self, batch: Any, split: str | None, dF: Tensor) -> Tensor:
        """(d2l/dF2) dF, as a derivative in a shift of F."""
        shift = forward_ad.make_dual(torch.zeros_like(dF).requires_grad_(), dF)
        with self._run({}, lambda name, g: None, second=True).scope(), without_cache(self.risk.model):
            value = self.risk.run({**self.frozen, **self._here()}, batch, split, shift)[0]
        (g,) = gradients([value], [shift], None, self.recording)
        curved = None if g is None else forward_ad.unpack_dual(g).tangent
        return torch.zeros_like(dF) if curved is None else curved

    def slopes(self, batch: Any, near: Vector) -> tuple[float, float]:
        """The slope of the loss along a random vector, by forward less that by reverse derivatives; |gradient|."""
        v = direction(self.risk, "forward")
        g, slope = self._recorded(lambda: self._slope(batch, near, v))
        return float(slope) - inner(g, v), length(g)

    def look(self, batch: Any) -> None:
        """Refuse operators that say that they can be differentiated once only, at the memory of one unit."""
        theta = moving(self.risk.params, {})

        def forwards() -> None:
            run = Looked(self.units, self.risk.attention, theta, (), lambda name, g: None, second=False, cut=self.cut)
            with torch.enable_grad(), run.scope(), without_cache(self.risk.model):
                require_rules([self.risk.run({**self.frozen, **theta}, batch)[0]])

        self._recorded(forwards)

    def through(self, batch: Any, near: Vector) -> bool:
        """Whether J^T dl/dF is the gradient, F the output of the network."""

        def output(p: Vector) -> Tensor:
            return self.risk.output(p, batch)

        def slope(dF: Tensor) -> Tensor:
            shift = torch.zeros_like(dF).requires_grad_()
            with self._run({}, lambda name, g: None, second=False).scope(), without_cache(self.risk.model):
                value = self.risk.run({**self.frozen, **near}, batch, None, shift)[0]
            (g,) = gradients([value], [shift], None, recording=False)
            return torch.zeros_like(dF) if g is None else g

        part = self.halved(SLOPE, batch, near, {})
        if part is None:
            part = self._recorded(lambda: self.transposed(output, near, {}, slope)[0])
        every = self.gradient(batch, near)
        return length({n: part[n] - t for n, t in every.items()}) <= rounding(self.risk) * length(part)

    def symmetry(self, batch: Any, near: Vector) -> tuple[float, float]:
        """How far the Hessian is from symmetric, and its size; see `asymmetry`."""
        loss = lambda p: self.risk.run(p, batch)[0]  # noqa: E731
        return asymmetry(self.risk, lambda v: self.hessian(loss, near, v))

    def _run(self, theta: Vector, sink: Callable[[str, Tensor], None], *, second: bool) -> Recomputed:
        rows = self.rows if theta else ()
        options: Any = {"second": second, "programs": self.programs, "cut": self.cut}
        return Recomputed(self.units, self.risk.attention, theta, rows, sink, **options)

    def _back(self, outs: list[Tensor], cotangents: list[Tensor] | None, theta: Vector, run: Recomputed) -> None:
        found = gradients(outs, [*(theta[n] for n in self.rows), run.anchor], cotangents, self.recording)
        for n, g in zip(self.rows, found[:-1], strict=True):
            if g is not None and (part := run.wanted(g)) is not None:
                run.sink(n, part)

    def _moving(self, at: Vector, v: Vector) -> dict[str, Tensor]:
        return moving(at, v)

    def _here(self) -> Vector:
        """The weights where the model stands."""
        return self.risk.params

    def _whole(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        params = self.risk.params
        return {n: found[n] if n in found else torch.zeros_like(params[n]) for n in self.rows}


def _outside(F: Tensor) -> Tensor:
    """What is differentiated; inside a unit, which runs without a graph, it would have no derivative."""
    if not F.requires_grad:
        raise NoUnit("the output of the network is made inside a unit")
    return F


def moving(at: Vector, v: Vector) -> dict[str, Tensor]:
    """Leaves of a reverse pass at some weights, with v as their tangents."""
    leaves = {n: t.detach().requires_grad_() for n, t in at.items()}
    return {n: forward_ad.make_dual(t, v[n]) if n in v else t for n, t in leaves.items()}


def gradients(
    outs: list[Tensor], at: list[Tensor], cotangents: list[Tensor] | None, recording: bool
) -> Sequence[Tensor | None]:
    """The gradients of `outs` in some tensors, None where they do not depend on one."""
    if not any(t.requires_grad for t in outs):
        return [None] * len(at)
    return torch.autograd.grad(outs, at, cotangents, create_graph=recording, retain_graph=False, allow_unused=True)


def add(sums: dict[str, Tensor], name: str, part: Tensor) -> None:
    """Add a part of the image to what is there of it."""
    sums[name] = sums[name] + part.detach() if name in sums else part.detach()
