"""The Hessian as a picture: log10 |entry| of H, H_o and H_f, sign by hue, query / key / value in frames."""

from __future__ import annotations

from typing import Any

import torch

from ...answers.attention import PARTS, AttentionAnswer
from ...answers.numbers import number, percent, power, times
from ...core.record import Record
from .. import raster
from ..figure import Figure, Rows, Table, redraw
from ..style import LIGHT, Style
from ..texts import EN, Texts

#: Pixels a side of one panel: three fit a page, one fits a phone.
SIDE = 300
#: One block rules when its norm is at least this many times the next.
RULES = 3.0


def heat_map(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """`H = H_o + H_f` entry by entry, all three on one colour scale.

    Sides above 256 are cut into tiles, each shown by its entry of largest size; the caption says so. Blocks that are
    exactly zero are hatched and say so.
    """
    from ..packages import alt

    read = AttentionAnswer(record)
    matrices = {part: read.matrix(part).double() for part in PARTS}
    bottom, top = raster.decades(*matrices.values())
    panels, over = [], Rows()
    for part in PARTS:
        cells, tile = raster.aggregate(matrices[part])
        panels.append(_panel(over, read, part, cells, tile, (bottom, top), texts, style))
    sign = alt.param(
        name="sign",
        value="all",
        bind=alt.binding_radio(
            options=["all", "positive", "negative"],
            labels=[texts("sign_all"), texts("sign_positive"), texts("sign_negative")],
            name=texts("sign_show") + " ",
        ),
    )
    legend = _legend(over, bottom, top, texts, style)
    chart = alt.vconcat(alt.concat(*panels, columns=3), legend, spacing=14).add_params(sign)
    weak = sum(int(((M != 0) & (M.abs() < 10.0**bottom)).sum()) for M in matrices.values())
    notes = [texts("heat_scale", top=power(top), bottom=power(bottom))]
    if weak:
        notes.append(texts("heat_weak", count=f"{weak:,}"))
    if tile > 1:
        notes.append(texts("heat_tiles", tile=tile, side=f"{read.space.size:,}"))
    return Figure(
        name="heat_map",
        title=texts("heat_title"),
        chart=over.finish(chart, style, narrow=900),
        headline=headline(read, texts),
        reading=texts("heat_reading"),
        not_meaning=texts("heat_not"),
        table=_table(read, texts),
        python=redraw("heat_map"),
        texts=texts,
        caption=" ".join(notes),
    )


def headline(read: AttentionAnswer, texts: Texts) -> str:
    """Which block is strongest, by how much (rules from RULES times the next), and which are exactly zero."""
    ranked = sorted(((read.norm("total", b), b) for b in read.blocks), reverse=True)
    (first, strongest), (second, runner_up) = ranked[0], ranked[min(1, len(ranked) - 1)]
    if first == 0:
        return texts("heat_head_zero")
    said = {"block": texts.block(strongest), "other": texts.block(runner_up)}
    if len(ranked) == 1 or second == 0:
        sentence = texts("heat_head_only", **said)
    else:
        rules = first / second >= RULES
        sentence = texts("heat_head_rules" if rules else "heat_head_shared", ratio=times(first / second), **said)
    zeros = [b for b in read.blocks if not bool(read.block("functional", b).any())]
    if len(zeros) == len(read.blocks):
        sentence += " " + texts("heat_head_zeros_all")
    elif zeros:
        sentence += " " + texts("heat_head_zeros", blocks=", ".join(texts.block(b) for b in zeros))
    return sentence


def _panel(
    over: Rows,
    read: AttentionAnswer,
    part: str,
    cells: Any,
    tile: int,
    span: tuple[int, int],
    texts: Texts,
    style: Style,
) -> Any:
    from ..packages import alt

    size = read.space.size
    shown = cells.shape[0] * tile
    codes = raster.levels(cells, *span)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, size], nice=False, zero=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[size, 0], nice=False, zero=False))
    ground = over([{"x": 0, "y": 0, "x2": size, "y2": size}])
    layers = [ground.mark_rect(fill=style.panel, stroke=None).encode(x=x, y=y, x2="x2:Q", y2="y2:Q")]
    width = SIDE * shown / size
    for sign, name in ((1, "negative"), (-1, "positive")):
        keep = (cells > 0) if sign > 0 else (cells < 0)
        picture = raster.data_uri(raster.png(codes * keep.numpy(), style.ramp(sign, raster.LEVELS)))
        image = over([{"x": shown / 2, "y": shown / 2, "url": picture}])
        layers.append(
            image.mark_image(
                width=width,
                height=width,
                aspect=False,
                smooth=False,
                clip=True,
                opacity=alt.expr(f"sign == '{name}' ? 0 : 1"),
            ).encode(x=x, y=y, url="url:N")
        )
    at, matrix = read.space.slices(), read.matrix(part)
    hatch, zero, frames, labels = [], [], [], []
    names = list(at)
    for i, row in enumerate(names):
        labels += _side_labels(row, at[row], size, texts)
        for j, col in enumerate(names):
            box = {"x": at[col].start, "x2": at[col].stop, "y": at[row].start, "y2": at[row].stop}
            M = matrix[at[row], at[col]]
            if not bool(M.any()):
                hatch += _hatch(box)
                zero.append(
                    {"x": (box["x"] + box["x2"]) / 2, "y": (box["y"] + box["y2"]) / 2, "text": texts("exactly_zero")}
                )
            frames.append(
                box
                | {
                    "colour": style.of(row) if i == j else style.muted,
                    "width": 2.5 if i == j else 0.6,
                    texts("col_block"): texts.block(f"{row},{col}"),
                    texts("col_norm"): number(float(torch.linalg.norm(M.double()))),
                    texts("col_largest"): number(float(M.abs().max())),
                    texts("col_negative"): _negative(M, texts),
                }
            )
    if hatch:
        lines = over(hatch)
        layers.append(
            lines.mark_rule(color=style.muted, strokeWidth=1, opacity=0.45).encode(x=x, y=y, x2="x2:Q", y2="y2:Q")
        )
        words = over(zero)
        layers.append(words.mark_text(fontSize=12, fontStyle="italic", color=style.ink).encode(x=x, y=y, text="text:N"))
    frames.sort(key=lambda f: f["width"])
    tips = [alt.Tooltip(f"{texts(k)}:N") for k in ("col_block", "col_norm", "col_largest", "col_negative")]
    layers.append(
        over(frames)
        .mark_rect(fillOpacity=0, fill=style.panel)
        .encode(
            x=x,
            y=y,
            x2="x2:Q",
            y2="y2:Q",
            stroke=alt.Stroke("colour:N", scale=None),
            strokeWidth=alt.StrokeWidth("width:Q", scale=None),
            tooltip=tips,
        )
    )
    for edge in ("above", "left"):
        words = [
            w
            | {
                "colour": style.of(w["name"]),
                "x": w["at"] if edge == "above" else 0,
                "y": 0 if edge == "above" else w["at"],
            }
            for w in labels
        ]
        mark = (
            {"dy": -9, "baseline": "alphabetic"}
            if edge == "above"
            else {"dy": -9, "angle": 270, "baseline": "alphabetic"}
        )
        layers.append(
            over(words)
            .mark_text(fontSize=12, fontWeight="bold", **mark)
            .encode(x=x, y=y, text="text:N", color=alt.Color("colour:N", scale=None))
        )
    title = alt.TitleParams(texts(f"part_{part}_title"), offset=14, frame="bounds")
    return alt.layer(*layers).properties(width=SIDE, height=SIDE, title=title)


