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
#: Of these, names of other things too (state-space models, queries that share one key): taken as three squares only.
_SQUARE = ("query_key_value", "in_proj")
#: Modules that store them in an order of their own.
_OTHERWISE = ("CodeGenAttention",)


def attention_views(model: nn.Module, names: set[str], run: Callable[[], Any]) -> list[View]:
    """All views of the attention weights among the parameters `names`.

    Views inside the projections of a model's own attention are given where `run()`, an evaluation of the model, shows
    that they are what their names say (`scaling`); those of torch's attention and under the paper's own names always.
    """
    claimed = {path: list(_of_module(path, module)) for path, module in model.named_modules()}
    unsure = {p: views for p, views in claimed.items() if any(v.of.rpartition(".")[0] != p for v in views)}
    sure = set(claimed) - set(unsure)
    if unsure:
        sure |= seen_by_scaling(model, unsure, run)
    found: dict[str, View] = {}
    for path, views in claimed.items():
        for view in views:
            if path in sure and view.of in names and view.name not in names:
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
            if type(module).__name__ in _OTHERWISE or (child_name in _SQUARE and outs != 3 * ins):
                continue
            by_head = child_name == "query_key_value" or getattr(module, "multi_query", None) is False  # GPTBigCode
            yield from _cut(path, where, weight, output_axis, count, keys, interleaved=by_head)
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


def _cut(
    path: str, where: str, weight: nn.Parameter, axis: int, count: int, keys: int, *, interleaved: bool = False
) -> Iterator[View]:
    """W_Q, W_K, W_V and their heads inside one fused matrix, stacked along `axis`: (Q | K | V), or by head."""
    shape = (weight.shape[0], weight.shape[1])
    of, total = _join(path, where), shape[axis]
    if not count or total % (count + 2 * keys):
        return
    width = total // (count + 2 * keys)
    other = (0, shape[1 - axis])
    for paper, start, n in (("W_Q", 0, count), ("W_K", count, keys), ("W_V", count + keys, keys)):
        name = _join(path, paper)
        if interleaved:  # (heads, 3, width) along the output axis, which comes first
            which = "QKV".index(paper[-1])
            seen = (count, 3, width, shape[1])
            yield View(name, of, seen, ((0, count), (which, which + 1), (0, width), other), (count * width, shape[1]))
            for h in range(n):
                yield View(
                    f"{name}[{h}]", of, seen, ((h, h + 1), (which, which + 1), (0, width), other), (width, shape[1])
                )
            continue
        for label, a, b in [(name, start, start + n), *((f"{name}[{h}]", start + h, start + h + 1) for h in range(n))]:
            run = (a * width, b * width)
            cut = (run, other) if axis == 0 else (other, run)
            yield View(label, of, shape, cut, (cut[0][1] - cut[0][0], cut[1][1] - cut[1][0]))


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
    return count, ask("num_key_value_heads", "kv_heads") or count


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
