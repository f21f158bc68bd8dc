"""Stages of a pipeline (torch.distributed.pipelining): a part of the model in each process, messages to the next one.

A message is any number of tensors, some of them missing, behind a head that tells their kinds and shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.errors import InputError
from .processes import Group, current, standing
from .shards import Cut, ShardGroup, is_sharded

#: Of a message: the most tensors, and the most axes of one.
_TENSORS, _AXES = 64, 8
_KINDS = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
#: What stages and schedules of torch.distributed.pipelining are derived from.
_STAGE, _SCHEDULE = "_PipelineStageBase", "_PipelineSchedule"
#: By group: torch's groups of every two neighbours, for heads and for tensors; last, one of all. Processes meet in yet
#: another one, where a message that is never answered would be in the way of those that fail.
_NEIGHBOURS: WeakKeyDictionary[Group, list[tuple[Any, Any]]] = WeakKeyDictionary()


class Stages:
    """The stages of a pipeline: this process has number `own` of `pieces`; `ranks` are the processes of all."""

    copies = 1

    def __init__(self, own: int, ranks: Sequence[int], base: Group, device: torch.device) -> None:
        self.own, self.pieces, self.ranks = own, len(ranks), list(ranks)
        self.base, self.device = base, device
        if base not in _NEIGHBOURS:
            _NEIGHBOURS[base] = [
                *(self._groups(self.ranks[s : s + 2]) for s in range(self.pieces - 1)),
                self._groups(self.ranks),
            ]
        self.pairs = _NEIGHBOURS[base]

    def _groups(self, ranks: list[int]) -> tuple[Any, Any]:
        wait = timedelta(seconds=self.base.timeout)
        host = dist.new_group(ranks, timeout=wait, backend="gloo")
        return host, host if self.device.type == "cpu" else dist.new_group(ranks, timeout=wait)

    def send(self, to: int, tensors: Sequence[Tensor | None]) -> None:
        """A message to the stage before or behind this one."""
        if len(tensors) > _TENSORS or any(t is not None and t.dim() > _AXES for t in tensors):
            raise InputError(
                f"stage {self.own} of the pipeline gives {len(tensors)} tensors of up to"
                f" {max(t.dim() for t in tensors if t is not None)} axes to the next; {_TENSORS} of {_AXES} are known."
            )
        head = torch.full((_TENSORS, 2 + _AXES), -1, dtype=torch.int64)
        for row, t in zip(head, tensors, strict=False):
            row[0] = -1 if t is None else _KINDS.index(t.dtype)
            row[1] = 0 if t is None else t.dim()
            if t is not None and t.dim():
                row[2 : 2 + t.dim()] = torch.tensor(t.shape)
        self._carry(head, self.own, to, 0)
        for t in tensors:
            if t is not None and t.numel():
                self._carry(t.detach().contiguous(), self.own, to, 1)

    def receive(self, source: int) -> list[Tensor | None]:
        """The message of the stage before or behind this one."""
        head = torch.empty((_TENSORS, 2 + _AXES), dtype=torch.int64)
        self._carry(head, source, self.own, 0)
        found: list[Tensor | None] = []
        for kind, axes, *shape in head.tolist():
            if axes < 0:
                break
            t = None if kind < 0 else torch.empty(shape[:axes], dtype=_KINDS[kind], device=self.device)
            if t is not None and t.numel():
                self._carry(t, source, self.own, 1)
            found.append(t)
        return found

    def from_last(self, numbers: Tensor) -> Tensor:
        """A few numbers of the last stage, in all."""
        self.base.carry(dist.broadcast, numbers, src=self.ranks[-1], group=self.pairs[-1][0])
        return numbers

    def _carry(self, t: Tensor, source: int, to: int, which: int) -> None:
        with torch.no_grad():  # two processes: one gives, one takes; others can be heard meanwhile
            self.base.carry(dist.broadcast, t, src=self.ranks[source], group=self.pairs[min(source, to)][which])


class StageGroup(ShardGroup):
    """The processes of a pipeline: a vector of the space *is* that of one stage. All of them hold all data."""

    __slots__ = ()

    @property
    def writes(self) -> bool:
        return True

    @property
    def cuts(self) -> dict[str, Cut]:
        return {}  # no tensor lies in two stages

    def places(self, name: str, at: Tensor) -> tuple[str, Tensor]:
        return f"{self.shards.own}/{name}", at

    def over_data(self, x: Tensor) -> Tensor:
        return x


def is_piped(model: Any) -> bool:
    """Whether this is a stage or a schedule of torch.distributed.pipelining."""
    return any(c.__name__ in (_STAGE, _SCHEDULE) for c in type(model).__mro__)


def stage_of(model: Any) -> tuple[nn.Module, StageGroup]:
    """The module of this process's stage, and the processes of the pipeline; all of them make this call."""
    stage = model
    if any(c.__name__ == _SCHEDULE for c in type(model).__mro__):
        stage = getattr(model, "_stage", None)
        if stage is None:
            raise InputError(
                f"{type(model).__name__} has several stages in a process, which is not supported. Give a schedule"
                " with one stage in each (ScheduleGPipe, Schedule1F1B), or the whole model cut by `fully_shard`: see"
                " docs/distributed.md."
            )
    base = current() if current().world > 1 else standing()
    world = dist.get_world_size(stage.group)
    if not stage.num_stages == world == base.world:
        raise InputError(
            f"a pipeline of {stage.num_stages} stages over {world} of {base.world} processes: each process needs one"
            " stage, and copies of the pipeline are not supported."
        )
    if is_sharded(stage.submod):
        raise InputError(
            f"the weights of stage {stage.stage_index} are sharded (`fully_shard`, `parallelize_module`)"
            " inside a pipeline, which is not supported. Give stages with whole weights."
        )
    group: Any = dist.group.WORLD if stage.group is None else stage.group
    ranks = [dist.get_global_rank(group, stage.stage_index_to_group_rank[s]) for s in range(world)]
    stages = Stages(stage.stage_index, ranks, base, torch.device(stage.device))
    return stage.submod, StageGroup(base, stages)  # type: ignore[arg-type]  # what it asks shards for, stages know
