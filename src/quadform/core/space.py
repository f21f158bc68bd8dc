"""Space: a named direct sum of tensors, the place where parameters, tangents and Hessian rows live.

A space is `((name, shape), ...)`. A vector of it is a dict `{name: tensor}`; k vectors at once are a dict of tensors
with one leading axis, `{name: (k, *shape)}`. The flat form of one vector is `(n,)`, of k vectors `(n, k)` (columns, as
in scipy). Views give further names to parts of a tensor: a head of `W_V`, or the query columns of a fused `c_attn`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .errors import InputError, UnknownName, closest

#: Labels people use, and the paper's names for them. The only alias table of the project.
LABELS = {"query": "W_Q", "query-key": "W_QK", "key": "W_K", "value": "W_V", "out": "W_O", "output": "W_O"}
#: The paper's names, and the label for each.
WORDS = {paper: label for label, paper in reversed(LABELS.items())}

Vector = Mapping[str, Tensor]


def paper_name(name: str) -> str:
    """The paper's name for a label: `h.0.query` -> `h.0.W_Q`; a name that is no label comes back unchanged."""
    head, dot, tail = name.rpartition(".")
    stem, bracket, rest = tail.partition("[")
    return head + dot + LABELS.get(stem.lower(), stem) + bracket + rest


def layer_of(name: str) -> str | None:
    """`transformer.h.3.attn.W_Q` -> `transformer.h.3`: up to the first number; None where there is none."""
    match = re.match(r"(.*?(?:^|\.)\d+)(?:\.|$)", name)
    return match[1] if match else None


def part_of(label: str) -> str:
    """`transformer.h.3.attn.W_Q` -> `W_Q`, `h.3.mlp` -> `mlp`: what a label says beside its layer."""
    return label.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class View:
    """A part of a tensor under a name of its own.

    The tensor `of` is read with shape `seen_as`, cut to `[start, stop)` along each of those axes, and given `shape`.
    A query matrix in a fused `(d, 3d)` weight is `seen_as=(d, 3d), cut=((0, d), (0, d)), shape=(d, d)`.
    """

    name: str
    of: str
    seen_as: tuple[int, ...]
    cut: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        inside = len(self.cut) == len(self.seen_as) and all(
            0 <= a < b <= n for (a, b), n in zip(self.cut, self.seen_as, strict=True)
        )
        if not inside or math.prod(b - a for a, b in self.cut) != math.prod(self.shape):
            raise InputError(f"view {self.name!r}: cut {self.cut} of shape {self.seen_as} does not give {self.shape}.")

    def read(self, tensor: Tensor, lead: int) -> Tensor:
        """The viewed part of `tensor`, which has `lead` extra axes in front."""
        front = tensor.shape[:lead]
        index = (slice(None),) * lead + tuple(slice(a, b) for a, b in self.cut)
        return tensor.reshape(front + self.seen_as)[index].reshape(front + self.shape)

    def add_into(self, tensor: Tensor, part: Tensor, lead: int) -> None:
        """Add `part` to the viewed part of the contiguous `tensor`, in place."""
        front = tensor.shape[:lead]
        index = (slice(None),) * lead + tuple(slice(a, b) for a, b in self.cut)
        target = tensor.view(front + self.seen_as)[index]
        target += part.reshape(target.shape)

    def inside(self, outer: View) -> View | None:
        """This view as a part of `outer`; None where it reaches out of it, or both read the tensor in other shapes."""
        if self.of != outer.of or self.seen_as != outer.seen_as:
            return None
        if not all(c <= a and b <= d for (a, b), (c, d) in zip(self.cut, outer.cut, strict=True)):
            return None
        seen_as = tuple(d - c for c, d in outer.cut)
        cut = tuple((a - c, b - c) for (a, b), (c, _) in zip(self.cut, outer.cut, strict=True))
        return View(self.name, outer.name, seen_as, cut, self.shape)

    def overlaps(self, other: View) -> bool:
        """Whether the two views share an entry of the same tensor."""
        if self.of != other.of:
            return False
        if self.seen_as == other.seen_as:
            return all(a < d and c < b for (a, b), (c, d) in zip(self.cut, other.cut, strict=True))
        count = torch.zeros(math.prod(self.seen_as), dtype=torch.uint8)
        for view in (self, other):
            view.add_into(count.view(view.seen_as), torch.ones(view.shape, dtype=torch.uint8), 0)
        return bool((count > 1).any())