def _side_labels(name: str, where: slice, size: int, texts: Texts) -> list[dict[str, Any]]:
    pixels = SIDE * (where.stop - where.start) / size
    text = texts.parameter(name) if pixels >= 44 else name.removeprefix("W_") if pixels >= 10 else ""
    return [{"name": name, "at": (where.start + where.stop) / 2, "text": text}]


def _hatch(box: dict[str, float], lines: int = 9) -> list[dict[str, float]]:
    """Parallel diagonals that fill a box."""
    w, h = box["x2"] - box["x"], box["y2"] - box["y"]
    out = []
    for i in range(1, 2 * lines):
        t = i / lines
        a, b = min(t, 1.0), max(t - 1.0, 0.0)
        out.append({"x": box["x"] + a * w, "y": box["y"] + b * h, "x2": box["x"] + b * w, "y2": box["y"] + a * h})
    return out


def _legend(over: Rows, bottom: int, top: int, texts: Texts, style: Style) -> Any:
    """Two bars, one per sign, of the colours used above; the axis is log10 |entry|."""
    from ..packages import alt

    step = (top - bottom) / raster.LEVELS
    rows = []
    for sign, word in ((1, texts("sign_positive")), (-1, texts("sign_negative"))):
        for i, colour in enumerate(style.ramp(sign, raster.LEVELS)):
            low = bottom + i * step
            rows.append({"x": low, "x2": low + step, "y": word, "colour": colour})
    marks = list(range(top, bottom - 1, -1 if top - bottom < 5 else -2))
    label = " : ".join(f"datum.value == {m} ? '{power(m)}'" for m in marks) + " : ''"
    return (
        over(rows)
        .mark_rect(stroke=None)
        .encode(
            x=alt.X(
                "x:Q",
                scale=alt.Scale(domain=[bottom, top], nice=False, zero=False),
                axis=alt.Axis(values=marks, labelExpr=label, grid=False, labelFlush=False, title=texts("entry_size")),
            ),
            x2="x2:Q",
            y=alt.Y("y:N", sort=None, axis=alt.Axis(title=None, domain=False, ticks=False)),
            color=alt.Color("colour:N", scale=None),
        )
        .properties(width=200, height=30)
    )


def _negative(M: Any, texts: Texts) -> str:
    count = int((M != 0).sum())
    return percent(int((M < 0).sum()) / count) if count else texts("exactly_zero")


def _table(read: AttentionAnswer, texts: Texts) -> Table:
    rows = []
    for part in PARTS:
        for block in read.blocks:
            M = read.block(part, block)
            filled = int((M != 0).sum())
            rows.append(
                (
                    texts(f"part_{part}"),
                    texts.block(block),
                    read.norm(part, block),
                    float(M.abs().max()),
                    int((M < 0).sum()) / filled if filled else None,
                    1 - filled / M.numel(),
                )
            )
    keys = ("col_part", "col_block", "col_norm", "col_largest", "col_negative", "col_zero")
    return Table(tuple(texts(k) for k in keys), tuple(rows))
