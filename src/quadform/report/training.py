"""Records of kind `training`: loss, validation and warm-up along a run."""

from __future__ import annotations

from typing import Any

from ..answers.numbers import number, percent, with_error
from ..answers.training import Training
from ..answers.verdict import Status
from ..core.record import Record
from .figure import Figure, Rows, Table, redraw
from .page import Draw, Page
from .rows import Row, estimate, tag
from .style import LIGHT, Style
from .texts import EN, Texts


def title(record: Record, texts: Texts) -> str:
    given = Training(record).about
    return texts(
        "training_record",
        design=given["design"],
        depth=given["depth"],
        dim=given["model"]["d_model"],
        parameters=f"{given['parameters']:,}",
        data=given["data"]["class"],
    )


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    answer, group = Training(record), texts("group_setting")
    settings = answer.about["train"]
    used = settings.get("optimizer") or settings["optimiser"]  # as version 0.1 called it
    told = [
        Row(group, texts("training_model"), title(record, texts)),
        Row(group, texts("training_steps"), f"{answer.step:,}"),
        Row(group, texts("training_optimizer"), f"{used}, {number(settings['lr'])}"),
        Row(group, texts("training_warmup"), f"{answer.warmup_steps:,}"),
    ]
    for name, e in answer.numbers.items():
        label = texts.sentences.get(f"scalar_training_{name}", name)
        value = f"{percent(e.value)} ± {percent(e.stderr or 0.0)}" if name == "valid_exact" else estimate(name, e)
        told.append(Row(texts("group_numbers"), label, value, tag(e)))
    finite = bool(answer.course[1].isfinite().all())
    status: Status = "green" if finite else "red"
    told.append(Row(texts("group_checks"), texts("check_finite"), texts("yes" if finite else "no"), "exact", status))
    return tuple(told)


def course(record: Record, texts: Texts = EN, style: Style = LIGHT) -> Figure:
    """Training loss as a line, validation as points with their errors, the warm-up shaded; below it the step size."""
    from .packages import alt

    answer, over = Training(record), Rows()
    steps, loss, lr = (t.tolist() for t in answer.course)
    last, valid = answer.step, answer.valid_course
    x = alt.X("step:Q", scale=alt.Scale(domain=[0, last], nice=False), axis=alt.Axis(title=texts("training_step")))
    y = alt.Y("loss:Q", axis=alt.Axis(title=texts("training_loss")), scale=alt.Scale(zero=True))
    warm = answer.warmup_steps
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
    if valid is not None:
        points = [
            {"step": s, "loss": v, "low": v - e, "high": v + e}
            for s, v, e in zip(*(t.tolist() for t in valid), strict=True)
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
        headline=_headline(answer, texts),
        reading=texts("training_reading"),
        not_meaning=texts("training_not"),
        table=Table(columns, tuple(sorted(rows_, key=lambda r: r[0]))),
        python=redraw("course"),
        texts=texts,
        tags=("exact", "estimate") if valid is not None else ("exact",),
    )


def _headline(answer: Training, texts: Texts) -> str:
    _, loss, lr = answer.course
    first, last, rate = number(float(loss[0])), number(float(loss[-1])), number(float(lr.max()), 2)
    said, e = texts("training_head", first=first, last=last, lr=rate), answer.valid_loss
    return said + (" " + texts("training_head_valid", value=with_error(e)) if e else "")


def figures(record: Record) -> tuple[Draw, ...]:
    return (course,)


PAGE = Page(Training, title, rows, figures)
