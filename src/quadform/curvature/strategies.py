"""Ways to the products with one batch: `prepare` makes what does not depend on the vectors, `apply` is a function of
them.

`ByRetained`  one backward pass through the kept graph of the gradient, for Hessians of a scalar (`retained`)
`ByForward`   forward over reverse, several vectors at once
`ByReverse`   reverse passes alone (`reverse`)
`ByProgram`   two aten programs (`linear`), the second of them compiled or not
`ByUnits`     the blocks of a model run again backwards (`by_units`)

A way that does not suit a model raises `Unsuitable`; another one is taken then (`routes`).
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core.errors import out_of_memory
from ..core.memory import in_words
from ..core.progress import say
from ..core.space import Vector
from ..kernels.choice import default_precision
from ..kernels.replay import Shared
from . import kept as memory
from .foresight import require_room
from .kept import Kept
from .retained import Retained
from .risk import Risk
from .settings import traceable_experts
from .soundness import PEAK, ROUNDING, ROUNDING_HALF, length

if TYPE_CHECKING:
    from .linear import Linearised

#: Memory that forward over reverse takes for each vector, over what the graph of the loss holds (measured 0.2).
EACH = 0.25

Route = Literal["eager", "traced", "compiled", "units", "compiled-units", "auto"]

#: The product of one batch with one vector: (theta, batch, v, names of the rows) -> image.
Product = Callable[[Vector, Any, Vector, tuple[str, ...]], dict[str, Tensor]]

#: The function of theta on one batch whose Hessian is wanted, for those products that are one: (theta, batch).
Scalar = Callable[[Vector, Any], Tensor]


class Unsuitable(Exception):
    """A way to products does not suit a model, and why; `also` tells which others fail for the same reason."""

    def __init__(self, reason: str, also: Callable[[Strategy], bool] = lambda way: False) -> None:
        super().__init__(reason)
        self.also = also


@dataclass(frozen=True)
class Kind:
    """What is multiplied with, over the rows of a risk: by forward over reverse, as the Hessian of a scalar where it is
    one, by reverse passes alone where there is such a way. `split` names the module at which it is split; `fixed`: with
    the derivative behind it held fixed (H_f)."""

    what: str
    risk: Risk
    rows: tuple[str, ...]
    product: Product
    scalar: Scalar | None = None
    by_reverse: Product | None = None
    split: str | None = None
    fixed: bool = False

    def stacked(self, theta: Vector, batch: Any, V: Vector) -> dict[str, Tensor]:
        """The products with a stack of vectors; a single one is not vmapped, which some models do not survive."""

        def one(v: Vector) -> dict[str, Tensor]:
            image = self.product(theta, batch, v, self.rows)
            return {n: image[n].detach() for n in self.rows}

        if next(iter(V.values())).shape[0] > 1:
            return vmap(one)(dict(V))
        return {n: t[None] for n, t in one({n: t[0] for n, t in V.items()}).items()}

    def own(self, theta: Vector, batch: Any, v: Vector) -> dict[str, Tensor]:
        """The product with one vector by the model's own code."""
        scalar = self.scalar
        if scalar is not None:
            with contextlib.suppress(NotImplementedError):
                return Retained(lambda p: scalar(p, batch), theta, tuple(v))(v, self.rows)
        return {n: t[0] for n, t in self.stacked(theta, batch, {n: t[None] for n, t in v.items()}).items()}


@dataclass(frozen=True)
class Prepared:
    """Products with one batch, ready: `apply` takes a stack of vectors and depends on nothing else."""

    apply: Callable[[Vector], dict[str, Tensor]]


