"""Minimum and saddle are said of stationary points alone; elsewhere the descent that is left is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import quadform
from quadform.answers import point
from quadform.applications.spectrum import spectrum
from quadform.core.number import Estimate
from quadform.report.texts import EN, KO


def measured(eigenvalues: list[float], at: float, floor: float = 1.0):
    """The spectrum of floor + sum lam x^2 / 2 at x = (at, ..., at)."""
    lam = torch.tensor(eigenvalues, dtype=torch.float64)
    params = {"x": torch.full_like(lam, at)}
    batch = (torch.ones(1, dtype=torch.float64), torch.zeros(1))
    loss = lambda out, batch: floor + (lam * out**2).sum() / 2  # noqa: E731
    return spectrum(
        lambda p, batch: p["x"], batch, loss, params=params, top=1, density=False, blocks="none", progress=False
    )


@pytest.mark.parametrize(
    ("eigenvalues", "at", "kind"),
    [
        ([4.0, 1.0, -2.0], 0.1, "descends"),
        ([4.0, 1.0, 2.0], 0.1, "descends"),
        ([4.0, 1.0, -2.0], 0.0, "saddle"),
        ([4.0, 1.0, 2.0], 0.0, "minimum"),
        ([4.0, 1.0, 0.0], 1e-9, "minimum"),
    ],
)
def test_the_kind_of_a_point_looks_at_the_gradient_first(eigenvalues, at, kind):
    found = measured(eigenvalues, at)
    assert found.point.kind == kind
    said = str(found)
    assert ("saddle" in said) == (kind == "saddle")
    assert ("minimum" in said) == (kind == "minimum")
    assert ("Not stationary" in said) == (kind == "descends")
    assert ("안장점" in found.point.said("ko")) == (kind == "saddle")


@given(st.lists(st.floats(-3, 5), min_size=2, max_size=5), st.floats(0.01, 2))
@settings(max_examples=40, deadline=None)
def test_a_step_takes_off_at_least_what_is_told(eigenvalues, at):
    """L(theta - g / lambda_max) <= L - |g|^2 / (2 lambda_max) on a quadratic."""
    lam = torch.tensor(eigenvalues, dtype=torch.float64)
    top = float(lam.max())
    x = torch.full_like(lam, at)
    g = lam * x
    found = point.descent(float(g.norm()), Estimate(top))
    if found is None:
        assert top <= 0
        return
    drop, after = found.value, x - g / top
    assert float((lam * x**2).sum() / 2 - (lam * after**2).sum() / 2) >= drop - 1e-9 * (1 + drop)


def test_the_gradient_is_in_the_record():
    """|g| of a quadratic is |lam x|; without the largest eigenvalue of H nothing is said of the point."""
    found = measured([4.0, 1.0, -2.0], 0.1)
    assert found.record.scalars["gradient_norm"].value == pytest.approx(0.1 * 21**0.5, rel=1e-12)
    assert found.record.scalars["descent"].value == pytest.approx(0.21 / 8, rel=1e-6)
    del found.record.scalars["descent"]
    assert found.point is None


def test_no_text_calls_a_point_a_saddle_unseen():
    """Every text that names a saddle or a minimum is one of `point`, or says where it does not apply."""
    allowed = {"point_saddle", "point_minimum", "card_point_green", "card_point_red", "point_not", "spectrum_not"}
    allowed |= {"landscape_not"}
    for texts in (EN, KO):
        named = {k for k, v in texts.sentences.items() if re.search(r"saddle|\bminim(um|a)\b|안장|극소", v)}
        assert named <= allowed
    claims = Path(quadform.__file__).parent / "experiments"
    assert not [p.name for p in claims.glob("*.*") if re.search(r"\bsaddle\b(?!-free)", p.read_text(encoding="utf-8"))]
