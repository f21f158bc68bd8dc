"""The figures of an attention record, each a function Record -> Figure; spectrum and block bars are drawn here.

The widths given here are those of an exported picture. In the report a view whose name starts with `fluid` takes the
width of the page, less `usermeta.chrome` pixels for axes and legends, and below `usermeta.narrow` pixels every grid has
one column.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...answers.attention import PARTS, AttentionAnswer
from ...answers.numbers import number, percent, power, times
from ...core.record import Record
from ..figure import Figure, Rows, Table, decades, redraw
from ..style import LIGHT, Style
from ..texts import EN, Texts
from .heat import heat_map
from .moments import moments
from .slopes import growth

#: Bins of the spectrum's histogram, over the whole symlog axis.
BINS = 72
#: Eigenvalues more than this many decades below the largest share the linear part of the axis.
SYMLOG_DECADES = 5
#: Either side of 0 has at least this share of the length of the other.
LEAST_SIDE = 0.55
#: Bars get a log axis when the smallest that is not zero is below this share of the largest.
LINEAR_DOWN_TO = 0.02
#: A log axis does not reach further down than this share of the largest: below it is round-off.
ROUND_OFF = 1e-16


def drawn(record: Record) -> tuple[Callable[..., Figure], ...]:
    """The figures this record has the data for, in the order of the report."""
    read = AttentionAnswer(record)
    return (heat_map, spectrum, blocks, *((growth,) if read.varied else ()), *((moments,) if read.has_moments else ()))


# --- spectrum -------------------------------------------------------------------------------------------------------
def spectrum(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """All eigenvalues of H, H_o and H_f on one symmetric-log axis: bars count them, ticks are single eigenvalues.

    An eigenvalue below P eps max|lambda| counts as zero and is told in words, not in the bars.
    """
    from ..packages import alt

    read = AttentionAnswer(record)
    values = {part: read.eigenvalues(part).double().tolist() for part in PARTS}
    low, high = min(min(v) for v in values.values()), max(max(v) for v in values.values())
    reach = max(abs(low), abs(high)) or 1.0
    linear = 10.0 ** math.floor(math.log10(reach) - SYMLOG_DECADES)
    domain = _symlog_domain(low * 1.5, high * 1.5, linear)
    scale = alt.Scale(type="symlog", constant=linear, domain=domain, nice=False)
    marks, label = _symlog_axis(domain, linear)
    x = alt.X(
        "x:Q",
        scale=scale,
        axis=alt.Axis(
            values=marks, labelExpr=label, title=texts("eigenvalue"), labelOverlap="greedy", labelSeparation=8
        ),
    )
    y = alt.Y("y:Q", scale=alt.Scale(domain=[3, 0], nice=False), axis=None)
    over = Rows()
    bars, ticks, names, words, zeros = [], [], [], [], []
    for row, part in enumerate(PARTS):
        tolerance = read.zero_tolerance(part)
        kept = [v for v in values[part] if abs(v) > tolerance]
        counts = _histogram(kept, domain, linear)
        most = max((n for _, _, n in counts), default=1)
        for a, b, n in counts:
            bars.append({"x": a, "x2": b, "y": row + 0.86 - 0.5 * n / most, "y2": row + 0.86, "n": n, "part": part})
        ticks += [{"x": v, "y": row + 0.88, "y2": row + 0.97, texts("eigenvalue"): number(v, 4)} for v in kept]
        flat = len(values[part]) - len(kept)
        negative = sum(v < 0 for v in kept)
        names.append({"y": row + 0.12, "text": texts(f"part_{part}_title")})
        sides = (("left", domain[0], negative), ("middle", 0, flat), ("right", domain[1], len(kept) - negative))
        for side, at, count in sides:
            words.append({"x": at, "y": row + 0.27, "at": side, "text": texts(f"spectrum_{side}", count=f"{count:,}")})
        if flat:
            zeros.append({"x": 0, "y": row + 0.33, "y2": row + 0.97})
    shade = over([{"x": domain[0], "x2": 0, "y": 0, "y2": 3}])
    lines = over([{"y": row} for row in (1, 2)])
    layers = [
        shade.mark_rect(color=style.shade, opacity=0.55).encode(x=x, x2="x2:Q", y=y, y2="y2:Q"),
        lines.mark_rule(color=style.grid).encode(y=y),
        over(zeros).mark_rule(color=style.muted, strokeDash=[3, 3], strokeWidth=1.5).encode(x=x, y=y, y2="y2:Q"),
        over(bars)
        .mark_rect(stroke=style.paper, strokeWidth=0.5)
        .encode(
            x=x,
            x2="x2:Q",
            y=y,
            y2="y2:Q",
            color=alt.condition("datum.x2 <= 0", alt.value(style.signed(-1)), alt.value(style.signed(1))),
            tooltip=[alt.Tooltip("n:Q", title=texts("count"))],
        ),
        over(ticks)
        .mark_rule(color=style.ink, strokeWidth=1, opacity=0.6)
        .encode(x=x, y=y, y2="y2:Q", tooltip=alt.Tooltip(f"{texts('eigenvalue')}:N")),
        over(names)
        .mark_text(align="left", baseline="middle", dx=6, fontWeight="bold")
        .encode(x=alt.value(0), y=y, text="text:N"),
        *(
            over([w for w in words if w["at"] == side])
            .mark_text(align=align, baseline="middle", dx=dx)
            .encode(x=x, y=y, text="text:N")
            for side, align, dx in (("left", "left", 6), ("middle", "center", 0), ("right", "right", -6))
        ),
    ]
    chart = alt.layer(*layers).properties(name="fluid", width=640, height=390)
    rows = tuple(zip(range(1, len(values["total"]) + 1), *(values[part] for part in PARTS), strict=True))
    return Figure(
        name="spectrum",
        title=texts("spectrum_title"),
        chart=over.finish(chart, style, chrome=24),
        headline=_spectrum_headline(read, texts),
        reading=texts("spectrum_reading"),
        not_meaning=texts("spectrum_not"),
        table=Table((texts("col_rank"), *(texts(f"part_{part}") for part in PARTS)), rows),
        python=redraw("spectrum"),
        texts=texts,
        caption=texts("spectrum_caption", linear=number(linear), tolerance=number(read.zero_tolerance("total"), 2)),
    )


def _spectrum_headline(read: AttentionAnswer, texts: Texts) -> str:
    lam = read.eigenvalues("total").double()
    low, high, share = float(lam[0]), float(lam[-1]), read.scalar("negative_share").value
    low = 0.0 if abs(low) <= read.zero_tolerance("total") else low
    said = {"count": f"{len(lam):,}", "high": number(high), "low": number(low), "share": percent(share)}
    if share == 0:
        return texts("spectrum_head_up", **said)
    if high <= 0:
        return texts("spectrum_head_down", **said)
    return texts(
        "spectrum_head_mixed", ratio=percent(-low / high) if -low <= high else times(-low / high) + "×", **said
    )


def _symlog_domain(low: float, high: float, linear: float) -> list[float]:
    """[low, high] widened until 0 stands in the middle third of the axis or near it: words need room on both sides."""
    a, b = -_symlog(min(low, -2 * linear), linear), _symlog(max(high, 2 * linear), linear)
    a, b = max(a, LEAST_SIDE * b), max(b, LEAST_SIDE * a)
    return [-linear * math.expm1(a), linear * math.expm1(b)]


def _symlog(v: float, linear: float) -> float:
    return math.copysign(math.log1p(abs(v) / linear), v)


def _histogram(values: list[float], domain: list[float], linear: float) -> list[tuple[float, float, int]]:
    """(from, to, count) of equal bins of the symlog axis with an edge at 0; empty bins left out."""
    a, b = (_symlog(v, linear) for v in domain)
    width = (b - a) / BINS
    counts: dict[int, int] = {}
    for v in values:
        counts[math.floor(_symlog(v, linear) / width)] = counts.get(math.floor(_symlog(v, linear) / width), 0) + 1

    def back(u: float) -> float:
        return math.copysign(linear * math.expm1(abs(u)), u)

    return [(back(i * width), back((i + 1) * width), n) for i, n in sorted(counts.items())]


def _symlog_axis(domain: list[float], linear: float) -> tuple[list[float], str]:
    """Tick values at 0 and at powers of ten, and the Vega expression that writes them."""
    first = round(math.log10(linear)) + 1
    values, names = [0.0], ["datum.value == 0 ? '0'"]
    for exponent in range(first, first + SYMLOG_DECADES + 2):
        for sign, mark in ((1, ""), (-1, "−")):
            v = sign * 10.0**exponent
            if domain[0] <= v <= domain[1]:
                values.append(v)
                names.append(
                    f"abs(datum.value - {v!r}) < {abs(v) / 10!r} ? '{mark}{power(exponent) if exponent else 1}'"
                )
    return sorted(values), " : ".join(names) + " : ''"


# --- blocks ---------------------------------------------------------------------------------------------------------
def blocks(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """The Frobenius norm of the outer (Gauss-Newton) and the functional part of every block, side by side."""
    from ..packages import alt

    read = AttentionAnswer(record)
    norms = {(part, b): read.norm(part, b) for part in ("outer", "functional") for b in read.blocks}
    present = [v for v in norms.values() if v > 0] or [1.0]
    log = min(present) < LINEAR_DOWN_TO * max(present)
    floor = 10.0 ** math.floor(math.log10(max(min(present), max(present) * ROUND_OFF)) - 0.3) if log else 0.0
    roof = max(present) * (10 ** (0.18 * math.log10(max(present) / floor)) if log else 1.2)
    rows = []
    for (part, block), v in norms.items():
        rows.append(
            {
                "block": texts.block(block),
                "part": texts(f"part_{part}"),
                "which": part,
                "norm": max(v, floor),
                "floor": floor,
                "text": number(v) if v else texts("exactly_zero"),
            }
        )
    order = [texts.block(b) for b in read.blocks]
    y = alt.Y("block:N", sort=order, axis=alt.Axis(title=None, domain=False, ticks=False, labelFontWeight="bold"))
    offset = alt.YOffset("part:N", sort=[texts("part_outer"), texts("part_functional")])
    scale = alt.Scale(type="log" if log else "linear", domain=[floor, roof], nice=False)
    x = alt.X(
        "norm:Q",
        scale=scale,
        axis=alt.Axis(title=texts("block_norm"), **(decades(floor, roof) if log else {"tickCount": 5})),
    )
    over = Rows()
    base = over(rows).encode(y=y, yOffset=offset)
    parts = alt.Scale(domain=[texts("part_outer"), texts("part_functional")], range=[style.ink, style.paper])
    bars = base.mark_bar(stroke=style.ink, strokeWidth=1.5, height={"band": 0.86}).encode(
        x=x,
        x2="floor:Q",
        fill=alt.Fill(
            "part:N",
            scale=parts,
            legend=alt.Legend(
                title=None, orient="top", symbolStrokeColor=style.ink, symbolStrokeWidth=1.5, symbolType="square"
            ),
        ),
        tooltip=[
            alt.Tooltip("block:N", title=texts("col_block")),
            alt.Tooltip("part:N", title=texts("col_part")),
            alt.Tooltip("text:N", title=texts("col_norm")),
        ],
    )
    words = base.mark_text(align="left", dx=5).encode(x=x, text="text:N")
    chart = alt.layer(bars, words).properties(name="fluid", width=560, height=50 * len(order))
    table = tuple(
        (
            texts.block(b),
            norms["outer", b],
            norms["functional", b],
            read.norm("total", b),
            norms["functional", b] / norms["outer", b] if norms["outer", b] else None,
        )
        for b in read.blocks
    )
    keys = ("col_block", "part_outer", "part_functional", "part_total", "col_ratio")
    return Figure(
        name="blocks",
        title=texts("blocks_title"),
        chart=over.finish(chart, style, chrome=130),
        headline=_blocks_headline(read, norms, texts),
        reading=texts("blocks_reading"),
        not_meaning=texts("blocks_not"),
        table=Table(tuple(texts(k) for k in keys), table),
        python=redraw("blocks"),
        texts=texts,
        caption=texts("blocks_caption_log", floor=number(floor)) if log else texts("blocks_caption"),
    )


def _blocks_headline(read: AttentionAnswer, norms: dict[tuple[str, str], float], texts: Texts) -> str:
    least = ROUND_OFF * max(norms.values())
    leads = [b for b in read.blocks if norms["functional", b] > max(norms["outer", b], least)]
    if leads:
        names = ", ".join(texts.block(b) for b in leads)
        return texts("blocks_head_functional", count=len(leads), all=len(read.blocks), blocks=names)
    if not any(norms.values()):
        return texts("blocks_head_zero")
    if all(norms["functional", b] <= least for b in read.blocks):
        exact = not any(norms["functional", b] for b in read.blocks)
        return texts("blocks_head_none" if exact else "blocks_head_round_off")
    ratio, block = max(
        (norms["functional", b] / norms["outer", b], b) for b in read.blocks if norms["outer", b] > least
    )
    return texts("blocks_head_outer", share=percent(ratio), block=texts.block(block))
