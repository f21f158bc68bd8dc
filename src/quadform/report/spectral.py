"""Records of kind `spectrum`: density with extreme eigenvalues, block map, norms of all pairs; verdict and rows."""

from __future__ import annotations

import math
from typing import Any

from ..core.errors import UnknownName
from ..core.memory import in_words
from ..core.record import Estimate, Record
from .card import Card, card, grade
from .figure import Figure, Rows, Table, redraw
from .numbers import number, percent, power, short_name, times
from .page import Draw, Page
from .point import sentence
from .rows import Row, data_words, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts, language

#: Share of negative curvature, and ratio of block sizes: green up to the first, red above the second.
NEGATIVE = (0.01, 0.25)
UNEVEN = (3.0, 10.0)
#: A map of all pairs has at most this many rows.
PAIRS_UP_TO = 48
#: Numbers of a record and the sentences that name them.
_NUMBERS = {
    "trace": "spectral_trace",
    "negative_share": "spectral_negative",
    "negative_curvature": "spectral_downwards",
    "rms": "spectral_rms",
    "heterogeneity": "spectral_heterogeneity",
    "loss": "spectral_loss",
}
#: Colours of a map, and the decades they span at least: blocks that are alike look alike.
_SHADES = 9
_DECADES = 1.5
#: Numbers are written into a map of pairs with at most this many rows.
_WRITTEN_UP_TO = 9


# --- density --------------------------------------------------------------------------------------------------------
def density_curve(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """The density of all eigenvalues on a symmetric-log axis with its error band, extreme eigenvalues as ticks."""
    from .packages import alt

    _of_this_kind(record)
    over, t = Rows(), record.tensors
    linear = record.scalars["linear"].value
    u, y, s, x = (t[f"density/{n}"].tolist() for n in ("u", "density", "stderr", "x"))
    ticks = [(e, *_on_axis(e, linear)) for _, e in _extremes(record)]
    low, high = min(u[0], *(a for _, a, _ in ticks)), max(u[-1], *(a for _, a, _ in ticks))
    roof = 1.08 * max(a + b for a, b in zip(y, s, strict=True))
    marks, label = _axis(low, high, linear)
    axis = alt.Axis(
        values=marks, labelExpr=label, title=texts("eigenvalue"), grid=False, labelOverlap="greedy", labelSeparation=6
    )
    X = alt.X("u:Q", scale=alt.Scale(domain=[low - 0.3, high + 0.3], nice=False), axis=axis)
    scale = alt.Scale(domain=[-0.12 * roof, roof], nice=False)
    Y = alt.Y("y:Q", scale=scale, axis=alt.Axis(title=texts("density_axis"), values=[0], labels=False, grid=False))
    curve = [
        {"u": a, "y": b, "low": max(b - c, 0), "high": b + c, texts("eigenvalue"): number(d), "value": number(b)}
        for a, b, c, d in zip(u, y, s, x, strict=True)
    ]
    rules = [
        {"u": a, "y": 0, "y2": -0.1 * roof, texts("eigenvalue"): f"{number(e.value, 4)} {said}"} for e, a, said in ticks
    ]
    bulk = over(curve)
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
        headline=_density_headline(record, texts),
        reading=texts("density_reading"),
        not_meaning=texts("density_not"),
        table=Table((texts("eigenvalue"), texts("density_band"), texts("col_stderr")), tuple(rows)),
        python=redraw("density_curve"),
        texts=texts,
        tags=("estimate",),
        caption=texts("density_caption", linear=number(linear, 2)),
    )


