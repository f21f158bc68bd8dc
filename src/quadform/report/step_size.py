"""Records of kind `step-size`: ceilings of the optimizers on one logarithmic axis, and the trial."""

from __future__ import annotations

import math
from typing import Any

from ..answers.numbers import number, rate_text, short_name
from ..answers.step_size import StepSize
from ..answers.verdict import Status
from ..core.record import Record
from .along import rate_course
from .figure import Figure, Rows, Table, decades, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts

_SHAPES = {"shrinks": "triangle-down", "holds": "circle", "grows": "triangle-up"}


def title(record: Record, texts: Texts) -> str:
    answer = StepSize(record)
    return texts("record_rate", name=short_name(answer.model), rule=answer.optimizer)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    """Settings, coverage, every number with its tag, and each trial as a check."""
    answer = StepSize(record)
    setting, numbers = texts("group_setting"), texts("group_numbers")
    batches, *shape = answer.probe_shape
    out = [
        Row(setting, texts("rate_model"), answer.model),
        Row(setting, texts("rate_optimizer"), answer.optimizer, note=answer.P if texts.lang == "en" else ""),
        Row(setting, texts("rate_probe"), f"{batches} × {' × '.join(map(str, shape))}"),
        Row(setting, texts("data_row"), answer.data(texts)),
        Row(texts("group_coverage"), texts("rate_model"), answer.coverage, "exact"),
    ]
    known = (("rate_loss", answer.loss), ("rate_lambda", answer.lambda_max), ("rate_lambda_P", answer.lambda_max_P))
    out += [Row(numbers, texts(key), estimate(key, e), tag(e)) for key, e in known]
    for c in answer.ceilings:
        label = f"{texts('rate_ceiling')}: {c.name}"
        out.append(Row(numbers, label, estimate("ceiling", c.estimate), tag(c.estimate), note=c.formula))
    if (e := answer.first_ceiling) is not None:
        out.append(Row(numbers, texts("rate_first"), estimate("ceiling", e), tag(e), note=answer.optimizer))
    if (e := answer.reach) is not None:
        out.append(Row(numbers, texts("rate_reach"), estimate("ceiling", e), tag(e)))
    for trial in answer.trials:
        fine: Status = "green" if trial.as_expected else "red"
        said = texts(f"rate_{trial.word}", factor=number(trial.measured))
        label = texts("rate_tried", fraction=f"{trial.fraction:g}")
        out.append(Row(texts("group_checks"), label, said, "estimate", fine))
    return tuple(out)


def ceilings(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """A bar for each optimizer up to its ceiling; the range over batches, your own rate, what was tried."""
    from .packages import alt

    over, answer = Rows(), StepSize(record)
    found, rate, mine, span = answer.ceilings, answer.lr, answer.ceiling.value, answer.interval or ()
    marks = [t.fraction * mine for t in answer.trials if math.isfinite(mine)]
    spots = [*(c.estimate.value for c in found), *marks, *([rate] if rate else []), *span]
    spots = [v for v in spots if math.isfinite(v) and v > 0] or [1.0]
    domain = [10.0 ** math.floor(math.log10(min(spots)) - 0.3), 10.0 ** math.ceil(math.log10(max(spots)) + 0.05)]
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(title=texts("rate_axis"), **decades(*domain)),
    )
    names = [c.name for c in found]
    y = alt.Y("name:N", sort=names, axis=alt.Axis(title=None, labelLimit=240, grid=False, ticks=False))
    rule = texts("rate_rule")
    bars: list[dict[str, Any]] = [
        {"name": c.name, "x": domain[0], "x2": v, "mine": c.own, rule: c.formula, "said": rate_text(v)}
        for c in found
        if math.isfinite(v := c.estimate.value)
    ]
    data = over(bars)
    fill = alt.condition("datum.mine", alt.value(style.query), alt.value(style.grid))
    layers = [
        data.mark_bar(height=20, stroke=style.muted, strokeWidth=1).encode(
            x=x, x2="x2:Q", y=y, color=fill, tooltip=[alt.Tooltip("name:N"), alt.Tooltip(f"{rule}:N")]
        ),
        data.mark_text(align="left", dx=6, dy=-17).encode(x=alt.X("x2:Q"), y=y, text="said:N"),
    ]
    own = next(c.name for c in found if c.own)
    if span:
        reach = over([{"name": own, "x": span[0], "x2": span[1]}])
        layers.append(reach.mark_bar(height=8, color=style.ink).encode(x=x, x2="x2:Q", y=y))
    if marks:
        tried: list[dict[str, Any]] = [
            {
                "name": own,
                "x": t.fraction * mine,
                "shape": _SHAPES[t.word],
                "said": texts(f"rate_{t.word}", factor=number(t.measured)),
            }
            for t in answer.trials
        ]
        last = over([{"name": own, "x": max(marks), "said": " · ".join(t["said"] for t in tried)}])
        # The words stand on the side of the last mark that has more room.
        place = math.log(max(marks) / domain[0]) / math.log(domain[1] / domain[0])
        side: dict[str, Any] = {"align": "right", "dx": -12} if place > 0.5 else {"align": "left", "dx": 12}
        layers += [
            over(tried)
            .mark_point(filled=True, size=110, opacity=1, color=style.key, yOffset=22)
            .encode(x=x, y=y, shape=alt.Shape("shape:N", scale=None), tooltip=alt.Tooltip("said:N")),
            last.mark_text(**side, dy=34, fontSize=11).encode(x=x, y=y, text="said:N"),
        ]
    if rate:
        label = texts("rate_yours" if answer.lr_is_yours else "rate_now")
        line = over([{"x": rate, "said": f"{label} {rate_text(rate)}"}])
        layers.append(line.mark_rule(strokeDash=[5, 4], strokeWidth=1.6, color=style.ink).encode(x=x))
        layers.append(line.mark_text(align="left", dx=5, baseline="top").encode(x=x, y=alt.value(2), text="said:N"))
    chart = alt.layer(*layers).properties(name="fluid", width=560, height=alt.Step(78))
    table = [(c.name, c.estimate.value, c.formula, tag(c.estimate)) for c in found]
    columns = ("rate_optimizer", "rate_ceiling", "rate_rule", "col_tag")
    return Figure(
        name="ceilings",
        title=texts("rate_title"),
        chart=over.finish(chart, style, chrome=170),
        headline=answer.verdicts()[0].sentence(texts.lang),
        reading=texts("rate_reading"),
        not_meaning=texts("rate_not"),
        table=Table(tuple(texts(c) for c in columns), tuple(table)),
        python=redraw("ceilings"),
        texts=texts,
        tags=("estimate",),
        caption=texts("rate_caption"),
    )


def drawn(record: Record) -> tuple[Draw, ...]:
    return (ceilings,) if StepSize(record).course is None else (ceilings, rate_course)


PAGE = Page(StepSize, title, rows, drawn)
