"""Growth of the blocks with the input scale, log-log, fitted slopes beside the paper's exponents."""

from __future__ import annotations

import math
from typing import Any

from ...answers.attention import PARTS, SLOPE_TOLERANCE, AttentionAnswer
from ...answers.numbers import number, times
from ...core.record import Record
from ..figure import Figure, Rows, Table, decades, redraw
from ..style import LIGHT, Style
from ..texts import EN, Texts


def growth(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Norm of every block against the input scale, log-log, with the fitted slopes beside the paper's exponents.

    Source of the exponents: [ODS25]. Grey lines continue the paper's exponent from the start of the fit.
    """
    from ..packages import alt

    read = AttentionAnswer(record)
    scales = read.tensor("scales").double().tolist()
    y_domain = _y_domain(read, scales)
    over = Rows()
    panels = [_growth_panel(over, read, part, scales, y_domain, texts, style) for part in PARTS[1:]]
    chart = over.finish(
        alt.concat(*panels, columns=2),
        style,
        chrome=96 + _key_width(read, texts),
        chrome_narrow=70,
        columns=2,
        narrow=760,
    )
    lo, hi = read.fit_range
    notes = [texts("growth_caption", low=number(lo), high=number(hi))]
    saturated = read.saturates_at()
    if saturated:
        notes.append(texts("growth_saturated", scale=number(saturated)))
    elif read.softmax:
        notes.append(texts("growth_unsaturated"))
    for block in read.blocks:
        mixed = read.paper("functional", block)
        if mixed and mixed.note and read.slope("functional", block) is not None:
            notes.append(texts("growth_mix", block=texts.block(block)))
    rows = []
    for part in PARTS[1:]:
        norms = read.tensor(f"growth_{part}").double().tolist()
        for j, block in enumerate(read.blocks):
            slope, paper = read.slope(part, block), read.paper(part, block)
            head = (
                texts(f"part_{part}"),
                texts.block(block),
                *((slope.value, slope.stderr) if slope else (None, None)),
            )
            rows.append((*head, paper.value if paper else None, *(row[j] for row in norms)))
    keys = ("col_part", "col_block", "col_slope", "col_stderr", "col_paper")
    columns = tuple(texts(k) for k in keys) + tuple(texts("col_at_scale", scale=number(s)) for s in scales)
    return Figure(
        name="growth",
        title=texts("growth_title"),
        chart=chart,
        headline=_growth_headline(read, texts),
        reading=texts("growth_reading"),
        not_meaning=texts("growth_not"),
        table=Table(columns, tuple(rows)),
        python=redraw("growth"),
        texts=texts,
        tags=("exact", "estimate"),
        caption=" ".join(notes),
    )


def _y_domain(read: AttentionAnswer, scales: list[float]) -> list[float]:
    """Powers of ten around every norm below saturation; lines that fall further leave the picture."""
    end = read.saturates_at() or math.inf
    seen = []
    for part in PARTS[1:]:
        for scale, row in zip(scales, read.tensor(f"growth_{part}").double().tolist(), strict=True):
            seen += [v for v in row if v > 0 and (scale <= end or v >= 1)]
    low, high = min(seen, default=0.1), max(seen, default=1.0)
    return [10.0 ** math.floor(math.log10(low) - 0.1), 10.0 ** math.ceil(math.log10(high) + 1.2)]


def _key_width(read: AttentionAnswer, texts: Texts) -> int:
    """Pixels of the key: line, name of the block, slope; the names of a layer with one W_QK are long."""
    return 184 + 7 * max(0, max(len(texts.block(block)) for block in read.blocks) - 11)


def _growth_panel(
    over: Rows, read: AttentionAnswer, part: str, scales: list[float], y_domain: list[float], texts: Texts, style: Style
) -> Any:
    from ..packages import alt

    norms = read.tensor(f"growth_{part}").double().tolist()
    fit_low, fit_high = read.fit_range
    x_domain = [scales[0], scales[-1]]
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", domain=x_domain, nice=False),
        axis=alt.Axis(title=texts("input_scale"), grid=False, labelOverlap="greedy", **decades(*x_domain)),
    )
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(type="log", domain=y_domain, nice=False),
        axis=alt.Axis(title=texts("block_norm"), **decades(*y_domain)),
    )
    lines, guides, samples = [], [], []
    for j, block in sorted(enumerate(read.blocks), key=lambda e: len(set(e[1].split(",")))):
        look = _look(block, style)
        points = [(s, row[j]) for s, row in zip(scales, norms, strict=True) if row[j] > 0]
        paper, slope = read.paper(part, block), read.slope(part, block)
        tip = {texts("col_block"): texts.block(block)}
        lines += [{"x": s, "y": v, "block": block, texts("col_norm"): number(v), **look, **tip} for s, v in points]
        start = next(((s, v) for s, v in points if s >= fit_low * 0.999), None)
        if paper and start:
            for s in (start[0], min(read.saturates_at() or x_domain[1], x_domain[1])):
                guides.append({"x": s, "y": start[1] * (s / start[0]) ** paper.value, "block": block})
        if points:
            fitted = f"{slope.value:.2f}" if slope else "–"
            bracket = f" [{number(paper.value)}]" if paper else ""
            samples.append({"row": j, "text": texts.block(block), "slope": fitted + bracket, **look})
        else:
            samples.append({"row": j, "text": texts.block(block), "slope": texts("exactly_zero"), **look})
    colour = alt.Color("colour:N", scale=None)
    dash = alt.StrokeDash(
        "dash:N", scale=alt.Scale(domain=["own", "query", "key"], range=[[1, 0], [7, 3], [2, 2]]), legend=None
    )
    shape = alt.Shape("shape:N", scale=None)
    bands: list[dict[str, Any]] = [
        {
            "x": max(fit_low, x_domain[0]),
            "x2": min(fit_high, x_domain[1]),
            "colour": style.grid,
            "text": texts("band_fit"),
        }
    ]
    saturated = read.saturates_at()
    if saturated and saturated < x_domain[1]:
        bands.append(
            {
                "x": max(saturated, x_domain[0]),
                "x2": x_domain[1],
                "colour": style.shade,
                "text": texts("band_saturated"),
            }
        )
    band = over([b for b in bands if b["x2"] > b["x"]])
    data = over(lines)
    view = alt.layer(
        band.mark_rect(opacity=0.6).encode(x=x, x2="x2:Q", color=colour),
        over(guides)
        .mark_line(color=style.muted, strokeWidth=1, opacity=0.6, clip=True)
        .encode(x=x, y=y, detail="block:N"),
        data.mark_line(strokeWidth=2, clip=True).encode(x=x, y=y, color=colour, strokeDash=dash, detail="block:N"),
        data.mark_point(filled=True, size=26, opacity=1, clip=True).encode(
            x=x,
            y=y,
            color=colour,
            shape=shape,
            tooltip=[
                alt.Tooltip(f"{texts('col_block')}:N"),
                alt.Tooltip("x:Q", title=texts("input_scale"), format=".3g"),
                alt.Tooltip(f"{texts('col_norm')}:N"),
            ],
        ),
        band.mark_text(align="left", baseline="top", dx=3, dy=3, fontSize=11).encode(
            x=x, y=alt.value(0), text="text:N"
        ),
    ).properties(name=f"fluid_{part}", width=300, height=320)
    key = over(samples).encode(
        y=alt.Y("row:Q", axis=None, scale=alt.Scale(domain=[len(samples) - 0.5, -0.5], nice=False))
    )
    wide = _key_width(read, texts)
    at = alt.Scale(domain=[0, wide], nice=False, zero=False)
    legend = alt.layer(
        key.mark_rule(strokeWidth=2).encode(
            x=alt.XDatum(0, axis=None, scale=at), x2=alt.X2Datum(26), color=colour, strokeDash=dash
        ),
        key.mark_point(filled=True, size=36, opacity=1).encode(x=alt.XDatum(13), color=colour, shape=shape),
        key.mark_text(align="left").encode(x=alt.XDatum(33), text="text:N"),
        key.mark_text(align="right", fontWeight="bold").encode(x=alt.XDatum(wide - 2), text="slope:N"),
    ).properties(
        width=wide,
        height=22 * len(samples),
        title=alt.TitleParams(texts("slope_key"), fontSize=12, fontWeight="normal"),
    )
    return alt.concat(view, legend, columns=2, spacing=12).properties(title=texts(f"part_{part}_title"))


def _look(block: str, style: Style) -> dict[str, str]:
    """Colour of the row's parameter; dash and symbol tell the column's."""
    row, col = block.split(",")
    way = "own" if row == col else "key" if col.endswith("K") and not col.endswith("QK") else "query"
    return {
        "colour": style.of(row),
        "dash": way,
        "shape": {"own": "circle", "key": "triangle-up", "query": "square"}[way],
    }


def _growth_headline(read: AttentionAnswer, texts: Texts) -> str:
    known = {block: read.slope("outer", block) for block in read.blocks}
    slopes = {block: e.value for block, e in known.items() if e is not None}
    if not slopes:
        return texts("growth_head_none")
    steep, flat = max(slopes, key=slopes.__getitem__), min(slopes, key=slopes.__getitem__)
    more, less = times(2 ** slopes[steep]), times(2 ** slopes[flat])
    if slopes[steep] - slopes[flat] <= SLOPE_TOLERANCE:
        said = texts("growth_head_same", more=more)
    else:
        names = (texts.block(block) for block in (steep, flat))
        said = texts("growth_head", more=more, less=less, **dict(zip(("steep", "flat"), names, strict=True)))
    gaps = read.slope_gaps()
    if not gaps:
        return said
    worst = max(gaps, key=gaps.__getitem__)
    if gaps[worst] <= SLOPE_TOLERANCE:
        return said + " " + texts("growth_head_agree", count=len(gaps), gap=number(gaps[worst], 1))
    part, block = worst.split("/", 1)
    off = sum(g > SLOPE_TOLERANCE for g in gaps.values())
    return (
        said
        + " "
        + texts(
            "growth_head_differ",
            count=off,
            all=len(gaps),
            tolerance=SLOPE_TOLERANCE,
            block=f"{texts.block(block)} ({texts('part_' + part)})",
            gap=number(gaps[worst], 2),
        )
    )
