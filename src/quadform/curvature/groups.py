"""Groups of parameters that people ask about: query, key and value matrices, heads, parts of a layer, layers.

A group is a label and the names it holds; together they are the blocks of a map (`estimate.block_norms`).
"""

from __future__ import annotations

import re
from typing import Any

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.space import Space, layer_of, part_of

#: What a map can be made of, and what it is then.
KINDS = {
    "qkv": "the query, key and value matrix of every attention layer",
    "heads": "the query, key and value matrix of every head",
    "parts": "query, key, value, out and MLP of every layer",
    "layer": "all parameters of every layer",
    "all": "every tensor by itself",
}
_MATRIX = re.compile(r"(?:^|\.)(W_Q|W_K|W_V|W_O)$")
_QKV = re.compile(r"(?:^|\.)(W_Q|W_K|W_V)$")
_HEAD = re.compile(r"(?:^|\.)(W_Q|W_K|W_V)\[\d+\]$")
_MLP = re.compile(r"(?:^|[._])(mlp|ffn?|feed_forward|fc|fc1|fc2|c_fc|linear1|linear2|intermediate)(?:[._]|\d|$)", re.I)


def groups(space: Space, kind: str) -> dict[str, tuple[str, ...]]:
    """`{label: names}` of one kind of block; a model that has none of that kind is told what it has.

    "auto" is "qkv", or "layer" where a model has no attention.
    """
    if kind == "auto":
        kind = "qkv" if any(_QKV.search(n) for n in (*space.names, *(v.name for v in space.views))) else "layer"
    if kind not in KINDS:
        raise UnknownName(f"blocks {kind!r} are not one of {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    names = [*space.names, *(v.name for v in space.views)]
    if kind == "all":
        return {name: (name,) for name in space.names}
    if kind == "layer":
        return _gathered([(layer_of(name) or name, name) for name in space.names])
    if kind == "heads":
        found: dict[str, tuple[str, ...]] = {n: (n,) for n in names if _HEAD.search(n)}
    else:
        matrices = [n for n in names if _MATRIX.search(n)]
        chosen = [n for n in matrices if kind == "parts" or not n.endswith("W_O")]
        found = {n: (n,) for n in chosen}
        if kind == "parts":
            owner = {v.name: v.of for v in space.views}
            taken = {owner.get(n, n) for n in chosen}
            rest = [n for n in space.names if n not in taken and _MLP.search(n) and len(space.shape(n)) > 1]
            found |= _gathered([(f"{layer_of(n) or ''}.mlp".lstrip("."), n) for n in rest])
    if not found:
        raise InputError(f"this model has no blocks of kind {kind!r} ({KINDS[kind]}). Use 'layer' or 'all'.")
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _gathered(pairs: list[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    out: dict[str, tuple[str, ...]] = {}
    for label, name in pairs:
        out[label] = (*out.get(label, ()), name)
    return out


def _order(label: str) -> tuple[Any, ...]:
    """By layer, numbers as numbers, then query, key, value, out, mlp."""
    layer = layer_of(label) or ""
    numbers = tuple(int(n) if n.isdigit() else n for n in re.split(r"(\d+)", layer))
    part, _, head = part_of(label).partition("[")
    known = ("W_Q", "W_K", "W_V", "W_O", "mlp")
    return (layer.count("."), numbers, known.index(part) if part in known else 9, len(head), head, label)
