"""The report in a real Chromium without a network: it draws, it speaks both languages, everybody can use it.

A machine without Chromium or axe-core fails these tests; `make test` installs both.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from report_sample import make_record

from browsing import violations
from quadform.report import write_report
from quadform.report.attention import PAGE
from quadform.report.page import drawn
from quadform.report.texts import EN, LANGUAGES

pytestmark = pytest.mark.browser

FIGURES = ("heat_map-1", "spectrum-1", "blocks-1", "growth-1", "moments-1")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("report")
    record = make_record()
    assert len(drawn(record)) == len(FIGURES)
    return {lang: write_report(record, folder / f"{lang}.html", lang) for lang in LANGUAGES}


@contextmanager
def opened(
    browser, path: Path, *, width: int = 1280, theme: str = "light", unfolded: bool = True, **options
) -> Iterator:
    """The page, every figure drawn, in an offline context; on leaving: nothing was fetched, nothing complained."""
    context = browser.new_context(
        offline=True, viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce", **options
    )
    page = context.new_page()
    complaints, asked = [], []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("request", lambda r: asked.append(r.url) if not r.url.startswith(("data:", "blob:")) else None)
    page.goto(path.as_uri())
    page.wait_for_selector(f"html[data-ready={theme}]", timeout=60_000)
    if unfolded:
        page.evaluate("document.querySelectorAll('.drawn').forEach((d) => (d.open = true))")
        drawn = "[...document.querySelectorAll('[data-chart]')].every((place) => place.dataset.drawn)"
        page.wait_for_function(drawn, timeout=60_000)
    yield page
    context.close()
    assert complaints == []
    assert asked == [path.as_uri()]


def marks(page, figure: str) -> dict:
    """How many marks of each kind a figure shows, and the box it fills."""
    return page.evaluate(
        """(id) => {
            const svg = document.querySelector(`#${id} .chart svg`), box = svg.getBoundingClientRect();
            const count = (what) => svg.querySelectorAll(what).length;
            return {paths: count('.mark-rect path, .mark-line path, .mark-symbol path, .mark-rule line'),
                    images: [...svg.querySelectorAll('image')].filter((i) => i.getAttribute('href')).length,
                    texts: count('text'), width: box.width, height: box.height,
                    scale: box.width / svg.viewBox.baseVal.width};
        }""",
        figure,
    )


def objections(browser, path: Path, **options) -> list:
    """What axe-core objects to, tables opened. The page's own policy is bypassed to let axe in."""
    with opened(browser, path, bypass_csp=True, **options) as page:
        page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        # rows of a table are all alike; ten of each are enough, and axe looks at every cell
        page.evaluate("document.querySelectorAll('details tr:nth-child(n + 11)').forEach((row) => row.remove())")
        return violations(page)


@pytest.mark.parametrize(
    ("lang", "theme", "width"), [("en", "light", 1280), ("ko", "dark", 1280), ("en", "dark", 390), ("ko", "light", 390)]
)
def test_every_figure_is_drawn_and_fits(browser, files, lang, theme, width) -> None:
    """Each has marks, words and room; the page does not scroll sideways; colours are those the reader prefers."""
    with opened(browser, files[lang], theme=theme, width=width) as page:
        for figure in FIGURES:
            seen = marks(page, figure)
            assert seen["paths"] + seen["images"] > 10, figure
            assert seen["texts"] > 5, figure
            assert 200 < seen["width"] <= width
            assert seen["scale"] > 0.85, figure  # letters of 12 pixels stay above 10
            assert seen["height"] > 150
        assert marks(page, "heat_map-1")["images"] == 6
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(12, 16, 21)"
        assert dark == (theme == "dark")
        assert page.get_attribute("html", "lang") == lang
        assert page.get_by_role("heading", level=1).inner_text() == PAGE.title(make_record(), LANGUAGES[lang])


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """A small model studied whole: learning rate, spectrum, signal, its parts; and a layer beside it."""
    from quadform import study

    folder = tmp_path_factory.mktemp("study")
    found = study("new:pre-ln,depth=1,d_model=16,heads=2", data="add:digits=2", batch_size=4, batches=2, progress=False)
    return write_report([found.records, make_record(tokens=3, dim=3)], folder / "study.html")


def test_a_phone_sees_the_verdict_and_one_figure_first(browser, study) -> None:
    """375 x 667: at most 15 screens, the first figure of each study drawn, the others one tap away; contents follow."""
    with opened(browser, study, width=375, unfolded=False) as page:
        assert page.evaluate("document.documentElement.scrollHeight") <= 15 * 667
        assert page.evaluate("document.querySelectorAll('.drawn[open]').length") == 2
        folded = page.locator(".drawn:not([open])").first
        folded.locator("summary").first.click()
        page.wait_for_function("document.querySelectorAll('.drawn[open] [data-chart][data-drawn]').length === 3")
        page.evaluate("scrollTo(0, 4000)")
        box = page.locator(".contents").bounding_box()
        assert box is not None
        assert box["y"] == 0


