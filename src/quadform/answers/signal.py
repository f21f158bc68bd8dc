"""The answer of `quadform signal`: curves by name, their verdicts, the lines of the terminal, the table.

Record "signal": `inputs["curves"]` describes curve i; its tensors are `i/MEASURE` and `i/MEASURE/stderr` (depth + 1,),
`i/predicted/MEASURE` (depth + 1,), `i/heads/MEASURE` (depth, heads), `i/kernel/LAYER` (T, T) and
`i/jacobian/NAME` (levels of the singular values); scalars are `LABEL/MEASURE` after the last block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..core.errors import InputError, UnknownName, did_you_mean
from ..core.record import Estimate, Record
from .answer import Answer, Grid
from .numbers import number, short_name
from .texts import line
from .verdict import NOTHING, Limits, Said, Status, Verdict, judged, say

#: What is measured after every block, and of a Jacobian.
MEASURES = ("cosine", "participation", "effective_rank", "residual", "rms", "growth", "gradient")
ENDS = ("smallest", "largest", "mean_square")
#: Mean token cosine after the last block: green up to the limit of the shaped activations.
COSINE = Limits(0.9, 0.99)
#: Norm growth and gradient ratio, either way.
FACTOR = Limits(10.0, 100.0, either_way=True)


@dataclass(frozen=True)
class Curve:
    """One curve of a record: what was measured after 0, ..., depth blocks of one stack."""

    record: Record
    index: int

    @property
    def about(self) -> dict[str, Any]:
        """What the curve is of."""
        return dict(self.record.inputs["curves"][self.index])

    @property
    def name(self) -> str:
        """Its label as it was given."""
        return str(self.about["label"])

    @property
    def label(self) -> str:
        """Its label as it is shown."""
        return short_name(self.name)

    @property
    def depth(self) -> int:
        return int(self.about["depth"])

    @property
    def d_model(self) -> int:
        about = self.about
        return int(about["d_model"] if "d_model" in about else about["dim"])  # older records

    @property
    def judged(self) -> bool:
        """Whether its prediction is held against the measurement."""
        return bool(self.about["judged"])

    def layers(self, measure: str) -> list[float]:
        return self._list(measure)

    def errors(self, measure: str) -> list[float]:
        return self._list(f"{measure}/stderr")

    def predicted(self, measure: str) -> list[float]:
        return self._list(f"predicted/{measure}")

    def heads(self, measure: str) -> list[list[float]]:
        found = self.record.tensors.get(f"{self.index}/heads/{measure}")
        return [] if found is None else found.double().tolist()

    def _list(self, name: str) -> list[float]:
        found = self.record.tensors.get(f"{self.index}/{name}")
        return [] if found is None else found.double().tolist()

    def scalar(self, name: str) -> Estimate | None:
        """A measure after the last block; of the gradient at the input over the last layer."""
        return self.record.scalars.get(f"{self.name}/{name}")

    @property
    def jacobians(self) -> dict[str, tuple[list[float], tuple[Estimate, Estimate, Estimate]]]:
        """Name -> levels of the singular values, and the smallest, the largest and the mean square."""
        s = self.record.scalars
        return {
            str(name): (
                self._list(f"jacobian/{name}"),
                (s[f"{self.name}/jacobian/{name}/smallest"], s[f"{self.name}/jacobian/{name}/largest"],
                 s[f"{self.name}/jacobian/{name}/mean_square"]),
            )
            for name in self.about.get("jacobians", ())
        }  # fmt: skip

    @property
    def agreement(self) -> Status | None:
        """Whether the prediction is met; None where it is not judged."""
        e = self.scalar("difference")
        if e is None or not self.judged:
            return None
        return "red" if not e.converged else "undecided" if "beyond" in e.note else "green"


class Signal(Answer):
    """Does the signal survive depth? A curve is one stack of blocks, of a model or of a design at one depth."""

    kind = "signal"

    # --- numbers ----------------------------------------------------------------------------------------------------
    @property
    def curves(self) -> list[Curve]:
        """The curves, or an error that says that there is none."""
        found = [Curve(self.record, i) for i in range(len(self.record.inputs.get("curves", ())))]
        if not found or any(not c.layers("cosine") for c in found):
            raise InputError("the record holds no measured curve. Make it again with this quadform.")
        return found

    @property
    def labels(self) -> list[str]:
        """The names of the curves."""
        return [c.name for c in self.curves]

    @property
    def disagreeing(self) -> list[str]:
        """The curves whose prediction is off by more than the tolerance and the error of the measurement."""
        return [c.name for c in self.curves if c.agreement == "red"]

    @property
    def complete(self) -> bool:
        return not self.partial

    def layers(self, measure: str = "cosine", curve: int | str = 0) -> list[Estimate]:
        """After 0, ..., depth blocks: cosine, participation, effective_rank, residual, rms, growth or gradient."""
        found = self._curve(curve)
        known = [m for m in sorted(MEASURES) if found.errors(m)]
        if measure not in known:
            raise UnknownName(
                f"{measure!r} was not measured; there are {', '.join(known)}.{did_you_mean(measure, known)}"
            )
        pairs = zip(found.layers(measure), found.errors(measure), strict=True)
        return [Estimate(v, s, "estimate", converged=math.isfinite(s)) for v, s in pairs]

    def predicted(self, measure: str = "cosine", curve: int | str = 0) -> Tensor | None:
        """The mean-field profile (depth + 1,) of cosine, participation or growth; None where there is none."""
        return self.record.tensors.get(f"{self._curve(curve).index}/predicted/{measure}")

    def heads(self, measure: str = "entropy_share", curve: int | str = 0) -> Tensor:
        """entropy, entropy_share or sink of every head, (depth, heads); NaN where no attention was seen."""
        return self.record.tensors[f"{self._curve(curve).index}/heads/{measure}"]

    def _curve(self, curve: int | str) -> Curve:
        found = self.curves
        if isinstance(curve, int):
            if not 0 <= curve < len(found):
                raise InputError(f"there are curves 0 to {len(found) - 1}; got {curve}.")
            return found[curve]
        if curve not in self.labels:
            raise UnknownName(
                f"no curve {curve!r}; there are {', '.join(self.labels)}.{did_you_mean(curve, self.labels)}"
            )
        return found[self.labels.index(curve)]

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """Signal after the last block, norm growth, gradient ratio, prediction: the worst curve of each."""
        return (*self._cosine(), *self._factor("growth"), *self._factor("gradient"), *self._prediction())

    def _cosine(self) -> Iterator[Verdict]:
        worst = max(self.curves, key=lambda c: c.layers("cosine")[-1])
        e = worst.scalar("cosine")
        if e is None:
            return
        status = COSINE.grade(e)
        key = {"green": "alive" if len(self.curves) < 2 else "alive_all", "yellow": "near", "red": "collapsed"}
        told = {"label": worst.label, "limit": number(COSINE.green), "cosine": number(e.value, 4)}
        told["layer"] = str(next((l for l, c in enumerate(worst.layers("cosine")) if c > COSINE.red), worst.depth))
        said = say(f"signal_head_{key.get(status, 'close')}", **told)
        yield judged("signal", e, COSINE, number(e.value), said)

    def _factor(self, name: str) -> Iterator[Verdict]:
        known = [(c, e) for c in self.curves if (e := c.scalar(name)) is not None and e.value > 0]
        if known:
            curve, e = max(known, key=lambda pair: abs(math.log(pair[1].value)))
            said = say(f"card_{name}", label=curve.label, times=number(e.value))
            yield judged(name, e, FACTOR, f"× {number(e.value)}", said)

    def _prediction(self) -> Iterator[Verdict]:
        apart = [(c, c.agreement, e) for c in self.curves if c.agreement and (e := c.scalar("difference")) is not None]
        if apart:
            order: tuple[Status, ...] = ("green", "undecided", "red")
            curve, status, e = max(apart, key=lambda found: (order.index(found[1] or "green"), found[2].value))
            settled = replace(e, converged=True)
            said = say(f"prediction_{status}", label=curve.label, gap=number(e.value, 2))
            yield Verdict("prediction", status or "green", number(e.value, 2), settled, said, check=True)

    @property
    def said(self) -> Said:
        return sum((v.both for v in self.verdicts() if v.name == "signal"), NOTHING) + self.cut_short

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        """One row for each number after the last block; the gradient is that at the input over the last layer."""
        rows = []
        for c in self.curves:
            ends = [f"jacobian/{name}/{end}" for name in c.jacobians for end in ENDS]
            for name in (*MEASURES, "difference", *ends):
                e, line = c.scalar(name), c.predicted(name)
                if e is not None:
                    rows.append((c.name, name, e.value, e.error, line[-1] if line else None, e.kind))
        return Grid(("curve", "what", "value", "+-", "predicted", "tag"), tuple(rows))

    def lines(self) -> Iterator[str]:
        """One line a curve with its prediction in brackets, the verdict of each, what was not done and why."""
        yield f"{line('line_signal')}   [estimate]"
        yield line("line_signal_more")
        yield from _columns(
            [("", "cosine", "rank", "norm", "gradient", "entropy", "sink", "prediction"), *self._rows()]
        )
        for c in self.curves:
            about = c.about
            e = c.scalar("cosine")
            state = "undefined" if e is None or math.isnan(e.value) else COSINE.of(e.value)
            size = {"depth": c.depth, "width": c.d_model, "tokens": about["tokens"] or line("line_varying")}
            rest = f"{about['over']}, {self.record.made.dtype}; {'; '.join(about['notes'])}"
            yield line("line_curve", name=c.name, word=line(f"line_signal_{state}"), **size, rest=rest)
            for name, (_, (low, high, square)) in c.jacobians.items():
                least = f"{'<= ' if low.kind == 'bound' else ''}{low.value:.3g}"
                ends = {"low": least, "high": f"{high.value:.3g}", "square": square}
                yield "  " + line("line_jacobian", name=name, **ends)
        yield from self.verdict_lines()

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for c in self.curves:
            shares = [v for row in c.heads("entropy_share") for v in row if math.isfinite(v)]
            sinks = [v for row in c.heads("sink") for v in row if math.isfinite(v)]
            gradient, apart = c.layers("gradient"), c.scalar("difference")
            yield (
                c.label,
                _with(c, "cosine", "{:.3f}"),
                _with(c, "participation", "{:.1f}"),
                _with(c, "growth", "x{:.3g}"),
                f"x{gradient[0]:.3g}" if gradient else "-",
                f"{min(shares):.2f}-{max(shares):.2f}" if shares else "-",
                f"{max(sinks):.2f}" if sinks else "-",
                "-" if apart is None else f"differs by {apart.value:.3f}" + _met(c),
            )

    def _repr_html_(self) -> str:
        return next(iter(self.figures().values()))._repr_html_()


#: What the end of a stack is called, by the cosine after its last block.


def _met(curve: Curve) -> str:
    if curve.agreement is None:
        return " (one network)" if curve.about["fresh"] else " (of fresh weights)"
    return {"red": ", DISAGREES", "undecided": ", within its error"}.get(curve.agreement, ", agrees")


def _with(curve: Curve, measure: str, form: str) -> str:
    value, error, line = curve.layers(measure)[-1], curve.errors(measure)[-1], curve.predicted(measure)
    spread = f" +-{error:.1g}" if math.isfinite(error) and error > 0 else ""
    return form.format(value) + spread + (f" [{form.format(line[-1])}]" if line else "")


def _columns(body: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[j]) for row in body) for j in range(len(body[0]))]
    for row in body:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