@dataclass(frozen=True)
class Strategy(ABC):
    """One way; `together` vectors share a call."""

    kind: Kind
    together: int
    fails: ClassVar[type[Exception]] = RuntimeError

    @property
    def route(self) -> Route:
        return "eager"

    @property
    def how(self) -> str:
        """What it does, in place of another."""
        return "step by step"

    @abstractmethod
    def cannot(self, vectors: int) -> str:
        """What a model does not allow where this way fails for so many vectors."""

    @abstractmethod
    def prepare(self, i: int, V: Vector, kept: Kept) -> Prepared:
        """What the products with batch i share, for vectors like V."""

    def __call__(self, i: int, V: Vector, kept: Kept) -> dict[str, Tensor]:
        """The products with batch i."""
        try:
            return self.prepare(i, V, kept).apply(V)
        except (torch.OutOfMemoryError, Unsuitable):
            raise
        except self.fails as error:
            if out_of_memory(error):  # of a CPU torch says it in a text
                raise torch.OutOfMemoryError(in_short(error)) from error
            vectors = next(iter(V.values())).shape[0]
            raise Unsuitable(f"{self.cannot(vectors)} ({in_short(error)})", self._alike(vectors)) from error

    def weight(self, i: int) -> float:
        """What the products with batch i still count for."""
        return self.kind.risk.weights[i]

    def _alike(self, vectors: int) -> Callable[[Strategy], bool]:
        return lambda way: False

    def _each(self, one: Callable[[Vector], dict[str, Tensor]], V: Vector) -> dict[str, Tensor]:
        """The products one by one."""
        images = [one({n: t[j] for n, t in V.items()}) for j in range(next(iter(V.values())).shape[0])]
        return {n: torch.stack([im[n] for im in images]).detach() for n in self.kind.rows}


@dataclass(frozen=True)
class ByRetained(Strategy):
    """One backward pass for each vector through the kept graph of the gradient."""

    def cannot(self, vectors: int) -> str:
        return "no second backward pass for this model"

    def prepare(self, i: int, V: Vector, kept: Kept) -> Prepared:
        risk, scalar, batch = self.kind.risk, self.kind.scalar, self.kind.risk.batches[i]
        assert scalar is not None
        primal = (risk.params | risk.constants(), tree_flatten(batch)[0])
        cols, most = tuple(V), kept.room() / PEAK if risk.units else math.inf
        require_room(risk.foreseen[1], most)
        graph = kept.at(i, primal, lambda: Retained(lambda p: scalar(p, batch), risk.params, cols, most))
        return Prepared(lambda V: self._each(lambda v: graph(v, self.kind.rows), V))


@dataclass(frozen=True)
class ByForward(Strategy):
    """Forward over reverse: several vectors at once, by vmap."""

    @property
    def how(self) -> str:
        return "forward over reverse" if self.together > 1 else "one vector at a time"

    def cannot(self, vectors: int) -> str:
        return "batching over vectors (vmap) failed" if vectors > 1 else "no forward derivative for this model"

    def _alike(self, vectors: int) -> Callable[[Strategy], bool]:
        return lambda way: vectors == 1 and isinstance(way, ByForward)

    def prepare(self, i: int, V: Vector, kept: Kept) -> Prepared:
        risk = self.kind.risk
        if risk.units:
            require_room(risk.foreseen[0], kept.room() / (1 + EACH * next(iter(V.values())).shape[0]))
        return Prepared(lambda V: self.kind.stacked(risk.params, risk.batches[i], V))


@dataclass(frozen=True)
class ByReverse(Strategy):
    """Reverse passes alone, one vector after another."""

    @property
    def how(self) -> str:
        return "reverse passes alone"

    def cannot(self, vectors: int) -> str:
        return "no reverse passes for this model"

    def prepare(self, i: int, V: Vector, kept: Kept) -> Prepared:
        one, risk = self.kind.by_reverse, self.kind.risk
        assert one is not None
        return Prepared(lambda V: self._each(lambda v: one(risk.params, risk.batches[i], v, self.kind.rows), V))


