"""Where eigenvectors live: their shares by layer, by head and by token."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from torch import Tensor

from ..answers.numbers import percent
from ..answers.spectrum import Spectrum
from ..core.errors import InputError
from ..core.record import Estimate, Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw
from .style import LIGHT, Style
from .texts import EN, Texts

#: A map has at most this many rows.
PAIRS_UP_TO = 48
#: A map of fewer heads shows no more than its headline.
HEADS_FROM = 3
#: Colours of a map.
SHADES = 9


def where_map(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Layers against eigenvectors: the share of each eigenvector's squared length in each layer."""
    answer, over = Spectrum(record), Rows()
    layers, share = _measured(answer, "layer")
    names = [name for name, _ in extremes(answer)]
    rows, table = [], []
    for i, name in enumerate(names):
        for j, layer in enumerate(layers):
            s = float(share[i, j])
            rows.append({"vector": name, "layer": layer} | _field(s, 1.0, style))
            table.append((name, layer, s))
    chart = _map(over, rows, names, list(layers), ["vector", "layer"], texts, style)
    first, most = answer.where(0 if answer.top else -1, "layer")[0]
    return Figure(
        name="where",
        title=texts("where_title"),
        chart=over.finish(chart, style, chrome=150),
        headline=texts("where_head", name=names[0], share=percent(most), layer=first),
        reading=texts("where_reading"),
        not_meaning=texts("where_not"),
        table=Table((texts("where_vector"), texts("map_layer"), texts("where_share")), tuple(table)),
        python=redraw("where_map"),
        texts=texts,
        tags=("estimate",),
    )


