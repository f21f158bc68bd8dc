"""How products are run: step by step, through a traced program, through a compiled one; chosen by predicted time.

`eager`     the model's own code. Of a Hessian the gradient's graph is kept, and a product is one more backward pass
            (`retained`); else, or where that fails, `jvp(grad)`, several vectors at once.
`traced`    two aten programs (`linear`): what no vector touches runs once and is kept, the rest runs for every vector.
`compiled`  the second of them through torch's compiler: a minute or more at first, then fastest. On a GPU replayed from
            a CUDA graph for each batch; where torch may take TF32, large products are then in scaled float16.
`auto`      whichever is predicted to end first; the prediction is said in one line.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core.errors import InputError
from ..core.memory import in_words
from ..core.progress import say
from ..core.space import Vector
from ..distributed.processes import group_of
from ..kernels.choice import default_precision
from ..kernels.replay import Shared
from .retained import Retained
from .risk import Risk
from .settings import traceable_experts
from .soundness import ROUNDING, ROUNDING_HALF, length

if TYPE_CHECKING:
    from .linear import Linearised

Route = Literal["eager", "traced", "compiled", "auto"]
ROUTES = ("eager", "traced", "compiled", "auto")

#: The product of one batch with one vector: (theta, batch, v, names of the rows) -> image.
Product = Callable[[Vector, Any, Vector, tuple[str, ...]], dict[str, Tensor]]

#: The function of theta on one batch whose Hessian is wanted, for those products that are one: (theta, batch).
Scalar = Callable[[Vector, Any], Tensor]

#: Vectors that share one pass step by step. A program takes one: what they would share is kept anyway.
CHUNK = 8
#: Share of the free memory that may be kept between products; the rest is for vectors and for the work of a product,
#: which takes about as much as is kept of one batch (15 GiB and 17 for GPT-2, 8 x 1,024 tokens).
_MAY_KEEP = 0.6

#: Calibration (benchmarks/curvature.py route): seconds to trace and to compile for each operator of one forward pass,
#: and the time of a product over that of an eager one, for retained gradients and for `jvp`-based products.
TRACE_S = {"cpu": 0.022, "cuda": 0.03}
COMPILE_S = {"cpu": 0.17, "cuda": 0.12}
TRACED = {"cpu": (1.0, 0.38), "cuda": (0.9, 0.5)}
COMPILED = {"cpu": (0.72, 0.29), "cuda": (0.4, 0.3)}


def predict(operators: int, eager: float, products: int, device: str, *, retained: bool = False) -> dict[Route, float]:
    """Seconds that `products` products take by each route, preparation included.

    `operators` of one forward pass, `eager` seconds of one eager product, by a retained gradient or by `jvp`.
    """
    kind, way = device if device in TRACE_S else "cuda", 0 if retained else 1
    trace = TRACE_S[kind] * operators
    return {
        "eager": products * eager,
        "traced": trace + products * eager * TRACED[kind][way],
        "compiled": trace + COMPILE_S[kind] * operators + products * eager * COMPILED[kind][way],
    }


class Products:
    """k products with the sum over the batches of a risk."""

    def __init__(
        self,
        risk: Risk,
        product: Product,
        rows: tuple[str, ...],
        *,
        what: str,
        route: Route,
        chunk: int,
        expected: int,
        scalar: Scalar | None = None,
        by_reverse: Product | None = None,
    ) -> None:
        if route not in ROUTES:
            raise InputError(f"route {route!r} is not one of {', '.join(map(repr, ROUTES))}.")
        self.risk, self.product, self.rows, self.what = risk, product, rows, what
        self.route, self.chunk, self.expected = route, chunk, expected
        self.stacked = True  # whether this model survives several vectors at once
        self.programs: dict[Any, Linearised] = {}
        self.kept: dict[int, tuple[Any, Any, int]] = {}  # batch -> (state of the weights, what is kept there, bytes)
        self.recomputes = False  # said that it does not fit
        self.shared = Shared()  # memory of the programs' graphs
        self.scalar, self.by_reverse = scalar, by_reverse
        self.copies = False  # whether programs copy the weights of experts
        self.forward = True  # whether forward derivatives may be used
        self.group = group_of(risk.space)

    def __call__(self, V: Vector) -> dict[str, Tensor]:
        k = next(iter(V.values())).shape[0]
        parts, start = [], 0
        if not k:
            return {n: self.risk.params[n].new_zeros((0, *self.risk.params[n].shape)) for n in self.rows}
        with self.risk.context():
            _ = self.risk.soundness  # refused here if it has none
            if self.route == "auto":
                self._choose({n: t[:1] for n, t in V.items()})
            if not self.risk.batches:  # a process without data
                return {n: t.new_zeros((k, *t.shape)) for n, t in self.risk.params.items() if n in self.rows}
            while start < k:
                size = self.chunk if self.route == "eager" else 1
                try:
                    parts.append(self._some({n: t[start : start + size] for n, t in V.items()}))
                except torch.OutOfMemoryError:
                    if size == 1 or k == 1:
                        raise
                    self.chunk = max(1, size // 2)
                    say(f"{self.what}: {size} vectors at once do not fit the memory; {self.chunk} at once.")
                    continue
                start += size
        return {n: torch.cat([p[n] for p in parts]) for n in self.rows} if len(parts) > 1 else parts[0]

    def _some(self, V: Vector) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for i, weight in enumerate(self.risk.weights):
            for name, t in self._batch(i, V).items():
                part = t if weight == 1 else weight * t
                total[name] = part if name not in total else total[name] + part
        return total

    def _batch(self, i: int, V: Vector) -> dict[str, Tensor]:
        if self.route != "eager" and self.risk.writes:
            say(f"{self.what}: cannot be {self.route} (training mode writes into buffers); step by step instead.")
            self.route = "eager"
        if self.route != "eager" and not self._forward():
            self.route = "eager"
        if self.route != "eager":
            try:
                return self._by_program(i, V)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever tracing or compiling dislikes about a model, another route remains
                again: Route = "traced" if self.route == "compiled" and self.programs else "eager"
                how = "step by step" if again == "eager" else "traced"
                say(f"{self.what}: cannot be {self.route} ({in_short(error)}); {how} instead.")
                self.route = again
                self.programs.clear()
                self.kept.clear()
                return self._batch(i, V)
        k = next(iter(V.values())).shape[0]
        batch = self.risk.batches[i]
        if self.scalar is not None:
            try:
                return self._by_retained(i, V, k)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                say(f"{self.what}: no second backward pass for this model ({in_short(error)}); forward over reverse.")
                self.scalar = None
                self.kept.clear()
        if self._forward():
            try:
                return self._by_forward(batch, V, k)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                if self.by_reverse is None:
                    why = f"neither a second backward pass nor a forward derivative ({in_short(error)})"
                    raise InputError(f"{self.what}: this model has {why}. Nothing was measured.") from error
                say(f"{self.what}: no forward derivative for this model ({in_short(error)}); reverse passes alone.")
                self.forward = False
        if self.by_reverse is None:
            raise InputError(
                f"{self.what}: this model has no second backward pass, and forward derivatives go through its parts"
                " under `torch.no_grad`. Nothing was measured; use `.detach()` there."
            )
        one = self.by_reverse
        images = [one(self.risk.params, batch, {n: t[j] for n, t in V.items()}, self.rows) for j in range(k)]
        return {n: torch.stack([im[n] for im in images]).detach() for n in self.rows}

    def _forward(self) -> bool:
        """Whether forward derivatives may be used, see `reverse`."""
        if self.forward and not self.risk.soundness.forward:
            self.forward = False
            say(
                f"{self.what}: forward and reverse derivatives differ, as where a part runs under `torch.no_grad` or an"
                " embedding leaves out its padding token; reverse passes alone (eager), which see what training sees."
            )
        return self.forward

    def _by_forward(self, batch: Any, V: Vector, k: int) -> dict[str, Tensor]:
        """Forward over reverse: several vectors at once where the model survives it."""
        if self.stacked and k > 1:
            try:
                return self._stack(self.risk.params, batch, V)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.stacked = False
                say(f"{self.what}: not several vectors at once for this model ({in_short(error)}); one by one.")
        images = [self._stack(self.risk.params, batch, {n: t[j : j + 1] for n, t in V.items()}) for j in range(k)]
        return {n: torch.cat([im[n] for im in images]) for n in self.rows}

    def _stack(self, theta: Vector, batch: Any, V: Vector) -> dict[str, Tensor]:
        """The products with a stack of vectors; a single one is not vmapped, which some models do not survive."""

        def one(v: Vector) -> dict[str, Tensor]:
            image = self.product(theta, batch, v, self.rows)
            return {n: image[n].detach() for n in self.rows}

        if next(iter(V.values())).shape[0] > 1:
            return vmap(one)(dict(V))
        return {n: t[None] for n, t in one({n: t[0] for n, t in V.items()}).items()}

    def _by_retained(self, i: int, V: Vector, k: int) -> dict[str, Tensor]:
        """One backward pass for each vector through the kept graph of the gradient."""
        scalar, batch = self.scalar, self.risk.batches[i]
        assert scalar is not None
        graph = self._kept(
            i,
            (self.risk.params | self.risk.constants(), tree_flatten(batch)[0]),
            lambda: Retained(lambda p: scalar(p, batch), self.risk.params, tuple(V)),
        )
        images = [graph({n: t[j] for n, t in V.items()}, self.rows) for j in range(k)]
        return {n: torch.stack([im[n] for im in images]).detach() for n in self.rows}

    # --- programs ---------------------------------------------------------------------------------------------------
    def _by_program(self, i: int, V: Vector) -> dict[str, Tensor]:
        """One vector through the programs of this shape of batch."""
        leaves, spec = tree_flatten(self.risk.batches[i])
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (str(spec), tuple((tuple(t.shape), t.dtype) if isinstance(t, Tensor) else _constant(t) for t in leaves))
        primal = (self.risk.params | self.risk.constants(), tensors)
        V = {n: t.contiguous() for n, t in V.items()}
        if key not in self.programs:
            from .linear import Linearised  # loads torch's tracer

            def whole(primal: Any, V: Vector) -> dict[str, Tensor]:
                left = iter(primal[1])
                again = tree_unflatten([next(left) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
                with traceable_experts(self.risk.model) as experts:
                    self.copies = experts
                    return self._stack(primal[0], again, V)

            compiled = self.route == "compiled"
            ten_bits = self.risk.device.type == "cuda" and default_precision() == "tf32"  # torch may take TF32 then
            self.programs[key] = Linearised(
                whole, primal, V, compile=compiled, products="halves" if ten_bits and compiled else "torch",
                moving=len(tensors), shared=self.shared,
            )  # fmt: skip
            kept = self.programs[key].bytes
            if self.copies and kept > _MAY_KEEP * self.group.free_here(self.risk.device):
                raise RuntimeError(f"a copy of its experts for each token takes {in_words(kept)}")
            self._compare(self._run(key, i, primal, V), self.risk.batches[i], V)
        return self._run(key, i, primal, V)

    def _run(self, key: Any, i: int, primal: Any, V: Vector) -> dict[str, Tensor]:
        program = self.programs[key]
        kept = self._kept(i, primal, lambda: program.at(primal), program.bytes)
        return program.anew(primal, V) if kept is None else program(primal, kept, V)

    def _compare(self, found: Vector, batch: Any, V: Vector) -> None:
        """Refuse a program whose first product is not that of the model's own code, up to rounding.

        A model may do something else while it is traced: leave out a branch, take values of the trace for constants.
        """
        v = {n: t[0] for n, t in V.items()}
        try:
            want = self._own(self.risk.params, batch, v)
            gap = length({n: found[n][0] - t for n, t in want.items()})
            if gap <= ROUNDING.get(self.risk.dtype, ROUNDING_HALF) * length(want):
                return
            near = {n: t * (1 + 1e3 * torch.finfo(t.dtype).eps) for n, t in self.risk.params.items()}
            rounding = length({n: self._own(near, batch, v)[n] - t for n, t in want.items()})
        except torch.OutOfMemoryError:
            say(f"{self.what}: the {self.route} product is not compared: an eager one does not fit the memory.")
            return
        if not gap <= rounding:
            raise RuntimeError(f"its product differs from that of the model's own code by {gap / length(want):.1%}")

    def _own(self, theta: Vector, batch: Any, v: Vector) -> dict[str, Tensor]:
        """The product by the model's own code."""
        scalar = self.scalar
        if scalar is not None:
            with contextlib.suppress(NotImplementedError):
                return Retained(lambda p: scalar(p, batch), theta, tuple(v))(v, self.rows)
        return {n: t[0] for n, t in self._stack(theta, batch, {n: t[None] for n, t in v.items()}).items()}

    def _kept(self, i: int, primal: Any, make: Callable[[], Any], size: int | None = None) -> Any:
        """What the products of batch i share; made anew when weights or data have changed since.

        None where it is of a `size` that does not fit; what has to be made to know its size is given all the same.
        """
        state = [_version(t) for t in tree_flatten(primal)[0]]
        if i in self.kept and self.kept[i][0] == state:
            return self.kept[i][1]
        self.kept.pop(i, None)
        kept: Any = make() if size is None else None
        size = kept.bytes if size is None else size
        held = sum(bytes for _, _, bytes in self.kept.values())
        have = self.group.free_here(self.risk.device) + held + (0 if kept is None else size)
        if held + size <= min(_MAY_KEEP * have, have - size):
            kept = make() if kept is None else kept
            self.kept[i] = (state, kept, size)
        elif not self.recomputes:
            self.recomputes = True
            fit = f"{len(self.kept)} of {len(self.risk.batches)} batches"
            say(f"{self.what}: {fit} fit the memory ({in_words(size)} each); others are recomputed for each product.")
        return kept

    # --- choosing ---------------------------------------------------------------------------------------------------
    def predict(self, v: Vector, scale: float = 1.0) -> dict[Route, float]:
        """Seconds of the expected products by each route, from eager ones, `scale` times as long, and one forward."""
        route, self.route = self.route, "eager"
        with self.risk.context():
            eager = scale * min(self._timed(v) for _ in range(2))  # the first also loads and warms up
            with torch.no_grad(), _Count() as counted:
                for batch in self.risk.batches[:1]:
                    self.risk.run(self.risk.params, batch)
        self.route = route
        self.kept.clear()  # another route may follow
        retained = self.scalar is not None
        # The slowest process decides.
        operators, eager = int(self.group.most(counted.operators)), self.group.most(eager)
        return predict(operators, eager, self.expected, self.risk.device.type, retained=retained)

    def _timed(self, v: Vector) -> float:
        begun = time.perf_counter()
        self._some(v)
        if self.risk.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    def _choose(self, v: Vector) -> None:
        predicted = self.predict(v)
        self.route = fastest(predicted)
        others = ", ".join(f"{name} {in_time(t)}" for name, t in predicted.items() if name != self.route)
        if predicted["eager"] >= 2:  # below that nobody waits
            say(
                f"{self.what}: {self.route} route for {self.expected} products, about"
                f" {in_time(predicted[self.route])} ({others})"
            )


def fastest(predicted: dict[Route, float]) -> Route:
    return min(predicted, key=lambda route: predicted[route])


class _Count(TorchDispatchMode):
    """Counts the operators that run inside it."""

    operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


def _version(t: Any) -> Any:
    """Changes whenever a tensor is written to in place."""
    if not isinstance(t, Tensor):
        return t
    place = id(t.untyped_storage()) if t.layout is torch.strided else id(t)  # sparse ones have no storage
    return place, 0 if t.is_inference() else t._version


def _constant(leaf: Any) -> Any:
    """What tells a leaf of a batch that is no tensor from others: its value, of an object itself."""
    return (type(leaf), leaf) if isinstance(leaf, str | int | float | None) else id(leaf)


def in_time(seconds: float) -> str:
    """`3.2 s`, `8:52`, `1.5 h`."""
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def in_short(error: BaseException) -> str:
    """The first lines of an error, as one."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:160] if lines else type(error).__name__
