"""What the answers of `prune` and `quantize` share: methods that make a model smaller, and what each costs the loss.

Scalars `loss`, `held`, `score` of the model as it was; for each method NAME `NAME/predicted`, `NAME/measured` (how much
the loss rises), `NAME/held` (the same on batches held out), `NAME/score`; tensors `NAME/parts`: each matrix's share of
the predicted rise, in the order of the input `matrices`. Input `ways`: NAME -> a word on how it goes about it. Where
each matrix was changed alone: tensors `each/predicted`, `each/measured`, in the order of the input `each`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.record import Estimate
from .answer import Answer, Draft, Grid, cell
from .numbers import number, percent
from .texts import line
from .verdict import NOTHING, Limits, Said, Verdict, judged, say

#: The rise of the loss over the loss: never red, since nothing was changed.
RISE = Limits(0.1, math.inf)
#: Rank correlation of predicted and measured rises, and of how many.
RANKED, FEWEST = Limits(0.8, -1.0), 3
#: A matrix or head that costs less than this share of the loss hardly counts.
LITTLE = 0.01
#: A prediction that is off by more than this share of what is measured is beyond the quadratic model.
FAR = 0.5
#: A difference of two losses below so many units of the last place of one is their rounding.
ROUNDING = 16
#: How the note on the bits under a budget begins.
BUDGET = "bits of the budget: "


@dataclass(frozen=True)
class Method:
    """One method: how it goes about it, and how much the loss rises. `held` is the rise on batches held out.

    `size` is what is left: the share of zeros of a pruned model, the bits a weight of a quantized one.
    """

    name: str
    way: str
    size: float
    predicted: float
    measured: float
    held: float | None
    score: Estimate | None
    parts: Tensor


class CompressDraft(Draft):
    """The answer while it is measured. `scalar_keys` and `tensor_keys` of a method are taken as they are found."""

    scalar_keys: ClassVar[tuple[str, ...]] = ("predicted",)
    tensor_keys: ClassVar[tuple[str, ...]] = ("parts",)
    score = ""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.each: dict[str, tuple[float, float]] = {}

    def take_before(self, found: Mapping[str, Any]) -> None:
        """Losses and score of the model as it is."""
        self.scalars |= {n: Estimate(found[n]) for n in ("loss", "held") if n in found}
        if "score" in found:
            self.score, self.scalars["score"] = found["score"]

    def take(self, name: str, found: Mapping[str, Any]) -> None:
        """What one method found."""
        self.scalars |= {f"{name}/{k}": Estimate(found[k]) for k in self.scalar_keys}
        self.scalars[f"{name}/measured"] = Estimate(found["loss"] - self.scalars["loss"].value)
        if "held" in found:
            self.scalars[f"{name}/held"] = Estimate(found["held"] - self.scalars["held"].value)
        if "score" in found:
            self.scalars[f"{name}/score"] = found["score"][1]
        self.notes += [f"{name}: {found['note']}"] if "note" in found else []
        self.tensors |= {f"{name}/{k}": found[k] for k in self.tensor_keys}

    def take_each(self, name: str, found: Mapping[str, Any]) -> None:
        """One matrix or head changed alone."""
        self.each[name] = found["predicted"], found["loss"] - self.scalars["loss"].value
        predicted, measured = zip(*self.each.values(), strict=True)
        self.tensors["each/predicted"] = torch.tensor(predicted, dtype=torch.float64)
        self.tensors["each/measured"] = torch.tensor(measured, dtype=torch.float64)


class Compressed(Answer):
    """A smaller model by several methods."""

    draft: ClassVar[type[CompressDraft]]
    #: Titles of the columns: `size` as a name and as it is printed, `way`.
    columns: ClassVar[tuple[str, str, str]]
    #: The matrices of the best method, by name; empty where the answer was loaded.
    weights: Mapping[str, Tensor] = {}
    #: Where the best model was written; None where nothing was, and where the answer was loaded.
    folder: Path | None = None

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that were measured, in the order they were asked for."""
        s, t = self.record.scalars, self.record.tensors
        return tuple(
            Method(
                n,
                way,
                self.size_of(n),
                s[f"{n}/predicted"].value,
                s[f"{n}/measured"].value,
                s[f"{n}/held"].value if f"{n}/held" in s else None,
                s.get(f"{n}/score"),
                t[f"{n}/parts"],
            )
            for n, way in self.record.inputs["ways"].items()
            if f"{n}/predicted" in s
        )

    @abstractmethod
    def size_of(self, method: str) -> float:
        """How small a method's model is."""

    @property
    def best(self) -> Method | None:
        """The method with the least rise on the batches held out, or on all where none are."""
        return next((m for m in self.methods if m.name == self.record.inputs["best"]), None)

    @property
    def matrices(self) -> tuple[str, ...]:
        return tuple(self.record.inputs["matrices"])

    @property
    def loss(self) -> float:
        """The loss of the model as it was."""
        return self.record.scalars["loss"].value

    @abstractmethod
    def told(self, best: Method) -> Said:
        """What the best method costs."""

    @property
    def each(self) -> dict[str, tuple[float, float]]:
        """What the loss rises by with one matrix or head changed alone, (predicted, measured); empty if not asked."""
        t = self.record.tensors
        if "each/predicted" not in t:
            return {}
        pairs = zip(t["each/predicted"].tolist(), t["each/measured"].tolist(), strict=True)
        return dict(zip(self.record.inputs.get("each") or self.matrices, pairs, strict=False))

    # --- verdicts ---------------------------------------------------------------------------------------------------
    def verdicts(self) -> tuple[Verdict, ...]:
        """What the best method costs, and whether the Hessian tells which matrices are sensitive."""
        return (*self._of_best(), *self._of_each())

    def _of_best(self) -> tuple[Verdict, ...]:
        m = self.best
        if m is None:
            return ()
        held = NOTHING if m.held is None else say("compressed_held", held=number(m.held))
        rise = (m.measured if m.held is None else m.held) / (abs(self._loss_beside(m)) or 1.0)
        far = abs(m.predicted - m.measured) > max(FAR * abs(m.measured), self._rounding)
        said = self.told(m) + (say("compressed_far") if far else NOTHING) + held + self._scored(m)
        said += NOTHING if RISE.of(rise) == "green" else say(f"{self.kind}_less")
        return (judged(self.kind, Estimate(rise), RISE, percent(rise), said, percent),)

    @property
    def _rounding(self) -> float:
        dtype = getattr(torch, self.record.made.dtype or "float32")
        return ROUNDING * torch.finfo(dtype).eps * abs(self.loss)

    def _loss_beside(self, m: Method) -> float:
        """The loss before, on the batches that a method's rise is judged by."""
        return self.loss if m.held is None else self.record.scalars["held"].value

    def _of_each(self) -> tuple[Verdict, ...]:
        if len(self.each) < FEWEST:
            return ()
        e = Estimate(_rank_correlation([p for p, _ in self.each.values()], [m for _, m in self.each.values()]))
        little = sum(rise <= LITTLE * abs(self.loss) for _, rise in self.each.values())
        told = {"little": little, "all": len(self.each), "share": percent(LITTLE), "size": self.share}
        counted = say(f"{self.kind}_each", **told) if self.loss else NOTHING
        said = counted + self.ends + say("compressed_ranks", ranks=f"{e.value:.2f}")
        return (judged("ranks", e, RANKED, f"{e.value:.2f}", said, lambda x: f"{x:g}"),)

    @property
    def ends(self) -> Said:
        """What costs least and what most, changed alone."""
        ranked = sorted((rise, name) for name, (_, rise) in self.each.items())
        (least, low), (most, high) = ranked[0], ranked[-1]
        return say("compressed_ends", low=low, least=number(least), high=high, most=number(most))

    @property
    @abstractmethod
    def share(self) -> str:
        """How much of a matrix is changed when it is changed alone."""

    def _scored(self, best: Method) -> Said:
        """A score can fall where the loss hardly rises."""
        if best.score is None:
            return NOTHING
        before = self.record.scalars["score"]
        shown = [f"{number(e.value)} ± {number(e.error)}" if e.error else number(e.value) for e in (before, best.score)]
        name = self.record.inputs.get("score") or "score"
        return say("compressed_score", name=name, before=shown[0], after=shown[1])

    # --- showing ----------------------------------------------------------------------------------------------------
    def table(self) -> Grid:
        size, _, way = self.columns
        rows = [
            (m.name, m.way, m.size, m.predicted, m.measured, m.held, m.score and m.score.value) for m in self.methods
        ]
        return Grid(("method", way, size, "predicted", "measured", "held", "score"), tuple(rows))

    def more_lines(self) -> Sequence[str]:
        """What is printed after the methods: what was changed alone, most sensitive first."""
        if not self.each:
            return []
        ranked = sorted(self.each.items(), key=lambda item: -item[1][1])
        head = f"{'alone':<48}{'predicted dL':>14}{'measured dL':>13}"
        return [head, *(f"{self.named_alone(n):<48}{cell(p):>14}{cell(m):>13}" for n, (p, m) in ranked)]

    def named_alone(self, name: str) -> str:
        """A matrix or head as it is shown where it was changed alone."""
        return name

    @property
    def how(self) -> list[str]:
        """The notes on single methods and on the bits under a budget."""
        starts = (BUDGET, *(f"{name}: " for name in self.record.inputs["ways"]))
        return [note for note in self.notes if note.startswith(starts)]

    def measured_lines(self) -> list[str]:
        """As for every answer, but for the notes on methods, which are printed below the table."""
        covered = [str(self.record.inputs["coverage"]), *(n for n in self.notes if n not in self.how)]
        return ["; ".join(covered), *super().measured_lines()[1:]]

    def lines(self) -> Sequence[str]:
        i, s = self.record.inputs, self.record.scalars
        out = self.measured_lines()
        before = line("line_before", loss=cell(self.loss))
        before += ", " + line("line_held", loss=cell(s["held"].value)) if "held" in s else ""
        named = i.get("score") or "score"
        out.append(before + (f", {named} {cell(s['score'].value)}" if "score" in s else ""))
        out += self._method_lines(named) if self.methods else []
        out += [*self.how, *self.more_lines()]
        if self.folder:
            out.append(line("line_model_of", method=i["best"], folder=self.folder))
        return [*out, *self.verdict_lines()]

    def _method_lines(self, named: str) -> list[str]:
        _, size, way = self.columns
        head = f"{'method':<12}{way:<15}{size:>7}{'predicted dL':>14}{'measured dL':>13}"
        held, scored = ("held" in self.record.scalars), ("score" in self.record.scalars)
        out = [head + f"{'held out':>10}" * held + f"{named:>9}" * scored]
        for m in self.methods:
            row = f"{m.name:<12}{m.way:<15}{m.size:>7.3f}{cell(m.predicted):>14}{cell(m.measured):>13}"
            score = cell(m.score and m.score.value)
            out.append(row + f"{cell(m.held):>10}" * held + f"{score:>9}" * scored)
        return out


def best_of(scalars: Mapping[str, Estimate], methods: Iterable[str]) -> str | None:
    """The method with the least rise, held out where that was measured; None where none was."""

    def rise(name: str) -> float:
        value = (scalars.get(f"{name}/held") or scalars[f"{name}/measured"]).value
        return math.inf if math.isnan(value) else value

    return min((m for m in methods if f"{m}/measured" in scalars), key=rise, default=None)


def _rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [torch.tensor(x).argsort().argsort().double() for x in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])
