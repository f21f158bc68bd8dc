"""The verdict: six cards, each a number with its tag, a colour, a word, and the thresholds that decided.

Green means nothing to watch, yellow look, red act or beware. The limits below are the whole rule; the cards print them.
"""

from __future__ import annotations

import math

from ...answers.numbers import number, percent, times
from ...core.record import Record
from ..card import Card, Status, card, grade
from ..texts import EN, Texts
from .reading import SATURATED, Reading
from .slopes import SLOPE_TOLERANCE, slope_gaps

#: Sharpest over flattest diagonal block: green up to the first, red above the second.
UNEVEN = (10.0, 100.0)
#: Share of negative eigenvalues.
NEGATIVE = (0.01, 0.25)
#: Norm of the functional part over the norm of H.
MISSED = (0.1, 0.5)
#: Mean row entropy over its maximum: green from the second, red below the first.
ENTROPY = (SATURATED, 0.5)
#: max |closed form - autodiff| / max |H|, in float64 and in float32.
AUTODIFF, AUTODIFF_SINGLE = (1e-12, 1e-8), (1e-5, 1e-3)


def cards(record: Record, texts: Texts = EN) -> tuple[Card, ...]:
    """The cards of an attention record; one without its number is left out."""
    read = Reading(record)
    found = (_negative(read, texts), _uneven(read, texts), _ceiling(read, texts), _missed(read, texts))
    return (*found, *_entropy(read, texts), _checks(read, texts))


def summary(record: Record, texts: Texts = EN) -> str:
    """The verdict in one or two sentences, from the same limits as the cards."""
    read = Reading(record)
    share = read.scalar("negative_share").value
    sharpest, flattest, ratio = extremes(read)
    shape = {"green": "summary_few", "yellow": "summary_some", "red": "summary_many"}[grade(share, NEGATIVE)]
    even = {"green": "summary_even", "yellow": "summary_uneven", "red": "summary_split"}[grade(ratio, UNEVEN)]
    shape, even = "summary_none" if share == 0 else shape, "summary_flat" if ratio == math.inf else even
    said = {"sharp": texts.block(sharpest), "flat": texts.block(flattest), "ratio": times(ratio)}
    return texts(shape, share=percent(share)) + " " + texts(even, **said)


def extremes(read: Reading) -> tuple[str, str, float]:
    """The diagonal blocks of largest and smallest norm, and their ratio (infinite when one is zero)."""
    sharpest = max(read.diagonal, key=lambda b: read.norm("total", b))
    flattest = min(read.diagonal, key=lambda b: read.norm("total", b))
    low = read.norm("total", flattest)
    return sharpest, flattest, read.norm("total", sharpest) / low if low else math.inf


def autodiff_limits(record: Record) -> tuple[float, float]:
    """How far closed form and autodiff may differ in the number format of the record."""
    return AUTODIFF_SINGLE if record.made.dtype == "float32" else AUTODIFF


def _negative(read: Reading, texts: Texts) -> Card:
    e = read.scalar("negative_share")
    count = round(e.value * read.space.size)
    sentence = texts("card_negative", count=f"{count:,}", all=f"{read.space.size:,}")
    return card("negative", percent(e.value), e, grade(e.value, NEGATIVE), sentence, texts, *map(percent, NEGATIVE))


def _uneven(read: Reading, texts: Texts) -> Card:
    sharpest, flattest, ratio = extremes(read)
    sentence = texts("card_uneven", sharp=texts.block(sharpest), flat=texts.block(flattest))
    tag = read.scalar(f"norm/total/{sharpest}")
    return card("uneven", f"{times(ratio)} : 1", tag, grade(ratio, UNEVEN), sentence, texts, *map(times, UNEVEN))


def _ceiling(read: Reading, texts: Texts) -> Card:
    """Green: a finite positive number that is exact or converged. The height of a ceiling is neither good nor bad."""
    e = read.scalar("ceiling_sgd")
    usable = math.isfinite(e.value) and e.value > 0
    status: Status = "red" if not usable else "green" if e.converged else "yellow"
    sentence = texts("card_ceiling", high=number(read.scalar("lambda_max").value))
    return card("ceiling", number(e.value) if usable else "–", e, status, sentence, texts)


def _missed(read: Reading, texts: Texts) -> Card:
    whole = read.whole_norm("total")
    share = read.whole_norm("functional") / whole if whole else 0.0
    tag = read.scalar(f"norm/functional/{read.blocks[0]}")
    return card("missed", percent(share), tag, grade(share, MISSED), texts("card_missed"), texts, *map(percent, MISSED))


def _entropy(read: Reading, texts: Texts) -> tuple[Card, ...]:
    e = read.record.scalars.get("entropy")
    if e is None or not math.isfinite(e.value) or read.record.inputs.get("attention") != "softmax":
        return ()
    status: Status = "red" if e.value < ENTROPY[0] else "yellow" if e.value < ENTROPY[1] else "green"
    return (card("entropy", percent(e.value), e, status, texts("card_entropy"), texts, *map(percent, ENTROPY)),)


def _checks(read: Reading, texts: Texts) -> Card:
    """The worse of two checks: closed form against autodiff, fitted slopes against the paper's exponents."""
    e, gaps = read.scalar("autodiff_error"), slope_gaps(read)
    allowed = autodiff_limits(read.record)
    status = grade(e.value, allowed)
    worst = max(gaps.values(), default=0.0)
    if status == "green" and worst > SLOPE_TOLERANCE:
        status = "yellow"
    said = texts("card_checks", error=number(e.value, 2))
    if gaps:
        said += " " + texts("card_checks_slopes", gap=number(worst, 2))
    limits = (number(allowed[0]), number(allowed[1]), str(SLOPE_TOLERANCE))
    return card("checks", number(e.value, 2), e, status, said, texts, *limits)
