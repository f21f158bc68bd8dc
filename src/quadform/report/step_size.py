"""Records of kind `step-size`: ceilings of the optimisers on one logarithmic axis, the trial, the verdict."""

from __future__ import annotations

import math
from typing import Any, Literal

from ..answers.measured import data_words
from ..answers.numbers import number, short_name
from ..core.record import Estimate, Record
from .card import Card, Status, card
from .figure import Figure, Rows, Table, decades, redraw
from .page import Draw, OldPage
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts

#: A step multiplies the distance by less than 1 - HOLDS: shrinks; by more than 1 + HOLDS: grows; else it holds.
HOLDS = 0.005
Word = Literal["shrinks", "holds", "grows"]
#: What theory says at these fractions of the ceiling.
EXPECTED: dict[float, Word] = {0.5: "shrinks", 1.0: "holds", 2.0: "grows"}
_KEYS = {"shrinks": "rate_shrinks", "holds": "rate_holds", "grows": "rate_grows"}
_SHAPES = {"rate_shrinks": "triangle-down", "rate_holds": "circle", "rate_grows": "triangle-up"}


def word(factor: float, tolerance: float = HOLDS) -> Word:
    """Whether a step makes a distance smaller, keeps it to the tolerance, or makes it larger."""
    return "shrinks" if factor < 1 - tolerance else "holds" if factor <= 1 + tolerance else "grows"


def trials(record: Record) -> list[tuple[float, float, str, bool]]:
    """(fraction, factor a step, key of its word, whether theory says so) of what was tried on a copy."""
    t = record.tensors
    if "verify/fractions" not in t:
        return []
    factors = t["verify/measured"].tolist()
    allowed = t["verify/tolerance"].tolist() if "verify/tolerance" in t else [HOLDS] * len(factors)
    words = [word(m, a) for m, a in zip(factors, allowed, strict=True)]
    fractions = t["verify/fractions"].tolist()
    told = [EXPECTED.get(f, w) == w for f, w in zip(fractions, words, strict=True)]
    fine = [bool(b) for b in t["verify/fine"].tolist()] if "verify/fine" in t else told
    return [(f, m, _KEYS[w], b) for f, m, w, b in zip(fractions, factors, words, fine, strict=True)]


def agrees(record: Record) -> bool | None:
    """Whether the trial went as theory says; None without one."""
    found = trials(record)
    return all(fine for *_, fine in found) if found else None


def rate_of(record: Record) -> float | None:
    """The rate that is held against the ceiling; None in records that do not say which one they hold."""
    return record.inputs.get("lr") if "lr_is" in record.inputs else None


def _yours(record: Record) -> Estimate:
    return record.scalars["ceiling/yours"]


def title(record: Record, texts: Texts) -> str:
    return texts("record_rate", name=short_name(record.inputs["source"].get("model", "")), rule=record.inputs["rule"])


def summary(record: Record, texts: Texts) -> str:
    e, given = _yours(record), record.inputs
    if not math.isfinite(e.value):
        return texts("rate_head_none")
    each = record.tensors.get("ceilings")
    said: dict[str, Any] = {"rule": given["rule"], "ceiling": number(e.value)}
    if each is None:
        head = texts("rate_head_one", **said)
    else:
        head = texts("rate_head", low=number(float(each.min())), high=number(float(each.max())), **said)
    rate = rate_of(record)
    if not rate:
        return head
    own, above = given["lr_is"] == "yours", rate > e.value
    key = (
        ("rate_head_above" if above else "rate_head_below") if own else "rate_now_above" if above else "rate_now_below"
    )
    told = [head, texts(key, rate=number(rate), share=number(rate / e.value, 2))]
    told += [texts("rate_head_peak", peak=number(given["peak_lr"]))] if given.get("peak_lr") else []
    return " ".join(told)


def status(record: Record) -> Status:
    e, rate = _yours(record), rate_of(record)
    tried = agrees(record)
    if tried is False or not math.isfinite(e.value) or (rate and rate > e.value):
        return "red"
    return "green" if tried and e.converged else "yellow"


def cards(record: Record, texts: Texts) -> tuple[Card, ...]:
    e = _yours(record)
    return (card("rate", number(e.value), e, status(record), summary(record, texts), texts),)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    """Settings, coverage, every number with its tag, and each trial as a check."""
    given, s = record.inputs, record.scalars
    setting, numbers = texts("group_setting"), texts("group_numbers")
    probe = f"{given['batches']} × {' × '.join(map(str, given['probe']))}"
    out = [
        Row(setting, texts("rate_model"), str(given["source"].get("model", ""))),
        Row(setting, texts("rate_optimizer"), given["rule"], note=given["P"] if texts.lang == "en" else ""),
        Row(setting, texts("rate_probe"), probe),
        Row(setting, texts("data_row"), data_words(given["source"], texts)),
        Row(texts("group_coverage"), texts("rate_model"), str(given["coverage"]), "exact"),
    ]
    for name, key in (("loss", "rate_loss"), ("lambda_max", "rate_lambda"), ("lambda_max_P", "rate_lambda_P")):
        out.append(Row(numbers, texts(key), estimate(name, s[name]), tag(s[name])))
    for key, name, rule in given["rows"]:
        e = s[f"ceiling/{key}"]
        out.append(Row(numbers, texts("rate_ceiling") + f": {name}", estimate("ceiling", e), tag(e), note=rule))
    if "first_ceiling" in s:
        e = s["first_ceiling"]
        out.append(Row(numbers, texts("rate_first"), estimate("ceiling", e), tag(e), note=given["rule"]))
    for fraction, factor, key, agreed in trials(record):
        fine: Status = "green" if agreed else "red"
        said = texts(key, factor=number(factor)) if key == "rate_grows" else texts(key)
        out.append(Row(texts("group_checks"), texts("rate_tried", fraction=f"{fraction:g}"), said, "estimate", fine))
    return tuple(out)


