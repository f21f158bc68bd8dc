"""What a Hessian product takes, from shapes alone: the model runs on the meta device, where nothing is computed.

A product is one backward pass through the kept graph of the gradient (`retained`). Run without numbers it tells its
operators, the work of its matrix products, the bytes the others move, and the bytes its graph keeps. Seconds follow
from the rates of this machine, timed once on one matrix product and one sum.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ..core.space import Space
from .batches import batches_of
from .choosing import of_module
from .retained import Retained
from .risk import Risk
from .runners import ModuleRunner
from .several import Several

#: Sides of the square matrices, and entries of the vectors, that rates are timed on.
_SIDE, _ENTRIES = 768, 1 << 22


@dataclasses.dataclass(frozen=True)
class Work:
    """Operators, floating-point operations of matrix products, and bytes the other operators read and write."""

    operators: int = 0
    flops: float = 0.0
    moved: float = 0.0

    def seconds(self, dtype: torch.dtype) -> float:
        """Time on this machine's processor with the threads of now."""
        matrix, bandwidth = rates(dtype, torch.get_num_threads())
        return self.flops / matrix + self.moved / bandwidth

    def times(self, factor: float) -> Work:
        return Work(self.operators, factor * self.flops, factor * self.moved)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one batch: the work of a forward pass, of the gradient and of one product; the bytes the graph of the gradient
    keeps beside the weights."""

    forward: Work
    gradient: Work
    product: Work
    kept: float


def cost_of(risk: Risk) -> Cost:
    """The cost of one eager Hessian product on the first batch of a risk; nothing is computed.

    A model that looks at values on its way cannot be run without numbers; the error is then torch's.
    """
    theta, rest = empty(risk.params), empty(risk.constants())
    batch = empty(unmasked(risk.batches[0]))
    with risk.context(), Counted() as counted:
        for _ in range(2):  # the first also looks for the output of the network
            counted.taken()
            with torch.no_grad():
                risk.run({**rest, **theta}, batch)
        forward = counted.taken()
        graph = Retained(lambda p: risk.run({**rest, **p}, batch)[0], theta, tuple(theta))
        gradient = counted.taken()
        graph(theta, tuple(theta))
        return Cost(forward, gradient, counted.taken(), float(graph.bytes))


class Outline(Risk):
    """A risk without numbers, of a model on the meta device that is meant for the processor: names, sizes, costs."""

    def __init__(
        self,
        model: nn.Module,
        loss: Any = None,
        data: Any = None,
        params: str | Sequence[str] = "*",
        *,
        include_frozen: bool = False,
        train_mode: bool = False,
    ) -> None:
        batches, runner = batches_of(data), ModuleRunner(model, loss, False)
        evaluate = functools.partial(runner.call, batches[0])
        chosen = of_module(model, params, evaluate, include_frozen=include_frozen, train_mode=train_mode)
        at = {name: t.detach() for name, t in chosen.params.items()}
        self._set(
            model=model, loss=loss, train_mode=train_mode, count=None, batches=batches, writes=False, params=at,
            coverage=chosen.coverage, space=Space.of(at, chosen.views), dtype=next(iter(at.values())).dtype,
            device=torch.device("cpu"), fused=False, runner=runner, _whole=None, shifted=False, notes=chosen.notes,
            units={}, shards=None, weights=[1 / len(batches)] * len(batches),
        )  # fmt: skip

    @functools.cached_property
    def cost(self) -> Cost:
        return cost_of(self)

    @property
    def weight_bytes(self) -> float:
        """What the model takes once it is loaded."""
        held = {**self.params, **self.constants()}
        return float(sum(t.numel() * t.element_size() for t in held.values()))

    def run_empty(self) -> None:
        """One forward pass without numbers; a model that looks at values raises an error of torch's."""
        with self.context(), torch.no_grad():
            self.run(self.params, self.batches[0])

    def seconds(self, forward_passes: float | None = None) -> float:
        """Time of one product over all batches: counted for the Hessian, else so many forward passes."""
        cost = self.cost
        work = cost.product if forward_passes is None else cost.forward.times(forward_passes)
        return len(self.batches) * work.seconds(self.dtype)


class Counted(TorchDispatchMode):
    """A scope in which operators are counted with their work, those on several tensors as one for each of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.operators, self.flops, self.moved = 0, 0.0, 0.0

    def taken(self) -> Work:
        """The work since the last call."""
        found = Work(self.operators, self.flops, self.moved)
        self.operators, self.flops, self.moved = 0, 0.0, 0.0
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Several in types:
            return NotImplemented
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.operators += 1
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += float(count(*args, **kwargs, out_val=out))
        elif not func.is_view:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
            self.moved += sum(t.numel() * t.element_size() for t in tensors)
        return out


@functools.cache
def rates(dtype: torch.dtype, threads: int) -> tuple[float, float]:
    """(floating-point operations a second of a matrix product, bytes a second of a sum), timed once; `threads` tells
    what the timing belongs to."""
    A, x = torch.ones(_SIDE, _SIDE, dtype=dtype), torch.ones(_ENTRIES, dtype=dtype)
    product, total = _least(lambda: A @ A), _least(lambda: x + x)
    return 2 * _SIDE**3 / product, 3 * x.numel() * x.element_size() / total


def _least(work: Any) -> float:
    """The shortest of a few times: others use the machine too."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return max(min(found), 1e-9)


def empty(values: Any) -> Any:
    """The same with tensors that have shapes and no numbers; one that stands in two places is one again."""
    made: dict[int, Tensor] = {}

    def empty(t: Any) -> Any:
        return made.setdefault(id(t), t.detach().to("meta")) if isinstance(t, Tensor) else t

    return tree_map(empty, values)


def unmasked(batch: Any) -> Any:
    """A batch without a mask that hides nothing: Hugging Face models look at its values."""
    if not isinstance(batch, Mapping) or not isinstance(mask := batch.get("attention_mask"), Tensor) or mask.is_meta:
        return batch
    return {n: t for n, t in batch.items() if n != "attention_mask"} if bool(mask.all()) else batch
