"""The report as a file: complete, small, honest about every number, safe with any text."""

import base64
import dataclasses
import html.parser
import json
import os
import re

import numpy as np
import pytest

from quadform.answers.attention import AUTODIFF, ENTROPY, MISSED, NEGATIVE, UNEVEN, AttentionAnswer
from quadform.core.errors import FileError, InputError, UnknownName
from quadform.core.record import Estimate
from quadform.report import write_report
from quadform.report.attention import PAGE
from quadform.report.attention.tables import measured
from quadform.report.html import LIMIT, in_script, raw_data, render
from quadform.report.page import drawn
from quadform.report.texts import EN, KO


class Page(html.parser.HTMLParser):
    """Elements with their attributes, the text people see, and the content of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.scripts: dict[str, str] = {}
        self.seen = ""
        self._inside: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside:
            tag, attrs = self._inside[-1]
            if tag == "script" and "id" in attrs:
                self.scripts[attrs["id"]] = self.scripts.get(attrs["id"], "") + data
        else:
            self.seen += data

    def of(self, tag: str, **attrs: str) -> list[dict]:
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in attrs.items())]


@pytest.fixture(scope="module")
def pages(record) -> dict[str, str]:
    return {lang: render(record, lang) for lang in ("en", "ko")}


# --- the file -------------------------------------------------------------------------------------------------------
def test_the_report_is_one_small_file(record, tmp_path, pages) -> None:
    """`write_report` writes exactly one file of at most 3 MB and returns its path."""
    path = write_report([record], tmp_path / "deep" / "report.html")
    assert os.listdir(path.parent) == ["report.html"]
    assert path.stat().st_size <= LIMIT == 3_000_000
    assert path.read_text(encoding="utf-8") == pages["en"]


def test_nothing_in_the_page_is_fetched(pages) -> None:
    """No element points outside the file, and the page forbids itself every connection."""
    for page in map(Page, pages.values()):
        for tag, attrs in page.elements:
            for name in ("src", "href", "action", "data", "poster", "srcset"):
                assert (attrs.get(name) or "#").startswith(("#", "data:")), (tag, attrs)
        (policy,) = page.of("meta", **{"http-equiv": "Content-Security-Policy"})
        assert "default-src 'none'" in policy["content"]
        assert "connect-src" not in policy["content"]


def test_a_failed_write_leaves_nothing_behind(record, tmp_path, monkeypatch) -> None:
    """When the disk refuses, the old report stays whole and there is no partial file; the error says what to do."""
    path = tmp_path / "report.html"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("quadform.report.html.render", lambda *_: "new")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FileError, match=r"cannot write the report to .*disk full.*another path"):
        write_report(record, path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_no_records_and_unknown_things_are_refused(record, tmp_path) -> None:
    """No record, another kind of record, another language: an error, and no file."""
    for bad, lang, error in (
        ([], "en", InputError),
        ([dataclasses.replace(record, kind="other")], "en", UnknownName),
        ([record], "fr", UnknownName),
    ):
        with pytest.raises(error):
            write_report(bad, tmp_path / "report.html", lang)
    assert os.listdir(tmp_path) == []


def test_several_records_get_a_section_each(variants, tmp_path) -> None:
    """Two records, two sections with their own figures and raw data, one drawing library, no id twice, below 3 MB."""
    path = write_report([variants["one"], variants["linear"]], tmp_path / "two.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert path.stat().st_size <= LIMIT
    assert len(page.of("section", **{"class": "record"})) == 2
    assert len(page.of("div", role="img")) == len(drawn(variants["one"])) + len(drawn(variants["linear"]))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert path.read_text(encoding="utf-8").count("window.vegaEmbed=") == 1
    assert json.loads(page.scripts["record-2-1-raw"])["inputs"]["attention"] == "linear"


def test_records_of_one_study_share_a_verdict(variants, tmp_path) -> None:
    """[[a, b]] is one section with the cards, figures and raw data of both; [a, b] puts their cards side by side."""
    a, b = variants["one"], variants["linear"]
    one, two = (Page(write_report(of, tmp_path / "r.html").read_text(encoding="utf-8")) for of in ([[a, b]], [a, b]))
    assert len(one.of("section", **{"class": "record"})) == 1
    assert {"record-1-1-raw", "record-1-2-raw"} <= set(one.scripts)
    assert len(one.of("div", role="img")) == len(drawn(a)) + len(drawn(b))
    assert len(one.of("ul", **{"class": "cards"})) == 1
    ids = [x["id"] for _, x in one.elements if "id" in x]
    assert len(ids) == len(set(ids))
    assert not one.of("h2", id="compared")
    assert two.of("h2", id="compared")


# --- what people see ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("texts", [EN, KO], ids=lambda t: t.lang)
def test_verdict_first_then_figures_then_tables(texts, record, pages) -> None:
    """The order of the page, with every figure's words on it."""
    seen = Page(pages[texts.lang]).seen
    order = [
        PAGE.cards(record, texts)[0].sentence,
        texts("heat_title"),
        texts("measured"),
        texts("reproduce"),
        texts("gloss_tags_text"),
    ]
    at = [seen.index(word, seen.index(order[0])) for word in order]
    assert at == sorted(at)
    for draw in drawn(record):
        figure = draw(record, texts)
        for words in (figure.headline, figure.reading, figure.not_meaning, figure.caption):
            assert words in seen
    for card in PAGE.cards(record, texts):
        assert all(word in seen for word in (card.title, card.value, card.word, card.sentence, card.rule))


