"""Records of kind `signal`: settings, coverage and every number after the last block."""

from __future__ import annotations

from ..answers.numbers import number
from ..answers.signal import MEASURES, Signal
from ..core.record import Record
from .depth import heads, through_depth
from .isometry import jacobians
from .page import Draw, Page
from .rows import Row, estimate, tag
from .texts import Texts


def title(record: Record, texts: Texts) -> str:
    found = Signal(record).curves
    names = ", ".join(c.label for c in found[:3]) + (", …" if len(found) > 3 else "")
    return texts("record_signal", names=names)


def rows(record: Record, texts: Texts) -> tuple[Row, ...]:
    """Settings, coverage and every number after the last block with its tag."""
    found = Signal(record).curves
    out = []
    for c in found:
        about = c.about
        said = texts("signal_of", depth=c.depth, dim=c.d_model, tokens=about["tokens"] or "–", over=about["over"])
        out.append(
            Row(texts("group_setting"), c.label, said, note="; ".join(about["notes"]) if texts.lang == "en" else "")
        )
        out.append(
            Row(texts("group_coverage"), c.label, f"{about['stack']}: {', '.join(_short(about['blocks']))}", "exact")
        )
    for c in found:
        for name in MEASURES:
            e = c.scalar(name)
            if e is not None:
                out.append(
                    Row(f"{texts('group_numbers')}: {c.label}", texts(f"signal_{name}"), estimate(name, e), tag(e))
                )
    for c in found:
        e = c.scalar("difference")
        if e is not None and c.agreement is not None:
            out.append(
                Row(
                    texts("group_checks"),
                    f"{c.label}: {texts('signal_difference')}",
                    number(e.value, 2),
                    "estimate",
                    c.agreement,
                )
            )
    return tuple(out)


def _short(names: list[str]) -> list[str]:
    return names if len(names) <= 4 else [*names[:2], "…", names[-1]]


def drawn(record: Record) -> tuple[Draw, ...]:
    found = Signal(record).curves
    has_heads = any(any(c.heads("sink")) for c in found)
    has_jacobians = any(c.jacobians for c in found)
    return (through_depth, *((heads,) if has_heads else ()), *((jacobians,) if has_jacobians else ()))


PAGE = Page(Signal, title, rows, drawn)
