"""The answer of `quadform attention`: the exact Hessian of one layer by name, its verdicts, the lines of the terminal.

Record "attention": scalars `loss`, `lambda_max`, `lambda_min`, `negative_share`, `trace`, `ceiling_sgd`,
`autodiff_error`, `seconds`, `entropy`, `norm/PART/BLOCK`, and of a sweep `slope/PART/BLOCK` beside `paper/PART/BLOCK`;
tensors `H_o`, `H_f`, `eigenvalues...`, `A`, and of a sweep `scales`, `growth_PART` (points, blocks), `growth_entropy`,
`growth_undecided`, `growth_moments`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.record import Estimate, Record
from ..core.space import WORDS, Space
from .answer import Answer, Grid
from .kronecker import kronecker_lines
from .numbers import number, percent, times
from .texts import line
from .verdict import Limits, Said, Status, Verdict, judged, say

PARTS = ("total", "outer", "functional")
MOMENTS = ("M1", "M2", "M3")
#: Attention whose mean row entropy is below this share of its maximum is called saturated (one-hot).
SATURATED = 0.1
#: Entropy below which the end of a sweep is called one-hot on the terminal.
ONE_HOT = 0.01
#: A fitted slope agrees with the paper's exponent when it is this close.
SLOPE_TOLERANCE = 0.05
#: Sharpest over flattest diagonal block.
UNEVEN = Limits(10.0, 100.0)
#: Share of negative eigenvalues.
NEGATIVE = Limits(0.01, 0.25)
#: Norm of the functional part over the norm of H.
MISSED = Limits(0.1, 0.5)
#: Mean row entropy over its maximum.
ENTROPY = Limits(0.5, SATURATED)
#: max |closed form - autodiff| / max |H|, in float64 and in float32.
AUTODIFF, AUTODIFF_SINGLE = Limits(1e-12, 1e-8), Limits(1e-5, 1e-3)


class AttentionAnswer(Answer):
    """The exact Hessian of one attention layer, checked when it is read."""

    kind = "attention"

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        size = self.space.size
        for name in ("H_o", "H_f"):
            if tuple(self.tensor(name).shape) != (size, size):
                raise InputError(
                    f"the record names {size} parameters but its {name} has shape {tuple(self.tensor(name).shape)}."
                    " Make the record again."
                )

    # --- numbers ----------------------------------------------------------------------------------------------------
    def tensor(self, name: str) -> Tensor:
        try:
            return self.record.tensors[name]
        except KeyError as error:
            raise InputError(f"the record holds no tensor {name!r}. Make it again with this quadform.") from error

    def scalar(self, name: str) -> Estimate:
        try:
            return self.record.scalars[name]
        except KeyError as error:
            raise InputError(f"the record holds no number {name!r}. Make it again with this quadform.") from error

    @property
    def settings(self) -> dict[str, Any]:
        """What the layer was asked to be."""
        return dict(self.record.inputs)

    @property
    def softmax(self) -> bool:
        return self.record.inputs.get("attention") == "softmax"

    @property
    def numbers(self) -> dict[str, Estimate]:
        """The numbers of the whole layer, by name; `autodiff_error` is a check."""
        return {n: e for n, e in self.record.scalars.items() if "/" not in n and n != "autodiff_error"}

    @property
    def entropy(self) -> Estimate | None:
        """Mean entropy of a row of the attention over its maximum; None without a softmax."""
        return self.record.scalars.get("entropy")

    @property
    def finite(self) -> bool:
        """Whether every tensor holds numbers alone."""
        return all(bool(torch.isfinite(t).all()) for t in self.record.tensors.values())

    @cached_property
    def space(self) -> Space:
        try:
            return Space(tuple((str(name), tuple(shape)) for name, shape in self.record.inputs["space"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the record does not say which parameters it covers (`inputs.space`).") from error

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The unique blocks, `"W_Q,W_K"` = row, column, in the order of the record."""
        names = tuple(key.split("/", 2)[2] for key in self.record.scalars if key.startswith("norm/total/"))
        if not names:
            raise InputError("the record holds no block norms (`norm/total/...`). Make it again with this quadform.")
        return names

    def matrix(self, part: str) -> Tensor:
        """`total`, `outer` or `functional`: (P, P)."""
        if part == "total":
            return self.tensor("H_o") + self.tensor("H_f")
        return self.tensor({"outer": "H_o", "functional": "H_f"}[part])

    def block(self, part: str, name: str) -> Tensor:
        row, col = name.split(",")
        at = self.space.slices()
        return self.matrix(part)[at[row], at[col]]

    def eigenvalues(self, part: str) -> Tensor:
        return self.tensor(spectrum_key(part))

    def norm(self, part: str, block: str) -> float:
        return self.scalar(f"norm/{part}/{block}").value

    def whole_norm(self, part: str) -> float:
        """The Frobenius norm of the whole matrix: every off-diagonal block is there twice."""
        total = 0.0
        for block in self.blocks:
            row, col = block.split(",")
            total += (1 if row == col else 2) * self.norm(part, block) ** 2
        return math.sqrt(total)

    @property
    def diagonal(self) -> tuple[str, ...]:
        return tuple(b for b in self.blocks if len(set(b.split(","))) == 1)

    def extremes(self) -> tuple[str, str, float]:
        """The diagonal blocks of largest and smallest norm, and their ratio (infinite when one is zero)."""
        sharpest = max(self.diagonal, key=lambda b: self.norm("total", b))
        flattest = min(self.diagonal, key=lambda b: self.norm("total", b))
        low = self.norm("total", flattest)
        return sharpest, flattest, self.norm("total", sharpest) / low if low else math.inf

    def zero_tolerance(self, part: str) -> float:
        """Below this an eigenvalue is zero as far as float64 can tell: P eps max |lambda|."""
        lam = self.eigenvalues(part).double()
        return len(lam) * torch.finfo(torch.float64).eps * float(lam.abs().max())

    # --- the sweep --------------------------------------------------------------------------------------------------
    @property
    def varied(self) -> bool:
        """Whether the record holds a sweep of the input scale."""
        return all(name in self.record.tensors for name in ("scales", "growth_outer", "growth_functional"))

    @property
    def has_moments(self) -> bool:
        """Whether the sweep holds the norms of the attention's moments."""
        return "growth_moments" in self.record.tensors

    @property
    def fit_range(self) -> tuple[float, float]:
        """The scales between which slopes were fitted."""
        low, high = self.record.inputs["fit_range"]
        return low, high

    def slope(self, part: str, block: str) -> Estimate | None:
        """The fitted exponent of a block's norm in the input scale."""
        return self.record.scalars.get(f"slope/{part}/{block}")

    def paper(self, part: str, block: str) -> Estimate | None:
        """The paper's exponent."""
        return self.record.scalars.get(f"paper/{part}/{block}")

    def slope_gaps(self) -> dict[str, float]:
        """`"outer/W_Q,W_Q"` -> |fitted slope - paper's exponent|, for every block that has both."""
        out = {}
        for key, fitted in self.record.scalars.items():
            name = key.removeprefix("slope/")
            if name != key and (paper := self.paper(*name.split("/", 1))) is not None:
                out[name] = abs(fitted.value - paper.value)
        return out

    def saturates_at(self) -> float | None:
        """The input scale at which the entropy of the attention falls below SATURATED, or None."""
        entropy = self.record.tensors.get("growth_entropy")
        if entropy is None or not bool(torch.isfinite(entropy).all()):
            return None
        scales = self.tensor("scales").double().log()
        for i in range(len(entropy)):
            if bool((entropy[i:] < SATURATED).all()):
                if i == 0:
                    return float(scales[0].exp())
                high, low = float(entropy[i - 1]), float(entropy[i])
                part = (high - SATURATED) / (high - low)
                return float((scales[i - 1] + part * (scales[i] - scales[i - 1])).exp())
        return None

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """Negative eigenvalues, sharpest against flattest block, ceiling, H_f against H, entropy, the check."""
        found = (self._negative(), self._uneven(), self._ceiling(), self._missed())
        return (*found, *self._spread(), self._checks())

    @property
    def said(self) -> Said:
        """Which way the directions bend, and whether one step size fits all blocks."""
        share = self.scalar("negative_share")
        sharpest, flattest, ratio = self.extremes()
        shape = {"green": "few", "yellow": "some", "red": "many"}[NEGATIVE.of(share.value)]
        even = {"green": "even", "yellow": "uneven", "red": "split"}[UNEVEN.of(ratio)]
        shape, even = "none" if share.value == 0 else shape, "flat" if ratio == math.inf else even
        told = say(f"summary_{shape}", share=percent(share.value))
        return told + say(f"summary_{even}", ratio=times(ratio), **_named(sharpest, flattest)) + self.cut_short

    def _negative(self) -> Verdict:
        e = self.scalar("negative_share")
        said = say("card_negative", count=f"{round(e.value * self.space.size):,}", all=f"{self.space.size:,}")
        return judged("negative", e, NEGATIVE, percent(e.value), said, percent)

    def _uneven(self) -> Verdict:
        sharpest, flattest, ratio = self.extremes()
        said = say("card_uneven", ratio=times(ratio), **_named(sharpest, flattest))
        return judged("uneven", Estimate(ratio), UNEVEN, f"{times(ratio)} : 1", said, times)

    def _ceiling(self) -> Verdict:
        """Green: a finite positive number that converged. The height of a ceiling is neither good nor bad."""
        e = self.scalar("ceiling_sgd")
        usable = math.isfinite(e.value) and e.value > 0
        status: Status = "red" if not usable else "green" if e.converged else "yellow"
        said = say("card_ceiling", high=number(self.scalar("lambda_max").value))
        return Verdict("ceiling", status, number(e.value) if usable else "–", e, said)

    def _missed(self) -> Verdict:
        whole = self.whole_norm("total")
        share = Estimate(self.whole_norm("functional") / whole if whole else 0.0)
        return judged(
            "missed", share, MISSED, percent(share.value), say("card_missed", share=percent(share.value)), percent
        )

    def _spread(self) -> tuple[Verdict, ...]:
        e = self.entropy
        if e is None or not math.isfinite(e.value) or not self.softmax:
            return ()
        return (judged("entropy", e, ENTROPY, percent(e.value), say("card_entropy", share=percent(e.value)), percent),)

    @property
    def autodiff_limits(self) -> Limits:
        """How far closed form and autodiff may differ in the number format of the record."""
        return AUTODIFF_SINGLE if self.record.made.dtype == "float32" else AUTODIFF

    def _checks(self) -> Verdict:
        """The worse of two checks: closed form against autodiff, fitted slopes against the paper's exponents."""
        e, gaps, limits = self.scalar("autodiff_error"), self.slope_gaps(), self.autodiff_limits
        status, worst = limits.of(e.value), max(gaps.values(), default=0.0)
        status = "yellow" if status == "green" and worst > SLOPE_TOLERANCE else status
        said = say("card_checks", error=number(e.value, 2))
        said += say("card_checks_slopes", gap=number(worst, 2)) if gaps else Said("", "")
        shown = (number(limits.green), number(limits.red), str(SLOPE_TOLERANCE))
        return Verdict("checks", status, number(e.value, 2), e, said, limits, shown, check=True)

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        """Norm of every block and part, its slope in the input scale, the paper's exponent."""
        rows = []
        for part in PARTS:
            for block in self.blocks:
                more = (self.slope(part, block), self.paper(part, block))
                rows.append((block, part, self.norm(part, block), *(m.value if m else None for m in more)))
        return Grid(("block", "part", "norm", "slope", "paper"), tuple(rows))

    def lines(self) -> Iterator[str]:
        """The headline, the table of exponents, the verdict at both ends of the sweep."""
        took = self.scalar("seconds").value
        time, error = f"{1e3 * took:.3g} ms" if took < 1 else f"{took:.3g} s", self.scalar("autodiff_error").value
        head = line("line_exact", count=f"{self.space.size:,}", time=time, error=_power(error))
        yield f"{head:<84} [exact]"
        if self.varied:
            lo, hi = self.fit_range
            yield line("line_growth", low=f"{lo:.2g}", high=f"{hi:.2g}")
            yield from str(self._exponents()).splitlines()
        yield from self.verdict()
        if self.varied:
            yield self._far_end()
        yield from kronecker_lines(self.record.scalars)
        yield from self.verdict_lines()

    def verdict(self) -> Iterator[str]:
        """The spectrum at the scale that was asked for, and the largest step it allows."""
        share, ceiling = self.scalar("negative_share"), self.scalar("ceiling_sgd").value
        high, low = (self.scalar(name).value for name in ("lambda_max", "lambda_min"))
        negative = f"{100 * share.value:.0f}"
        negative = line("line_at_least", value=negative) if share.kind == "bound" else negative
        scale = f"{self.settings['scale']:g}"
        yield line("line_scale", scale=scale, high=f"{high:.3g}", low=f"{low:.3g}", share=negative)
        overshoots = not math.isinf(ceiling)
        yield line("line_overshoot", ceiling=f"{ceiling:.3g}") if overshoots else line("line_no_overshoot")

    def _exponents(self) -> Grid:
        names, parts = self.space.names, ("outer", "functional")
        labels = [WORDS[name] for name in names]
        columns = [f"{part} {label}" if i == 0 else label for part in parts for i, label in enumerate(labels)]
        rows = [
            (labels[i], *(self._exponent(part, a, b) if j >= i else "" for part in parts for j, b in enumerate(names)))
            for i, a in enumerate(names)
        ]
        return Grid(("", *columns), tuple(rows))

    def _exponent(self, part: str, a: str, b: str) -> str:
        block = f"{a},{b}" if f"{a},{b}" in self.blocks else f"{b},{a}"
        fitted, paper = self.slope(part, block), self.paper(part, block)
        expected = "" if paper is None else "[3,5]" if "mix" in paper.note else f"[{paper.value:g}]"
        if fitted:
            return f"{fitted.value:.1f}{expected}"
        zero = self.norm(part, block) == 0  # else it left floating point along the sweep
        return f"{'0  ' if zero else '-  '}{expected}"

    def _far_end(self) -> str:
        """The largest scale of the sweep: what the attention and the two extreme blocks have become."""
        t = self.record.tensors
        query, value = (float(t["growth_total"][-1, i]) for i in (0, -1))  # the first and last diagonal blocks
        state = line("line_no_softmax")
        if "growth_entropy" in t:
            entropy = float(t["growth_entropy"][-1])
            state = line("line_one_hot" if entropy < ONE_HOT else "line_not_one_hot", entropy=f"{entropy:.2f}")
            if "growth_undecided" in t:  # one undecided query holds the curvature of queries up: decision 0802
                key = "line_widest" if entropy < ONE_HOT else "line_widest_not"
                state = line(key, entropy=f"{entropy:.2f}", spread=_power(float(t["growth_undecided"][-1])))
        first, last = (WORDS[self.space.names[i]] for i in (0, -1))
        norms = {"query": _power(query), "value": _power(value)}
        return line("line_far", scale=f"{float(t['scales'][-1]):g}", state=state, first=first, last=last, **norms)


def spectrum_key(part: str) -> str:
    """The tensor that holds the eigenvalues of a part."""
    return "eigenvalues" if part == "total" else f"eigenvalues_{part}"


def _named(sharpest: str, flattest: str) -> dict[str, Any]:
    return {"sharp": lambda texts: texts.block(sharpest), "flat": lambda texts: texts.block(flattest)}


def _power(value: float) -> str:
    return f"{value:.0e}" if value else "0"
