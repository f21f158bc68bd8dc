"""Records of kind `signal` in words: verdict, cards, rows, and the lines of a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..answers.numbers import number
from ..core.record import Estimate, Record
from .card import Card, Status, card, grade
from .depth import COSINE, Curve, curves, headline, heads, through_depth
from .isometry import jacobians
from .page import Draw, OldPage
from .rows import Row, estimate, tag
from .texts import Texts

#: Norm growth and gradient ratio: green within this factor of 1, red beyond the second.
FACTOR = (10.0, 100.0)


def lines(record: Record) -> Iterator[str]:
    """One line a curve after the last block, as plain text; predictions in brackets."""
    found = curves(record)
    head = ("", "cosine", "rank", "norm", "gradient", "entropy", "sink", "prediction")
    body = [head]
    for c in found:
        shares = [v for row in c.heads("entropy_share") for v in row if math.isfinite(v)]
        sinks = [v for row in c.heads("sink") for v in row if math.isfinite(v)]
        gradient = c.layers("gradient")
        apart = c.scalar("difference")
        body.append(
            (
                c.label,
                _with(c, "cosine", "{:.3f}"),
                _with(c, "participation", "{:.1f}"),
                _with(c, "growth", "x{:.3g}"),
                f"x{gradient[0]:.3g}" if gradient else "-",
                f"{min(shares):.2f}-{max(shares):.2f}" if shares else "-",
                f"{max(sinks):.2f}" if sinks else "-",
                "-" if apart is None else f"differs by {apart.value:.3f}" + _verdict(c, apart),
            )
        )
    widths = [max(len(row[j]) for row in body) for j in range(len(head))]
    for row in body:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


def _verdict(curve: Curve, apart: Estimate) -> str:
    if not curve.about["judged"]:
        return " (one network)" if curve.about["fresh"] else " (of fresh weights)"
    if not apart.converged:
        return ", DISAGREES"
    return ", within its error" if "beyond" in apart.note else ", agrees"


def _with(curve: Curve, measure: str, form: str) -> str:
    value, error, line = curve.layers(measure)[-1], curve.errors(measure)[-1], curve.predicted(measure)
    spread = f" +-{error:.1g}" if math.isfinite(error) and error > 0 else ""
    return form.format(value) + spread + (f" [{form.format(line[-1])}]" if line else "")


def title(record: Record, texts: Texts) -> str:
    found = curves(record)
    names = ", ".join(c.label for c in found[:3]) + (", …" if len(found) > 3 else "")
    return texts("record_signal", names=names)


def summary(record: Record, texts: Texts) -> str:
    return headline(curves(record), texts)


def cards(record: Record, texts: Texts) -> tuple[Card, ...]:
    """Signal after the last block, norm growth, gradient ratio, prediction: the worst curve of each."""
    found = curves(record)
    out = []
    worst = max(found, key=lambda c: c.layers("cosine")[-1])
    e = worst.scalar("cosine")
    if e is not None:
        limits = [number(v) for v in COSINE]
        said = texts("card_signal", label=worst.label)
        out.append(card("signal", number(e.value), e, grade(e.value, COSINE), said, texts, *limits))
    for name in ("growth", "gradient"):
        known = [(c, s) for c in found if (s := c.scalar(name)) is not None and s.value > 0]
        if known:
            curve, e = max(known, key=lambda pair: abs(math.log(pair[1].value)))
            factor = math.exp(abs(math.log(e.value)))
            limits = [number(v) for v in FACTOR]
            said = texts(f"card_{name}", label=curve.label)
            out.append(card(name, f"× {number(e.value)}", e, grade(factor, FACTOR), said, texts, *limits))
    apart = [(c, s) for c in found if c.about["judged"] and (s := c.scalar("difference")) is not None]
    if apart:
        curve, e = max(apart, key=lambda pair: (not pair[1].converged, pair[1].value))
        status: Status = "red" if not e.converged else "yellow" if "beyond" in e.note else "green"
        settled = Estimate(e.value, e.error, "estimate", note=e.note)
        out.append(card("prediction", number(e.value, 2), settled, status, f"{curve.label}: {e.note}", texts))
    return tuple(out)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    """Settings, coverage and every number after the last block with its tag."""
    found = curves(record)
    out = []
    for c in found:
        about = c.about
        said = texts("signal_of", depth=c.depth, dim=about["dim"], tokens=about["tokens"] or "–", over=about["over"])
        out.append(
            Row(texts("group_setting"), c.label, said, note="; ".join(about["notes"]) if texts.lang == "en" else "")
        )
        out.append(
            Row(texts("group_coverage"), c.label, f"{about['stack']}: {', '.join(_short(about['blocks']))}", "exact")
        )
    for c in found:
        for name in ("cosine", "participation", "effective_rank", "residual", "rms", "growth", "gradient"):
            e = c.scalar(name)
            if e is not None:
                out.append(
                    Row(f"{texts('group_numbers')}: {c.label}", texts(f"signal_{name}"), estimate(name, e), tag(e))
                )
    for c in found:
        e = c.scalar("difference")
        if e is not None and c.about["judged"]:
            status: Status = "red" if not e.converged else "yellow" if "beyond" in e.note else "green"
            out.append(
                Row(
                    texts("group_checks"),
                    f"{c.label}: {texts('signal_difference')}",
                    number(e.value, 2),
                    "estimate",
                    status,
                )
            )
    return tuple(out)


def _short(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [*names[:2], "…", names[-1]]


def drawn(record: Record) -> tuple[Draw, ...]:
    found = curves(record)
    has_heads = any(any(c.heads("sink")) for c in found)
    has_jacobians = any(c.about.get("jacobians") for c in found)
    return (through_depth, *((heads,) if has_heads else ()), *((jacobians,) if has_jacobians else ()))


PAGE = OldPage(title, summary, cards, rows, drawn)
