"""Singular values of Jacobians in a signal record: how far blocks and stacks are from an isometry."""

from __future__ import annotations

import math

from ..answers.numbers import number
from ..answers.signal import Signal
from ..core.record import Record
from .depth import look_of
from .figure import Figure, Rows, Table, decades, redraw
from .style import LIGHT, Style
from .texts import EN, Texts


def jacobians(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Singular values of the Jacobian of blocks and of the stack: range, middle half and median on a log axis."""
    from .packages import alt

    rows, table, found = [], [], Signal(record).curves
    for i, curve in enumerate(found):
        for name, (levels, (*_, square)) in curve.jacobians.items():
            floor = max(levels[-1] * 1e-6, 1e-12)
            at = dict(
                zip(("least", "p5", "p25", "p50", "p75", "p95", "most"), [max(v, floor) for v in levels], strict=True)
            )
            rows.append(
                {"name": f"{curve.label}: {_jacobian_name(str(name), texts)}", **at, **look_of(found, i, style)}
            )
            table.append((curve.label, _jacobian_name(str(name), texts), *levels, square.value, square.kind))
    over = Rows()
    data = over(rows)
    values = [r[k] for r in rows for k in ("least", "most")]
    domain = [10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values) * 1.01))]
    scale = alt.Scale(type="log", domain=domain, nice=False)
    axis = alt.Axis(title=texts("singular_value"), **decades(*domain))
    y = alt.Y("name:N", sort=None, axis=alt.Axis(title=None, labelLimit=260, ticks=False, domain=False))
    colour = alt.Color("colour:N", scale=None)
    chart = alt.layer(
        over([{"x": 1.0}]).mark_rule(strokeDash=[2, 4], color=style.muted).encode(x=alt.X("x:Q", scale=scale)),
        data.mark_rule(strokeWidth=1.2).encode(
            x=alt.X("least:Q", scale=scale, axis=axis), x2="most:Q", y=y, color=colour
        ),
        data.mark_bar(height=9, opacity=0.85).encode(x=alt.X("p25:Q", scale=scale), x2="p75:Q", y=y, color=colour),
        data.mark_tick(thickness=2, height=15, color=style.ink).encode(x=alt.X("p50:Q", scale=scale), y=y),
    ).properties(name="fluid_jacobian", width=520, height=alt.Step(24))
    whole = max((r for r in rows), key=lambda r: abs(math.log(r["p50"])))
    keys = ("col_curve", "col_part", *(f"level_{k}" for k in ("least", "p5", "p25", "p50", "p75", "p95", "most")))
    exact = all(square.kind == "exact" for c in found for _, (*_, square) in c.jacobians.values())
    return Figure(
        name="jacobians",
        title=texts("jacobian_title"),
        chart=over.finish(chart, style, chrome=320, narrow=560, chrome_narrow=200),
        headline=texts("jacobian_head", name=whole["name"], median=number(whole["p50"]), most=number(whole["most"])),
        reading=texts("jacobian_reading"),
        not_meaning=texts("jacobian_not"),
        table=Table((*(texts(k) for k in keys), texts("mean_square"), texts("col_tag")), tuple(table)),
        python=redraw("jacobians"),
        texts=texts,
        tags=("exact",) if exact else ("estimate", "bound"),
        caption=texts("jacobian_exact" if exact else "jacobian_estimate"),
    )


def _jacobian_name(name: str, texts: Texts) -> str:
    return texts("jacobian_stack") if name == "stack" else texts("jacobian_block", number=name.removeprefix("block "))
