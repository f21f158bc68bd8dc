"""Records of kind `monitor`: learning rate and ceiling, eigenvalues and attention along a training run."""

from __future__ import annotations

import math
from typing import Any

from ..answers.monitor import MonitorAnswer
from ..answers.numbers import number, percent
from ..core.record import Record
from .figure import Figure, Rows, Table, decades, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts


def title(record: Record, texts: Texts) -> str:
    return texts("record_monitor", name=MonitorAnswer(record).model)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer, group = MonitorAnswer(record), texts("group_setting")
    told = [
        Row(group, texts("monitor_model"), f"{answer.model}: {answer.coverage}"),
        Row(group, texts("monitor_rule"), answer.rule or "-"),
        Row(group, texts("monitor_steps"), f"{answer.steps:,}"),
        Row(group, texts("monitor_share"), percent(answer.share)),
    ]
    for name, e in answer.numbers.items():
        told.append(Row(texts("group_numbers"), texts(f"monitor_{name}"), estimate(name, e), tag(e)))
    told += [Row(texts("group_checks"), texts("monitor_warning"), line, "estimate") for line in answer.warnings]
    return tuple(told)


def monitored(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """The learning rate and its ceiling over the steps, below them lambda_max of H and of P^-1 H."""
    from .packages import alt

    answer, over = MonitorAnswer(record), Rows()
    panels = [("lr", "ceiling"), ("lambda_max", "lambda_P")]
    views = [v for names in panels if (v := _curves(answer, over, names, texts, style)) is not None]
    table = answer.table()
    return Figure(
        name="monitor",
        title=texts("monitor_title"),
        chart=over.finish(
            alt.vconcat(*views).resolve_scale(color="independent", strokeDash="independent"), style, chrome=80
        ),
        headline=answer.said(texts.lang),
        reading=texts("monitor_reading"),
        not_meaning=texts("monitor_not"),
        table=Table(table.columns, table.rows),
        python=redraw("monitored"),
        texts=texts,
        tags=("estimate",),
    )


def _curves(answer: MonitorAnswer, over: Rows, names: tuple[str, str], texts: Texts, style: Style) -> Any:
    """Two courses on one logarithmic axis; None where nothing of them is positive."""
    from .packages import alt

    labels = [texts(f"monitor_{n}") for n in names]
    points = [
        {"step": s, "value": v, "which": label, "shown": number(v)}
        for name, label in zip(names, labels, strict=True)
        for s, v in zip(answer.step.tolist(), _values(answer, name), strict=True)
        if v > 0
    ]
    if not points:
        return None
    low, high = (f(p["value"] for p in points) for f in (min, max))
    low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    x = alt.X("step:Q", axis=alt.Axis(title=texts("monitor_step")), scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("value:Q", axis=alt.Axis(title=None, **decades(low, high)), scale=scale)
    colours = alt.Scale(domain=labels, range=[style.query, style.key])
    colour = alt.Color("which:N", scale=colours, legend=alt.Legend(title=None, orient="top"))
    dash = alt.StrokeDash("which:N", scale=alt.Scale(domain=labels, range=[[1, 0], [5, 3]]), legend=None)
    line = over(points)
    drawn = [
        line.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash),
        line.mark_circle(size=24).encode(x=x, y=y, color=colour, tooltip=["step:Q", "which:N", "shown:N"]),
    ]
    return alt.layer(*drawn).properties(name=f"fluid_{names[0]}", width=560, height=170)


def _values(answer: MonitorAnswer, name: str) -> list[float]:
    found = answer.course(name)
    return [math.nan] * len(answer.step) if found is None else found.tolist()


def attention_course(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Largest logit, entropy and |W_Q W_K^T| over the steps: one line a layer, its most extreme head."""
    from .packages import alt

    answer, over = MonitorAnswer(record), Rows()
    views, cells = [], []
    for name in ("logits", "entropy", "qk"):
        by_head = answer.heads(name)
        if by_head is None:
            continue
        fill = math.inf if name == "entropy" else -math.inf
        known = by_head.nan_to_num(nan=fill)
        by_layer = known.amin(-1) if name == "entropy" else known.amax(-1)
        points = [
            {"step": s, "value": float(v), "layer": layer}
            for s, row in zip(answer.step.tolist(), by_layer, strict=True)
            for layer, v in enumerate(row)
        ]
        cells += [(int(p["step"]), texts(f"monitor_{name}"), p["layer"], p["value"]) for p in points]
        layers = by_layer.shape[1]
        x = alt.X("step:Q", axis=alt.Axis(title=texts("monitor_step")), scale=alt.Scale(zero=False, nice=False))
        y = alt.Y("value:Q", axis=alt.Axis(title=texts(f"monitor_{name}")), scale=alt.Scale(zero=False))
        colours = alt.Scale(domain=list(range(layers)), range=style.ramp(1, 2 * layers)[layers:])
        colour = alt.Color("layer:O", scale=colours, legend=alt.Legend(title=texts("monitor_layer"), orient="right"))
        chart = over(points).mark_line(strokeWidth=1.8, point=True)
        chart = chart.encode(x=x, y=y, color=colour, tooltip=["step:Q", "layer:O", "value:Q"])
        views.append(chart.properties(name=f"fluid_{name}", width=520, height=150))
    return Figure(
        name="monitor-attention",
        title=texts("monitor_attention_title"),
        chart=over.finish(alt.vconcat(*views), style, chrome=120),
        headline=_headline(answer, texts),
        reading=texts("monitor_attention_reading"),
        not_meaning=texts("monitor_attention_not"),
        table=Table(tuple(texts(f"monitor_{n}") for n in ("step", "what", "layer", "value")), tuple(cells)),
        python=redraw("attention_course"),
        texts=texts,
        tags=("exact",),
    )


def _headline(answer: MonitorAnswer, texts: Texts) -> str:
    said = []
    for name in ("largest_logit", "smallest_entropy", "largest_qk"):
        course = answer.course(name)
        if course is not None:
            first, last = number(float(course[0])), number(float(course[-1]))
            said.append(texts(f"monitor_head_{name}", first=first, last=last))
    return " ".join(said)


def figures(record: Record) -> tuple[Draw, ...]:
    answer = MonitorAnswer(record)
    seen = any(answer.heads(name) is not None for name in ("logits", "entropy", "qk"))
    return (monitored, attention_course) if seen else (monitored,)


PAGE = Page(MonitorAnswer, title, rows, figures)
