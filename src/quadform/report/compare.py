"""Records of kind `compare`: loss in equal time, rank through depth, and every number of every model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from ..answers.measured import data_words
from ..answers.numbers import number
from ..core.record import Estimate, Record
from .card import Card, card, grade
from .figure import Figure, Rows, Table, redraw
from .page import Draw, OldPage
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts

#: Worst mean token cosine after the last block: green up to the first; above the second tokens have collapsed.
COSINE = (0.9, 0.99)
#: Training steps from which losses are ranked; fewer say how a design starts, not where it goes.
LONG = 100
_NUMBERS = ("parameters", "flops", "memory", "cosine", "rank", "gradient", "lambda_max", "lr_ceiling", "loss", "speed")
#: Least distance of two labels, as a share of the axis.
LABEL = 0.06
_DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3])


def cells(record: Record) -> list[tuple[str, int]]:
    return [(str(d), int(n)) for d, n in record.inputs["cells"]]


def get(record: Record, cell: tuple[str, int], measure: str) -> Estimate | None:
    return record.scalars.get(f"{cell[0]}/{cell[1]}/{measure}")


def name(cell: tuple[str, int]) -> str:
    return f"{cell[0]} × {cell[1]}"


def best(record: Record) -> tuple[tuple[str, int], Estimate] | None:
    """The model of the lowest held-out loss."""
    found = [(c, e) for c in cells(record) if (e := get(record, c, "loss")) is not None and math.isfinite(e.value)]
    return min(found, key=lambda pair: pair[1].value, default=None)


@dataclass(frozen=True)
class Outcome:
    """What the losses say. `kind`: `winner`, `tie` (with `ties`), `short` (the fewest steps) or `alone`."""

    kind: Literal["winner", "tie", "short", "alone"]
    best: tuple[str, int]
    loss: Estimate
    ties: tuple[tuple[str, int], ...] = ()
    steps: int = 0


def outcome(record: Record) -> Outcome | None:
    """A winner only where every model was trained for `LONG` steps and all others lie two standard errors above."""
    found = best(record)
    if found is None:
        return None
    cell, loss = found
    trained = [c for c in cells(record) if get(record, c, "loss") is not None]
    steps = int(min(0.0 if (e := get(record, c, "steps")) is None else e.value for c in trained))
    others = [(c, e) for c in trained if c != cell and (e := get(record, c, "loss")) is not None]
    ties = tuple(c for c, e in others if e.value - loss.value <= math.hypot(loss.reach, e.reach))
    kind: Any = "alone" if not others else "short" if steps < LONG else "tie" if ties else "winner"
    return Outcome(kind, cell, loss, ties, steps)


def title(record: Record, texts: Texts) -> str:
    return texts("record_compare", count=len(cells(record)))


def summary(record: Record, texts: Texts) -> str:
    said, found = [], outcome(record)
    if found is not None:
        key = {
            "winner": "compare_head",
            "alone": "compare_head_alone",
            "tie": "compare_head_tie",
            "short": "compare_head_short",
        }[found.kind]
        told = {"name": name(found.best), "loss": number(found.loss.value), "steps": found.steps, "limit": LONG}
        said.append(texts(key, ties=", ".join(map(name, found.ties)), **told))
    gone = [name(c) for c in cells(record) if (e := get(record, c, "cosine")) is not None and e.value > COSINE[1]]
    if gone:
        said.append(texts("compare_head_collapse", names=", ".join(gone)))
    return " ".join(said)


def cards(record: Record, texts: Texts) -> tuple[Card, ...]:
    found = outcome(record)
    cosines = [e.value for c in cells(record) if (e := get(record, c, "cosine")) is not None]
    if found is None or not cosines:
        return ()
    limits = [number(v) for v in COSINE]
    status = grade(max(cosines), COSINE)
    value = name(found.best) if found.kind == "winner" else texts("compare_none")
    return (card("compare", value, found.loss, status, summary(record, texts), texts, *limits),)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    out = [Row(texts("group_setting"), texts("rate_probe"), str(record.inputs["about"]))]
    out.append(Row(texts("group_setting"), texts("data_row"), data_words(record.inputs, texts)))
    for cell in cells(record):
        for measure in _NUMBERS:
            e = get(record, cell, measure)
            if e is not None:
                out.append(Row(name(cell), measure, estimate(measure, e), tag(e)))
    return tuple(out)


def _look(record: Record, style: Style) -> dict[str, str]:
    designs = list(dict.fromkeys(d for d, _ in cells(record)))
    hues = (style.query, style.key, style.value, style.out, style.ink, style.mlp, style.signed(-1), style.signed(1))
    return {d: hues[i % len(hues)] for i, d in enumerate(designs)}


def loss_bars(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Held-out loss after equal time, one bar a model, two standard errors."""
    from .packages import alt

    over, look = Rows(), _look(record, style)
    found = [(c, e) for c in cells(record) if (e := get(record, c, "loss")) is not None and math.isfinite(e.value)]
    found.sort(key=lambda pair: pair[1].value)
    bars = [
        {
            "name": name(c), "x": e.value, "colour": look[c[0]], "said": number(e.value),
            "low": e.value - e.reach, "high": e.value + e.reach,
        }
        for c, e in found
    ]  # fmt: skip
    data, order = over(bars), [b["name"] for b in bars]
    x = alt.X("x:Q", axis=alt.Axis(title=texts("compare_loss"), tickCount=6), scale=alt.Scale(zero=True))
    y = alt.Y("name:N", sort=order, axis=alt.Axis(title=None, ticks=False, grid=False, labelLimit=220))
    chart = alt.layer(
        data.mark_bar(height=16).encode(x=x, y=y, color=alt.Color("colour:N", scale=None)),
        data.mark_rule(strokeWidth=1.6, color=style.ink).encode(x=alt.X("low:Q"), x2="high:Q", y=y),
        data.mark_text(align="left", dx=8).encode(x=alt.X("high:Q"), y=y, text="said:N"),
    ).properties(name="fluid", width=560, height=alt.Step(26))
    columns = (texts("compare_design"), texts("compare_depth"), *_NUMBERS)
    table = tuple(
        (*c, *(None if (e := get(record, c, m)) is None else e.value for m in _NUMBERS)) for c in cells(record)
    )
    return _figure("loss", "compare_title", over.finish(chart, style, chrome=190), record, texts, columns, table)