def _density_headline(record: Record, texts: Texts) -> str:
    s = record.scalars
    typical = s["rms"].value
    largest = max((abs(e.value) for _, e in _extremes(record)), default=0.0)
    return texts(
        "density_head",
        share=estimate("negative_curvature", s["negative_curvature"]),
        count=f"{record.inputs['parameters']:,}",
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

    _of_this_kind(record)
    over, norms = Rows(), _diagonal(record)
    rms = [r for *_, r in norms]
    shade = _shades(rms, style)
    parts = list(dict.fromkeys(texts.parameter(part) for _, part, _, _, _ in norms))
    layers = list(dict.fromkeys(layer for layer, *_ in norms))
    rows = [
        {
            "layer": layer,
            "part": texts.parameter(part),
            "text": number(r, 2),
            texts("map_size"): number(r),
            texts("col_norm"): number(value) + (f" ± {number(error, 2)}" if error else ""),
            **shade(r),
        }
        for layer, part, value, error, r in norms
    ]
    top = alt.Axis(orient="top", title=None, labelAngle=0 if len(parts) <= 8 else -60, domain=False, ticks=False)
    x = alt.X("part:N", sort=parts, axis=top)
    y = alt.Y("layer:N", sort=layers, axis=alt.Axis(title=None, domain=False, ticks=False, labelLimit=260))
    base = over(rows)
    tips = [alt.Tooltip("layer:N", title=texts("map_layer")), alt.Tooltip("part:N", title=texts("map_part"))]
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
    table = tuple((layer, texts.parameter(part), value, error, r) for layer, part, value, error, r in norms)
    columns = ("map_layer", "map_part", "col_norm", "col_stderr", "map_size")
    return Figure(
        name="block_map",
        title=texts("map_title"),
        chart=over.finish(chart, style, chrome=150),
        headline=_map_headline(record, texts),
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

    _of_this_kind(record)
    names = record.inputs["blocks"]
    value, error = (record.tensors[f"blocks/{n}"].double() for n in ("value", "stderr"))
    shade = _shades([v for v in value.flatten().tolist() if v > 0] or [1.0], style)
    over, rows, table = Rows(), [], []
    shown = [texts.parameter(name) for name in names]
    for i, a in enumerate(shown):
        for j, b in enumerate(shown):
            v, e = float(value[i, j]), float(error[i, j])
            said = number(v) + (f" ± {number(e, 2)}" if e else "")
            rows.append({"row": a, "column": b, "text": number(v, 2), texts("col_norm"): said, **shade(v)})
            table.append((a, b, v, e))
    labels = {"domain": False, "ticks": False, "labelLimit": 220}
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


def _diagonal(record: Record) -> list[tuple[str, str, float, float, float]]:
    """(layer, part, norm, its error, root mean square eigenvalue) of every block."""
    t, out = record.tensors, []
    for i, name in enumerate(record.inputs["blocks"]):
        layer, part = _split(name)
        value, error = float(t["blocks/value"][i, i]), float(t["blocks/stderr"][i, i])
        out.append((layer, part, value, error, value / math.sqrt(float(t["blocks/sizes"][i]))))
    return out


def _split(name: str) -> tuple[str, str]:
    """`transformer.h.3.attn.W_Q` -> (`transformer.h.3.attn`, `W_Q`); a name without dots is its own part."""
    layer, _, part = name.rpartition(".")
    return layer.removesuffix(".attn").removesuffix(".self_attn"), part


def _shades(values: list[float], style: Style) -> Any:
    """size -> colours of a field and of the words on it, logarithmic from the smallest to the largest."""
    positive = [v for v in values if v > 0] or [1.0]
    high = math.log10(max(positive))
    low = min(math.log10(min(positive)), high - _DECADES)
    ramp = style.ramp(1, _SHADES)

    def shade(value: float) -> dict[str, str]:
        place = (math.log10(value) - low) / (high - low) if value > 0 else 0.0
        i = round(place * (_SHADES - 1))
        return {"fill": ramp[i], "ink": style.ink if i < _SHADES // 2 else style.paper}

    return shade


def _scale(values: list[float], texts: Texts) -> str:
    positive = [v for v in values if v > 0] or [1.0]
    top = max(positive)
    return texts("map_scale", low=number(min(min(positive), top * 10**-_DECADES), 2), high=number(top, 2))


def _map_headline(record: Record, texts: Texts) -> str:
    norms = _diagonal(record)
    high, low = max(norms, key=lambda n: n[-1]), min(norms, key=lambda n: n[-1])
    named = [_named(f"{layer}.{part}", texts) for layer, part, *_ in (high, low)]
    ratio = times(high[-1] / low[-1]) if low[-1] else "∞"
    return texts("map_head", sharp=named[0], flat=named[1], ratio=ratio)


# --- the page -------------------------------------------------------------------------------------------------------
def title(record: Record, texts: Texts) -> str:
    return texts("record_spectrum", name=short_name(record.inputs["source"].get("model", "–")))


def summary(record: Record, texts: Texts) -> str:
    s, out = record.scalars, []
    if step := record.inputs["source"].get("step"):
        out.append(texts("spectral_after", step=f"{step:,}"))
    if "top/0" in s and "bottom/0" in s:
        high = s["top/0"].value
        ceiling = number(2 / high) if high > 0 else "∞"
        out.append(texts("spectral_sharp", high=number(high), low=number(s["bottom/0"].value), ceiling=ceiling))
    if "heterogeneity" in s:
        e = s["heterogeneity"]
        surely = e.value - e.reach > UNEVEN[0]
        key = "spectral_even" if e.value <= UNEVEN[0] else "spectral_split" if surely else "spectral_unsure"
        out.append(texts(key, ratio=times(e.value), limit=times(UNEVEN[0]), **_apart(e, texts)))
    out.append(sentence(record, texts))
    if record.inputs["partial"]:
        out.append(texts("spectral_partial"))
    return " ".join(filter(None, out))


def _apart(e: Estimate, texts: Texts) -> dict[str, str]:
    """The sharpest and the flattest block by name, as in the block map."""
    sharp, _, flat = e.note.partition(" over ")
    return {"sharp": _named(sharp, texts), "flat": _named(flat, texts)}


def _named(block: str, texts: Texts) -> str:
    layer, part = _split(block)
    return f"{layer}.{texts.parameter(part)}".lstrip(".")


def cards(record: Record, texts: Texts) -> tuple[Card, ...]:
    """Largest eigenvalue, share of negative curvature, sharpest against flattest block."""
    s, out = record.scalars, []
    if "top/0" in s:
        e = s["top/0"]
        status: Any = "good" if e.converged else "fair"
        out.append(card("eigen", number(e.value), e, status, estimate("lambda_max", e), texts))
    if "negative_curvature" in s:
        e = s["negative_curvature"]
        limits = map(percent, NEGATIVE)
        value = estimate("negative_curvature", e)
        out.append(card("downwards", value, e, grade(e.value, NEGATIVE), texts("card_downwards"), texts, *limits))
    if "heterogeneity" in s:
        e = s["heterogeneity"]
        sentence = texts("card_curved", **_apart(e, texts))
        value = f"{times(e.value)} : 1"
        out.append(card("uneven", value, e, grade(e.value, UNEVEN), sentence, texts, *map(times, UNEVEN)))
    return tuple(out)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    """Coverage, cost and every number with its tag."""
    inputs, s = record.inputs, record.scalars
    cost = inputs["cost"]
    said = texts(
        "spectral_cost_of",
        products=cost["products"],
        seconds=number(cost["seconds"], 2),
        memory=in_words(cost["bytes"]),
        route=cost["route"],
    )
    note = "; ".join(inputs["notes"]) if texts.lang == "en" else ""
    setting, coverage, numbers = (texts(f"group_{g}") for g in ("setting", "coverage", "numbers"))
    out = [
        Row(
            coverage,
            texts("record_spectrum", name=short_name(inputs["source"].get("model", "–"))),
            inputs["coverage"],
            note=note,
        ),
        Row(setting, texts("spectral_operator"), inputs["curvature"]),
        Row(setting, texts("spectral_probe"), texts("spectral_batches", count=inputs["batches"])),
        Row(setting, texts("data_row"), data_words(inputs["source"], texts)),
        Row(setting, texts("spectral_cost"), said),
    ]
    out += [Row(numbers, name, estimate(name, e), tag(e)) for name, e in _extremes(record)]
    out += [Row(numbers, texts(key), estimate(n, s[n]), tag(s[n])) for n, key in _NUMBERS.items() if n in s]
    return tuple(out)


def drawn(record: Record) -> tuple[Draw, ...]:
    """The figures this record has the data for."""
    found: list[Draw] = [density_curve] if "density/u" in record.tensors else []
    blocks = len(record.inputs["blocks"])
    found += [block_map] * (blocks > 1) + [block_pairs] * (1 < blocks <= PAIRS_UP_TO)
    return tuple(found)


def figures(record: Record, lang: str = "en", style: Style = LIGHT) -> tuple[Figure, ...]:
    """All figures of a spectrum record."""
    return tuple(draw(record, language(lang), style) for draw in drawn(record))


def _extremes(record: Record) -> list[tuple[str, Estimate]]:
    """Every extreme eigenvalue with its name."""
    out = []
    for end, first, rest in (("top", "λ_max", "λ_{}"), ("bottom", "λ_min", "λ_−{}")):
        i = 0
        while f"{end}/{i}" in record.scalars:
            out.append((first if i == 0 else rest.format(i + 1), record.scalars[f"{end}/{i}"]))
            i += 1
    return out


def _of_this_kind(record: Record) -> None:
    if record.kind != "spectrum":
        raise UnknownName(
            f"this figure shows records of kind 'spectrum'; got one of kind {record.kind!r}."
            " Make one with `quadform spectrum MODEL --out DIR`."
        )


PAGE = Page(title, summary, cards, rows, drawn)
