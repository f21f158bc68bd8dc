"""Records of kind `precond`: the ends of P^-1/2 H P^-1/2 on one axis, the predicted fall as bars, and how eigenvalues
fall off from the largest."""

from __future__ import annotations

from typing import Any

from ..answers.numbers import number, short_name
from ..answers.precond import Precond, called
from ..core.record import Record
from .figure import Figure, Rows, Table, decades, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts


def metric_ends(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Both ends by size for each preconditioner, and by how much its best step lowers the quadratic model."""
    from .packages import alt

    answer, over = Precond(record), Rows()
    order = [called(x.name)(texts) for x in answer.seen]
    points: list[dict[str, Any]] = []
    lines, bars = [], []
    for x in answer.seen:
        name, ends = called(x.name)(texts), (abs(x.bottom.value), abs(x.top.value))
        low = "precond_low" if x.bottom.value > 0 else "precond_below"
        pairs = zip(ends, (low, "precond_top"), strict=True)
        points += [{"P": name, "size": size, "which": texts(key)} for size, key in pairs if size > 0]
        if min(ends) > 0:
            lines.append({"P": name, "from": min(ends), "to": max(ends)})
        if x.decrease is not None:
            bars.append({"P": name, "fall": x.decrease.value, "low": x.falls[0], "high": x.falls[-1], "holds": x.holds})
            bars[-1] |= {} if x.measured is None else {"measured": x.measured}
    sizes = [point["size"] for point in points]
    Y = alt.Y("P:N", sort=order, axis=alt.Axis(title=None))
    scale = alt.Scale(type="log", domain=[min(sizes) / 2, max(sizes) * 2], nice=False)
    axis = alt.Axis(title=texts("precond_ends"), **decades(min(sizes) / 2, max(sizes) * 2))
    keys = [texts(key) for key in ("precond_top", "precond_low", "precond_below")]
    colour = alt.Color(
        "which:N",
        scale=alt.Scale(domain=keys, range=[style.ink, style.signed(1), style.signed(-1)]),
        legend=alt.Legend(title=None, orient="bottom"),
    )
    left = alt.layer(
        over(lines).mark_rule(color=style.muted).encode(y=Y, x=alt.X("from:Q", scale=scale, axis=axis), x2="to:Q"),
        over(points)
        .mark_circle(size=70, opacity=1)
        .encode(y=Y, x=alt.X("size:Q", scale=scale, axis=axis), color=colour),
    ).properties(width=300, height=26 * len(order) + 20)
    Y = alt.Y("P:N", sort=order, scale=alt.Scale(domain=order), axis=alt.Axis(title=None, labels=False))
    axis = alt.Axis(title=texts("precond_fall"), tickCount=4, format="~g")
    base = over(bars)
    right = alt.layer(
        base.mark_bar(color=style.signed(1)).encode(
            y=Y, x=alt.X("fall:Q", axis=axis), opacity=alt.condition("datum.holds", alt.value(1), alt.value(0.3))
        ),
        base.mark_rule(color=style.ink).encode(y=Y, x=alt.X("low:Q", axis=axis), x2="high:Q"),
        base.mark_point(color=style.ink, filled=True, size=45, opacity=1).encode(y=Y, x=alt.X("measured:Q", axis=axis)),
    ).properties(width=240, height=26 * len(order) + 20)
    return Figure(
        name="precond",
        title=texts("precond_title"),
        chart=over.finish(alt.hconcat(left, right), style),
        headline=answer.said(texts.lang),
        reading=texts("precond_reading"),
        not_meaning=texts("precond_not"),
        table=Table(answer.table().columns, answer.table().rows),
        python=redraw("metric_ends"),
        texts=texts,
        tags=("estimate",),
    )


def metric_shares(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Which share of the eigenvalues reaches a given part of the largest, for each preconditioner."""
    from .packages import alt

    answer, over = Precond(record), Rows()
    names = {x.name: called(x.name)(texts) for x in answer.seen}
    found = [(name, x, share, error) for name in names for x, share, error in answer.shares(name)]
    rows = [{"P": names[name], "part": x, "share": share} for name, x, share, _ in found if share > 0]
    low = min(share for _, _, share, _ in found if share > 0)
    shown, dashes = list(names.values()), ([1, 0], [7, 3], [2, 2], [8, 2, 2, 2], [4, 4])
    key: dict[str, Any] = {"sort": shown, "title": None, "legend": alt.Legend(symbolType="stroke", symbolSize=300)}
    colour = alt.Color("P:N", scale=alt.Scale(domain=shown, scheme="tableau10"), **key)
    strokes = [dashes[i % len(dashes)] for i in range(len(shown))]
    dash = alt.StrokeDash("P:N", scale=alt.Scale(domain=shown, range=strokes), **key)
    chart = (
        over(rows)
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X(
                "part:Q",
                scale=alt.Scale(type="log", domain=[1e-6, 1], nice=False),
                axis=alt.Axis(title=texts("precond_part"), **decades(1e-6, 1)),
            ),
            y=alt.Y(
                "share:Q",
                scale=alt.Scale(type="log", domain=[low / 1.5, 1.2], nice=False),
                axis=alt.Axis(title=texts("precond_share"), **decades(low / 1.5, 1.2)),
            ),
            color=colour,
            strokeDash=dash,
        )
        .properties(width=460, height=260)
    )
    return Figure(
        name="precond-shares",
        title=texts("precond_shares_title"),
        chart=over.finish(chart, style),
        headline=answer.roundest_said(texts.lang),
        reading=texts("precond_shares_reading"),
        not_meaning=texts("precond_shares_not"),
        table=Table(("preconditioner", "part of |lambda_max|", "share of eigenvalues", "standard error"), tuple(found)),
        python=redraw("metric_shares"),
        texts=texts,
        tags=("estimate",),
    )


def title(record: Record, texts: Texts) -> str:
    return texts("record_precond", name=short_name(Precond(record).model))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer, group, found = Precond(record), texts("precond_title"), []
    for x in answer.seen:
        name = called(x.name)(texts)
        ends = f"{number(x.bottom.value)} ... {number(x.top.value)}"
        found.append(Row(group, texts("precond_row", name=name), ends, tag(x.top)))
        if x.decrease is not None:
            shown = estimate("fall", x.decrease)
            found.append(Row(group, texts("precond_fall_row", name=name), shown, tag(x.decrease)))
    found += [Row(group, texts("precond_refused", name=called(n)(texts)), why) for n, why in answer.refused.items()]
    return tuple(found)


def figures(record: Record) -> tuple[Draw, ...]:
    return (metric_ends, metric_shares) if Precond(record).seen else ()


PAGE = Page(Precond, title, rows, figures)
