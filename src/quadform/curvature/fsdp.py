"""A model whose weights FSDP2 has cut over processes (`fully_shard`), evaluated without FSDP2's hooks.

The hooks are taken out of the tables of the modules while something runs, and put back in order. The DTensors of the
model stay the storage: a unit gathers its weights when it is called, those outside the units are gathered beforehand.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from ..core.errors import CheckFailed, InputError
from ..distributed.processes import Group, current
from ..distributed.sharding import mapped
from ..distributed.shards import Shards, fsdp_modules, is_sharded, local, processes_of, shards_of
from ..distributed.stages import is_piped
from .batches import batches_of
from .calling import Loss, bare
from .runners import ModuleRunner, Runner
from .several import as_one, parts_of
from .units import Inside, find
from .wide import restore

if TYPE_CHECKING:
    from .risk import Risk
    from .sharded import Apart

#: The tables of a module that forward hooks stand in.
_TABLES = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


#: Sums over the same numbers may differ by this share: other processors add in another order.
_SAME = 1e-9


class Apartness(Protocol):
    """How a model lies in several processes."""

    counts: list[int]  # batches of each process
    several: bool  # vectors may be multiplied in one pass

    @property
    def group(self) -> Group:
        """The processes."""

    @property
    def notes(self) -> list[str]:
        """Remarks of a risk."""

    def runner(self, model: nn.Module, loss: Loss | None) -> Runner:
        """What evaluates it."""

    def evaluation(self, risk: Risk, rows: tuple[str, ...] | None = None, weight: float = 1.0) -> Apart:
        """What differentiates it."""

    def product(self) -> contextlib.AbstractContextManager[None]:
        """The scope of a product."""

    def batches(self, data: Any) -> tuple[list[Any], int]:
        """As many batches in every process, and how many are this one's own."""

    def only(self, batches: Sequence[Any], i: int) -> list[Any]:
        """Batch number i of all processes, where it is."""

    def held(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this process has of tensors by the names of parameters."""


class Fsdp:
    """The weights of a model by where they are gathered: in a unit, or outside of all."""

    several = True

    def __init__(self, model: nn.Module, units: str | None, *, train_mode: bool) -> None:
        shards = shards_of(model)
        assert shards is not None
        if train_mode:
            raise InputError("sharded weights are measured in evaluation mode (train_mode=False).")
        self._set(model, shards, find(model, units), processes_of(shards))
        self._same_everywhere()

    def _set(self, model: nn.Module, shards: Shards, units: Mapping[str, nn.Module], group: Group) -> None:
        self.model, self.shards, self.units, self.group = model, shards, units, group
        first: dict[int, str] = {}
        every = model.named_parameters(remove_duplicate=False)
        self.known = {n: first.setdefault(id(t), n) for n, t in every}  # tied weights under their first name
        owned = {n for n in self.known if any(n.startswith(f"{u}." if u else "") for u in units)}
        beside = {first for n, first in self.known.items() if n not in owned}
        self.outside = tuple(n for n in shards.cuts if n in beside)
        self.busy = False  # a product answers for the units and brings the weights outside
        self.order = 0  # a checksum of what was gathered, in order
        self.counts: list[int] = []  # batches of each process
        self.wide = False  # the output of the network was seen cut along tokens

    def _same_everywhere(self) -> None:
        """Buffers, and weights that several processes hold copies of (HSDP), must be the same in each."""
        marks = [mark(self.model.buffers()), mark(map(local, self.model.parameters()))]
        every = self.group.every(torch.tensor([float(self.shards.own), *marks[0], *marks[1]], dtype=torch.float64))
        alike = every[every[:, 0] == self.shards.own]
        for what, rows in (("buffers", every[:, 1:3]), ("copies of the weights (HSDP)", alike[:, 3:])):
            spread = (rows - rows[0]).abs().amax()
            if self.group.any(not bool(spread <= _SAME * rows[:, 1].max())):
                raise InputError(
                    f"the processes hold different {what}. Load the same checkpoint in every process, or seed them"
                    " alike before the model is made."
                )

    @property
    def notes(self) -> list[str]:
        """What the hooks do and a product does not: FSDP2's mixed precision."""
        policies = [module._get_fsdp_state()._mp_policy for module in fsdp_modules(self.model).values()]
        stored = {t.dtype for t in self.model.parameters()}
        lower = {p.param_dtype for p in policies if p.param_dtype is not None and {p.param_dtype} != stored}
        names, held = (", ".join(sorted(str(t).removeprefix("torch.") for t in kinds)) for kinds in (lower, stored))
        return (
            [f"the mixed-precision policy of fully_shard ({names}) is not applied: measured in {held}"] if lower else []
        )

    def held(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.shards.held(tensors)

    def runner(self, model: nn.Module, loss: Loss | None) -> Runner:
        return ShardedRunner(model, loss, self)

    def evaluation(self, risk: Risk, rows: tuple[str, ...] | None = None, weight: float = 1.0) -> Apart:
        from .sharded import Sharded  # which needs a risk

        return Sharded(risk, self, rows, weight)

    # --- evaluating -------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def asleep(self) -> Iterator[None]:
        """FSDP2's hooks are out of the tables; back in order afterwards."""
        modules = fsdp_modules(self.model)
        for module in modules.values():
            module.reshard()
        with contextlib.ExitStack() as stack:
            for module in self.model.modules():
                ours = {k for t in _TABLES[::2] for k, hook in getattr(module, t).items() if _of_fsdp(hook)}
                if ours:
                    stack.enter_context(_without(module, ours))
            yield

    @contextlib.contextmanager
    def product(self) -> Iterator[None]:
        """A product runs; afterwards all processes must have gathered the same, in one order."""
        with self.group.ringing(), self.asleep():
            self.busy, self.order = True, 0
            try:
                yield
            finally:
                self.busy = False
        order = float(self.order)
        if self.group.most(order) != self.group.least(order):
            raise CheckFailed(
                "the processes ran the modules of the model in different orders, so that weights of different modules"
                " were mixed. Nothing was measured. All must run the same modules whatever their data are."
            )

    def gathered(
        self, names: Sequence[str], primal: Sequence[Tensor], tangent: Sequence[Tensor | None]
    ) -> list[Tensor]:
        """Whole weights with their tangents, in one message; what is whole already stays as it is."""
        own = [(i, self.known.get(n, n)) for i, n in enumerate(names)]
        cut = [(i, n) for i, n in own if n in self.shards.cuts and n not in self.outside]
        self.order = zlib.crc32(" ".join(n for _, n in cut).encode(), self.order)
        found = self.pairs([n for _, n in cut], [primal[i] for i, _ in cut], [tangent[i] for i, _ in cut])
        whole, along = list(primal), list(tangent)
        for (i, _), t, d in zip(cut, *found, strict=True):
            whole[i], along[i] = t, d
        return [t if d is None else forward_ad.make_dual(t, d) for t, d in zip(whole, along, strict=True)]

    def pairs(
        self, names: Sequence[str], primal: Sequence[Tensor], tangent: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Weights, and the tangents of those that have some (one, or several as one), whole. Each weight comes
        twice in a message at most."""
        moved = [(n, parts_of(d)) for n, d in zip(names, tangent, strict=True) if d is not None]
        along = [[(n, parts[j]) for n, parts in moved] for j in range(len(moved[0][1]) if moved else 0)]
        rows = [list(zip(names, primal, strict=True)), *along]
        found = []
        for two in (rows[j : j + 2] for j in range(0, len(rows), 2)):
            every = [pair for row in two for pair in row]
            whole = iter(self.shards.gather([n for n, _ in every], [t for _, t in every]))
            found += [[next(whole) for _ in row] for row in two]
        tangents = iter([as_one(parts) for parts in zip(*found[1:], strict=True)])
        return found[0], [None if d is None else next(tangents) for d in tangent]

    def run(self, name: str, unit: nn.Module, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A unit with its weights gathered, nothing of them differentiated."""
        weights = {n: t.detach() for n, t in unit.named_parameters()}
        whole = self.gathered(self.full(name, weights), list(weights.values()), [None] * len(weights))
        swapped = {f"unit.{n}": t for n, t in zip(weights, whole, strict=True)}
        return functional_call(Inside(unit, forward), swapped, args, options)

    @staticmethod
    def full(unit: str, names: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """Names of the weights of a unit in the model."""
        return [f"{unit}.{n}" if unit else n for n in names]

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Units gather their weights when they are called."""
        with self.group.ringing(), self.asleep(), contextlib.ExitStack() as stack:
            for name, unit in self.units.items():
                stack.callback(restore, unit, unit.__dict__.get("forward"))
                unit.forward = partial(self.run, name, unit, unit.forward)
            yield

    def at(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights as shards, those outside the units whole."""
        shards = {n: local(t) for n, t in {**dict(self.model.named_parameters()), **params}.items()}
        whole = self.shards.gather(self.outside, [shards[n] for n in self.outside])
        return shards | dict(zip(self.outside, whole, strict=True))

    # --- data -------------------------------------------------------------------------------------------------------
    def batches(self, data: Any) -> tuple[list[Any], int]:
        """As many batches as the process with most has, and how many are this one's own."""
        own = [] if isinstance(data, list | tuple) and not data else batches_of(data)
        device = next(self.model.parameters()).device
        counts = [int(c) for c in self.group.every(torch.tensor([float(len(own))]))[:, 0]]
        self.counts = counts
        if not any(counts):
            raise InputError("data holds no batches in any process.")
        spare = own[-1:]
        if not all(counts):
            rank = next(r for r, c in enumerate(counts) if c)
            told = [mapped(own[0], lambda t: t.cpu()) if self.group.rank == rank else None]
            dist.broadcast_object_list(told, src=rank, group=self.group._host)
            spare = spare or [mapped(told[0], lambda t: t.to(device))]
        return own + spare * (max(counts) - len(own)), len(own)

    def only(self, batches: Sequence[Any], i: int) -> list[Any]:
        """Batch number i of all processes, in the one that has it."""
        own = i - sum(self.counts[: self.group.rank])
        return [batches[own]] if 0 <= own < self.counts[self.group.rank] else []


def apart(model: Any, units: str | None, *, train_mode: bool) -> tuple[Any, Apartness | None]:
    """The model in this process, and how the whole lies in several: cut by FSDP, in stages, or not at all (None)."""
    if is_piped(model):
        from .piped import Pipe  # which needs a risk

        pipe = Pipe(model, units, train_mode=train_mode)
        return pipe.model, pipe
    model = bare(model)
    return model, Fsdp(model, units, train_mode=train_mode) if is_sharded(model) else None


def cut(model: nn.Module, device: str) -> nn.Module:
    """Cut the weights of a model over all processes (`fully_shard`): those of its repeated blocks, then the rest. They
    move to the devices one block after another."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if current().world == 1:
        raise InputError("the weights are sharded across several processes; start them with torchrun.")
    mesh = init_device_mesh(device, (current().world,))
    for block in find(model).values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def mark(tensors: Iterable[Tensor]) -> tuple[float, float]:
    """Two sums that tell tensors from others: of the values, and of their sizes."""
    real = [t.detach() for t in tensors if not t.is_complex()]
    sums = [(t.sum(dtype=torch.float64), t.abs().sum(dtype=torch.float64)) for t in real]
    return float(sum(a for a, _ in sums)), float(sum(b for _, b in sums))


def _of_fsdp(hook: Any) -> bool:
    if type(getattr(hook, "__self__", None)).__name__ == "FSDPState":
        return True
    return hasattr(hook, "__wrapped__") and _of_fsdp(hook.__wrapped__)


@contextlib.contextmanager
def _without(module: nn.Module, keys: set[int]) -> Iterator[None]:
    """Some hooks out of the tables of a module; what came in meanwhile stays behind those that were there."""
    tables = [getattr(module, name) for name in _TABLES]
    before = [list(table.items()) for table in tables]
    for table in tables:
        for key in keys & set(table):
            del table[key]
    try:
        yield
    finally:
        for table, items in zip(tables, before, strict=True):
            now = dict(table)
            kept = [(k, hook) for k, hook in items if k in keys or k in now]
            table.clear()
            table.update([*kept, *((k, hook) for k, hook in now.items() if k not in dict(kept))])


class ShardedRunner(ModuleRunner):
    """Evaluates a model that is cut. Weights are differentiated by products alone (`sharded`)."""

    def __init__(self, model: nn.Module, loss: Loss | None, fsdp: Fsdp) -> None:
        super().__init__(model, loss, False)
        self.fsdp = fsdp

    def _call(self, params: Mapping[str, Tensor], batch: Any) -> Tensor:
        if self.fsdp.busy:
            return super()._call(params, batch)
        moved = [n for n, t in params.items() if t.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(t)]
        if moved:
            raise InputError(
                f"`{moved[0]}` is sharded (FSDP): hessian, gauss_newton and functional differentiate it,"
                " this measurement does not. Gather the weights for it: see docs/distributed.md."
            )
        with self.fsdp.gathering():
            return super()._call(self.fsdp.at(params), batch)