def rank_lines(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Participation ratio of the tokens after each block at initialisation, a line a design, a panel a depth."""
    from .packages import alt

    over, look = Rows(), _look(record, style)
    panels, table = [], []
    designs = list(look)
    dashes = alt.Scale(domain=[str(i) for i in range(len(_DASHES))], range=list(_DASHES))
    for depth in sorted({n for _, n in cells(record)}):
        points: list[dict[str, Any]] = []
        for design in designs:
            values = record.tensors.get(f"{design}/{depth}/rank")
            for layer, value in enumerate(values.tolist() if values is not None else []):
                dash = str(designs.index(design) % len(_DASHES))
                points.append({"x": layer, "y": value, "design": design, "colour": look[design], "dash": dash})
                table.append((design, depth, layer, value))
        ends = over(_apart([p for p in points if p["x"] == depth], max((p["y"] for p in points), default=1.0)))
        data = over(points)
        x = alt.X(
            "x:Q",
            scale=alt.Scale(domain=[0, depth], nice=False),
            axis=alt.Axis(title=texts("col_layer"), tickCount=min(depth, 6), format="d", grid=False),
        )
        y = alt.Y("y:Q", scale=alt.Scale(zero=True), axis=alt.Axis(title=texts("compare_rank"), tickCount=5))
        colour = alt.Color("colour:N", scale=None)
        panel = alt.layer(
            data.mark_line(strokeWidth=1.8).encode(
                x=x,
                y=y,
                color=colour,
                detail="design:N",
                strokeDash=alt.StrokeDash("dash:N", scale=dashes, legend=None),
            ),
            data.mark_point(filled=True, size=26, opacity=1).encode(
                x=x, y=y, color=colour, tooltip=[alt.Tooltip("design:N"), alt.Tooltip("y:Q", format=".3g")]
            ),
            ends.mark_text(align="left", dx=6, fontSize=11).encode(x=x, y=alt.Y("at:Q"), color=colour, text="design:N"),
        )
        heading = alt.TitleParams(f"{depth} " + texts("compare_depth"), fontSize=12, fontWeight="normal")
        panels.append(panel.properties(name=f"fluid_{depth}", width=230, height=220, title=heading))
    chart = alt.concat(*panels, columns=2, spacing=90)
    columns = tuple(texts(c) for c in ("compare_design", "compare_depth", "col_layer", "compare_rank"))
    drawn_ = over.finish(chart, style, chrome=140, columns=2, narrow=700)
    return _figure("rank", "compare_rank_title", drawn_, record, texts, columns, tuple(table))


def _apart(ends: list[dict[str, Any]], top: float) -> list[dict[str, Any]]:
    """Labels at the ends of lines, moved up where they would overlap: `at` in place of `y`."""
    placed, below = [], -math.inf
    for end in sorted(ends, key=lambda e: float(e["y"])):
        below = max(float(end["y"]), below + LABEL * top)
        placed.append({**end, "at": below})
    return placed


def _figure(
    which: str, heading: str, chart: Any, record: Record, texts: Texts, columns: tuple[str, ...], table: tuple[Any, ...]
) -> Figure:
    return Figure(
        name=which,
        title=texts(heading),
        chart=chart,
        headline=summary(record, texts),
        reading=texts("compare_reading" if which == "loss" else "compare_rank_reading"),
        not_meaning=texts("compare_not"),
        table=Table(columns, table),
        python=redraw({"loss": "loss_bars", "rank": "rank_lines"}[which]),
        texts=texts,
        tags=("estimate",),
        caption=texts("compare_caption" if which == "loss" else "compare_rank_caption"),
    )


def drawn(record: Record) -> tuple[Draw, ...]:
    has_rank = any(f"{d}/{n}/rank" in record.tensors for d, n in cells(record))
    return (*((loss_bars,) if best(record) else ()), *((rank_lines,) if has_rank else ()))


PAGE = OldPage(title, summary, cards, rows, drawn)
