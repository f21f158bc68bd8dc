"""The data of a risk split over processes: every one keeps a part, and all sums over the data are added up.

    risk = sum_b w_b l_b,   l_b = sum_p (c_bp / c_b) l_bp

for the parts p of a batch b with c_bp loss terms each, where the loss is a mean over terms that do not see other rows.
Whether it is one, and whether its terms were counted rightly, is measured, not assumed: the parts must add up to the
loss of the whole batches and to its slope along a random direction, which differs from row to row where losses hardly
do. Where they do not (batch norm in training mode, contrastive or load-balancing losses, padding that only the loss
knows of) batches stay whole and are dealt out one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from ..core.errors import InputError, QuadformError, out_of_memory
from ..core.progress import say
from ..core.rng import stream
from ..core.space import Space, Vector
from .processes import Group, group_of

By = Literal["rows", "batches"]

#: How much the sums over the parts may differ from those of the whole, relative, by type. Many models compute their
#: loss in float32 whatever they are given; products in TF32 err by 1e-3.
_SAME = {torch.float64: 1e-5, torch.float32: 1e-3}
_SAME_HALF = 5e-2


class Shardable(Protocol):
    """What is asked of a risk: `curvature.Risk` is one."""

    @property
    def batches(self) -> list[Any]: ...
    @property
    def weights(self) -> list[float]: ...
    @property
    def params(self) -> dict[str, Tensor]: ...
    @property
    def space(self) -> Space: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...

    def terms(self, batch: Any) -> float:
        """How many loss terms a batch has."""

    def slopes(self, v: Vector) -> list[tuple[Tensor, Tensor]]:
        """The loss of each batch, and its derivative along v."""

    def share(self: R, batches: list[Any], weights: list[float], group: Group, note: str, whole: R | None) -> R:
        """The part of it that one process of the group keeps; `whole` is what it is a part of, if it is at hand."""


R = TypeVar("R", bound=Shardable)


def shard(risk: R, group: Group, *, by: By = "rows") -> R:
    """The risk with its data split over the processes of the group, all of which hold all of it.

    Products, gradients and values of the result are those of the whole risk, in every process. `by="rows"` cuts every
    batch (`by="batches"` is what it falls back to, with one line that says so); a process may end up with no data.
    """
    if by not in ("rows", "batches"):
        raise InputError(f"data are split by 'rows' or by 'batches'; got {by!r}.")
    _refuse_cut(risk)
    if group.world == 1:
        return risk
    _same_model(risk, group)
    same_data(risk.batches, group)
    if by == "rows":
        own = _by_rows(risk, group)
        if own is not None:
            return own
        say("the loss of a batch is not the mean over its rows: whole batches go to the processes")
    mine = range(group.rank, len(risk.batches), group.world)
    note = f"batches dealt to {group.world} processes"
    return risk.share([risk.batches[b] for b in mine], [risk.weights[b] for b in mine], group, note, risk)


def shared(risk: R, group: Group) -> R:
    """The risk as the processes of a question share it: `shard`, or as it is where its weights are cut, with the data
    that every process gave.
    """
    return risk if group_of(risk.space).cut else shard(risk, group)


def join(risk: R, group: Group) -> R:
    """One risk from those of the processes, each made with data of its own (a loader with a distributed sampler).

    Batches are averaged by their loss terms, as in one risk with all of them.
    """
    _refuse_cut(risk)
    if group.world == 1:
        return risk
    _same_model(risk, group)
    counts = [risk.terms(b) for b in risk.batches]
    total = float(group.sum(torch.tensor(sum(counts), dtype=torch.float64)))
    note = f"data of {group.world} processes joined"
    return risk.share(risk.batches, [c / total for c in counts], group, note, None)


# --- by rows --------------------------------------------------------------------------------------------------------
def _by_rows(risk: R, group: Group) -> R | None:
    """The rows of this process of every batch; None where the parts do not add up to the whole."""
    parts: list[tuple[int, Any, float]] = []  # batch, rows of it, loss terms in them
    possible = True
    try:
        for b, batch in enumerate(risk.batches):
            piece = _piece(batch, (group.rank + b) % group.world, group.world)  # another process takes the longest
            terms = 0.0 if piece is None else risk.terms(piece)
            if terms > 0:
                parts.append((b, piece, terms))
    except _Whole:
        possible = False
    if group.any(not possible):
        return None
    found = torch.zeros(len(risk.batches), dtype=torch.float64)
    for b, _, terms in parts:
        found[b] = terms
    found = group.sum(found)
    weights = [risk.weights[b] * terms / float(found[b]) for b, _, terms in parts]
    own = risk.share([piece for _, piece, _ in parts], weights, group, f"rows split over {group.world} processes", risk)
    return own if _adds_up(risk, own, group) else None


def _adds_up(whole: Shardable, own: Shardable, group: Group) -> bool:
    """Whether losses and slopes of the parts are those of the whole; each batch of that is run by one process."""
    mine = list(range(group.rank, len(whole.batches), group.world))
    some = whole.share([whole.batches[b] for b in mine], [whole.weights[b] for b in mine], group, "", None)
    generator = stream(0, "shard", whole.device)
    v = whole.space.random(dtype=whole.dtype, device=whole.device, generator=generator)
    sums = torch.full((2, 3), torch.nan, dtype=torch.float64)  # loss and slope: of the parts, of the whole, its size
    try:
        parts, all_ = (
            torch.tensor(
                [[w * float(t) for t in pair] for w, pair in zip(r.weights, r.slopes(v), strict=True)],
                dtype=torch.float64,
            ).reshape(-1, 2)
            for r in (own, some)
        )
        sums = torch.stack([parts.sum(0), all_.sum(0), all_.abs().sum(0)], 1)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:  # a model that wants the whole batch
        if isinstance(error, QuadformError) or out_of_memory(error):
            raise
    found = group.sum(sums)
    near = (found[:, 0] - found[:, 1]).abs() <= _SAME.get(whole.dtype, _SAME_HALF) * found[:, 2]
    return bool(near.all())


class _Whole(Exception):
    """A batch whose tensors have no common first axis."""


def _piece(batch: Any, part: int, parts: int) -> Any:
    """Rows `part / parts` of a batch; None where there is none."""
    lengths = {len(t) for t in _tensors(batch) if t.dim()}
    if len(lengths) != 1:
        raise _Whole
    (n,) = lengths
    start, stop = n * part // parts, n * (part + 1) // parts
    return mapped(batch, lambda t: t[start:stop] if t.dim() else t) if stop > start else None


def _tensors(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def see(t: Tensor) -> Tensor:
        found.append(t)
        return t

    mapped(batch, see)
    return found


def mapped(batch: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """The batch with every tensor in its mappings, tuples and lists replaced."""
    if isinstance(batch, Tensor):
        return f(batch)
    if isinstance(batch, Mapping):
        return {k: mapped(v, f) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(v, f) for v in batch))
    return type(batch)(mapped(v, f) for v in batch) if isinstance(batch, tuple | list) else batch


# --- the same in every process --------------------------------------------------------------------------------------
def _refuse_cut(risk: Shardable) -> None:
    if group_of(risk.space).cut:
        raise InputError(
            "the weights are sharded (FSDP), and every process gives its own data: multiply with this risk"
            " as it is (`hessian`, `gauss_newton`, `functional`), or ask `qf.spectrum` and `qf.lr`. Other questions"
            " need whole weights: see docs/distributed.md."
        )


def _same_model(risk: Shardable, group: Group) -> None:
    if not _agree(risk.params.items(), group):
        raise InputError(
            "the processes hold different weights. Load the same checkpoint in every process, or seed them alike"
            " (`torch.manual_seed(0)` before the model is made)."
        )


#: What to do where they do.
_SPLIT = (
    "`shard` splits what all of them hold. For data that are split already (a distributed sampler) use"
    " `qd.join(risk, g)`; else seed the shuffling alike."
)


def same_data(batches: Sequence[Any], group: Group, advice: str = _SPLIT) -> None:
    """Refuse batches that differ between the processes, or come in another order."""
    if not _agree([(str(b), t) for b, batch in enumerate(batches) for t in _tensors(batch)], group):
        raise InputError(f"the processes hold different data: {advice}")


def _agree(named: Any, group: Group) -> bool:
    """Whether names, shapes and values of tensors are the same in every process, by their SHA-256."""
    digest = hashlib.sha256()
    for name, t in named:
        digest.update(f"{name} {tuple(t.shape)} {t.dtype}".encode())
        digest.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    number = float(int.from_bytes(digest.digest()[:6], "little"))  # 48 bits: exact in a double
    return group.most(number) == group.least(number)


__all__: Sequence[str] = ("By", "Shardable", "join", "shard", "shared")
