"""Which derivatives of a risk can be trusted: measured once, on its first batch.

Operators without a forward rule (autograd functions without `jvp` or `setup_context`) raise. A part under
`torch.no_grad` does not: torch's forward derivatives go through it, reverse ones treat it as a constant, as training
does, and jvp(grad) is then neither. It is therefore measured whether the two agree, and whether a second backward pass
is symmetric.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError, pass_on_memory
from ..core.forward import jvp
from ..core.rng import stream
from ..core.space import Vector
from .foresight import require_room
from .retained import Retained, gradients
from .risk import Risk
from .units import NoUnit

#: How much derivatives by two ways may differ, relative to their size; many models compute their loss in
#: float32 whatever they are given, and TF32 products err by 1e-3.
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-2}
ROUNDING_HALF = 0.2
#: The most memory a product with a retained gradient takes, over what its graph holds (measured 1.8 to 2.6).
PEAK = 2.5
#: Share of the free memory from which on weights are looked at where they are: a copy beside them would not fit.
HEAVY = 1 / 16
#: Where that is measured: what share of the weights is kept, and how far they are moved, relative to their size.
_PLACES = ((1.0, 0.1), (1.0, 1.0), (0.1, 0.1), (0.01, 0.01))


@dataclass(frozen=True)
class Soundness:
    """`twice`: every operator behind the gradient was seen to be differentiated again, and rightly (False: the memory
    did not allow to look). `forward`: forward derivatives agree with reverse ones. `through`: the loss sees the
    parameters through the network's output alone, so that H = H_o + H_f. `by_units`: so are those by units, which were
    looked at; `through` was not."""

    twice: bool = True
    forward: bool = True
    through: bool = True
    by_units: bool = False


def check(risk: Risk) -> Soundness:
    """What can be trusted of a risk; one that has no gradient, or no right second derivative, is refused."""
    if not risk.batches:  # a process without data
        return Soundness()
    batch, twice = risk.batches[0], False
    with risk.context():
        with contextlib.suppress(torch.OutOfMemoryError):
            _require_gradient(risk, batch)
            _require_symmetric(risk, batch)
            twice = True
        if twice and risk.units:
            with contextlib.suppress(torch.OutOfMemoryError):
                return _whole(risk, batch, twice)
        if risk.units:
            with contextlib.suppress(NoUnit):
                return _by_units(risk, batch)[0]
        return _whole(risk, batch, twice)


def _whole(risk: Risk, batch: Any, twice: bool) -> Soundness:
    return Soundness(twice, _forward(risk, batch), _through(risk, batch))


def check_by_units(risk: Risk) -> Soundness | None:
    """The same of derivatives by units, at the memory of one product by them; None where the whole has to be looked at:
    blocks are no units, forward and reverse derivatives differ, or all slopes are zero."""
    if not risk.batches:
        return Soundness()
    with risk.context(), contextlib.suppress(NoUnit):
        found, size = _by_units(risk, risk.batches[0])
        return found if found.forward and size else None
    return None


def _by_units(risk: Risk, batch: Any) -> tuple[Soundness, float]:
    """What can be trusted by units, and |gradient| near the weights."""
    from .by_units import Evaluation

    run, sizes = Evaluation(risk, risk.units), [0.0]
    run.look(batch)

    def slopes(near: Vector) -> tuple[float, float]:
        gap, size = run.slopes(batch, near)
        sizes.append(size)
        return gap, size

    forward = not differ(risk, slopes)
    if forward and differ(risk, partial(run.symmetry, batch)):
        raise _not_symmetric(*run.symmetry(batch, risk.params))
    return Soundness(forward, forward, by_units=True), max(sizes)


def through_by_units(risk: Risk) -> bool:
    """`Soundness.through` by units."""
    from .by_units import Evaluation

    if not risk.batches:
        return True
    try:
        with risk.context():
            return Evaluation(risk, risk.units).through(risk.batches[0], _near(risk))
    except (NoUnit, RuntimeError) as error:  # told where it is wanted
        pass_on_memory(error)
        return True


def _require_gradient(risk: Risk, batch: Any) -> None:
    most = risk.room / PEAK if risk.units else math.inf
    require_room(risk.foreseen[1], most)
    if not Retained(lambda p: risk.run(p, batch)[0], risk.params, tuple(risk.params), most).depends:
        raise InputError(
            "the loss has no gradient: it does not see the parameters, or only through `.detach()` or"
            " `torch.no_grad()`. Nothing was measured."
        )


def _forward(risk: Risk, batch: Any) -> bool:
    try:
        return not differ(risk, partial(_slopes, risk, batch))
    except Exception as error:  # whatever code of a model dislikes about tangents: said where they are wanted
        pass_on_memory(error)
        return True


def _slopes(risk: Risk, batch: Any, near: dict[str, Tensor]) -> tuple[float, float]:
    v = direction(risk, "forward")
    slope = jvp(lambda p: risk.run(p, batch)[0], (near,), (v,))[1]
    with torch.enable_grad():
        at = {n: t.requires_grad_() for n, t in near.items()}
        g = gradients(risk.run(at, batch)[0], at)
    return float(slope.detach()) - inner(g, v), length(g)


def _require_symmetric(risk: Risk, batch: Any) -> None:
    """Refuse a model through which torch's second backward pass is wrong: u^T H v is then not v^T H u.

    A rule of torch can be (that of weight norm is, in 2.13, and is replaced), or one of the model's own.
    """
    if differ(risk, partial(_symmetry, risk, batch)):
        raise _not_symmetric(*_symmetry(risk, batch, risk.params))


def _not_symmetric(gap: float, size: float) -> InputError:
    return InputError(
        f"the second backward pass through this model is not symmetric (by {100 * abs(gap) / (size or 1):.2g} %):"
        " an operator has a wrong second derivative. Nothing was measured. Write that operator in plain torch."
    )


def _symmetry(risk: Risk, batch: Any, near: Vector) -> tuple[float, float]:
    H = Retained(lambda p: risk.run(p, batch)[0], near, risk.space.names)
    return asymmetry(risk, lambda v: H(v, risk.space.names))


def asymmetry(risk: Risk, H: Callable[[Vector], Vector]) -> tuple[float, float]:
    """u^T H v - v^T H u of the pair, of three random vectors, in which it is largest; the largest |H v|."""
    names = [f"symmetry/{i}" for i in range(3)]

    def forms(j: int) -> list[float]:
        """v_i^T H v_j for every i, and |H v_j|; one vector and one image at a time."""
        image = H(direction(risk, names[j]))
        return [*(_along(risk, name, image) for name in names), length(image)]

    found = [forms(j) for j in range(3)]
    gaps = [found[j][i] - found[i][j] for i, j in ((0, 1), (0, 2), (1, 2))]
    return max(gaps, key=abs), max(row[-1] for row in found)


def differ(risk: Risk, measured: Callable[[dict[str, Tensor]], tuple[float, float]]) -> bool:
    """Whether two numbers that should be one differ: `measured` gives the gap and the size of what they come from.

    Where nothing bends (a saturated softmax) both are rounding. What differs near the weights is therefore looked at
    where most of several places bends most, and has to stay as it is when the weights move by rounding.
    """
    allowed = rounding(risk)
    heavy = sum(t.nbytes for t in risk.params.values()) > HEAVY * risk.room
    try:
        gap, size = measured(risk.params if heavy else _near(risk, _PLACES[0]))
        if not abs(gap) > allowed * size:  # so where it is not finite
            return False
        found = [(size, gap, _PLACES[0])]
        for place in _PLACES[1:]:
            gap, size = measured(_near(risk, place))
            found += [(size, gap, place)] * math.isfinite(gap + size)
        size, gap, place = max(found)
        gaps = [gap, *(measured(_near(risk, place, again))[0] for again in (1, 2))]
    except RuntimeError as error:  # no such derivative at all: said where it is wanted
        pass_on_memory(error)
        return False
    return min(map(abs, gaps)) > allowed * size and max(gaps) - min(gaps) < 0.1 * max(map(abs, gaps))


def _through(risk: Risk, batch: Any) -> bool:
    """Whether J^T dl/dF is the gradient; it is not with a second head, or a penalty on the weights."""
    with torch.enable_grad():
        at = {n: t.requires_grad_() for n, t in _near(risk).items()}
        try:
            value, F = risk.run(at, batch)
            if not isinstance(F, Tensor) or not F.requires_grad or not value.requires_grad:  # told where it is wanted
                return True
            (g,) = torch.autograd.grad(value, F, retain_graph=True)
            whole = torch.autograd.grad(value, list(at.values()), retain_graph=True, allow_unused=True)
            part = gradients(F, at, g)
        except RuntimeError as error:
            pass_on_memory(error)
            return True
    off = {n: part[n] - (0 if w is None else w) for n, w in zip(at, whole, strict=True)}
    return length(off) <= rounding(risk) * length(part)


def _near(risk: Risk, place: tuple[float, float] = (1.0, 0.1), again: int = 0) -> dict[str, Tensor]:
    """A share of the weights, moved by a share of their size at random, and `again` by a thousand roundings more."""
    kept, moved = place
    far, more = direction(risk, "near"), direction(risk, f"near/{again}")
    by = 1e3 * torch.finfo(risk.dtype).eps if again else 0.0
    sizes = {n: t.norm() / max(t.numel(), 1) ** 0.5 for n, t in risk.params.items()}
    return {n: kept * t + moved * sizes[n] * (far[n] + by * more[n]) for n, t in risk.params.items()}


def direction(risk: Risk, name: str) -> dict[str, Tensor]:
    """A random vector of the parameters, the same for the same name."""
    return {n: _drawn(risk, name, n) for n in risk.space.names}


def _drawn(risk: Risk, name: str, parameter: str) -> Tensor:
    generator = stream(0, f"reverse/{name}/{parameter}", risk.device)
    return torch.randn(risk.params[parameter].shape, dtype=risk.dtype, device=risk.device, generator=generator)


def _along(risk: Risk, name: str, image: Vector) -> float:
    """<direction(name), image>, one parameter at a time."""
    return math.fsum(inner({n: _drawn(risk, name, n)}, {n: t}) for n, t in image.items())


def rounding(risk: Risk) -> float:
    """How much derivatives by two ways may differ, relative to their size."""
    return ROUNDING.get(risk.dtype, ROUNDING_HALF)


def inner(u: Vector, v: Vector) -> float:
    """<u, v>, in double precision."""
    return math.fsum(float((u[n].double() * t.double()).sum()) for n, t in v.items())


def length(vector: Vector) -> float:
    """|v|, in double precision."""
    return math.sqrt(inner(vector, vector))