def test_the_korean_page_has_no_english_sentence(pages) -> None:
    """No English sentence of the catalogue that differs from the Korean one is seen on the Korean page."""
    seen = Page(pages["ko"]).seen
    for key, sentence in EN.sentences.items():
        if len(sentence) > 12 and "{" not in sentence and sentence != KO.sentences[key]:
            assert sentence not in seen, key


def test_notes_of_a_record_stay_on_the_english_page(record) -> None:
    """A note is written in English by whoever made the record, so the Korean table does not show it."""
    noted = dataclasses.replace(record, scalars={**record.scalars, "loss": Estimate(1.0, note="a remark")})
    assert [row.note for row in measured(noted, EN) if row.note.startswith("a remark")] == ["a remark"]
    assert not any(row.note for row in measured(noted, KO))


def test_every_number_has_a_tag(record) -> None:
    """Each row of the table and each card carries exact, estimate, bound or given; figures too."""
    known = {"exact", "estimate", "bound", "unconverged", "given"}
    assert {row.tag for row in measured(record)} <= known
    assert {card.tag for card in AttentionAnswer(record).verdicts()} <= known
    for draw in drawn(record):
        assert draw(record).tags
    shown = {row.label: row for row in measured(record)}
    for name in ("loss", "lambda_max", "lambda_min", "negative_share", "trace", "entropy", "ceiling_sgd", "seconds"):
        assert shown[EN(f"scalar_{name}")].tag == record.scalars[name].kind


def test_an_estimate_shows_its_error_and_an_unfinished_one_says_so(record) -> None:
    """`412.7 ± 0.3` tagged as estimate; a value that did not converge is tagged so, and its card is yellow."""
    scalars = {**record.scalars, "lambda_max": Estimate(412.7, 0.3, "estimate")}
    scalars["ceiling_sgd"] = Estimate(0.1, 0.01, "estimate", converged=False)
    rows = {row.label: row for row in measured(dataclasses.replace(record, scalars=scalars))}
    assert rows[EN("scalar_lambda_max")].value == "412.7 ± 0.3"
    assert rows[EN("scalar_lambda_max")].tag == "estimate"
    assert rows[EN("scalar_ceiling_sgd")].tag == "unconverged"
    (card,) = [
        c for c in AttentionAnswer(dataclasses.replace(record, scalars=scalars)).verdicts() if c.name == "ceiling"
    ]
    assert (card.status, card.tag) == ("yellow", "unconverged")


def test_cards_follow_their_stated_limits(record) -> None:
    """At a limit the better colour holds, just above it the worse; the card prints both limits."""
    for limits in (NEGATIVE, UNEVEN, MISSED, AUTODIFF):
        assert [limits.of(v) for v in (limits.green, limits.green * 1.01, limits.red, limits.red * 1.01)] == [
            "green",
            "yellow",
            "yellow",
            "red",
        ]
    assert NEGATIVE.of(float("nan")) == "red"

    def card(name: str, **scalars: float):
        new = {**record.scalars, **{key: Estimate(value) for key, value in scalars.items()}}
        return next(c for c in AttentionAnswer(dataclasses.replace(record, scalars=new)).verdicts() if c.name == name)

    assert [card("negative", negative_share=v).status for v in (0.0, 0.2, 0.3)] == ["green", "yellow", "red"]
    assert [card("entropy", entropy=v).status for v in (ENTROPY.green, 0.49, 0.09)] == ["green", "yellow", "red"]
    assert [card("checks", autodiff_error=v).status for v in (1e-13, 1e-9, 1e-7)] == ["green", "yellow", "red"]
    assert card("ceiling", ceiling_sgd=float("inf")).status == "red"
    assert "1 %" in card("negative").rule()
    assert "25 %" in card("negative").rule()


