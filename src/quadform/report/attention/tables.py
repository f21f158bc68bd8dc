"""What was measured: the setting, the coverage, the numbers with their tags, and the checks, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...answers.attention import SLOPE_TOLERANCE, AttentionAnswer
from ...answers.numbers import number
from ...core.record import Record
from ..rows import Row, estimate, tag
from ..texts import EN, Texts

#: Inputs that have a row of their own or are no setting.
_TOLD = ("tokens", "dim", "d_k", "d_v", "space", "fit_range", "vary", "attention", "factor", "mask", "dtype", "device",
         "d_model", "question", "partial", "precond")  # fmt: skip
#: Round-off of a symmetric eigenvalue problem, relative to the largest number in it.
ROUND_OFF = 1e-10


def measured(record: Record, texts: Texts = EN) -> tuple[Row, ...]:
    """The rows of "What was measured", group by group."""
    read = AttentionAnswer(record)
    return (*_setting(read, texts), *_coverage(read, texts), *_numbers(read, texts), *_checks(read, texts))


def _setting(read: AttentionAnswer, texts: Texts) -> Iterator[Row]:
    group, given, made = texts("group_setting"), read.settings, read.record.made
    kinds = {"softmax": "attention_softmax", "linear": "attention_linear"}
    kind = str(given.get("attention", ""))
    yield Row(group, texts("row_layer"), texts(kinds[kind]) if kind in kinds else kind)
    shape = ", ".join(f"{name} {given[name]}" for name in ("tokens", "d_model", "dim", "d_k", "d_v") if name in given)
    yield Row(group, texts("row_shape"), shape)
    masks = {"none": "mask_none", "causal": "mask_causal"}
    mask = str(given.get("mask", ""))
    yield Row(group, texts("row_mask"), texts(masks[mask]) if mask in masks else mask)
    for name, value in given.items():
        if name not in _TOLD and value is not None:
            yield Row(group, texts.sentences.get(f"row_{name}", name), _plain(value))
    where = " · ".join(w for w in (made.dtype or str(given.get("dtype", "")), made.device) if w)
    yield Row(group, texts("row_precision"), where)


def _coverage(read: AttentionAnswer, texts: Texts) -> Iterator[Row]:
    group = texts("group_coverage")
    shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in read.space)
    size = f"{read.space.size:,}"
    yield Row(group, texts("row_parameters"), texts("of_parameters", size=size, shapes=shapes), "exact", "green")
    if read.varied:
        scales = read.tensor("scales")
        said = texts("of_scales", count=len(scales), low=number(float(scales[0])), high=number(float(scales[-1])))
        yield Row(group, texts("row_sweep"), said)


def _numbers(read: AttentionAnswer, texts: Texts) -> Iterator[Row]:
    for name, e in read.numbers.items():
        label = texts.sentences.get(f"scalar_{name}", name)
        note = e.note if texts.lang == EN.lang else ""  # whoever made the record wrote it in English
        yield Row(texts("group_numbers"), label, estimate(name, e), tag(e), None, note)


def _checks(read: AttentionAnswer, texts: Texts) -> Iterator[Row]:
    group = texts("group_checks")
    e = read.scalar("autodiff_error")
    yield Row(group, texts("check_autodiff"), estimate("", e), tag(e), read.autodiff_limits.of(e.value))
    H = read.matrix("total").double()
    largest = float(H.abs().max()) or 1.0
    for name, error in (
        ("check_symmetric", float((H - H.T).abs().max()) / largest),
        ("check_trace", abs(float(read.eigenvalues("total").sum() - H.trace())) / (largest * len(H))),
        ("check_outer", max(0.0, -float(read.eigenvalues("outer")[0])) / largest),
    ):
        yield Row(group, texts(name), number(error, 2), "exact", "green" if error <= ROUND_OFF else "red")
    finite = read.finite
    yield Row(group, texts("check_finite"), texts("yes" if finite else "no"), "exact", "green" if finite else "red")
    gaps = read.slope_gaps()
    if gaps:
        close = sum(gap <= SLOPE_TOLERANCE for gap in gaps.values())
        said = texts("of_slopes", close=close, all=len(gaps), worst=number(max(gaps.values()), 2))
        yield Row(group, texts("check_slopes"), said, "estimate", "green" if close == len(gaps) else "yellow")


def _plain(value: Any) -> str:
    return number(value, 6) if isinstance(value, float) else str(value)
