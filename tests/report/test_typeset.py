"""Formulas of figures are set, figures for papers have their width, names stand apart."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from quadform.core.errors import InputError, UnknownName
from quadform.experiments.catalog import committed, experiment
from quadform.experiments.extent import APART, Extent, end_labels, guide_lines
from quadform.experiments.question import ReproduceTask
from quadform.report.figure import pdf
from quadform.report.fitted import fitted
from quadform.report.lengths import inches
from quadform.report.typeset import runs, typeset, words


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("lambda_max(H)", [("symbol", "λ"), ("sub", "max"), ("plain", "(H)")]),
        ("H_f, X^-1.2", [("symbol", "H"), ("sub", "f"), ("plain", ", "), ("symbol", "X"), ("sup", "−1.2")]),
        ("P^-1/2 H", [("symbol", "P"), ("sup", "−1/2"), ("plain", " H")]),
        ("W_K^T", [("symbol", "W"), ("sub", "K"), ("sup", "T")]),
        ("a_L^(1/L)", [("symbol", "a"), ("sub", "L"), ("sup", "1/L")]),
        ("1e-3 apart", [("plain", "10"), ("sup", "−3"), ("plain", " apart")]),
        ("log10 |H|", [("plain", "log"), ("sub", "10"), ("plain", " |H|")]),
        ("+- 2 <= beta", [("plain", "± 2 ≤ "), ("symbol", "β")]),
        ("sas-p-no-norm, lambdas, a_long_name", [("plain", "sas-p-no-norm, lambdas, a_long_name")]),
    ],
)
def test_formulas_in_words(text: str, pieces: list[tuple[str, str]]) -> None:
    assert runs(text) == pieces


@pytest.mark.parametrize(
    ("text", "below", "above"),
    [
        ("green: λ_max 1.27 < 2 & λ_min −0.868", ["max", "min"], []),
        ("P^-1/2 H P^(-1/2), W_K^T", ["K"], ["-1/2", "-1/2", "T"]),
        ("new:pre-ln,d_model=64; c_attn at 1e-3", [], []),
    ],
)
def test_sentences_are_set_and_keep_their_text(text: str, below: list[str], above: list[str]) -> None:
    """What a reader copies is what was written; names of the code stay as they are."""
    page = ET.fromstring(f"<p>{words(text)}</p>")
    assert "".join(page.itertext()) == text
    assert [e.text for e in page.iter("sub")] == below
    assert [e.text for e in page.iter("sup")] == above


def test_what_is_set_returns_to_its_line() -> None:
    """Every shift down or up is taken back before the next plain letter, and the words stay escaped."""
    tag = '<text font-size="10px">'
    out = typeset(f"<svg>{tag}|H_f| &lt; X^6 and more</text></svg>")
    spans = [float(s.get("dy", 0)) for s in ET.fromstring(out).iter("tspan")]
    assert math.isclose(sum(spans), 0, abs_tol=1e-9)
    assert any(spans)
    assert "".join(ET.fromstring(out).itertext()) == "|Hf| < X6 and more"
    assert typeset(f"<svg>{tag}plain</text></svg>") == f"<svg>{tag}plain</text></svg>"


def test_a_figure_for_a_column_has_its_width_and_letters() -> None:
    """3.25 in and 8 pt: 312 pixels, letters of 10.67 pixels and their indices; a PDF page of 234 points."""
    record = committed("growth-linear")
    assert record is not None
    picture = fitted(experiment("growth-linear").figure(record).spec, 3.25, 8)
    assert re.match(r'<svg [^>]*width="312" ', picture)
    sizes = {float(s) for s in re.findall(r'font-size="([\d.]+)', picture)}
    assert all(any(math.isclose(s, 8 * 96 / 72 * k, rel_tol=0.01) for k in (1, 0.75)) for s in sizes)
    inner = [float(w) for w in re.findall(r'<svg class="marks"[^>]*width="(\d+)', picture)] or [
        float(w) for w in re.findall(r'class="marks" width="(\d+)', picture)
    ]
    assert inner
    assert max(inner) <= 313
    assert re.search(rb"MediaBox *\[0 0 234 ", pdf(picture))


@pytest.mark.parametrize(
    ("text", "wanted"), [("3.25in", 3.25), ("8.5cm", 8.5 / 2.54), ("85 mm", 85 / 25.4), ("234pt", 3.25)]
)
def test_lengths(text: str, wanted: float) -> None:
    assert math.isclose(inches(text), wanted)


@pytest.mark.parametrize("given", [{"width": "3.25"}, {"width": "0.1in"}, {"font_size": 80.0}, {"figures": "gif"}])
def test_what_cannot_be_drawn_is_refused(given: dict[str, object]) -> None:
    with pytest.raises((InputError, UnknownName)):
        ReproduceTask(names=("growth",), **given)


def test_formats_are_told_with_commas() -> None:
    assert ReproduceTask(names=("growth",), figures="pdf, png").figures == ("pdf", "png")
    assert ReproduceTask(names=("growth",), figures=("pdf,png",)).figures == ("pdf", "png")


def test_names_at_the_ends_of_lines_stand_apart() -> None:
    """No two closer than a line of text, in the order of the lines; none at all where there is no room."""
    X, Y = Extent(0, 10, False, 300), Extent(1e-3, 1e3, True, 230)
    rows = [{"x": x, "y": y, "series": f"s{i}"} for i, y in enumerate((1.0, 1.01, 1.02, 900.0)) for x in (0.0, 10.0)]
    found = end_labels(rows, X, Y)
    heights = [Y.at(e["y"]) for e in found]
    assert [e["series"] for e in found] == ["s0", "s1", "s2", "s3"]
    assert min(b - a for a, b in pairwise(heights)) >= APART - 1e-9
    assert heights[-1] <= Y.pixels + APART
    assert end_labels([{"x": 1.0, "y": 1.0, "series": f"s{i}"} for i in range(40)], X, Y) == []


def test_a_guide_has_its_slope() -> None:
    X, Y = Extent(1e-2, 10, True, 300), Extent(1e-12, 1e4, True, 230)
    (guide,) = guide_lines([{"x": 0.01, "y": 1e-9, "series": "a"}], {"a": 6, "b": 2}, X, Y)
    (a, b) = guide["line"]
    assert math.isclose(math.log(b["y"] / a["y"]) / math.log(b["x"] / a["x"]), 6)


def test_counts_have_no_marks_between_them() -> None:
    """An axis of whole numbers, steps or layers, is marked at whole numbers."""
    steps, shares = (Extent.of(values, False, None, 300).settings("x") for values in ([0, 1, 5], [0.0, 0.5]))
    assert steps["axis"].to_dict()["tickMinStep"] == 1
    assert "tickMinStep" not in shares["axis"].to_dict()
