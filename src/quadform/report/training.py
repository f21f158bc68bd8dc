"""Records of kind `training`: loss, validation and warm-up along a run."""

from __future__ import annotations

import math
from typing import Any

from ..answers.numbers import number, percent
from ..core.record import Record
from .card import Card, Status, card
from .figure import Figure, Rows, Table, redraw
from .page import Draw, OldPage
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts

#: Share of held-out questions answered exactly: green from the second, red below the first.
EXACT = (0.5, 0.95)
#: Validation over training loss: green up to the first, red above the second.
GAP = (1.2, 2.0)


def title(record: Record, texts: Texts) -> str:
    given = record.inputs
    return texts(
        "training_record",
        design=given["design"],
        depth=given["depth"],
        dim=given["model"]["d_model"],
        parameters=f"{given['parameters']:,}",
        data=given["data"]["class"],
    )


def summary(record: Record, texts: Texts) -> str:
    loss = record.tensors["loss"]
    said = {
        "first": number(float(loss[0])),
        "last": number(float(loss[-1])),
        "at": f"{int(record.tensors['steps'][0]):,}",
    }
    return texts("training_summary", steps=f"{record.inputs['step']:,}", **said)


def cards(record: Record, texts: Texts) -> tuple[Card, ...]:
    """How many held-out questions are answered exactly; where none are asked, the gap of the validation loss."""
    s = record.scalars
    if "valid_exact" in s:
        e = s["valid_exact"]
        status: Status = "green" if e.value >= EXACT[1] else "yellow" if e.value >= EXACT[0] else "red"
        value = f"{percent(e.value)} ± {percent(e.stderr or 0.0)}"
        return (card("exact", value, e, status, texts("card_exact"), texts, *map(percent, EXACT)),)
    if "valid_loss" in s:
        e = s["valid_loss"]
        ratio = e.value / s["loss"].value if s["loss"].value > 0 else math.inf
        grade: Status = "green" if ratio <= GAP[0] else "yellow" if ratio <= GAP[1] else "red"
        said = texts("card_fit", train=number(s["loss"].value))
        return (card("fit", estimate("", e), e, grade, said, texts, *map(number, GAP)),)
    return ()


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    given, group = record.inputs, texts("group_setting")
    settings = given["train"]
    told = [
        Row(group, texts("training_model"), title(record, texts)),
        Row(group, texts("training_steps"), f"{given['step']:,}"),
        Row(group, texts("training_optimiser"), f"{settings['optimiser']}, {number(settings['lr'])}"),
        Row(group, texts("training_warmup"), f"{given['warmup_steps']:,}"),
    ]
    for name, e in record.scalars.items():
        label = texts.sentences.get(f"scalar_training_{name}", name)
        value = f"{percent(e.value)} ± {percent(e.stderr or 0.0)}" if name == "valid_exact" else estimate(name, e)
        told.append(Row(texts("group_numbers"), label, value, tag(e)))
    finite = bool(record.tensors["loss"].isfinite().all())
    status: Status = "green" if finite else "red"
    told.append(Row(texts("group_checks"), texts("check_finite"), texts("yes" if finite else "no"), "exact", status))
    return tuple(told)


def course(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Training loss as a line, validation as points with their errors, the warm-up shaded; below it the step size."""
    from .packages import alt

    t = record.tensors
    steps, loss, lr = (t[n].tolist() for n in ("steps", "loss", "lr"))
    over = Rows()
    last = record.inputs["step"]
    x = alt.X("step:Q", scale=alt.Scale(domain=[0, last], nice=False), axis=alt.Axis(title=texts("training_step")))
    y = alt.Y("loss:Q", axis=alt.Axis(title=texts("training_loss")), scale=alt.Scale(zero=True))
    warm = record.inputs["warmup_steps"]
    layers: list[Any] = []
    if 0 < warm < last:
        band = over([{"step": 0, "end": warm, "text": texts("training_warming")}])
        layers += [
            band.mark_rect(color=style.shade, opacity=0.7).encode(x=x, x2="end:Q"),
            band.mark_text(align="left", baseline="bottom", dx=3, dy=-3, fontSize=11).encode(
                x=x, y=alt.value("height"), text="text:N"
            ),
        ]
    line = over([{"step": s, "loss": v} for s, v in zip(steps, loss, strict=True)])
    layers.append(line.mark_line(color=style.query, strokeWidth=2).encode(x=x, y=y))
    rows_: list[tuple[Any, ...]] = [(int(s), v, None, None, r) for s, v, r in zip(steps, loss, lr, strict=True)]
    if "valid_steps" in t:
        points = [
            {"step": s, "loss": v, "low": v - e, "high": v + e}
            for s, v, e in zip(*(t[f"valid_{n}"].tolist() for n in ("steps", "loss", "stderr")), strict=True)
        ]
        mark = over(points)
        layers += [
            mark.mark_rule(color=style.key).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
            mark.mark_point(color=style.key, filled=True, size=60, opacity=1, shape="diamond").encode(x=x, y=y),
        ]
        rows_ += [(int(p["step"]), None, p["loss"], p["high"] - p["loss"], None) for p in points]
    view = alt.layer(*layers).properties(name="fluid_loss", width=560, height=260)
    rate = (
        over([{"step": s, "lr": v} for s, v in zip(steps, lr, strict=True)])
        .mark_line(color=style.muted, strokeWidth=2)
        .encode(x=x, y=alt.Y("lr:Q", axis=alt.Axis(title=texts("training_lr"), format=".0e", tickCount=3)))
        .properties(name="fluid_lr", width=560, height=70)
    )
    chart = over.finish(alt.vconcat(view, rate), style, chrome=80)
    columns = tuple(texts(f"training_{n}") for n in ("step", "loss", "valid", "stderr", "lr"))
    return Figure(
        name="training",
        title=texts("training_title"),
        chart=chart,
        headline=_headline(record, texts),
        reading=texts("training_reading"),
        not_meaning=texts("training_not"),
        table=Table(columns, tuple(sorted(rows_, key=lambda r: r[0]))),
        python=redraw("course"),
        texts=texts,
        tags=("exact", "estimate") if "valid_steps" in t else ("exact",),
    )


def _headline(record: Record, texts: Texts) -> str:
    loss, lr = record.tensors["loss"], record.tensors["lr"]
    said = texts(
        "training_head", first=number(float(loss[0])), last=number(float(loss[-1])), lr=number(float(lr.max()), 2)
    )
    e = record.scalars.get("valid_loss")
    return said + (" " + texts("training_head_valid", value=estimate("", e)) if e else "")


def figures(record: Record) -> tuple[Draw, ...]:
    return (course,)


PAGE = OldPage(title, summary, cards, rows, figures)
