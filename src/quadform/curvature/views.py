"""Query, key and value matrices by the paper's names, also where a model stores them fused or under other names.

A view is another name for (a part of) a parameter, in the orientation in which the model stores it: torch's `Linear`
keeps `(out, in)`, GPT-2's `Conv1D` and this project `(in, out)`. `h.0.attn.W_Q` is the query part of `h.0.attn.c_attn`,
`h.0.attn.W_Q[3]` its head 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from ..core.space import View, heads
from .scaling import seen_by_scaling

#: Names under which models store one matrix, and the paper's name for it.
_SEPARATE = {
    "W_Q": ("q_proj", "query", "q_lin", "wq", "to_q", "q"),
    "W_K": ("k_proj", "key", "k_lin", "wk", "to_k", "k"),
    "W_V": ("v_proj", "value", "v_lin", "wv", "to_v", "v"),
    "W_O": ("o_proj", "out_proj", "out_lin", "c_proj", "wo", "dense", "o"),
}
#: Names under which models store queries, keys and values in one matrix.
_FUSED = ("c_attn", "qkv_proj", "qkv", "query_key_value", "Wqkv", "in_proj")
#: Of these, the name of other things too (state-space models): taken as three squares only.
_SQUARE = ("in_proj",)


def attention_views(model: nn.Module, names: set[str], run: Callable[[], Any]) -> list[View]:
    """All views of the attention weights among the parameters `names`.

    Views inside the projections of a model's own attention are given where `run()`, an evaluation of the model, shows
    that they are what their names say (`scaling`); those of torch's attention and under the paper's own names always.
    """
    claimed = {path: list(_of_module(path, module)) for path, module in model.named_modules()}
    unsure = {p: views for p, views in claimed.items() if any(v.of.rpartition(".")[0] != p for v in views)}
    sure = {v.name for p, views in claimed.items() if p not in unsure for v in views}
    if unsure:
        sure |= seen_by_scaling(model, unsure, run)
    found: dict[str, View] = {}
    for views in claimed.values():
        for view in views:
            if view.name in sure and view.of in names and view.name not in names:
                found.setdefault(view.name, view)
    return list(found.values())


def _of_module(path: str, module: nn.Module) -> Iterator[View]:
    count, keys = _head_counts(module)
    fused = getattr(module, "in_proj_weight", None)  # torch.nn.MultiheadAttention
    if isinstance(fused, nn.Parameter):
        yield from _cut(path, "in_proj_weight", fused, 0, count, count)
    for name, own in module.named_parameters(recurse=False):  # weights under the paper's own names
        if name in _SEPARATE and own.dim() == 2:
            number = keys if name in ("W_K", "W_V") else count
            yield from _heads(name, _join(path, name), own, 0 if name == "W_O" else 1, number)
    children = dict(module.named_children())
    if not {*_FUSED, *_SEPARATE["W_Q"]} & {*children}:
        return
    for child_name, child in children.items():
        weight = child._parameters.get("weight")
        if weight is None or weight.dim() != 2:
            continue
        output_axis = 1 if type(child).__name__ == "Conv1D" else 0
        where = f"{child_name}.weight"
        if child_name in _FUSED:
            outs, ins = weight.shape[output_axis], weight.shape[1 - output_axis]
            if child_name not in _SQUARE or outs == 3 * ins:
                yield from _cut(path, where, weight, output_axis, count, keys, *_order(module, child_name, keys))
            continue
        for paper, spellings in _SEPARATE.items():
            if child_name in spellings:
                whole = (weight.shape[0], weight.shape[1])
                yield View(_join(path, paper), _join(path, where), whole, ((0, whole[0]), (0, whole[1])), whole)
                axis = 1 - output_axis if paper == "W_O" else output_axis
                yield from _heads(paper, _join(path, where), weight, axis, keys if paper in ("W_K", "W_V") else count)


def _heads(paper: str, of: str, weight: nn.Parameter, axis: int, count: int) -> Iterator[View]:
    """`W_Q[h]` for every head, beside the parameter `of`; none where the width is no multiple of the heads."""
    if not count or weight.shape[axis] % count:
        return
    stem = _join(of.removesuffix(".weight").rpartition(".")[0], paper)
    for h, view in enumerate(heads(of, (weight.shape[0], weight.shape[1]), count, axis)):
        yield View(f"{stem}[{h}]", of, view.seen_as, view.cut, view.shape)


def _order(module: nn.Module, child: str, keys: int) -> tuple[int, str]:
    """How a fused matrix stores its heads: in so many groups, each with the queries, keys and values of its heads in
    this order."""
    if type(module).__name__ == "CodeGenAttention":  # as it was cut over four processors
        return 4, "QVK"
    by_key = child == "query_key_value" or getattr(module, "multi_query", None) is False  # GPTBigCode
    return (keys if by_key else 1), "QKV"


def _cut(
    path: str,
    where: str,
    weight: nn.Parameter,
    axis: int,
    count: int,
    keys: int,
    groups: int = 1,
    order: str = "QKV",
) -> Iterator[View]:
    """W_Q, W_K, W_V and their heads inside one fused matrix: (groups, heads of one group, width) along `axis`."""
    shape = (weight.shape[0], weight.shape[1])
    total, heads = shape[axis], {"Q": count, "K": keys, "V": keys}
    if not count or total % (count + 2 * keys) or any(n % groups for n in heads.values()):
        return
    width, slots, start = total // (count + 2 * keys), (count + 2 * keys) // groups, 0
    seen = (groups, slots, width)
    for letter in order:
        name, each = _join(path, f"W_{letter}"), heads[letter] // groups
        runs = [(name, (0, groups), (start, start + each))]
        for h in range(heads[letter]):
            group, slot = h // each, start + h % each
            runs.append((f"{name}[{h}]", (group, group + 1), (slot, slot + 1)))
        start += each
        for label, of_groups, of_slots in runs:
            size = (of_groups[1] - of_groups[0]) * (of_slots[1] - of_slots[0]) * width
            cut = (of_groups, of_slots, (0, width))
            if axis == 0:
                yield View(label, _join(path, where), (*seen, shape[1]), (*cut, (0, shape[1])), (size, shape[1]))
            else:
                yield View(label, _join(path, where), (shape[0], *seen), ((0, shape[0]), *cut), (shape[0], size))


def _head_counts(module: nn.Module) -> tuple[int, int]:
    """Query heads and key/value heads of an attention module, 0 where it does not say."""

    def ask(*names: str) -> int:
        for owner in (module, getattr(module, "config", None)):
            for name in names:
                value = getattr(owner, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return 0

    count = ask("num_heads", "n_heads", "heads", "num_attention_heads", "n_head")
    return count, ask("num_key_value_heads", "num_kv_heads", "kv_heads") or count


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
