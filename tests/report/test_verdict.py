"""The verdict of a study, read as one page: what each sentence is about, and no two that contradict each other."""

from __future__ import annotations

import re

import pytest
import torch

from quadform.answers.training import Training
from quadform.answers.why import Why
from quadform.core.record import Estimate, Provenance, Record
from quadform.report import spectral, training
from quadform.report.html import BRIEF, render
from quadform.report.page import PAGES
from quadform.report.texts import EN, KO

BLOCKS = ["layers.0.attn.W_V", "layers.1.mlp"]


def spectrum(ratio: float = 22.0, stderr: float = 3.5, step: int = 500) -> Record:
    """Two blocks: a small sharp one, and a flat one whose norm is nearly as large because it has more weights."""
    sizes = torch.tensor([100.0, 40_000.0], dtype=torch.float64)
    norms = torch.tensor([ratio, 1.0], dtype=torch.float64) * sizes.sqrt()
    inputs = {"source": {"model": "m", "step": step}, "blocks": BLOCKS, "partial": False, "parameters": 40_100}
    inputs |= {"coverage": "all", "notes": [], "curvature": "hessian", "batches": 4, "probe": [16, 9]}
    inputs["cost"] = {"products": 1, "seconds": 1.0, "route": "eager", "bytes": 1.0}
    scalars = {"top/0": Estimate(60.0, 0.1, "estimate"), "bottom/0": Estimate(-2.0, 0.1, "estimate")}
    scalars["heterogeneity"] = Estimate(ratio, stderr, "estimate", note=" over ".join(BLOCKS))
    tensors = {"blocks/value": torch.diag(norms), "blocks/stderr": torch.zeros(2, 2, dtype=torch.float64)}
    return Record(
        kind="spectrum", inputs=inputs, scalars=scalars, tensors=tensors | {"blocks/sizes": sizes}, made=made()
    )


def fresh() -> Record:
    """What `why` finds at step 0: query and value alike."""
    inputs = {"name": "m", "variants": ["full"], "steps": [0], "probe": "p", "notes": []}
    scalars = {"full/0/ratio": Estimate(1.6, 0.1, "estimate"), "full/0/lambda_max": Estimate(2.0, 0.1, "estimate")}
    return Record(kind="why", inputs=inputs, scalars=scalars, tensors={}, made=made())


def made() -> Provenance:
    return Provenance.collect(dtype=torch.float64)


def brief(page: str) -> list[tuple[str, str, str]]:
    """(status, what it is about, sentence) of the sentences at the top."""
    top = page.split('<ul class="brief">')[1].split("</ul>")[0]
    items = re.findall(r'<li class="(\w+)">(.*?)</li>', top)
    items = [(s, re.sub(r' <span class="do">.*?</span>', "", i)) for s, i in items]
    about = re.compile(r'<span class="about">([^<]*)</span>')
    plain = [re.sub(r"<[^>]+>", "", about.sub("", re.sub(r'<span class="unseen">.*?</span>', "", i))) for _, i in items]
    return [(s, *(about.findall(i) or [""]), text.strip()) for (s, i), text in zip(items, plain, strict=True)]


@pytest.mark.parametrize("texts", [EN, KO], ids=["en", "ko"])
def test_each_sentence_says_what_it_is_about(texts) -> None:
    """22 : 1 after training and 1.6 : 1 before it do not contradict each other when both say what they compare."""
    told = brief(render([[spectrum(), fresh()]], texts.lang))
    assert len(told) == BRIEF
    assert {about for _, about, _ in told} == {texts("stage_spectrum"), texts("stage_why")}
    said = next(text for _, about, text in told if about == texts("stage_why"))
    assert Why(fresh()).said(texts.lang).startswith(said)
    assert any("500" in text for _, about, text in told if about == texts("stage_spectrum"))


def test_what_is_red_is_read_first() -> None:
    """A ratio of 22 is red and stands before the green eigenvalue; a red verdict is told whole, the others in two."""
    told = brief(render(spectrum(22.0, 3.5), "en"))
    assert told[0][0] == "red"
    assert "no single step size" in told[0][2]
    assert [status for status, _, _ in told].count("red") == sum(
        v.status == "red" for v in spectral.PAGE.answer(spectrum(22.0, 3.5)).verdicts()
    )
    assert all(len(re.split(r"(?<=[.!?])\s", text)) <= 2 for status, _, text in told if status != "red")


@pytest.mark.parametrize("texts", [EN, KO], ids=["en", "ko"])
def test_a_verdict_says_what_to_do(texts) -> None:
    """Blocks far apart: Adam. Within its error: measure more. Texts exist for verdicts there are."""
    page = render(spectrum(22.0, 3.5), texts.lang)
    assert f"<b>{texts('to_do')}</b> {texts('do_uneven_red')}</span>" in page
    assert texts("do_undecided") in render(spectrum(5.0, 1.5), texts.lang)
    for key in [key for key in texts.sentences if key.startswith("do_") and key != "do_undecided"]:
        _, name, status = key.split("_")
        assert f"card_{name}_{status}" in texts.sentences, key


def test_ratios_within_their_error_are_not_claimed() -> None:
    """A limit of 3: nothing is said about step sizes where 3 lies within two standard errors."""
    said = {
        (r, s): spectral.PAGE.summary(spectrum(r, s), EN) for r, s in ((22.0, 3.5), (5.0, 0.5), (5.0, 1.5), (2.0, 0.1))
    }
    assert "no single step size" in said[22.0, 3.5]
    assert "no single step size" in said[5.0, 0.5]
    assert "Within two standard errors" in said[5.0, 1.5]
    assert "no single step size" not in said[5.0, 1.5]
    assert "alike" in said[2.0, 0.1]


def test_a_model_that_was_not_trained_has_no_step() -> None:
    assert "After" not in spectral.PAGE.summary(spectrum(step=0), EN)


def test_numbers_of_the_map_have_the_ratio_of_its_headline() -> None:
    """The fields show what the headline compares: typical eigenvalues, not norms."""
    figure = spectral.block_map(spectrum(), EN)
    (rows,) = figure.spec["datasets"].values()
    shown = {row["part"]: float(row["text"]) for row in rows}
    assert shown["value"] / shown["mlp"] == pytest.approx(22.0)
    assert "22 to 1" in figure.headline
    (card,) = (c for c in spectral.PAGE.cards(spectrum(), EN) if c.name == "uneven")
    assert card.value == "22 : 1"
    assert "layers.0.value is 22 times as curved as layers.1.mlp" in card.sentence


def test_the_course_of_training_says_which_steps_it_compares() -> None:
    """Losses are logged every so often: the first one is not that of step 0, and the largest rate may fall between."""
    inputs = {"step": 500, "train": {"lr": 0.005}}
    tensors = {
        "steps": torch.tensor([10.0, 500.0]),
        "loss": torch.tensor([2.5, 0.045]),
        "lr": torch.tensor([0.00496, 0.0]),
    }
    record = Record(kind="training", inputs=inputs, scalars={}, tensors=tensors, made=made())
    assert "2.5 (step 10) to 0.045 (step 500)" in Training(record).said("en")
    assert "reached 0.005" in training._headline(Training(record), EN)


@pytest.mark.parametrize("texts", [EN, KO], ids=["en", "ko"])
def test_every_kind_of_record_has_a_name_on_the_page(texts) -> None:
    """`stage_KIND`: a page without it cannot be written."""
    named = {"lr" if kind == "step-size" else kind for kind in PAGES}
    assert {f"stage_{kind}" for kind in named} <= texts.sentences.keys()
