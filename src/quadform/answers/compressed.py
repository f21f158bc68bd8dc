"""What the answers of `prune` and `quantize` share: methods that make a model smaller, and what each costs the loss.

Scalars `loss`, `held`, `score` of the model as it was; for each method NAME `NAME/predicted`, `NAME/measured` (how much
the loss rises), `NAME/held` (the same on batches held out), `NAME/score`; tensors `NAME/parts`: each matrix's share of
the predicted rise, in the order of the input `matrices`. Input `ways`: NAME -> a word on how it goes about it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from ..core.record import Estimate
from .answer import Answer, Draft, Grid, cell
from .numbers import number
from .texts import line
from .verdict import NOTHING, Said, say


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
    def said(self) -> Said:
        m = self.best
        if m is None:
            return NOTHING + self.cut_short
        held = NOTHING if m.held is None else say("compressed_held", held=number(m.held))
        return self.told(m) + held + self._scored(m) + self.cut_short

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
        """What is printed after the methods."""
        return ()

    def lines(self) -> Sequence[str]:
        i, s = self.record.inputs, self.record.scalars
        out = self.measured_lines()
        before = line("line_before", loss=cell(self.loss))
        before += ", " + line("line_held", loss=cell(s["held"].value)) if "held" in s else ""
        named = i.get("score") or "score"
        out.append(before + (f", {named} {cell(s['score'].value)}" if "score" in s else ""))
        _, size, way = self.columns
        head = f"{'method':<12}{way:<15}{size:>7}{'predicted dL':>14}{'measured dL':>13}"
        out.append(f"{head}{'held out':>10}{named:>9}")
        for m in self.methods:
            out.append(
                f"{m.name:<12}{m.way:<15}{m.size:>7.3f}{cell(m.predicted):>14}{cell(m.measured):>13}"
                f"{cell(m.held):>10}{cell(m.score and m.score.value):>9}"
            )
        out += self.more_lines()
        if self.methods:
            out.append(self.said())
        if self.folder:
            out.append(line("line_model_of", method=i["best"], folder=self.folder))
        return [*out, *self.verdict_lines()]


def best_of(scalars: Mapping[str, Estimate], methods: Iterable[str]) -> str | None:
    """The method with the least rise, held out where that was measured; None where none was."""

    def rise(name: str) -> float:
        value = (scalars.get(f"{name}/held") or scalars[f"{name}/measured"]).value
        return math.inf if math.isnan(value) else value

    return min((m for m in methods if f"{m}/measured" in scalars), key=rise, default=None)
