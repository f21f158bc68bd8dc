"""Records of kind `why-step`: one step of a training run, its rate, its batch, its update by layer."""

from __future__ import annotations

from ..answers.numbers import number, short_name
from ..answers.why_step import WhyStep
from ..core.record import Record
from .page import Draw, Page
from .rows import Row, estimate, tag
from .texts import Texts


def title(record: Record, texts: Texts) -> str:
    answer = WhyStep(record)
    return texts("record_why-step", name=short_name(answer.model), step=f"{answer.step:,}")


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer, group = WhyStep(record), texts("why_step_title")
    found = [Row(group, texts("why_step_lr"), number(answer.lr), "exact")]
    found += [Row(group, texts(f"why_step_row_{n}"), estimate(n, e), tag(e)) for n, e in record.scalars.items()]
    for layer, slope, curve in answer.table().rows:
        found.append(Row(texts("why_step_layers"), layer, f"{number(slope)} + {number(curve)}", "exact"))
    return tuple(found)


def figures(record: Record) -> tuple[Draw, ...]:
    return ()


PAGE = Page(WhyStep, title, rows, figures)