def ceilings(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """A bar for each optimiser up to its ceiling; the range over batches, your own rate, what was tried."""
    from .packages import alt

    over, given = Rows(), record.inputs
    found = [(key, name, rule, record.scalars[f"ceiling/{key}"]) for key, name, rule in given["rows"]]
    finite = [e.value for *_, e in found if math.isfinite(e.value)]
    each = record.tensors.get("ceilings")
    rate, mine = rate_of(record), _yours(record).value
    marks = [f * mine for f, *_ in trials(record) if math.isfinite(mine)]
    spots = [*finite, *marks, *([rate] if rate else []), *(each.tolist() if each is not None else [])]
    spots = [v for v in spots if math.isfinite(v) and v > 0] or [1.0]
    domain = [10.0 ** math.floor(math.log10(min(spots)) - 0.3), 10.0 ** math.ceil(math.log10(max(spots)) + 0.05)]
    names = [name for _, name, _, _ in found]
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(title=texts("rate_axis"), **decades(*domain)),
    )
    y = alt.Y("name:N", sort=names, axis=alt.Axis(title=None, labelLimit=240, grid=False, ticks=False))
    bars = [
        {"name": n, "x": domain[0], "x2": e.value, "mine": k == "yours", texts("rate_rule"): r, "said": number(e.value)}
        for k, n, r, e in found
        if math.isfinite(e.value)
    ]
    data = over(bars)
    fill = alt.condition("datum.mine", alt.value(style.query), alt.value(style.grid))
    layers = [
        data.mark_bar(height=20, stroke=style.muted, strokeWidth=1).encode(
            x=x, x2="x2:Q", y=y, color=fill, tooltip=[alt.Tooltip("name:N"), alt.Tooltip(f"{texts('rate_rule')}:N")]
        ),
        data.mark_text(align="left", dx=6, dy=-17).encode(x=alt.X("x2:Q"), y=y, text="said:N"),
    ]
    own = next(n for k, n, _, _ in found if k == "yours")
    if each is not None:
        span = over([{"name": own, "x": float(each.min()), "x2": float(each.max())}])
        layers.append(span.mark_bar(height=8, color=style.ink).encode(x=x, x2="x2:Q", y=y))
    if marks:
        tried = [
            {"name": own, "x": f * mine, "shape": _SHAPES[w], "said": _said(w, m, texts)}
            for f, m, w, _ in trials(record)
        ]
        last = over([{"name": own, "x": max(marks), "said": " · ".join(t["said"] for t in tried)}])
        layers += [
            over(tried)
            .mark_point(filled=True, size=110, opacity=1, color=style.key, yOffset=22)
            .encode(x=x, y=y, shape=alt.Shape("shape:N", scale=None), tooltip=alt.Tooltip("said:N")),
            last.mark_text(align="left", dx=12, dy=22, fontSize=11).encode(x=x, y=y, text="said:N"),
        ]
    if rate:
        label = texts("rate_yours" if given["lr_is"] == "yours" else "rate_now")
        line = over([{"x": rate, "said": f"{label} {number(rate)}"}])
        layers.append(line.mark_rule(strokeDash=[5, 4], strokeWidth=1.6, color=style.ink).encode(x=x))
        layers.append(line.mark_text(align="left", dx=5, baseline="top").encode(x=x, y=alt.value(2), text="said:N"))
    chart = alt.layer(*layers).properties(name="fluid", width=560, height=alt.Step(78))
    table = [(n, e.value, r, tag(e)) for _, n, r, e in found]
    columns = ("rate_optimizer", "rate_ceiling", "rate_rule", "col_tag")
    return Figure(
        name="ceilings",
        title=texts("rate_title"),
        chart=over.finish(chart, style, chrome=170),
        headline=summary(record, texts),
        reading=texts("rate_reading"),
        not_meaning=texts("rate_not"),
        table=Table(tuple(texts(c) for c in columns), tuple(table)),
        python=redraw("ceilings"),
        texts=texts,
        tags=("estimate",),
        caption=texts("rate_caption"),
    )


def _said(key: str, factor: float, texts: Texts) -> str:
    return texts(key, factor=number(factor)) if key == "rate_grows" else texts(key)


def drawn(record: Record) -> tuple[Draw, ...]:
    return (ceilings,)


PAGE = OldPage(title, summary, cards, rows, drawn)