def test_contents_stay_in_view_on_a_desk(browser, study) -> None:
    """1280 x 720: subject, three sentences and the contents are on the first screen, the contents on every other."""
    with opened(browser, study, unfolded=False) as page:
        for what in ("h1", ".brief", ".contents"):
            box = page.locator(what).first.bounding_box()
            assert box is not None
            assert box["y"] + min(box["height"], 100) < 720
        page.evaluate("scrollTo(0, 5000)")
        assert page.locator(".contents a").first.is_visible()
        assert page.locator(".contents").bounding_box()["y"] == 0


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_a_study_is_drawn_and_fits(browser, study, theme, width) -> None:
    """Every figure of every kind of record has marks and room on a desk and on a phone; axe objects to nothing."""
    with opened(browser, study, theme=theme, width=width) as page:
        figures = page.evaluate("[...document.querySelectorAll('article.figure')].map((a) => a.id)")
        assert len(figures) >= 11
        for figure in figures:
            seen = marks(page, figure)
            assert seen["paths"] + seen["images"] > 2, figure
            assert 150 < seen["width"] <= width, figure
            assert seen["scale"] > 0.7, figure
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert objections(browser, study, theme=theme, width=width) == []


@pytest.mark.parametrize(("lang", "theme", "width"), [("en", "light", 1280), ("ko", "dark", 390)])
def test_axe_finds_nothing(browser, files, lang, theme, width) -> None:
    """No WCAG A or AA violation, tables opened, in both languages, themes and widths."""
    assert objections(browser, files[lang], theme=theme, width=width) == []


def test_the_axe_check_can_fail(browser, files, tmp_path) -> None:
    """A page with a picture without a name is objected to: the check above is not blind."""
    broken = tmp_path / "broken.html"
    page = files["en"].read_text(encoding="utf-8")
    broken.write_text(page.replace("<main>", '<main><img src="data:,"><p style="color:#ccc">faint</p>', 1), "utf-8")
    found = {name for name, _ in objections(browser, broken)}
    assert {"image-alt", "color-contrast"} <= found


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_at_400_per_cent_zoom_there_is_one_column(browser, files, lang) -> None:
    """1280 pixels at 400 % are 320: nothing scrolls sideways, figures fit, cards and panels stand below each other."""
    with opened(browser, files[lang], width=320, device_scale_factor=4) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        lefts = page.eval_on_selector_all(".card", "cards => cards.map((c) => c.getBoundingClientRect().left)")
        assert len(set(lefts)) == 1
        for figure in FIGURES:
            seen = marks(page, figure)
            assert seen["width"] <= 320
            assert seen["scale"] > 0.7, figure
        out = page.evaluate(
            """() => [...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll, .unseen, svg'))
                .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 90))"""
        )
        assert out == []


def clashes(page, figure: str) -> list:
    """Pairs of words of a chart whose boxes cover each other; slanted words are left out, their boxes are larger."""
    return page.evaluate(
        """(id) => {
            const texts = [...document.querySelectorAll(`#${id} .chart svg text`)]
                .filter((t) => t.textContent.trim() && getComputedStyle(t).opacity !== '0'
                               && t.getAttribute('opacity') !== '0'
                               && !/rotate\\((?!0\\)|-90\\)|270\\))/.test(t.getAttribute('transform') || ''))
                .map((t) => [t.textContent, t.getBoundingClientRect()]);
            const bad = [];
            for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
                const [a, p] = texts[i], [b, q] = texts[j];
                const w = Math.min(p.right, q.right) - Math.max(p.left, q.left);
                const h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                if (w > 1 && h > 3) bad.push([a, b]);
            }
            return bad;
        }""",
        figure,
    )


def test_no_words_of_a_chart_overlap(browser, files) -> None:
    """Boxes of visible texts of one chart do not cover each other, at desktop and phone width."""
    for width in (1280, 390):
        with opened(browser, files["en"], width=width) as page:
            for figure in FIGURES:
                assert clashes(page, figure) == [], (width, figure)


