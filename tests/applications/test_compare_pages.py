"""Pages of step-size, why and compare records: verdicts by their limits, figures, two languages."""

from __future__ import annotations

import math

import pytest
import torch

from quadform.answers.compare import LONG, Compare
from quadform.answers.step_size import StepSize
from quadform.answers.trial import Trial
from quadform.answers.why import Why
from quadform.core.record import Estimate, Provenance, Record
from quadform.report import compare, write_report
from quadform.report.page import drawn, page_of
from quadform.report.texts import EN, KO


def record(kind: str, inputs: dict, scalars: dict, tensors: dict | None = None) -> Record:
    held = {n: Estimate(v, abs(v) / 50, "estimate") if not isinstance(v, Estimate) else v for n, v in scalars.items()}
    made = Provenance({"quadform": "0"}, "here", "2026-01-01", dtype="float64", device="cpu")
    return Record(kind=kind, inputs=inputs, scalars=held, tensors=tensors or {}, made=made)


def rate(ceiling: float = 0.01, lr: float | None = 0.001, measured=(0.9, 1.0, 3.0), **more) -> Record:
    rows = [["sgd", "SGD", "2 / lambda_max(H)"], ["yours", "AdamW, b1 0.9", "38 / lambda_max(P^-1 H)"]]
    inputs = {
        "source": {"model": "m"},
        "rule": "AdamW, b1 0.9",
        "rows": rows,
        "lr": lr,
        "P": "state",
        "batches": 2,
        "lr_is": "in force",
    }
    inputs |= {"probe": [8, 6], "coverage": "3 of 3 tensors", "formula": rows[1][2], "partial": False}
    scalars = {
        "loss": 1.0,
        "lambda_max": 4.0,
        "lambda_max_P": 38 / ceiling,
        "ceiling/sgd": 0.5,
        "ceiling/yours": ceiling,
    }
    tensors = {"ceilings": torch.tensor([0.8 * ceiling, 1.2 * ceiling], dtype=torch.float64)}
    if measured:
        tensors["verify/fractions"] = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
        tensors["verify/measured"] = torch.tensor(measured, dtype=torch.float64)
    return record("step-size", inputs | more, scalars, tensors)


def ablation(ratio: float = 40.0, norm: float = 30.0) -> Record:
    inputs = {"name": "m", "variants": ["full", "no norm"], "steps": [0, 5], "probe": "probe", "notes": []}
    scalars = {}
    for variant, factor in (("full", 1.0), ("no norm", norm)):
        for step in (0, 5):
            for measure, value in (("lambda_max", 2.0 * factor), ("ratio", ratio), ("ceiling_sgd", 1 / factor)):
                scalars[f"{variant}/{step}/{measure}"] = value
            scalars |= {f"{variant}/{step}/norm/{b}": v for b, v in (("query", 1.0), ("key", 2.0), ("value", ratio))}
    return record("why", inputs, scalars)


def contest(cosine: float | Estimate = 0.5, loss: float = 1.0) -> Record:
    inputs = {"cells": [["pre-ln", 2], ["no-skip", 2]], "about": "data", "lr": 1e-3}
    scalars = {"pre-ln/2/loss": loss, "no-skip/2/loss": 2.0, "pre-ln/2/cosine": 0.2, "no-skip/2/cosine": cosine}
    scalars |= {"pre-ln/2/steps": Estimate(LONG), "no-skip/2/steps": Estimate(LONG)}
    ranks = {"pre-ln/2/rank": torch.tensor([5.0, 4.0, 3.0]), "no-skip/2/rank": torch.tensor([5.0, 2.0, 1.0])}
    return record("compare", inputs, scalars, ranks)


MADE = {"step-size": rate(), "why": ablation(), "compare": contest()}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("texts", [EN, KO], ids=["en", "ko"])
def test_every_figure_draws_with_its_words_and_numbers(kind, texts):
    """A picture, a headline, a table with rows, and nothing unfilled, in both languages."""
    for draw in drawn(MADE[kind]):
        figure = draw(MADE[kind], texts)
        assert figure.svg().startswith("<svg")
        assert len(figure.table.rows) > 0
        for words in (figure.headline, figure.reading, figure.not_meaning, figure.caption):
            assert words
            assert "{" not in words


