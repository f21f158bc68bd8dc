"""What the page shows of a Record: pictures as values and bins, numbers as words, in one language.

Reads records only. Arithmetic here is ratios, shares and bins for drawing; every number is one of the record's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..answers.attention import SATURATED
from ..answers.live import LiveAnswer
from ..answers.numbers import number, percent, times
from ..answers.signal import COSINE
from ..core.record import Estimate, Record
from ..report.texts import Texts
from .formulas import formula, typeset
from .heat import heat
from .state import ALONE, State
from .texts import LANGUAGES

#: Bins of the spectrum's histogram on each side of 0, and the decades below the largest size that have bins.
BINS, DECADES = 30, 5
#: Two numbers that differ by less than this share are called the same in the headline.
SAME = 0.01


#: A slope with a standard error from here on is written with it.
ROUGH = 0.1


@dataclass(frozen=True)
class Shown:
    """What of a record is looked at: the part, how fine its picture is, the language, and whether A is pinned."""

    part: str = "total"
    detail: str = "blocks"
    lang: str = "en"
    pinned: bool = False


def view(
    record: Record, state: State, against: tuple[Record, State] | None, shown: Shown, python: str = ""
) -> dict[str, Any]:
    """Everything the page draws and says about a record, compared with another one where there is one."""
    part, pinned, lang = shown.part, shown.pinned, shown.lang
    t = LANGUAGES[lang]
    read = LiveAnswer(record)
    before = against[0] if against else None
    other = LiveAnswer(before) if before is not None else None
    ghost = t("ghost_pinned" if pinned else "ghost_before")
    return {
        "state": state.json(),
        "headline": headline(read, state, against, pinned, t),
        "numbers": _numbers(read, other if pinned else None, t),
        "tag": _tag(read, t),
        "frames": [
            {"name": name, "label": t.parameter(name), "from": s.start, "to": s.stop}
            for name, s in read.space.slices().items()
        ],
        "side": read.space.size,
        "part": part,
        "heat": heat(read, part, shown.detail, t),
        "spectrum": _spectrum(read, part, other, ghost, t),
        "blocks": _blocks(read, part, other if pinned else None, t),
        "selected": {b: _selected(read, part, b, t) for b in read.blocks},
        "slopes": _slopes(read, t),
        "attention": _attention(read, t),
        "depth": _depth(read, state, other, t),
        "one_hot_from": read.saturates_at(),
        "notes": _notes(read, state, t),
        "python": python,
        "ghost": ghost if before is not None else None,
    }


# --- words ----------------------------------------------------------------------------------------------------------
def headline(read: LiveAnswer, state: State, against: tuple[Record, State] | None, pinned: bool, t: Texts) -> str:
    """What the last move did, in at most three sentences."""
    high, entropy = read.scalar("lambda_max").value, read.entropy
    if against is None:
        said = [t("head_first", high=number(high), share=percent(read.scalar("negative_share").value))]
    else:
        said = _moved(read, LiveAnswer(against[0]), _moves(against[1], state, t), pinned, t)
    if not bool(read.matrix("total").any()):
        return " ".join([*said, t("head_flat")])
    if entropy is not None and entropy.value < SATURATED and len(read.tensor("A")) > 1:
        said.append(t("head_one_hot", entropy=percent(entropy.value)))
    if entropy is None and all(read.norm("functional", b) == 0 for b in read.diagonal):
        said.append(t("head_hollow"))
    if state.depth > 1 and read.cosine and COSINE.of(read.cosine[-1]) == "red":
        said.append(t("head_collapse", cosine=number(read.cosine[-1])))
    return " ".join(said)


def _moves(before: State, state: State, t: Texts) -> str:
    """`Input scale 1 → 3, Depth 1 → 4`; at most three of them."""
    changed = [name for name in state.changes(before) if name != "upload"]
    if state.data != "text":
        changed = [name for name in changed if name != "text"]
    said = []
    for name in changed[:3]:
        old, new = (_control_value(name, getattr(of, name), t) for of in (before, state))
        said.append(f"{t(f'control_{name}')} {old} → {new}")
    return ", ".join(said) + (" …" if len(changed) > 3 else "") if said else t("head_nothing")


def _control_value(name: str, value: Any, t: Texts) -> str:
    if isinstance(value, float | int):
        return number(float(value))
    if name == "design":
        return t("design_attention") if value == ALONE else str(value)
    key = f"choice_{value}"
    return t(key) if key in t.sentences else f"“{str(value)[:24]}{'…' if len(value) > 24 else ''}”"


def _moved(read: LiveAnswer, other: LiveAnswer, moves: str, pinned: bool, t: Texts) -> list[str]:
    before, after = (r.scalar("lambda_max").value for r in (other, read))
    shared = [
        b for b in read.diagonal if b in other.blocks and other.norm("total", b) > 0 and read.norm("total", b) > 0
    ]
    ratios = {b: read.norm("total", b) / other.norm("total", b) for b in shared}
    if _same(before, after) and all(abs(r - 1) <= SAME for r in ratios.values()):
        return [t("head_same", moves=moves)]
    values = {"before": number(before), "after": number(after), "ratio": _ratio(after, before)}
    said = [t("head_pinned" if pinned else "head_move", moves=moves, **values)]
    if len(ratios) > 1:
        most, least = max(ratios, key=ratios.__getitem__), min(ratios, key=ratios.__getitem__)
        if ratios[most] > (1 + SAME) * ratios[least]:
            blocks = {"most": t.block(most), "least": t.block(least)}
            said.append(t("head_blocks", up=times(ratios[most]), down=times(ratios[least]), **blocks))
        else:
            said.append(t("head_together", ratio=times(ratios[most])))
    return said


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * max(abs(a), abs(b))


def _ratio(new: float, old: float) -> str:
    return times(new / old) if old else ("1" if new == old else "∞")


def _tag(read: LiveAnswer, t: Texts) -> dict[str, str]:
    closed, error = read.closed, read.check_error.value
    tag = t("tag_closed" if closed else "tag_autodiff")
    line = t(
        "tag_line",
        tag=tag,
        parameters=f"{read.space.size:,}",
        milliseconds=number(1e3 * read.scalar("seconds").value, 2),
        check=t("check_closed" if closed else "check_autodiff_line", error=number(error, 1)),
    )
    return {"kind": read.route, "word": tag, "line": line}


def _numbers(read: LiveAnswer, other: LiveAnswer | None, t: Texts) -> list[dict[str, Any]]:
    rows = []
    for name in ("lambda_max", "lambda_min", "negative_share", "ceiling_sgd", "loss", "entropy"):
        if name not in read.numbers:
            continue
        value = read.scalar(name).value
        write = percent if name in ("negative_share", "entropy") else number
        row: dict[str, Any] = {"name": name, "label": t(f"number_{name}"), "text": write(value), "tag": t("tag_exact")}
        row["value"] = value if math.isfinite(value) else None
        if other is not None and name in other.numbers:
            row["ratio"] = t("ratio_to_a", ratio=_ratio(value, other.scalar(name).value))
        rows.append(row)
    return rows


def _notes(read: LiveAnswer, state: State, t: Texts) -> dict[str, str]:
    """What stands below a control."""
    notes = {}
    if (scale := read.saturates_at()) is not None:
        notes["scale"] = t("note_one_hot", scale=number(scale, 2))
    if state.attention == "linear":
        notes["sink"] = t("note_sink_linear")
    inputs = read.settings
    if state.data == "upload":
        sizes = {"tokens": inputs["tokens"], "dim": inputs["d_model"]}
        notes |= {name: t("note_from_file", value=size) for name, size in sizes.items()}
    if state.data == "text":
        notes["tokens"] = t("note_words", count=inputs["tokens"])
        notes["text"] = t("note_same_weights")
    return notes


# --- pictures -------------------------------------------------------------------------------------------------------
def _spectrum(read: LiveAnswer, part: str, other: LiveAnswer | None, ghost: str, t: Texts) -> dict[str, Any]:
    lam = read.eigenvalues(part)
    tolerance = read.zero_tolerance(part)
    bins = histogram(lam, tolerance)
    low, high = float(lam[0]), float(lam[-1])
    counts = [int((lam < -tolerance).sum()), int((lam.abs() <= tolerance).sum()), int((lam > tolerance).sum())]
    sides = {
        side: t(f"spectrum_{side}", count=f"{count:,}")
        for side, count in zip(("left", "middle", "right"), counts, strict=True)
    }
    rows = [[number(a), number(b), n] for a, b, n in bins]
    return {
        "bins": bins,
        "ends": [low, high],
        "counts": counts,
        "words": list(sides.values()),
        "ghost": None if other is None else histogram(other.eigenvalues(part), other.zero_tolerance(part)),
        "says": t("spectrum_says", low=number(low), high=number(high), **sides),
        "help": t("spectrum_help", ghost=ghost) if other is not None else t("spectrum_alone"),
        "table": {"columns": [t("col_from"), t("col_to"), t("col_count")], "rows": rows},
    }


def histogram(lam: Tensor, tolerance: float) -> list[tuple[float, float, int]]:
    """(from, to, count) of the eigenvalues that are not zero: bins equal in log |lambda| on each side, the innermost
    from 0; empty bins are left out."""
    sizes = lam[lam.abs() > tolerance].abs()
    if not len(sizes):
        return []
    top = float(sizes.max()) * (1 + 1e-12)
    edges = [0.0, *(top * 10 ** (-DECADES * (1 - i / BINS)) for i in range(BINS + 1))]
    inner = torch.tensor(edges[1:], dtype=lam.dtype)
    found = []
    for sign in (-1, 1):
        side = (sign * lam)[sign * lam > tolerance]
        counts = torch.bincount(torch.bucketize(side, inner), minlength=len(edges))
        for i, n in enumerate(counts.tolist()):
            if n:
                low, high = edges[i], edges[min(i + 1, len(edges) - 1)]
                found.append((low, high, n) if sign > 0 else (-high, -low, n))
    return sorted(found)


def _blocks(read: LiveAnswer, part: str, other: LiveAnswer | None, t: Texts) -> dict[str, Any]:
    """The norm of every block, its share of the strongest in words and as a bar, and its ratio to a pinned A."""
    strongest = max(read.norm(part, b) for b in read.blocks)
    cells = {}
    for block in read.blocks:
        norm = read.norm(part, block)
        cell = {"norm": number(norm) if norm else t("exactly_zero"), "value": norm, "bar": 0.0, "share": ""}
        if norm:
            cell["bar"] = norm / strongest
            cell["share"] = (
                t("blocks_strongest") if norm == strongest else t("blocks_of_strongest", share=_share(norm / strongest))
            )
        if other is not None and block in other.blocks:
            cell["ratio"] = t("ratio_to_a", ratio=_ratio(norm, other.norm(part, block)))
        cells[block] = cell
    return {"names": list(read.space.names), "cells": cells}


def _share(share: float) -> str:
    return percent(share) if share >= 1e-3 else times(share)


def _selected(read: LiveAnswer, part: str, block: str, t: Texts) -> dict[str, Any]:
    norm, slope = read.norm(part, block), read.slope(part, block)
    shown = formula(read, part, block)
    facts = [t("selected_norm", norm=number(norm)) if norm else t("selected_zero")]
    if slope is not None:
        facts.append(
            t("selected_slope", slope=f"{slope.value:.2f}".replace("-", "−"), stderr=number(slope.stderr or 0.0, 1))
        )
    if block in read.kronecker:
        kfac, shampoo = (_share(read.kronecker[block][kind]) for kind in ("K-FAC expand", "Shampoo"))
        facts.append(t("selected_kronecker", kfac=kfac, shampoo=shampoo))
    return {
        "name": t("selected_name", block=t.block(block)),
        "lines": [typeset(line) for line in shown.lines],
        "numbers": typeset(",  ".join(f"{symbol} = {text}" for symbol, text in shown.numbers)),
        "facts": facts,
    }


def _slopes(read: LiveAnswer, t: Texts) -> dict[str, Any]:
    """Rows of blocks, columns of parts: the slope here and, in brackets, the paper's exponent for small inputs."""
    rows = []
    for block in read.blocks:
        row = [t.block(block)]
        for part in ("outer", "functional", "total"):
            slope, paper = read.slope(part, block), read.paper(part, block)
            text = _with_error(slope) if slope is not None else t("slopes_zero")
            if paper is not None and paper.value:
                text += f" [{'3, 5' if 'mix' in paper.note else f'{paper.value:g}'}]"
            row.append(text)
        rows.append({"block": block, "cells": row})
    return {
        "columns": [t("col_block"), *(t(f"part_{p}_short") for p in ("outer", "functional", "total"))],
        "rows": rows,
    }