def heads(name: str, shape: tuple[int, ...], count: int, axis: int = 1) -> tuple[View, ...]:
    """Views `name[0] ... name[count-1]`: equal slices of a weight along `axis`, one per attention head."""
    if count < 1 or shape[axis] % count:
        raise InputError(f"{name} of shape {shape} cannot be cut into {count} heads along axis {axis}.")
    width = shape[axis] // count
    views = []
    for h in range(count):
        cut = tuple((h * width, (h + 1) * width) if ax == axis else (0, n) for ax, n in enumerate(shape))
        views.append(View(f"{name}[{h}]", name, shape, cut, tuple(b - a for a, b in cut)))
    return tuple(views)


def _pattern(glob: str, wild: str) -> re.Pattern[str]:
    """`*` and `?` stand for `wild` characters, brackets for themselves: `W_V[2]` is head 2, not a character class."""
    return re.compile("".join({"*": wild + "*", "?": wild}.get(c, re.escape(c)) for c in glob) + r"\Z")


@dataclass(frozen=True)
class Space:
    """The parameters an operator acts on: named tensors in a fixed order.

    Args:
        parts: Pairs (name, shape).
        views: Names of parts of them: heads, slices of fused matrices.
        group: The processes that share the work with vectors of this space (`quadform.distributed`), None for one.

    >>> space = qf.Space((("w", (2, 3)), ("b", (3,))))
    >>> space.size
    9
    >>> space.flatten(space.unflatten(torch.arange(9.0)))
    tensor([0., 1., 2., 3., 4., 5., 6., 7., 8.])
    """

    parts: tuple[tuple[str, tuple[int, ...]], ...]
    views: tuple[View, ...] = ()
    group: Any = field(default=None, repr=False, compare=False)
    _shapes: dict[str, tuple[int, ...]] = field(init=False, repr=False, compare=False)
    _views: dict[str, View] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = tuple((str(name), tuple(int(n) for n in shape)) for name, shape in self.parts)
        shapes = dict(parts)
        if len(shapes) != len(parts):
            twice = sorted({a for a, b in pairwise(sorted(name for name, _ in parts)) if a == b})
            raise InputError(f"a space names each tensor once; given twice: {', '.join(twice)}.")
        if not parts:
            raise InputError("a space has at least one tensor; got none.")
        names = set(shapes)
        for view in self.views:
            if view.name in names:
                raise InputError(f"a space gives each name once; view {view.name!r} takes a name that is in use.")
            names.add(view.name)
            if view.of not in shapes or math.prod(view.seen_as) != math.prod(shapes[view.of]):
                raise InputError(f"view {view.name!r} needs a tensor {view.of!r} of {math.prod(view.seen_as)} entries.")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "_shapes", shapes)
        object.__setattr__(self, "_views", {v.name: v for v in self.views})

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], views: Iterable[View] = ()) -> Space:
        """The space in which the given named tensors live."""
        return cls(tuple((name, tuple(t.shape)) for name, t in tensors.items()), tuple(views))

    # --- what it is -------------------------------------------------------------------------------------------------
    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    @property
    def size(self) -> int:
        """n, the number of coordinates."""
        return sum(math.prod(shape) for shape in self._shapes.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor or of a view."""
        known = self._resolve(name)
        return self._shapes[known] if known in self._shapes else self._views[known].shape

    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in the flat form."""
        out, start = {}, 0
        for name, shape in self._shapes.items():
            out[name] = slice(start, start + math.prod(shape))
            start = out[name].stop
        return out

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        return iter(self.parts)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in self.parts[:6])
        more = f", and {len(self) - 6} more" if len(self) > 6 else ""
        return f"Space({shown}{more}; {self.size:,} coordinates)"

    __repr__ = __str__

    # --- names ------------------------------------------------------------------------------------------------------
    def _resolve(self, name: str) -> str:
        for known in (self._shapes, self._views):
            if name in known:
                return name
        for known in (self._shapes, self._views):
            if paper_name(name) in known:
                return paper_name(name)
        raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownName:
        every = (*self.names, *self._views)
        if len(every) <= 8:
            return UnknownName(f"no parameter matches {name!r}; this space has {', '.join(every)}.")
        near = ", ".join(closest(name, every)) or ", ".join(every[:3]) + ", ..."
        return UnknownName(f"{name!r} matches 0 of {len(self)} tensors. Closest names: {near}")

    def select(self, *globs: str) -> Space:
        """The sub-space of the tensors and views that match any of the globs, in the order of this space.

        `*` and `?` are wild. A glob that matches a tensor does not also match the views of that tensor, and wild
        characters do not reach into the brackets of a view: `*` is every tensor, `W_*` whole matrices (fused ones
        too), `W_V[*]` the heads, `W_V[2]` head 2. Labels (`query`) stand for the paper's names. A name that matches
        nothing is an error that tells the closest ones; so is a selection in which two members overlap, because a
        space is a direct sum. Views of what is selected stay known, parts of a view too.
        """
        chosen: set[str] = set()
        for glob in globs:
            hits = self._matches(glob) or self._matches(paper_name(glob))
            if not hits:
                raise self._unknown(glob)
            chosen |= hits
        views = [v for v in self.views if v.name in chosen]
        taken: dict[str, list[View]] = {}
        for view in views:
            if view.of in chosen:
                raise InputError(f"{view.name!r} is a part of {view.of!r}, which is selected too; choose one of them.")
            for other in taken.setdefault(view.of, []):
                if view.overlaps(other):
                    raise InputError(f"{view.name!r} and {other.name!r} overlap; a space is a direct sum.")
            taken[view.of].append(view)
        parts = tuple(p for p in self.parts if p[0] in chosen) + tuple((v.name, v.shape) for v in views)
        others = [v for v in self.views if v.name not in chosen]
        known = [v for v in others if v.of in chosen]
        known += [part for v in others for w in taken.get(v.of, ()) if (part := v.inside(w))]  # the heads of a W_Q
        return Space(parts, tuple(known), self.group)

    def _matches(self, glob: str) -> set[str]:
        anything, no_bracket = _pattern(glob, "."), _pattern(glob, r"[^\[]")
        hits = {name for name in self._shapes if anything.match(name)}
        return hits | {v.name for v in self.views if v.of not in hits and no_bracket.match(v.name)}

    def rename(self, prefix: str) -> Space:
        """The same space with `prefix` in front of every name."""
        views = tuple(View(prefix + v.name, prefix + v.of, v.seen_as, v.cut, v.shape) for v in self.views)
        return Space(tuple((prefix + name, shape) for name, shape in self.parts), views, self.group)

    # --- vectors ----------------------------------------------------------------------------------------------------
    def lead(self, vector: Vector) -> int:
        """0 for one vector, 1 for a stack of k vectors; an error when `vector` does not belong to this space."""
        if set(vector) != set(self._shapes):
            missing = sorted(set(self._shapes) - set(vector))
            foreign = sorted(set(vector) - set(self._shapes))
            what = [f"missing {', '.join(missing[:4])}"] * bool(missing)
            what += [f"unknown {', '.join(foreign[:4])}"] * bool(foreign)
            raise InputError(f"a vector of this space has one tensor for each of its names; {'; '.join(what)}.")
        leads = {t.dim() - len(self._shapes[name]) for name, t in vector.items()}
        for name, t in vector.items():
            if (
                leads - {0, 1}
                or len(leads) > 1
                or tuple(t.shape[t.dim() - len(self._shapes[name]) :]) != self._shapes[name]
            ):
                raise InputError(
                    f"{name} has shape {tuple(t.shape)}; expected {self._shapes[name]}, or (k, ...) for k vectors."
                )
        lead = leads.pop()
        if lead and len({t.shape[0] for t in vector.values()}) > 1:
            raise InputError(f"stacked vectors differ in number: {sorted({t.shape[0] for t in vector.values()})}.")
        return lead

    def flatten(self, vector: Vector) -> Tensor:
        """`{name: shape}` -> `(n,)`, row-major and in the order of the space; a stack of k vectors -> `(n, k)`."""
        if self.lead(vector):
            k = vector[self.names[0]].shape[0]
            return torch.cat([vector[name].reshape(k, math.prod(shape)) for name, shape in self.parts], dim=1).T
        return torch.cat([vector[name].reshape(-1) for name in self.names])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """The inverse of `flatten`: `(n,)` -> `{name: shape}`, `(n, k)` -> `{name: (k, *shape)}`."""
        if flat.dim() not in (1, 2) or flat.shape[0] != self.size:
            raise InputError(
                f"a flat vector of this space has shape ({self.size},) or ({self.size}, k); got {tuple(flat.shape)}."
            )
        rows = flat if flat.dim() == 1 else flat.T
        where = self.slices()
        return {name: rows[..., where[name]].reshape(rows.shape[:-1] + shape) for name, shape in self.parts}

    def inner(self, u: Vector, v: Vector) -> Tensor:
        """The Euclidean inner product, a scalar; of two stacks, one value per pair `(k,)`."""
        lead = self.lead(u)
        if self.lead(v) != lead:
            raise InputError("inner product of one vector with a stack of vectors; stack both or none.")
        front = u[self.names[0]].shape[:lead]
        terms = [(u[name] * v[name]).reshape(*front, math.prod(shape)).sum(-1) for name, shape in self.parts]
        here = torch.stack(terms).sum(0)
        return self.group.sum(here) if getattr(self.group, "cut", False) else here  # of shards

    def norm(self, v: Vector) -> float:
        """The Euclidean length of one vector, in double precision."""
        here = sum(float(v[name].double().square().sum()) for name in self.names)
        if getattr(self.group, "cut", False):  # of shards
            here = float(self.group.sum(torch.tensor(here, dtype=torch.float64)))
        return math.sqrt(here)

    def zeros(self, k: int | None = None, **options: Any) -> dict[str, Tensor]:
        """The zero vector, or k of them."""
        front = () if k is None else (k,)
        return {name: torch.zeros(front + shape, **options) for name, shape in self.parts}

    def random(
        self, k: int | None = None, *, generator: torch.Generator | None = None, **options: Any
    ) -> dict[str, Tensor]:
        """A standard normal vector, or k of them."""
        front = () if k is None else (k,)
        return {name: torch.randn(front + shape, generator=generator, **options) for name, shape in self.parts}

    # --- sub-spaces -------------------------------------------------------------------------------------------------
    def restrict(self, sub: Space, vector: Vector) -> dict[str, Tensor]:
        """The coordinates of `vector` that lie in `sub`, a selection of this space."""
        lead = self.lead(vector)
        out = {}
        for name in sub.names:
            view = self._part(name)
            out[name] = vector[name] if view is None else view.read(vector[view.of], lead)
        return out

    def embed(self, sub: Space, vector: Vector) -> dict[str, Tensor]:
        """The vector of this space that equals `vector` on `sub` and is zero elsewhere: the adjoint of `restrict`."""
        lead = sub.lead(vector)
        example = vector[sub.names[0]]
        front = example.shape[:lead]
        out = {name: vector[name] if name in vector else example.new_zeros(front + shape) for name, shape in self.parts}
        for name in sub.names:
            view = self._part(name)
            if view is not None:
                view.add_into(out[view.of], vector[name], lead)
        return out

    def _part(self, name: str) -> View | None:
        """The view behind a name of a sub-space; None for a whole tensor."""
        if name not in self._shapes and name not in self._views:
            raise self._unknown(name)
        return self._views.get(name)

    def coordinates(self, sub: Space) -> Tensor:
        """Where each coordinate of `sub` lies in the flat form of this space: `(sub.size,)` indices."""
        return sub.flatten(self.restrict(sub, self.unflatten(torch.arange(self.size))))