def test_one_report_of_all_three(tmp_path):
    """Self-contained, below 3 MB, every title in it."""
    path = write_report(list(MADE.values()), tmp_path / "r.html")
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 3_000_000
    for r in MADE.values():
        assert page_of(r).title(r, EN) in text


def test_the_card_of_the_ceiling_follows_its_rule():
    """Green: tried as theory says and your rate below; yellow: not tried; red: above it, or theory contradicted."""
    assert status(rate()) == "green"
    assert status(rate(measured=())) == "yellow"
    assert status(rate(lr=0.02)) == "red"
    assert status(rate(measured=(0.9, 1.4, 3.0))) == "red"
    assert status(rate(ceiling=math.inf)) == "red"
    assert "0.02, in force at this step, is 2 times the ceiling" in page_of(rate()).summary(rate(lr=0.02), EN)
    assert status(rate(lr=0.0101)) == "undecided"  # the ceiling has an error of 2 %


def status(record: Record) -> str:
    return StepSize(record).verdicts()[0].status


def test_the_trial_is_a_check_and_the_rate_is_not():
    """A rate above the ceiling is red and the answer stays ok; a trial against theory makes it not ok."""
    assert StepSize(rate(lr=0.02)).ok
    assert not StepSize(rate(measured=(0.9, 1.4, 3.0))).ok
    told = StepSize(rate()).verdicts()[1]
    assert told.check
    assert "at 2x it grows 3x per step" in told.sentence()
    against = StepSize(rate(measured=(0.9, 1.4, 3.0))).verdicts()[1]
    assert "at 1x a step multiplies a perturbation by 1.4" in against.sentence()
    assert "1배" in against.sentence("ko")


def test_words_of_a_trial():
    assert [Trial(1.0, f, f, ()).word for f in (0.99, 0.996, 1.004, 1.01)] == ["shrinks", "holds", "holds", "grows"]
    assert [Trial(1.0, f, f, (), 0.02).word for f in (0.97, 0.99, 1.01, 1.03)] == ["shrinks", "holds", "holds", "grows"]
    coarse = rate(measured=(0.9, 0.98, 3.0))
    assert [t.as_expected for t in StepSize(coarse).trials] == [True, False, True]
    coarse.tensors["verify/tolerance"] = torch.tensor([0.005, 0.03, 0.005], dtype=torch.float64)
    assert all(t.as_expected for t in StepSize(coarse).trials)


def test_the_card_of_the_blocks_follows_its_limits():
    """3 and 10, either way round."""
    found = {r: Why(ablation(ratio=r)).verdicts()[0].status for r in (2.0, 5.0, 40.0, 0.5, 0.05)}
    assert found == {2.0: "green", 5.0: "yellow", 40.0: "red", 0.5: "green", 0.05: "red"}
    assert "Removing norm" in Why(ablation()).said("en")
    assert "No component changes" in Why(ablation(norm=1.5)).said("en")


def test_the_card_of_a_comparison_follows_its_limits():
    found = {c: Compare(contest(cosine=Estimate(c))).verdicts()[1].status for c in (0.5, 0.95, 0.999)}
    assert found == {0.5: "green", 0.95: "yellow", 0.999: "red"}
    assert Compare(contest(cosine=Estimate(0.985, 0.01, "estimate"))).verdicts()[1].status == "undecided"
    assert "no-skip × 2" in Compare(contest(cosine=Estimate(0.999))).said("en")
    assert Compare(contest()).verdicts()[0].value == "pre-ln × 2"


def test_a_figure_without_data_is_absent():
    bare = record("compare", {"cells": [["pre-ln", 2]], "about": "d", "lr": 1}, {"pre-ln/2/parameters": 3.0})
    assert drawn(bare) == ()
    alone = record("why", {"name": "m", "variants": ["full"], "steps": [0], "probe": "p"}, {"full/0/lambda_max": 1.0})
    assert drawn(alone) == ()


def test_labels_at_the_ends_of_lines_do_not_overlap():
    """Equal ends are moved apart by a share of the axis, in their order."""
    placed = compare._apart([{"y": 1.0}, {"y": 1.0}, {"y": 3.0}], top=4.0)
    heights = [p["at"] for p in placed]
    assert heights[1] - heights[0] >= compare.LABEL * 4.0 * 0.999
    assert heights[2] == 3.0
