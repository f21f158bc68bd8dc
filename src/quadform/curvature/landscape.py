"""Landscape: the loss on a line or a plane through the parameters, and the quadratic model on the same plane.

    f(x, y) = L(theta + x u + y v),   q(x, y) = L + g.d + d.H d / 2,   d = x u + y v

Directions: any vectors; random ones scaled filter by filter to the weights [Li et al. 2018], which makes pictures of
different models comparable; the plane through three points; the principal plane of the checkpoints of a run.

Two minima with a barrier on the straight line between them are often joined by a curve of low loss [Garipov et al.
2018]: B(t) = (1 - t)^2 a + 2 t (1 - t) m + t^2 b, its bend m trained for the least mean loss over t in (0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.operator import Operator
from ..core.space import Vector
from ..distributed.processes import group_of
from .risk import Risk

#: Numbers of parameters that are evaluated together: small models run many points in one pass.
TOGETHER = 2**22
#: The first step of a bend moves every weight by this share of the root-mean-square distance between the ends.
RATE = 0.05


@dataclass(frozen=True)
class Plane:
    """theta(x) = origin + sum_i x_i axes[i], one or two axes; `marks` are named points on it."""

    origin: Vector
    axes: tuple[Vector, ...]
    labels: tuple[str, ...] = ()
    marks: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.axes) not in (1, 2):
            raise InputError(f"a landscape has one axis or two; got {len(self.axes)}.")

    def at(self, x: Sequence[float]) -> dict[str, Tensor]:
        """The parameters at the coordinates x."""
        at = tuple(self.origin.values())
        for a, axis in zip(x, self.axes, strict=True):
            at = torch._foreach_add(at, [axis[n] for n in self.origin], alpha=a)
        return dict(zip(self.origin, at, strict=True))

    def coordinates(self, point: Vector) -> tuple[float, ...]:
        """Where a point lies, projected on the plane."""
        offset = {n: point[n] - t for n, t in self.origin.items()}
        gram = torch.tensor([[_dot(a, b) for b in self.axes] for a in self.axes], dtype=torch.double)
        onto = torch.tensor([_dot(a, offset) for a in self.axes], dtype=torch.double)
        return tuple(torch.linalg.solve(gram, onto).tolist())


def evaluate(risk: Risk, plane: Plane, points: Tensor, *, progress: Callable[[int, int], None] | None = None) -> Tensor:
    """The loss at each row of `points` (k, axes), float64 on the CPU."""
    if points.dim() != 2 or points.shape[1] != len(plane.axes):
        raise InputError(f"points of shape {tuple(points.shape)}: give one row of {len(plane.axes)} numbers a point.")
    together = at_once(risk, len(points))
    found: list[Tensor] = []
    with risk.context(), torch.no_grad():
        for rows in points.split(together):
            found.append(_values(risk, plane, rows) if together > 1 else _value(risk, plane, rows[0]))
            if progress is not None:
                progress(sum(map(len, found)), len(points))
    return group_of(risk.space).sum(torch.cat(found).cpu())


def at_once(risk: Risk, points: int) -> int:
    """How many of so many points are evaluated in one pass."""
    return max(1, min(points, TOGETHER // risk.space.size))


def _value(risk: Risk, plane: Plane, x: Tensor) -> Tensor:
    """One point, on the device: nothing waits for it."""
    at = plane.at(x.tolist())
    values = [w * risk.run(at, b)[0].double() for w, b in zip(risk.weights, risk.batches, strict=True)]
    return torch.stack(values).sum()[None] if values else torch.zeros(1, dtype=torch.double)


def _values(risk: Risk, plane: Plane, rows: Tensor) -> Tensor:
    """Several points in one pass where the model allows it, else one after the other."""
    x = rows.to(risk.dtype).to(risk.device)

    def loss(x: Tensor, batch: object) -> Tensor:
        at = {n: t + sum(x[i] * axis[n] for i, axis in enumerate(plane.axes)) for n, t in plane.origin.items()}
        return risk.run(at, batch)[0]

    try:
        values = [
            w * torch.func.vmap(loss, (0, None))(x, b).double() for w, b in zip(risk.weights, risk.batches, strict=True)
        ]
    except RuntimeError:  # an operation without a rule for several models at once
        return torch.cat([_value(risk, plane, row) for row in rows])
    return torch.stack(values).sum(0) if values else torch.zeros(len(rows), dtype=torch.double)


def quadratic(risk: Risk, H: Operator, plane: Plane, points: Tensor) -> Tensor:
    """The quadratic model of the loss at the same points, around the place where the model stands: one product an axis.

    The plane may pass beside that place; what lies between counts as part of the step.
    """
    start = {n: plane.origin[n] - t for n, t in risk.params.items()}
    basis = [start, *plane.axes]
    images = [H @ v for v in basis]
    g = risk.gradient()
    slope = torch.tensor([_dot(g, v) for v in basis], dtype=torch.double)
    curve = torch.tensor([[_dot(a, b) for b in images] for a in basis], dtype=torch.double)
    x = torch.cat([torch.ones(len(points), 1, dtype=torch.double), points.double()], 1)
    with torch.no_grad():
        value = float(risk.value())
    return value + x @ slope + ((x @ curve) * x).sum(1) / 2


# --- planes ---------------------------------------------------------------------------------------------------------
def random_axis(params: Vector, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """A random direction scaled to the weights: each row of a matrix, each filter of a convolution, has the norm of the
    weights there; vectors (biases, norms) stay as they are [Li et al. 2018]."""
    out = {}
    for name, w in params.items():
        if w.dim() < 2:
            out[name] = torch.zeros_like(w)
            continue
        d = torch.randn(w.shape, dtype=w.dtype, device=w.device, generator=generator)
        over = tuple(range(1, w.dim()))
        size = torch.linalg.vector_norm(d, dim=over, keepdim=True)
        out[name] = d * (torch.linalg.vector_norm(w, dim=over, keepdim=True) / size)
    if not any(bool(t.any()) for t in out.values()):
        raise InputError(
            "random directions are scaled to the weight matrices, and these parameters have no nonzero matrix."
        )
    return out


def line(first: Vector, last: Vector, labels: tuple[str, str] = ("start", "end")) -> Plane:
    """The line from one point (0) to another (1)."""
    axis = {n: last[n] - t for n, t in first.items()}
    return Plane(first, (axis,), ("interpolation",), {labels[0]: (0.0,), labels[1]: (1.0,)})


def principal(points: Sequence[Vector], labels: Sequence[str]) -> Plane:
    """The plane through the last of several points that holds most of their spread; axes have unit length."""
    if len(points) < 3:
        raise InputError(f"a plane of a run takes at least three checkpoints; got {len(points)}.")
    origin = points[-1]
    offsets = [{n: p[n] - t for n, t in origin.items()} for p in points[:-1]]
    gram = torch.tensor([[_dot(a, b) for b in offsets] for a in offsets], dtype=torch.double)
    values, vectors = torch.linalg.eigh(gram)
    if values[-2] <= 1e-12 * values[-1]:
        raise InputError("these checkpoints lie on a line; ask for the line between two of them.")
    axes = tuple(
        {n: sum(float(c) * o[n] for c, o in zip(vectors[:, -i], offsets, strict=True)) / float(values[-i]) ** 0.5
         for n in origin}
        for i in (1, 2)
    )  # fmt: skip
    plane = Plane(origin, axes, ("PC 1", "PC 2"))
    share = values[-2:].flip(0) / values.clamp_min(0).sum()
    named = tuple(f"PC {i + 1} ({100 * float(s):.0f} % of the spread)" for i, s in enumerate(share))
    marks = {label: plane.coordinates(p) for label, p in zip(labels, points, strict=True)}
    return Plane(origin, axes, named, marks)


# --- curves ---------------------------------------------------------------------------------------------------------
def bezier(first: Tensor, bend: Tensor, last: Tensor, t: float | Tensor) -> Tensor:
    """B(t); tensors, or coordinates on a plane: B is an affine combination of its three points."""
    return (1 - t) ** 2 * first + 2 * t * (1 - t) * bend + t**2 * last


class Bend:
    """The bend of a curve from one point to another while it is trained: Adam, with a rate that falls to 0 as a cosine
    over `total` steps. `state` is all that a resumed run needs."""

    def __init__(self, risk: Risk, last: Vector, total: int, seed: int = 0) -> None:
        self.risk, self.first, self.last, self.total, self.seed = risk, risk.params, last, total, seed
        self.at = {n: ((t + last[n]) / 2).detach().clone() for n, t in self.first.items()}
        apart = {n: last[n] - t for n, t in self.first.items()}
        self.rate = RATE * math.sqrt(_dot(apart, apart) / risk.space.size)
        self.adam = torch.optim.Adam(list(self.at.values()), lr=self.rate)
        self.taken = 0

    def gradient(self, t: float) -> dict[str, Tensor]:
        """Of L(B(t)) by the bend: dB/dm = 2 t (1 - t)."""
        there = {n: bezier(x, self.at[n], self.last[n], t) for n, x in self.first.items()}
        return {n: 2 * t * (1 - t) * g for n, g in self.risk.gradient(there).items()}

    def advance(self, steps: int, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """So many steps more, each at a t of its own."""
        for k in range(self.taken, self.taken + steps):
            t = float(torch.rand((), generator=torch.Generator().manual_seed(1000 * self.seed + k), dtype=torch.double))
            self.adam.param_groups[0]["lr"] = self.rate * (1 + math.cos(math.pi * k / self.total)) / 2
            for name, g in self.gradient(t).items():
                self.at[name].grad = g
            self.adam.step()
            progress()
        self.taken += steps
        return self.state

    @property
    def state(self) -> dict[str, Any]:
        return {"at": dict(self.at), "adam": self.adam.state_dict()["state"], "taken": self.taken}

    def load(self, state: dict[str, Any]) -> None:
        for name, t in self.at.items():
            t.copy_(state["at"][name])
        found = {int(i): {k: torch.as_tensor(v) for k, v in s.items()} for i, s in state["adam"].items()}
        self.adam.load_state_dict(self.adam.state_dict() | {"state": found})
        self.taken = int(state["taken"])


def _dot(a: Vector, b: Vector) -> float:
    return sum(float((t.double() * b[n].double()).sum()) for n, t in a.items())