def _with_error(slope: Estimate) -> str:
    """`5.98`, or `8.4 ± 5` where the fit is rough (ReLUs switch on the way)."""
    error = slope.stderr or 0.0
    text = f"{slope.value:.2f}" if error < ROUGH else f"{slope.value:.1f} ± {number(error, 1)}"
    return text.replace("-", "−")


def _attention(read: LiveAnswer, t: Texts) -> dict[str, Any]:
    A, entropy = read.tensor("A"), read.entropy
    largest = float(A.abs().max())
    top = 1.0 if entropy is not None else largest or 1.0
    labels = read.labels
    if entropy is not None:
        says = t("attention_says", entropy=percent(entropy.value), first=percent(read.first_key.value))
        moments = t("moments_says", **{m: number(e.value) for m, e in read.moments.items()})
    else:
        says, moments = t("attention_says_linear", largest=number(largest)), ""
    rows = [[label, *(number(v) for v in row)] for label, row in zip(labels, A.tolist(), strict=True)]
    return {
        "cells": A.to(torch.float32).numpy().tobytes(),
        "side": len(A),
        "top": top,
        "labels": labels,
        "says": says,
        "moments": moments,
        "table": {"columns": [t("col_token"), *labels], "rows": rows},
    }


def _depth(read: LiveAnswer, state: State, other: LiveAnswer | None, t: Texts) -> dict[str, Any] | None:
    if state.depth == 1 or not read.cosine:
        return None
    cosine, rank = read.cosine, read.effective_rank
    old = [] if other is None else other.cosine
    rows = [[i, number(c), number(r)] for i, (c, r) in enumerate(zip(cosine, rank, strict=True))]
    return {
        "cosine": [_finite(c) for c in cosine],
        "ghost": None if len(old) < 3 else [_finite(c) for c in old],
        "says": t("depth_says", first=number(cosine[0]), last=number(cosine[-1])),
        "axis": t("depth_axis"),
        "table": {"columns": [t("depth_axis"), t("col_cosine"), t("col_rank_left")], "rows": rows},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