@dataclass(frozen=True)
class ByProgram(Strategy):
    """One vector through the programs made for this shape of batch; `compile` sends the second through the compiler.

    Whatever tracing or compiling dislikes about a model, another way remains.
    """

    together: int = 1
    compile: bool = False
    programs: dict[Any, Linearised] = field(default_factory=dict)  # by shape of batch
    shared: Shared = field(default_factory=Shared)  # memory of their graphs
    fails: ClassVar[type[Exception]] = Exception

    @property
    def route(self) -> Route:
        return "compiled" if self.compile else "traced"

    @property
    def how(self) -> str:
        return self.route

    def cannot(self, vectors: int) -> str:
        return f"cannot be {self.route}"

    def _unsuitable(self, reason: str) -> Unsuitable:
        """No program at all suits."""
        return Unsuitable(f"{self.cannot(1)} ({reason})", lambda way: isinstance(way, ByProgram))

    def prepare(self, i: int, V: Vector, kept: Kept) -> Prepared:
        risk = self.kind.risk
        leaves, spec = tree_flatten(risk.batches[i])
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (str(spec), tuple((tuple(t.shape), t.dtype) if isinstance(t, Tensor) else _constant(t) for t in leaves))
        primal = (risk.params | risk.constants(), tensors)
        if key not in self.programs:
            V = _contiguous(V)
            made, copies = self._made(leaves, spec, primal, V)
            if copies and made.bytes > memory.MAY_KEEP * kept.free():
                raise self._unsuitable(f"a copy of its experts for each token takes {in_words(made.bytes)}")
            self._compare(self._ready(made, i, primal, kept).apply(V), risk.batches[i], V)
            self.programs[key] = made
        return self._ready(self.programs[key], i, primal, kept)

    def _ready(self, program: Linearised, i: int, primal: Any, kept: Kept) -> Prepared:
        there = kept.at(i, primal, lambda: program.at(primal), program.bytes)
        if there is None:
            return Prepared(lambda V: program.anew(primal, _contiguous(V)))
        return Prepared(lambda V: program(primal, there, _contiguous(V)))

    def _made(self, leaves: list[Any], spec: Any, primal: Any, V: Vector) -> tuple[Linearised, bool]:
        """The programs, and whether they copy the weights of experts."""
        from .linear import Linearised  # loads torch's tracer

        risk = self.kind.risk
        copies: list[bool] = []

        def whole(primal: Any, V: Vector) -> dict[str, Tensor]:
            left = iter(primal[1])
            again = tree_unflatten([next(left) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
            with traceable_experts(risk.model) as experts:
                copies.append(experts)
                return self.kind.stacked(primal[0], again, V)

        ten_bits = risk.device.type == "cuda" and default_precision() == "tf32"  # torch may take TF32 then
        try:
            made = Linearised(
                whole, primal, V, compile=self.compile, products="halves" if ten_bits and self.compile else "torch",
                moving=len(primal[1]), shared=self.shared,
            )  # fmt: skip
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise self._unsuitable(in_short(error)) from error
        return made, any(copies)

    def _compare(self, found: Vector, batch: Any, V: Vector) -> None:
        """Refuse a program whose first product is not that of the model's own code, up to rounding.

        A model may do something else while it is traced: leave out a branch, take values of the trace for constants.
        """
        own, theta, v = self.kind.own, self.kind.risk.params, {n: t[0] for n, t in V.items()}
        try:
            want = own(theta, batch, v)
            gap = length({n: found[n][0] - t for n, t in want.items()})
            if gap <= ROUNDING.get(self.kind.risk.dtype, ROUNDING_HALF) * length(want):
                return
            near = own({n: t * (1 + 1e3 * torch.finfo(t.dtype).eps) for n, t in theta.items()}, batch, v)
            rounding = length({n: near[n] - t for n, t in want.items()})
        except torch.OutOfMemoryError:
            what = self.kind.what
            say(f"{what}: the {self.route} product is not compared: an eager one does not fit the memory.")
            return
        if not gap <= rounding:
            raise RuntimeError(f"its product differs from that of the model's own code by {gap / length(want):.1%}")


def _contiguous(V: Vector) -> dict[str, Tensor]:
    return {n: t.contiguous() for n, t in V.items()}


def _constant(leaf: Any) -> Any:
    """What tells a leaf of a batch that is no tensor from others: its value, of an object itself."""
    return (type(leaf), leaf) if isinstance(leaf, str | int | float | None) else id(leaf)


#: How torch says that the path of a program hangs on the value of a tensor.
_VALUES = ("data-dependent", "_local_scalar_dense")


def in_short(error: BaseException) -> str:
    """The first lines of an error, as one."""
    if any(text in str(error) for text in _VALUES):
        return "its code takes a value out of a tensor, as `if x.sum() > 0` or `x.item()` do"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:160] if lines else type(error).__name__