def test_long_names_and_small_numbers_have_room(browser, tmp_path) -> None:
    """The key of a layer with one W_QK, and norms as small as 1.8e-06 in the map of pairs; headings are not broken."""
    from quadform import Transformer, datasets, spectrum
    from quadform.applications.attention import attention

    data = datasets.dataset("add", digits=1)
    model = Transformer("pre-ln", depth=2, d_model=8, heads=1, seed=0, **data.settings)
    batch = next(data.batches("valid", 2, 0))
    one = spectrum(model, batch, top=1, density=False, blocks="qkv", progress=False).record
    blocks = {"blocks/value": 1e-7 * (1 + torch.rand(6, 6)), "blocks/stderr": torch.zeros(6, 6)}
    small = dataclasses.replace(one, tensors={**one.tensors, **blocks})
    layer = attention(tokens=3, d_model=2, factor="single", vary="scale=0.5:2:3", progress=False).record
    with opened(browser, write_report([layer, small], tmp_path / "report.html")) as page:
        assert clashes(page, "growth-1") == []
        assert clashes(page, "block_pairs-2") == []
        tall = page.eval_on_selector_all(".measured thead th", "(all) => all.map((e) => e.offsetHeight)")
        assert max(tall) < 45


def test_the_theme_can_be_chosen_by_keyboard(browser, files) -> None:
    """First Tab is the skip link, next the theme; Enter turns the page and the charts dark; all else is in reach."""
    with opened(browser, files["en"]) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "theme"
        page.keyboard.press("Enter")
        page.wait_for_selector("html[data-ready=dark]")
        assert page.evaluate("[...document.querySelectorAll('[data-chart]')].every((c) => c.dataset.drawn === 'dark')")
        assert page.inner_text("#theme") == EN("to_light")
        # everything that can be pressed is reached by Tab alone
        page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        reached = set()
        for _ in range(120):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.dataset.action || document.activeElement.tagName"))
        assert {"csv", "svg", "python", "json", "SUMMARY", "INPUT", "A"} <= reached


def test_the_sign_can_be_chosen(browser, files) -> None:
    """`negative` hides the pictures of positive entries, also after the theme has changed."""
    shown = "[...document.querySelectorAll('#heat_map-1 image')].map((i) => +(i.getAttribute('opacity') ?? 1))"
    with opened(browser, files["en"]) as page:
        assert page.evaluate(shown) == [1, 1] * 3
        page.get_by_label(EN("sign_negative"), exact=True).check()
        page.wait_for_function(f"{shown}.join() === '0,1,0,1,0,1'")
        page.click("#theme")
        page.wait_for_selector("html[data-ready=dark]")
        page.wait_for_function(f"{shown}.join() === '0,1,0,1,0,1'")
        assert page.get_by_label(EN("sign_negative"), exact=True).is_checked()


def test_the_buttons_give_files_and_python(browser, files) -> None:
    """CSV and JSON are the data of the record, the SVG is a picture, the Python is on the clipboard and said so."""
    record = make_record()
    with opened(browser, files["en"], accept_downloads=True) as page:

        def fetched(action: str, target: str) -> str:
            with page.expect_download() as download:
                page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
                page.click(f"button[data-action={action}][data-for={target}]")
            return Path(download.value.path()).read_text(encoding="utf-8-sig")

        lines = fetched("csv", "spectrum-1").splitlines()
        assert [float(line.split(",")[1]) for line in lines[1:]] == record.tensors["eigenvalues"].tolist()
        assert fetched("svg", "heat_map-1").startswith("<svg")
        assert json.loads(fetched("json", "record-1-1-raw"))["scalars"]["loss"]["value"] == record.scalars["loss"].value
        page.click("button[data-action=python][data-for=growth-1]")
        page.wait_for_function(f"document.querySelector('#growth-1 .said').textContent === {json.dumps(EN('copied'))}")


def test_paper_gets_light_figures(browser, files) -> None:
    """From the dark theme, printing shows every figure drawn on white and hides buttons and tables of data."""
    with opened(browser, files["en"], theme="dark") as page:
        page.wait_for_selector("html[data-paper=ready]", timeout=60_000)
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        for figure in FIGURES:
            assert page.evaluate(f"document.querySelectorAll('#{figure} .print svg path').length") > 5
            assert not page.is_visible(f"#{figure} .chart")
            assert not page.is_visible(f"#{figure} .buttons")
        white = page.evaluate("document.querySelector('#blocks-1 .print svg rect').getAttribute('fill')")
        assert white == "#ffffff"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.querySelectorAll('.print svg').length") == 0


def test_without_scripts_the_words_and_numbers_remain(browser, files) -> None:
    """Verdict, tables and a notice are there when scripts are off."""
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(files["en"].as_uri())
    assert EN("no_script") in page.inner_text("main")
    assert page.locator(".card").count() == 6
    page.locator("#blocks-1 .data summary").click()
    assert page.locator("#blocks-1 tbody tr").first.is_visible()
    context.close()
