"""The answer of `quadform point`: whether a point is stationary, and then minimum or saddle.

Record "point": scalars `loss`, `gradient_norm`, `gradient_noise` (with several batches), `decrement`, `descent`,
`lambda_max`, `lambda_min`, `curvature` (v.Hv of the direction that is kept); of small models `zero` (the size below
which an eigenvalue counts as zero), `positive`, `zeros`, `negative`, `explained`, and the tensor `eigenvalues`;
polished ones `polish/before` (|g|) and `polish/steps`. The direction lies beside it, in `direction.safetensors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ..core.errors import FileError
from ..core.record import Estimate, Record, write_atomically
from .answer import Answer, Draft, Grid, cell
from .numbers import number
from .point import POLISHED, STATIONARY, Point, descent
from .texts import line
from .verdict import NOTHING, Said, Status, Verdict, say

#: The unit direction of the smallest eigenvalue.
DIRECTION = "direction.safetensors"
#: A gradient up to so many standard errors may be noise.
NOISE = 2.0
_STATUS: dict[str | None, Status] = {"minimum": "green", "descends": "yellow", "saddle": "red", None: "undecided"}


class PointKind(Answer):
    """What kind of point a model stands at."""

    kind = "point"

    def __init__(
        self, record: Record, direction: dict[str, Tensor] | None = None, folder: str | Path | None = None
    ) -> None:
        super().__init__(record)
        self._direction, self._folder = direction, folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        return cls(Record.load(folder), folder=folder)

    # --- the direction ----------------------------------------------------------------------------------------------
    @property
    def direction(self) -> dict[str, Tensor] | None:
        """The unit vector v of the smallest eigenvalue, `curvature` = v.Hv; None where it was not kept."""
        if self._direction is None and self._folder is not None and (Path(self._folder) / DIRECTION).exists():
            self._direction = _read(Path(self._folder) / DIRECTION, self.curvature.value.hex())
        return self._direction

    def save_beside(self, folder: Path) -> None:
        if self._direction is not None:
            from safetensors.torch import save

            kept = {n: t.detach().cpu().contiguous() for n, t in self._direction.items()}
            write_atomically(Path(folder) / DIRECTION, save(kept, {"curvature": self.curvature.value.hex()}))

    # --- numbers ----------------------------------------------------------------------------------------------------
    @property
    def curvature(self) -> Estimate:
        """v.Hv of the direction, evaluated."""
        return self.record.scalars["curvature"]

    @property
    def point(self) -> Point | None:
        """The judgement; None where the time was up before the gradient and both ends were known.

        Where the Newton decrement is not known to its half, it goes by a step of gradient descent.
        """
        s = self.record.scalars
        needed = ("loss", "gradient_norm", "descent", "lambda_max", "lambda_min")
        if any(name not in s for name in needed):
            return None
        loss, slope, newton, top, bottom = (s[name] for name in needed)
        known = newton.converged and newton.reach <= newton.value / 2
        sure = None if known else descent(slope.value, top)
        return Point(loss, slope, sure or newton, top, bottom, zero=self.zero, newton=sure is None)

    @property
    def zero(self) -> float | None:
        """The size up to which an eigenvalue counts as zero; None of models too large to count."""
        e = self.record.scalars.get("zero")
        return None if e is None else e.value

    @property
    def eigenvalues(self) -> Tensor | None:
        """All eigenvalues, smallest first; None of models too large to count."""
        return self.record.tensors.get("eigenvalues")

    @property
    def numbers(self) -> dict[str, Estimate]:
        """The numbers of the point by name, without those of the polish."""
        return {n: e for n, e in self.record.scalars.items() if not n.startswith("polish/")}

    @property
    def inertia(self) -> tuple[int, int, int] | None:
        """(n+, n0, n-): how many eigenvalues are positive, zero, negative; None of models too large to count."""
        s = self.record.scalars
        if "zeros" not in s:
            return None
        plus, zeros, minus = (int(s[name].value) for name in ("positive", "zeros", "negative"))
        return plus, zeros, minus

    @property
    def symmetries(self) -> dict[str, int]:
        """Dimensions of the symmetries whose directions H annihilates, each by itself."""
        return dict(self.record.inputs.get("symmetries", {}))

    @property
    def explained(self) -> int | None:
        """The dimension of all symmetries together: zeros that have a reason."""
        e = self.record.scalars.get("explained")
        return None if e is None else int(e.value)

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """Minimum green, still descending yellow, saddle red."""
        point = self.point
        if point is None:
            return ()
        said = point.said or say("point_open", low=number(point.bottom.value))
        slope = point.gradient_norm
        limits = number(STATIONARY), number(POLISHED)
        return (Verdict("point", _STATUS[point.kind], number(slope.value), slope, said, shown_limits=limits),)

    @property
    def said(self) -> Said:
        told = [v.said for v in self.verdicts()]
        return sum([*told, self._noise(), self._zeros(), self._polish()], NOTHING) + self.cut_short

    def _noise(self) -> Said:
        s = self.record.scalars
        e = s.get("gradient_noise")
        if e is None or not e.value or self.point is None or self.point.stationary:
            return NOTHING
        ratio = s["gradient_norm"].value / e.value
        return say("point_noisy" if ratio <= NOISE else "point_clear", ratio=number(ratio), noise=number(e.value))

    def _zeros(self) -> Said:
        if self.inertia is None:
            return NOTHING
        plus, zeros, minus = (f"{n:,}" for n in self.inertia)
        found = say("point_inertia", plus=plus, zeros=zeros, minus=minus)
        if not self.inertia[1]:
            return found
        if not self.symmetries and not self.record.inputs.get("waiting"):
            return found + say("point_unexplained", zeros=zeros)
        if self.explained == self.inertia[1]:
            return found + say("point_zeros_all", zeros=zeros)
        return found + say("point_zeros", explained=f"{self.explained:,}", zeros=zeros)

    def _polish(self) -> Said:
        s = self.record.scalars
        if "polish/steps" not in s or "gradient_norm" not in s:
            return NOTHING
        slope = s["gradient_norm"].value
        told = {"before": number(s["polish/before"].value), "slope": number(slope)}
        key = "point_polished" if slope <= POLISHED else "point_unpolished"
        return say(key, steps=f"{s['polish/steps'].value:.0f}", **told)

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        """One row for each number."""
        rows = [(n, e.value, e.error, e.kind, e.matvecs or None) for n, e in self.record.scalars.items()]
        rows += [(f"zeros: {name}", float(count), None, "exact", None) for name, count in self.symmetries.items()]
        return Grid(("what", "value", "+-", "tag", "products"), tuple(rows))

    def lines(self) -> Sequence[str]:
        inputs, s = self.record.inputs, self.record.scalars
        out = self.measured_lines()
        shown = ("loss", "gradient_norm", "gradient_noise", "decrement", "lambda_max", "lambda_min", "curvature")
        for name in shown:
            if (e := s.get(name)) is not None:
                error = f" +-{e.error:.1g}" if e.error else ""
                out.append(f"{name:<16}{cell(e.value):>11}{error:<12} [{e.kind if e.converged else 'unconverged'}]")
        if self.inertia is not None:
            out.append(line("line_zero", zero=cell(s["zero"].value)))
            out += [
                "  " + line("line_zeros_by", count=f"{count:>6,}", name=name) for name, count in self.symmetries.items()
            ]
            out += ["  " + line("line_waiting", name=name) for name in inputs.get("waiting", ())]
        told = (self._noise(), self._zeros(), self._polish())
        return [*out, *self.verdict_lines(), *(said() for said in told if said != NOTHING)]


def _read(path: Path, curvature: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as f:
            if (f.metadata() or {}).get("curvature") != curvature:
                raise FileError(f"{path} holds the direction of another point. Measure again.")
            return {n: f.get_tensor(n) for n in f.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} cannot be read ({error}). Measure again.") from error


class PointDraft(Draft):
    """The answer while it is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.direction: dict[str, Tensor] | None = None
        self.symmetries: dict[str, int] = {}
        self.waiting: list[str] = []

    @property
    def size(self) -> float:
        """The largest |eigenvalue|."""
        return max(abs(self.scalars[name].value) for name in ("lambda_max", "lambda_min"))

    def take_polish(self, before: float, steps: int) -> None:
        """|g| of the model itself, and the steps its copy took."""
        self.scalars |= {"polish/before": Estimate(before), "polish/steps": Estimate(float(steps))}

    def take_steps(self, steps: int) -> None:
        """All steps of the copy, the exact ones with them."""
        self.scalars["polish/steps"] = Estimate(float(steps))

    def take_slope(self, loss: float, slope: float, noise: float | None, batches: int) -> None:
        """Loss, |g|, and the standard error of the gradient over so many batches."""
        self.scalars |= {"loss": Estimate(loss), "gradient_norm": Estimate(slope)}
        if noise is not None:
            note = f"standard error of the gradient over {batches} batches"
            self.scalars["gradient_noise"] = Estimate(noise, note=note)

    def take_ends(self, top: Estimate, bottom: Estimate) -> None:
        """The largest and the smallest eigenvalue."""
        self.scalars |= {"lambda_max": top, "lambda_min": bottom}

    def take_inertia(self, found: Mapping[str, Any]) -> None:
        """All eigenvalues, and what explains the zeros."""
        values, zero = found["eigenvalues"], float(found["zero"])
        self.take_ends(Estimate(float(values[-1])), Estimate(float(values[0])))
        plus, minus = int((values > zero).sum()), int((values < -zero).sum())
        counts = {"positive": plus, "zeros": len(values) - plus - minus, "negative": minus}
        counts |= {"explained": int(found["explained"])}
        self.scalars |= {"zero": Estimate(zero), **{n: Estimate(float(c)) for n, c in counts.items()}}
        self.tensors["eigenvalues"] = torch.as_tensor(values)
        self.symmetries = {str(n): int(c) for n, c in found["symmetries"].items()}
        self.waiting = [str(n) for n in found["waiting"]]

    def take_direction(self, v: dict[str, Tensor], curvature: float) -> None:
        """The unit vector of the smallest eigenvalue, and v.Hv evaluated for it."""
        self.direction = v
        self.scalars["curvature"] = Estimate(curvature, note="v.Hv of the direction that is kept")

    def take_decrement(self, square: float, error: float = 0.0, converged: bool = True, products: int = 0) -> None:
        """g^T (|H| + damping)^-1 g; exact without products."""
        if not products:
            self.scalars |= {"decrement": Estimate(math.sqrt(square)), "descent": Estimate(square / 2)}
            return
        how: dict[str, Any] = {
            "kind": "estimate",
            "matvecs": products,
            "converged": converged,
            "error_kind": "residual",
        }
        root = math.sqrt(max(square, 0.0))
        self.scalars["decrement"] = Estimate(root, error / (2 * root) if root else 0.0, **how)
        self.scalars["descent"] = Estimate(
            square / 2, error / 2, note="of the quadratic model, by a Newton step", **how
        )
