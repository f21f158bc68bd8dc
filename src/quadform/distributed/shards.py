"""Weights that FSDP2 (`fully_shard`) has cut over processes: their local shards, gathered and added up in one message.

The DTensors of the model stay the storage. What travels is one flat tensor for any number of weights: row r of
`(shards, entries)` belongs to the process with shard r, pieces padded to the longest.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.errors import InputError
from .meeting import gather, scatter
from .processes import ALONE, Group, current, group, standing

if TYPE_CHECKING:
    from ..core.space import Vector


@dataclass(frozen=True)
class Cut:
    """How a tensor of some shape is cut: along `axis`, into pieces of these lengths."""

    shape: tuple[int, ...]
    axis: int
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], pieces: int, axis: int = 0) -> Cut:
        """As `torch.chunk` cuts: pieces of one length, the last ones shorter or empty."""
        each = -(-shape[axis] // pieces)
        return cls(shape, axis, tuple(max(0, min(each, shape[axis] - r * each)) for r in range(pieces)))

    def piece(self, r: int) -> tuple[int, ...]:
        """The shape of piece r."""
        return (*self.shape[: self.axis], self.lengths[r], *self.shape[self.axis + 1 :])

    def places(self, r: int, at: Tensor) -> Tensor:
        """Where entries number `at` of piece r, flat, stand in the whole tensor, flat."""
        inner = math.prod(self.shape[self.axis + 1 :])
        own, whole = max(1, self.lengths[r] * inner), self.shape[self.axis] * inner
        return at // own * whole + sum(self.lengths[:r]) * inner + at % own

    @property
    def room(self) -> int:
        """Entries of the longest piece."""
        return math.prod(self.piece(0))


class Shards:
    """How the weights of a model are cut, and the messages that gather them and add up what is cut like them."""

    def __init__(self, mesh: Any, cuts: Mapping[str, Cut]) -> None:
        self.mesh, self.cuts = mesh, dict(cuts)
        self.own, self.pieces = mesh.get_local_rank(mesh.ndim - 1), mesh.size(mesh.ndim - 1)
        self.group = ALONE  # all processes, once they have begun
        self.gathered = self.reduced = self.calls = 0  # numbers sent to all, added up; messages

    @property
    def copies(self) -> int:
        """Processes that hold the same shards."""
        return int(self.mesh.size()) // self.pieces

    def gather(self, names: Sequence[str], local: Sequence[Tensor]) -> list[Tensor]:
        """Whole tensors from the local shards of all processes; a name may come twice, for a weight and its tangent."""
        if not names:
            return []
        cuts = [self.cuts[n] for n in names]
        own = local[0].new_zeros(sum(c.room for c in cuts))
        for part, t in zip(own.split([c.room for c in cuts]), local, strict=True):
            part[: t.numel()] = t.reshape(-1)
        rows = own.new_empty(self.pieces * len(own))
        self._send(gather, rows, own, axis=-1)
        rows = rows.view(self.pieces, -1)
        self.gathered += sum(math.prod(c.shape) for c in cuts)
        columns = rows.split([c.room for c in cuts], dim=1)
        return [self._joined(c, part) for c, part in zip(cuts, columns, strict=True)]

    def reduce(self, names: Sequence[str], whole: Sequence[Tensor | None], weight: float, like: Tensor) -> list[Tensor]:
        """The local shards of sums over all processes, each with a weight, None for zero; of the kind of `like`, half
        precision added in float32."""
        if not names:
            return []
        cuts, kind = [self.cuts[n] for n in names], like.dtype
        wide = torch.float32 if kind.itemsize < 4 else kind
        rows = like.new_zeros((self.pieces, sum(c.room for c in cuts)), dtype=wide)
        for c, part, t in zip(cuts, rows.split([c.room for c in cuts], dim=1), whole, strict=True):
            if t is not None:
                self._split(c, t, weight, part)
        if rows.device.type in ("cpu", "meta"):  # gloo waits for a reduce-scatter without listening
            parts = torch.empty_like(rows)
            self._send(dist.all_to_all_single, parts.view(-1), rows.view(-1), axis=-1)
            own = parts.sum(0)
        else:
            own = rows.new_empty(rows.shape[1])
            self._send(scatter, own, rows.view(-1), axis=-1)
        for axis in range(self.mesh.ndim - 1):  # copies
            self._send(dist.all_reduce, own, axis=axis)
        own = own.to(kind)
        self.reduced += sum(math.prod(c.shape) for c in cuts)
        pieces = zip(cuts, own.split([c.room for c in cuts]), strict=True)
        return [p[: math.prod(c.piece(self.own))].view(c.piece(self.own)) for c, p in pieces]

    def held(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this process holds of tensors that are cut like the weights of these names, or whole."""
        return {
            n: local(t) if is_cut(t) else t.split(self.cuts[n].lengths, dim=self.cuts[n].axis)[self.own]
            for n, t in tensors.items()
            if n in self.cuts
        }

    def _send(self, collective: Any, *tensors: Tensor, axis: int) -> None:
        self.calls += 1
        with torch.no_grad():
            self.group.carry(collective, *tensors, group=self.mesh.get_group(axis % self.mesh.ndim))

    @staticmethod
    def _split(cut: Cut, t: Tensor, weight: float, rows: Tensor) -> None:
        """Write the pieces of a tensor, with a weight, into rows."""
        if cut.axis == 0:
            for part, row in _in_rows(t.reshape(-1), rows):
                torch.mul(part, weight, out=row)
            return
        for row, piece in zip(rows, t.split(cut.lengths, dim=cut.axis), strict=True):
            torch.mul(piece.reshape(-1), weight, out=row[: piece.numel()])

    @staticmethod
    def _joined(cut: Cut, rows: Tensor) -> Tensor:
        """A tensor of its own, no view: a tangent of a view is one of all that is viewed."""
        if cut.axis == 0:
            whole = rows.new_empty(cut.shape)
            for part, row in _in_rows(whole.view(-1), rows):
                part.copy_(row)
            return whole
        shapes = [cut.piece(r) for r in range(len(rows))]
        return torch.cat([row[: math.prod(s)].view(s) for row, s in zip(rows, shapes, strict=True)], dim=cut.axis)


