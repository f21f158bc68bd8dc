"""Verdicts: what a number means, by limits that stand once, and nothing that its error does not allow."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadform.answers.texts import EN, KO
from quadform.answers.verdict import Limits, Said, Verdict, judged, say, span
from quadform.core.record import Estimate, strict_json

SMALL, LARGE, RATIO = Limits(0.01, 0.25), Limits(0.5, 0.1), Limits(3.0, 10.0, either_way=True)


@pytest.mark.parametrize(
    ("limits", "value", "status"),
    [
        (SMALL, 0.01, "green"),
        (SMALL, 0.02, "yellow"),
        (SMALL, 0.26, "red"),
        (LARGE, 0.5, "green"),
        (LARGE, 0.4, "yellow"),
        (LARGE, 0.05, "red"),
        (RATIO, 1 / 3, "green"),
        (RATIO, 0.2, "yellow"),
        (RATIO, 11.0, "red"),
        (RATIO, 0.05, "red"),
    ],
)
def test_limits_are_the_whole_rule(limits, value, status) -> None:
    assert limits.of(value) == limits.grade(Estimate(value)) == status


def test_what_is_not_a_number_is_red() -> None:
    assert {limits.grade(Estimate(math.nan)) for limits in (SMALL, LARGE, RATIO)} == {"red"}


@given(st.floats(0.001, 30), st.floats(0, 0.49), st.sampled_from([SMALL, LARGE, RATIO]))
def test_a_status_is_decided_where_it_is_the_same_wherever_the_truth_may_be(value, share, limits) -> None:
    """Two standard errors to either side; the limits themselves count where they lie between."""
    e = Estimate(value, share * value, "estimate")
    low, high = span(e)
    assert (low, high) == (value - 2 * e.error, value + 2 * e.error)
    edges = [v for limit in (limits.green, limits.red) for v in (limit, 1 / limit) if low <= v <= high]
    found = {limits.of(v) for edge in (low, high, *edges) for v in (edge, edge * (1 - 1e-9), edge * (1 + 1e-9))}
    if len({limits.of(low * (1 + 1e-9)), limits.of(high * (1 - 1e-9))} | found) == 1:
        assert limits.grade(e) == limits.of(value)
    if limits.grade(e) != "undecided":
        assert {limits.of(low), limits.of(value), limits.of(high)} == {limits.grade(e)}


def test_a_residual_reaches_once_and_a_bound_is_open() -> None:
    assert SMALL.grade(Estimate(0.008, 0.0015, "estimate", error_kind="residual")) == "green"
    assert SMALL.grade(Estimate(0.008, 0.0015, "estimate")) == "undecided"
    assert SMALL.grade(Estimate(0.3, kind="bound")) == "red"  # at least 0.3
    assert SMALL.grade(Estimate(0.005, kind="bound")) == "undecided"
    assert SMALL.grade(Estimate(0.005, kind="bound", side="upper")) == "green"


def test_a_verdict_is_a_value_in_two_languages() -> None:
    verdict = judged("uneven", Estimate(22.0, 1.0, "estimate"), Limits(3.0, 10.0), "22 : 1", Said("a", "b"))
    assert (verdict.status, verdict.sentence(), verdict.sentence("ko")) == ("red", "a", "b")
    assert (verdict.title("ko"), verdict.word("ko")) == (KO("card_uneven_title"), KO("card_uneven_red"))
    assert "3" in verdict.rule()
    assert "10" in verdict.rule()
    told = json.loads(strict_json(verdict.to_json()))
    assert (told["status"], told["number"]["value"], told["limits"]["red"]) == ("red", 22.0, 10.0)
    assert told["sentence"] == {"en": "a", "ko": "b"}
    with pytest.raises(FrozenInstanceError):
        verdict.status = "green"  # type: ignore[misc]  # that is what is tested


def test_an_undecided_verdict_says_what_would_decide_it() -> None:
    unsure = judged("uneven", Estimate(5.0, 1.5, "estimate"), Limits(3.0, 10.0), "5 : 1", Said("a.", "b."))
    assert unsure.sentence() == f"a. {EN('verdict_unsure')}"
    assert unsure.sentence("ko") == f"b. {KO('verdict_unsure')}"
    assert unsure.word() == "undecided"
    open_ = Verdict("uneven", "undecided", "5 : 1", Estimate(5.0, kind="bound"), Said("a.", "b."))
    assert open_.sentence() == f"a. {EN('verdict_open')}"


def test_sentences_join_without_stray_spaces() -> None:
    assert Said("", "") + say("verdict_undecided") == say("verdict_undecided")