def test_the_sharpest_block_is_that_of_largest_norm(record, variants) -> None:
    """Largest and smallest diagonal norm and their ratio; infinite when a block is exactly zero."""
    norms = {b: record.scalars[f"norm/total/{b}"].value for b in ("W_Q,W_Q", "W_K,W_K", "W_V,W_V")}
    sharp, flat, ratio = AttentionAnswer(record).extremes()
    assert norms[sharp] == max(norms.values())
    assert norms[flat] == min(norms.values())
    assert ratio == pytest.approx(max(norms.values()) / min(norms.values()))
    assert AttentionAnswer(variants["one"]).extremes()[2] == float("inf")
    assert "exactly 0" in AttentionAnswer(variants["one"]).said("en")


def test_linear_attention_has_no_entropy_card(variants) -> None:
    """Attention without softmax is no distribution; the card is absent, not empty."""
    assert "entropy" not in {card.name for card in AttentionAnswer(variants["linear"]).verdicts()}
    assert "entropy" in {card.name for card in AttentionAnswer(variants["one"]).verdicts()}


def test_a_failed_check_is_seen(record) -> None:
    """A matrix that is not symmetric, or eigenvalues that do not add up to the trace, turn their rows red."""
    broken = record.tensors["H_f"].clone()
    broken[0, 1] += 0.5
    rows = {row.label: row for row in measured(dataclasses.replace(record, tensors={**record.tensors, "H_f": broken}))}
    assert rows[EN("check_symmetric")].status == "red"
    lam = {**record.tensors, "eigenvalues": record.tensors["eigenvalues"] + 0.1}
    rows = {row.label: row for row in measured(dataclasses.replace(record, tensors=lam))}
    assert rows[EN("check_trace")].status == "red"
    assert all(row.status in (None, "green") for row in measured(record))


# --- safety ---------------------------------------------------------------------------------------------------------
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028<!--"


def test_text_from_inputs_cannot_become_markup(record) -> None:
    """A hostile command, note or setting is shown as text; the page has the same elements as a harmless one."""

    def elements(text: str) -> list[str]:
        made = dataclasses.replace(record.made, command=f"quadform {text}", machine=text)
        scalars = {**record.scalars, "loss": Estimate(1.0, note=text)}
        inputs = {**record.inputs, "temperature": text, "remark": text, "mask": text}
        page = render(dataclasses.replace(record, made=made, scalars=scalars, inputs=inputs))
        assert text in Page(page).seen
        assert json.loads(Page(page).scripts["record-1-1-raw"])["inputs"]["remark"] == text
        return [tag for tag, _ in Page(page).elements]

    assert elements(EVIL) == elements("harmless")


def test_json_in_a_script_has_no_bracket_and_reads_back() -> None:
    """`<` never occurs; the value is unchanged."""
    value = {"a": [EVIL, 1.5, None, True], EVIL: {"b": "<"}}
    assert "<" not in in_script(value)
    assert json.loads(in_script(value)) == value


# --- raw data -------------------------------------------------------------------------------------------------------
def test_the_record_is_inside_the_page(record, pages) -> None:
    """Settings, numbers with tags and every tensor can be read back from the page, bit for bit."""
    raw = json.loads(Page(pages["en"]).scripts["record-1-1-raw"])
    assert raw["inputs"] == json.loads(json.dumps(record.inputs))
    assert raw["scalars"]["slope/outer/W_Q,W_Q"]["kind"] == "estimate"
    for name, tensor in record.tensors.items():
        entry = raw["tensors"][name]
        if "values" in entry:
            got = np.array(entry["values"])
        else:
            got = np.frombuffer(base64.b64decode(entry["base64"]), dtype="<f8").reshape(entry["shape"])
        assert (got == tensor.numpy()).all()


def test_matrices_are_left_out_rather_than_the_limit_broken(record, variants) -> None:
    """With no room the largest tensors go first and are named; the page says so."""
    body, left_out = raw_data(record, 200_000, EN)
    assert set(left_out) == {"H_o", "H_f"}
    assert len(in_script(body).encode()) <= 200_000
    assert "base64" not in body["tensors"]["H_o"]
    pages = render([variants["large"]] * 3)
    assert len(pages.encode()) <= LIMIT
    assert re.search(r"Left out, because this file stays below 3 MB: .*H_o", Page(pages).seen)


def test_long_tables_are_cut_in_the_page_only(variants) -> None:
    """300 eigenvalues: 200 rows shown, a line says 100 are left out, the CSV has all."""
    page = Page(render(variants["large"]))
    assert EN("table_cut", left=100) in page.seen
    charts = json.loads(page.scripts["charts"])
    assert len(charts["spectrum-1"]["csv"].splitlines()) == 301
