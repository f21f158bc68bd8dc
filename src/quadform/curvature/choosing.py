"""The parameters a risk is over: chosen by glob, with views of the attention weights inside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..core.errors import InputError, closest
from ..core.space import Space, View
from .refusals import mode_notes, nothing_to_measure, refuse_halves, refuse_quantised
from .settings import measured
from .views import attention_views


@dataclass(frozen=True)
class Chosen:
    """Parameters by name with their views; how many of how many they are, in words; remarks."""

    params: dict[str, Tensor]
    views: tuple[View, ...]
    coverage: str
    notes: tuple[str, ...] = ()


def of_function(params: Mapping[str, Tensor]) -> Chosen:
    """All parameters of a function model."""
    size = sum(t.numel() for t in params.values())
    return Chosen(dict(params), (), f"{len(params)} of {len(params)} tensors, {size:,} parameters")


def of_module(
    model: nn.Module,
    params: str | Sequence[str] | Mapping[str, Tensor],
    evaluate: Callable[[], Any] | None,
    *,
    include_frozen: bool,
    train_mode: bool,
) -> Chosen:
    """The real, trainable parameters of a module that match; `evaluate()` runs it on a batch, None where parts of
    weights get no names of their own."""
    if isinstance(params, Mapping):
        raise InputError("params={...} is for function models; for a module give globs of parameter names.")
    refuse_quantised(model)
    named = dict(model.named_parameters())
    lazy = [n for n, p in named.items() if nn.parameter.is_lazy(p)]
    if lazy:
        raise InputError(f"`{lazy[0]}` has no shape yet (a lazy module). Call the model on one batch before measuring.")
    usable = {n: p for n, p in named.items() if p.is_floating_point() and (p.requires_grad or include_frozen)}
    frozen = [n for n, p in named.items() if p.is_floating_point() and not p.requires_grad]
    integer = [n for n, p in named.items() if not p.is_floating_point()]
    if not usable:
        raise nothing_to_measure(named)
    refuse_halves(named)
    views: list[View] = []
    if evaluate is not None:
        with measured(model):
            views = attention_views(model, set(usable), evaluate)
    whole = Space.of(usable, views)
    globs = (params,) if isinstance(params, str) else tuple(params)
    try:
        names = [_owner(whole, n) for n in whole.select(*globs).names]
    except KeyError:
        near = closest(globs[0], [*whole.names, *(v.name for v in views)]) or whole.names[:3]
        asked, there = (", ".join(f"`{n}`" for n in names) for names in (globs, near))
        text = f"params: {asked} match 0 of {len(usable)} tensors. Closest names: {there}."
        raise InputError(text) from None
    chosen: dict[str, Tensor] = {n: usable[n] for n in usable if n in set(names)}
    size = sum(p.numel() for p in chosen.values())
    text = f"{len(chosen)} of {len(named)} tensors, {size:,} parameters"
    text += f", {len(frozen)} frozen" * bool(frozen and not include_frozen)
    text += f", {len(integer)} not real" * bool(integer)
    fused = {v.of for v in views if v.name.endswith(".W_Q") and v.of in chosen and v.shape != v.seen_as}
    if fused:
        stored = sorted({n.removesuffix(".weight").rpartition(".")[2] for n in fused})
        text += f"; {', '.join(stored)} split into query/key/value"
    inside = tuple(v for v in views if v.of in chosen)
    return Chosen(chosen, inside, text, tuple(mode_notes(model, train_mode)))


def _owner(space: Space, name: str) -> str:
    """The parameter a name belongs to: itself, or what it is a view of."""
    return next((v.of for v in space.views if v.name == name), name)
