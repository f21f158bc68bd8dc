"""The answer of `quadform attention`: names for its numbers, the lines of the terminal, the table.

Record "attention": scalars `loss`, `lambda_max`, `lambda_min`, `negative_share`, `trace`, `ceiling_sgd`,
`autodiff_error`, `seconds`, `entropy`, `norm/PART/BLOCK`, and of a sweep `slope/PART/BLOCK` beside `paper/PART/BLOCK`;
tensors `H_o`, `H_f`, `eigenvalues...`, `A`, and of a sweep `scales`, `growth_PART` (points, blocks), `growth_entropy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...answers.answer import Answer, Grid
from ...core.record import Estimate
from ...core.space import WORDS
from ...report.attention.verdict import autodiff_limits

#: Entropy below which the attention is called one-hot.
ONE_HOT = 0.01


class AttentionAnswer(Answer):
    """The exact Hessian of one attention layer."""

    kind = "attention"

    @property
    def ok(self) -> bool:
        """Whether nothing is missing, and closed form and autodiff are the same."""
        return self.complete and self["autodiff_error"].value <= autodiff_limits(self.record)[1]

    def __getitem__(self, name: str) -> Estimate:
        return self.record.scalars[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The matrices of the layer, such as W_Q, W_K, W_V."""
        return tuple(name for name, _ in self.record.inputs["space"])

    def table(self) -> Grid:
        """Norm of every block and part, its slope in the input scale, the paper's exponent."""
        rows = []
        for key, e in self.record.scalars.items():
            kind, _, of = key.partition("/")
            if kind == "norm":
                part, block = of.split("/")
                more = (self.record.scalars.get(f"{k}/{of}") for k in ("slope", "paper"))
                rows.append((block, part, e.value, *(m.value if m else None for m in more)))
        return Grid(("block", "part", "norm", "slope", "paper"), tuple(rows))

    def lines(self) -> Iterator[str]:
        """The headline, the table of exponents, the verdict at both ends of the sweep."""
        parameters = sum(math.prod(shape) for _, shape in self.record.inputs["space"])
        took = self["seconds"].value
        head = (
            f"exact Hessian, {parameters:,} parameters,"
            f" {f'{1e3 * took:.3g} ms' if took < 1 else f'{took:.3g} s'} per Hessian,"
            f" autodiff differs by {_power(self['autodiff_error'].value)}"
        )
        yield f"{head:<84} [exact]"
        if "fit_range" in self.record.inputs:
            lo, hi = self.record.inputs["fit_range"]
            where = f"fitted {lo:.2g}-{hi:.2g}; paper's exponents in brackets"
            yield f"growth of each block's norm with the input scale ({where})"
            yield from str(self._exponents()).splitlines()
        yield from self.verdict()
        if "fit_range" in self.record.inputs:
            yield self._far_end()
        if self.partial:
            yield "PARTIAL: the time was up before the end of the sweep"

    def verdict(self) -> Iterator[str]:
        """The spectrum at the scale that was asked for, and the largest step it allows."""
        share = self["negative_share"]
        at_least = "at least " if share.kind == "bound" else ""
        yield (
            f"scale {self.record.inputs['scale']:g}: lambda_max {self['lambda_max'].value:.3g},"
            f" lambda_min {self['lambda_min'].value:.3g}, {at_least}{100 * share.value:.0f} % of eigenvalues negative"
        )
        ceiling = self["ceiling_sgd"].value
        if math.isinf(ceiling):
            yield "gradient descent: nothing curves up here, so no step overshoots"
        else:
            yield f"gradient descent: steps above 2 / lambda_max = {ceiling:.3g} overshoot (a ceiling, no advice)"

    def _exponents(self) -> Grid:
        labels, parts = [WORDS[name] for name in self.names], ("outer", "functional")
        columns = [f"{part} {label}" if i == 0 else label for part in parts for i, label in enumerate(labels)]
        rows = [
            (
                labels[i],
                *(self._exponent(part, a, b) if j >= i else "" for part in parts for j, b in enumerate(self.names)),
            )
            for i, a in enumerate(self.names)
        ]
        return Grid(("", *columns), tuple(rows))

    def _exponent(self, part: str, a: str, b: str) -> str:
        s = self.record.scalars
        block = f"{a},{b}" if f"norm/{part}/{a},{b}" in s else f"{b},{a}"
        fitted, paper = s.get(f"slope/{part}/{block}"), s[f"paper/{part}/{block}"]
        expected = "3,5" if "mix" in paper.note else f"{paper.value:g}"
        if fitted:
            return f"{fitted.value:.1f}[{expected}]"
        zero = s[f"norm/{part}/{block}"].value == 0  # else it left floating point along the sweep
        return f"{'0  ' if zero else '-  '}[{expected}]"

    def _far_end(self) -> str:
        """The largest scale of the sweep: what the attention and the two extreme blocks have become."""
        t = self.record.tensors
        query, value = (float(t["growth_total"][-1, i]) for i in (0, -1))  # the first and last diagonal blocks
        state = "no softmax, nothing saturates"
        if "growth_entropy" in t:
            entropy = float(t["growth_entropy"][-1])
            state = f"attention is {'one-hot' if entropy < ONE_HOT else 'not one-hot'} (entropy {entropy:.2f}"
            if "growth_undecided" in t:  # one undecided query holds the curvature of queries up: decision 0802
                state += f"; the least decided query spreads {_power(float(t['growth_undecided'][-1]))}"
            state += ")"
        first, last = (WORDS[self.names[i]] for i in (0, -1))
        curvature = f"{first} curvature {_power(query)}, {last} curvature {_power(value)} (block norms)"
        return f"scale {float(t['scales'][-1]):g}: {state}: {curvature}"


def _power(value: float) -> str:
    return f"{value:.0e}" if value else "0"