def where_heads(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Layers against heads: the share of the first eigenvector's squared length in each head, its matrices together."""
    answer, over = Spectrum(record), Rows()
    found = heads_of(*_measured(answer, "head"))
    largest, name = max(s for row in found.values() for s in row), extremes(answer)[0][0]
    columns = [str(h) for h in range(max(map(len, found.values())))]
    rows = [
        {"layer": layer, "head": str(h)} | _field(s, largest, style)
        for layer, row in found.items()
        for h, s in enumerate(row)
    ]
    layer, head = max(((n, h) for n in found for h in range(len(found[n]))), key=lambda at: found[at[0]][at[1]])
    total = percent(sum(map(sum, found.values())))
    return Figure(
        name="where_heads",
        title=texts("where_heads_title"),
        chart=over.finish(_map(over, rows, columns, list(found), ["head", "layer"], texts, style), style, chrome=150),
        headline=texts(
            "where_heads_head", name=name, total=total, head=head, layer=layer, share=percent(found[layer][head])
        ),
        reading=texts("where_heads_reading"),
        not_meaning=texts("where_not"),
        table=Table(
            (texts("map_layer"), texts("where_head_column"), texts("where_share")),
            tuple((n, h, s) for n, row in found.items() for h, s in enumerate(row)),
        ),
        python=redraw("where_heads"),
        texts=texts,
        tags=("estimate",),
    )


def heads_of(labels: tuple[str, ...], share: Tensor) -> dict[str, list[float]]:
    """The shares of the first eigenvector, {attention: one a head}, of names such as `h.3.attn.W_Q[2]`.

    The matrices of a head are taken together; where they differ in the number of heads (grouped queries) each has a
    row of its own.
    """
    parts: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for label, s in zip(labels, share[0].tolist(), strict=True):
        where, part, head = re.fullmatch(r"(?:(.*)\.)?([^.]*)\[(\d+)\]", label).groups("")  # type: ignore[union-attr]  # heads are named so
        parts[where][part][int(head)] = s
    found: dict[str, list[float]] = {}
    for where, own in parts.items():
        counts = {len(heads) for heads in own.values()}
        if len(counts) == 1:
            found[where] = [sum(heads[h] for heads in own.values()) for h in range(counts.pop())]
        else:
            found |= {f"{where}.{part}": [heads[h] for h in sorted(heads)] for part, heads in own.items()}
    return found


def where_tokens(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """The rows of an embedding with the largest shares of the first eigenvector."""
    from .packages import alt

    answer, over = Spectrum(record), Rows()
    _measured(answer, "token")
    shares, name = answer.where(0 if answer.top else -1, "token"), extremes(answer)[0][0]
    rows = [{"token": label, "share": s, "text": percent(s)} for label, s in shares]
    y = alt.Y("token:N", sort=[label for label, _ in shares], axis=alt.Axis(title=None, labelLimit=260))
    x = alt.X("share:Q", scale=alt.Scale(nice=False), axis=alt.Axis(title=texts("where_share"), format="~%"))
    bars = over(rows)
    chart = alt.layer(
        bars.mark_bar(color=style.ramp(1, SHADES)[SHADES // 2]).encode(x=x, y=y),
        bars.mark_text(align="left", dx=4, color=style.ink).encode(x=x, y=y, text="text:N"),
    ).properties(name="fluid", width=420, height=max(60, 26 * len(rows)))
    return Figure(
        name="where_tokens",
        title=texts("where_tokens_title"),
        chart=over.finish(chart, style, chrome=150),
        headline=texts("where_tokens_head", name=name, token=shares[0][0], share=percent(shares[0][1])),
        reading=texts("where_tokens_reading"),
        not_meaning=texts("where_tokens_not"),
        table=Table((texts("where_token_column"), texts("where_share")), shares),
        python=redraw("where_tokens"),
        texts=texts,
        tags=("estimate",),
    )


def where_figures(answer: Spectrum) -> list[Draw]:
    """The figures this spectrum has the data for."""
    layers, heads = answer.shares("layer"), answer.shares("head")
    cells = {} if heads is None else heads_of(*heads)
    found: list[Draw] = [where_map] * (layers is not None and 1 < len(layers[0]) <= PAIRS_UP_TO)
    found += [where_heads] * (len(cells) <= PAIRS_UP_TO and sum(map(len, cells.values())) >= HEADS_FROM)
    return found + [where_tokens] * (answer.shares("token") is not None)


def extremes(answer: Spectrum) -> list[tuple[str, Estimate]]:
    """Every extreme eigenvalue with its name."""
    out = [(f"λ_{i + 1}" if i else "λ_max", e) for i, e in enumerate(answer.top)]
    return out + [(f"λ_−{i + 1}" if i else "λ_min", e) for i, e in enumerate(answer.bottom)]


def _measured(answer: Spectrum, by: str) -> tuple[tuple[str, ...], Tensor]:
    found = answer.shares(by)
    if found is None:
        raise InputError(f"this spectrum was measured without shares by {by}; measure it again.")
    return found


def _field(share: float, largest: float, style: Style) -> dict[str, Any]:
    """Text and colours of a field, the darkest for the largest share."""
    level = min(SHADES - 1, int(share / (largest or 1.0) * SHADES))
    ink = style.ink if level < SHADES // 2 else style.paper
    return {"text": percent(share), "fill": style.ramp(1, SHADES)[level], "ink": ink}


def _map(
    over: Rows, rows: list[dict[str, Any]], x: list[str], y: list[str], names: list[str], texts: Texts, style: Style
) -> Any:
    """A map of shares with their numbers; `names` of the columns and of the rows in the data."""
    from .packages import alt

    axis = alt.Axis(orient="top", title=None, labelAngle=0, domain=False, ticks=False)
    X = alt.X(f"{names[0]}:N", sort=x, axis=axis)
    Y = alt.Y(f"{names[1]}:N", sort=y, axis=alt.Axis(title=None, domain=False, ticks=False, labelLimit=260))
    tips = [f"{names[0]}:N", f"{names[1]}:N", alt.Tooltip("text:N", title=texts("where_share"))]
    base = over(rows)
    return alt.layer(
        base.mark_rect(stroke=style.paper, strokeWidth=1.5).encode(
            x=X, y=Y, color=alt.Color("fill:N", scale=None), tooltip=tips
        ),
        base.mark_text(fontSize=12).encode(x=X, y=Y, text="text:N", color=alt.Color("ink:N", scale=None)),
    ).properties(name="fluid", width=max(300, min(640, 90 * len(x))), height=max(60, 26 * len(y)))
