"""Records of kind `spectrum`: density with extreme eigenvalues, block map, norms of all pairs; verdict and rows."""

from __future__ import annotations

import math
from typing import Any

from ..answers.numbers import number, percent, power, share_with_error, short_name, times
from ..answers.spectrum import Spectrum
from ..answers.spectrum_parts import Block
from ..core.errors import InputError
from ..core.memory import in_words
from ..core.record import Estimate, Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts, language
from .where import PAIRS_UP_TO, SHADES, extremes, where_figures

#: Decades the colours of a map span at least: blocks that are alike look alike.
_DECADES = 1.5
#: Numbers are written into a map of pairs with at most this many rows.
_WRITTEN_UP_TO = 9


# --- density --------------------------------------------------------------------------------------------------------
def density_curve(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """The density of all eigenvalues on a symmetric-log axis with its error band, extreme eigenvalues as ticks."""
    from .packages import alt

    over, answer = Rows(), Spectrum(record)
    curve = answer.density
    if curve is None:
        raise InputError("this spectrum has no density; measure it with density=True.")
    linear = curve.linear
    u, y, s, x = (t.tolist() for t in (curve.u, curve.density, curve.stderr, curve.x))
    ticks = [(e, *_on_axis(e, linear)) for _, e in extremes(answer)]
    low, high = min(u[0], *(a for _, a, _ in ticks)), max(u[-1], *(a for _, a, _ in ticks))
    roof = 1.08 * max(a + b for a, b in zip(y, s, strict=True))
    marks, label = _axis(low, high, linear)
    axis = alt.Axis(
        values=marks, labelExpr=label, title=texts("eigenvalue"), grid=False, labelOverlap="greedy", labelSeparation=6
    )
    X = alt.X("u:Q", scale=alt.Scale(domain=[low - 0.3, high + 0.3], nice=False), axis=axis)
    scale = alt.Scale(domain=[-0.12 * roof, roof], nice=False)
    Y = alt.Y("y:Q", scale=scale, axis=alt.Axis(title=texts("density_axis"), values=[0], labels=False, grid=False))
    line = [
        {"u": a, "y": b, "low": max(b - c, 0), "high": b + c, texts("eigenvalue"): number(d), "value": number(b)}
        for a, b, c, d in zip(u, y, s, x, strict=True)
    ]
    rules = [
        {"u": a, "y": 0, "y2": -0.1 * roof, texts("eigenvalue"): f"{number(e.value, 4)} {said}"} for e, a, said in ticks
    ]
    bulk = over(line)
    layers = [
        over([{"u": low - 0.3, "u2": 0, "y": -0.12 * roof, "y2": roof}])
        .mark_rect(color=style.shade, opacity=0.55)
        .encode(x=X, x2="u2:Q", y=Y, y2="y2:Q"),
        bulk.mark_area(color=style.signed(1), opacity=0.25).encode(x=X, y=Y),
        bulk.mark_area(color=style.signed(1), opacity=0.35).encode(x=X, y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        bulk.mark_line(color=style.signed(1), strokeWidth=1.8).encode(
            x=X,
            y=Y,
            tooltip=[f"{texts('eigenvalue')}:N", alt.Tooltip("value:N", title=texts("density_band"))],
        ),
        over([{"y": 0}]).mark_rule(color=style.muted).encode(y=Y),
        over(rules)
        .mark_rule(color=style.ink, strokeWidth=2)
        .encode(x=X, y=Y, y2="y2:Q", tooltip=f"{texts('eigenvalue')}:N"),
    ]
    chart = alt.layer(*layers).properties(name="fluid", width=640, height=260)
    rows = [(a, b, c) for a, b, c in zip(x, y, s, strict=True)]
    return Figure(
        name="density",
        title=texts("density_title"),
        chart=over.finish(chart, style, chrome=40),
        headline=_density_headline(answer, texts),
        reading=texts("density_reading"),
        not_meaning=texts("density_not"),
        table=Table((texts("eigenvalue"), texts("density_band"), texts("col_stderr")), tuple(rows)),
        python=redraw("density_curve"),
        texts=texts,
        tags=("estimate",),
        caption=texts("density_caption", linear=number(linear, 2)),
    )


def _density_headline(answer: Spectrum, texts: Texts) -> str:
    typical, e = answer.rms.value, answer.negative_curvature
    largest = max((abs(e.value) for e in (*answer.top, *answer.bottom)), default=0.0)
    return texts(
        "density_head",
        share="–" if e is None else share_with_error(e),
        count=f"{answer.parameters:,}",
        ratio=times(largest / typical) if typical else "∞",
    )


def _on_axis(e: Estimate, linear: float) -> tuple[float, str]:
    said = f"± {number(e.error, 1)}" if e.error else ""
    return math.asinh(e.value / linear), said


def _axis(low: float, high: float, linear: float) -> tuple[list[float], str]:
    """Ticks at 0 and at powers of ten beyond the linear part, and the Vega expression that writes them."""
    values, names = [0.0], ["abs(datum.value) < 1e-9 ? '0'"]
    first = math.ceil(math.log10(linear))
    last = math.ceil(math.log10(linear * math.sinh(max(abs(low), abs(high)) + 0.3) or linear))
    step = max(1, (last - first + 1) // 5)
    for exponent in range(first, last + 1, step):
        for sign, mark in ((1, ""), (-1, "−")):
            u = math.asinh(sign * 10.0**exponent / linear)
            if low - 0.3 <= u <= high + 0.3:
                values.append(u)
                names.append(f"abs(datum.value - ({u!r})) < 1e-6 ? '{mark}{power(exponent) if exponent else 1}'")
    return sorted(values), " : ".join(names) + " : ''"


# --- blocks ---------------------------------------------------------------------------------------------------------
def block_map(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Layers against matrices: the root mean square eigenvalue of each diagonal block, as a number and a colour."""
    from .packages import alt

    over, blocks = Rows(), Spectrum(record).diagonal
    rms = [b.rms for b in blocks]
    shade = _shades(rms, style)
    parts = list(dict.fromkeys(texts.parameter(b.part) for b in blocks))
    layers = list(dict.fromkeys(b.layer for b in blocks))
    rows = [
        {
            "layer": b.layer,
            "part": texts.parameter(b.part),
            "text": number(b.rms, 2),
            texts("map_size"): number(b.rms),
            texts("col_norm"): number(b.norm.value) + (f" ± {number(b.norm.error, 2)}" if b.norm.error else ""),
            **shade(b.rms),
        }
        for b in blocks
    ]
    top = alt.Axis(orient="top", title=None, labelAngle=0 if len(parts) <= 8 else -60, domain=False, ticks=False)
    x = alt.X("part:N", sort=parts, axis=top)
    y = alt.Y("layer:N", sort=layers, axis=alt.Axis(title=None, domain=False, ticks=False, labelLimit=260))
    base = over(rows)
    tips: list[Any] = [alt.Tooltip("layer:N", title=texts("map_layer")), alt.Tooltip("part:N", title=texts("map_part"))]
    tips += [f"{texts('col_norm')}:N", f"{texts('map_size')}:N"]
    fields = base.mark_rect(stroke=style.paper, strokeWidth=1.5).encode(
        x=x, y=y, color=alt.Color("fill:N", scale=None), tooltip=tips
    )
    layered = [fields]
    if len(parts) <= 8:
        layered.append(
            base.mark_text(fontSize=12).encode(x=x, y=y, text="text:N", color=alt.Color("ink:N", scale=None))
        )
    width = max(300, min(640, 90 * len(parts)))
    chart = alt.layer(*layered).properties(name="fluid", width=width, height=max(60, 26 * len(layers)))
    table = tuple((b.layer, texts.parameter(b.part), b.norm.value, b.norm.error or 0.0, b.rms) for b in blocks)
    columns = ("map_layer", "map_part", "col_norm", "col_stderr", "map_size")
    return Figure(
        name="block_map",
        title=texts("map_title"),
        chart=over.finish(chart, style, chrome=150),
        headline=_map_headline(blocks, texts),
        reading=texts("map_reading"),
        not_meaning=texts("map_not"),
        table=Table(tuple(texts(c) for c in columns), table),
        python=redraw("block_map"),
        texts=texts,
        tags=("estimate",),
        caption=_scale(rms, texts),
    )


def block_pairs(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """The norms of all pairs of blocks as a heat map."""
    from .packages import alt

    answer = Spectrum(record)
    names, (value, error) = answer.names, answer.pairs
    shade = _shades([v for v in value.flatten().tolist() if v > 0] or [1.0], style)
    over, rows, table = Rows(), [], []
    shown = [texts.parameter(name) for name in names]
    for i, a in enumerate(shown):
        for j, b in enumerate(shown):
            v, e = float(value[i, j]), float(error[i, j])
            said = number(v) + (f" ± {number(e, 2)}" if e else "")
            rows.append({"row": a, "column": b, "text": number(v, 2), texts("col_norm"): said, **shade(v)})
            table.append((a, b, v, e))
    labels: dict[str, Any] = {"domain": False, "ticks": False, "labelLimit": 220}
    x = alt.X("column:N", sort=shown, axis=alt.Axis(title=None, labelAngle=-60, **labels))
    y = alt.Y("row:N", sort=shown, axis=alt.Axis(title=None, **labels))
    tips = [alt.Tooltip("row:N", title=texts("pairs_row")), alt.Tooltip("column:N", title=texts("pairs_column"))]
    cell = max(44, 7 * max(len(row["text"]) for row in rows)) if len(names) <= _WRITTEN_UP_TO else 16
    base, side = over(rows), max(160, cell * len(names))
    colour, note = alt.Color("fill:N", scale=None), f"{texts('col_norm')}:N"
    layers = [base.mark_rect().encode(x=x, y=y, color=colour, tooltip=[*tips, note])]
    if len(names) <= _WRITTEN_UP_TO:
        ink = alt.Color("ink:N", scale=None)
        layers.append(base.mark_text(fontSize=11).encode(x=x, y=y, text="text:N", color=ink))
    chart = alt.layer(*layers).properties(width=side, height=side)
    square = value.square()
    off = 1 - float(square.diagonal().sum() / square.sum()) if float(square.sum()) else 0.0
    columns = ("pairs_row", "pairs_column", "col_norm", "col_stderr")
    return Figure(
        name="block_pairs",
        title=texts("pairs_title"),
        chart=over.finish(chart, style),
        headline=texts("pairs_head", share=percent(off)),
        reading=texts("pairs_reading"),
        not_meaning=texts("pairs_not"),
        table=Table(tuple(texts(c) for c in columns), tuple(table)),
        python=redraw("block_pairs"),
        texts=texts,
        tags=("estimate",),
        caption=_scale(value.flatten().tolist(), texts),
    )


def _shades(values: list[float], style: Style) -> Any:
    """size -> colours of a field and of the words on it, logarithmic from the smallest to the largest."""
    positive = [v for v in values if v > 0] or [1.0]
    high = math.log10(max(positive))
    low = min(math.log10(min(positive)), high - _DECADES)
    ramp = style.ramp(1, SHADES)

    def shade(value: float) -> dict[str, str]:
        place = (math.log10(value) - low) / (high - low) if value > 0 else 0.0
        i = round(place * (SHADES - 1))
        return {"fill": ramp[i], "ink": style.ink if i < SHADES // 2 else style.paper}

    return shade


def _scale(values: list[float], texts: Texts) -> str:
    positive = [v for v in values if v > 0] or [1.0]
    top = max(positive)
    return texts("map_scale", low=number(min(min(positive), top * 10**-_DECADES), 2), high=number(top, 2))


def _map_headline(blocks: tuple[Block, ...], texts: Texts) -> str:
    high, low = max(blocks, key=lambda b: b.rms), min(blocks, key=lambda b: b.rms)
    ratio = times(high.rms / low.rms) if low.rms else "∞"
    return texts("map_head", sharp=high.label(texts), flat=low.label(texts), ratio=ratio)


# --- the page -------------------------------------------------------------------------------------------------------
def title(record: Record, texts: Texts) -> str:
    return texts("record_spectrum", name=short_name(Spectrum(record).model or "–"))


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    """Coverage, cost and every number with its tag."""
    answer = Spectrum(record)
    cost = answer.cost
    said = texts(
        "spectral_cost_of",
        products=cost["products"],
        seconds=number(cost["seconds"], 2),
        memory=in_words(cost["bytes"]),
        route=cost["route"],
    )
    note = "; ".join(answer.notes) if texts.lang == "en" else ""
    setting, coverage, numbers = (texts(f"group_{g}") for g in ("setting", "coverage", "numbers"))
    out = [
        Row(coverage, title(record, texts), answer.coverage, note=note),
        Row(setting, texts("spectral_operator"), answer.curvature),
        Row(setting, texts("spectral_probe"), texts("spectral_batches", count=answer.batches)),
        Row(setting, texts("data_row"), answer.data(texts)),
        Row(setting, texts("spectral_cost"), said),
    ]
    out += [Row(numbers, name, estimate(name, e), tag(e)) for name, e in extremes(answer)]
    out += [Row(numbers, texts(f"spectral_{name}"), estimate(name, e), tag(e)) for name, e in answer.numbers.items()]
    return tuple(out)


def drawn(record: Record) -> tuple[Draw, ...]:
    """The figures this record has the data for."""
    answer = Spectrum(record)
    found: list[Draw] = [density_curve] if answer.density is not None else []
    blocks = len(answer.names)
    found += where_figures(answer)
    found += [block_map] * (blocks > 1) + [block_pairs] * (1 < blocks <= PAIRS_UP_TO)
    return tuple(found)


def figures(record: Record, lang: str = "en", style: Style = LIGHT) -> tuple[Figure, ...]:
    """All figures of a spectrum record."""
    return tuple(draw(record, language(lang), style) for draw in drawn(record))


PAGE = Page(Spectrum, title, rows, drawn)