def _in_rows(flat: Tensor, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Where a tensor that is cut along its first axis stands in the rows of a message: the full ones, then the rest."""
    room = rows.shape[1]
    full = len(flat) // max(1, room)
    rest = len(flat) - full * room
    parts = [(flat[: full * room].view(full, room), rows[:full])]
    return parts + ([(flat[full * room :], rows[full, :rest])] if rest else [])


class ShardGroup(Group):
    """The processes of a model that is cut: a vector of the space *is* its shard, and nothing is ever whole.

    It shares the meetings of the group it is made from. Sums are those of inner products: shards that several processes
    hold (HSDP) count once; `over_data` adds what comes from the data of each process.
    """

    __slots__ = ("shards",)  # beside what it shares
    cut = True

    def __init__(self, base: Group, shards: Shards) -> None:
        self.__dict__ = base.__dict__
        self.shards = shards

    @property
    def mark(self) -> str:
        return f"-{self.shards.own + 1}-of-{self.shards.pieces}"

    @property
    def writes(self) -> bool:
        return self.shards.mesh.ndim == 1 or int(self.shards.mesh.get_local_rank(0)) == 0

    @property
    def slices(self) -> int:
        return 1

    def places(self, name: str, at: Tensor) -> tuple[str, Tensor]:
        """The name of a tensor, and where entries of the shard that is held here stand in it."""
        return name, self.cuts[name].places(self.shards.own, at)

    @property
    def cuts(self) -> Mapping[str, Cut]:
        """How whole tensors are cut."""
        return self.shards.cuts

    def sum(self, x: Tensor) -> Tensor:
        return super().sum(x) / self.shards.copies

    def over_data(self, x: Tensor) -> Tensor:
        return super().sum(x)

    def total(self, parts: Mapping[str, Tensor], given: Vector) -> dict[str, Tensor]:
        return dict(parts)

    def size(self, n: int) -> int:
        return round(float(self.sum(torch.tensor(float(n), dtype=torch.float64))))

    def slice(self, n: int) -> slice:
        return slice(0, n)

    def longest(self, n: int) -> int:
        return int(self.most(float(n)))

    def whole(self, slices: Tensor, n: int) -> Tensor:
        return slices


# --- what is cut ----------------------------------------------------------------------------------------------------
def is_cut(t: Tensor) -> bool:
    """Whether a parameter is a DTensor, as FSDP2 and tensor parallelism make them."""
    return type(t).__name__ == "DTensor" or type(getattr(t, "data", None)).__name__ == "DTensor"


def local(t: Any) -> Tensor:
    """The shard of this process, on the storage of the DTensor."""
    return (t.to_local() if is_cut(t) else t).detach()


def fsdp_modules(model: nn.Module) -> dict[str, Any]:
    """The modules that `fully_shard` was called on."""
    return {n: m for n, m in model.named_modules() if any(c.__name__ == "FSDPModule" for c in type(m).__mro__)}


def is_sharded(model: Any) -> bool:
    """Whether the weights of a model are cut over processes."""
    return isinstance(model, nn.Module) and bool(fsdp_modules(model) or any(map(is_cut, model.parameters())))


def gathered_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, one after another gathered where they are cut; all processes make this call."""
    for module in fsdp_modules(model).values():
        module.reshard()
    for name, t in sorted(model.state_dict().items()):
        yield name, t.full_tensor() if is_cut(t) else t


@contextlib.contextmanager
def processes_with(model: Any) -> Iterator[Group]:
    """The processes that share a question about a model: those around it, or those that its weights are cut over."""
    if current().world > 1 or not is_sharded(model):
        yield current()
    else:
        with group() as found:
            yield found


def shards_of(model: nn.Module) -> Shards | None:
    """How `fully_shard` has cut the weights of a model; None where none is. What is cut in another way is refused."""
    owners = fsdp_modules(model)
    for module in owners.values():
        module.reshard()  # FSDP leaves the outermost weights whole after a forward pass
    named = dict(model.named_parameters())
    if not any(map(is_cut, named.values())):
        return None
    mesh = next(t for t in named.values() if is_cut(t)).device_mesh  # type: ignore[attr-defined]  # a DTensor
    cuts: dict[str, Cut] = {}
    for name, t in named.items():
        if not is_cut(t):
            raise InputError(
                f"`{name}` is whole in every process while other weights are cut. Call `fully_shard` on the model too,"
                " after its blocks."
            )
        cuts[name] = _cut(name, t, mesh, owners)
    return Shards(mesh, cuts)


def _cut(name: str, t: Any, mesh: Any, owners: Mapping[str, Any]) -> Cut:
    *copies, last = t.placements
    of_fsdp = any(name.startswith(f"{owner}." if owner else "") for owner in owners)
    if not of_fsdp or type(last).__name__ != "Shard" or not all(p.is_replicate() for p in copies):
        module = name.rpartition(".")[0]
        raise InputError(
            f"module `{module}` is cut by tensor parallelism (`{name}`: {', '.join(map(str, t.placements))}), where"
            " torch's second derivatives are wrong without an error. Measure the model with `fully_shard` alone: see"
            " docs/distributed.md."
        )
    if t.device_mesh != mesh:
        raise InputError(f"`{name}` is sharded across other processes than the first weight. Use one mesh for all.")
    shards, axis = mesh.size(mesh.ndim - 1), last.dim % max(t.dim(), 1)
    cut = Cut.of(tuple(t.shape), shards, axis)
    if tuple(t.to_local().shape) != cut.piece(mesh.get_local_rank(mesh.ndim - 1)):
        raise InputError(
            f"`{name}` is cut into pieces of other lengths than `torch.chunk` gives, which is not supported."
        )
    return cut


def processes_of(shards: Shards) -> ShardGroup:
    """The processes that hold the shards; all of them make this call."""
    base = current() if current().world > 1 else standing()
    if base.world != shards.mesh.size():
        raise InputError(
            f"the weights are sharded across {shards.mesh.size()} of {base.world} processes. Use all, with copies"
            " where you want some (a mesh of two dimensions)."
        )
    shards.group = base
    return ShardGroup(base, shards)
