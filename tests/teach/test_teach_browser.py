"""The lecture in a real Chromium: all steps in both languages, by keyboard, on a phone, for everybody.

A machine without Chromium or axe-core fails these tests; `make test` installs both.
"""

from __future__ import annotations

import pytest

from browsing import served, violations
from quadform.lecture.course import STEPS
from quadform.lecture.texts import LANGUAGES

pytestmark = pytest.mark.browser

NAMES = [step.name for step in STEPS]


DESK = (1280, 720)
#: Rules of axe that a small step gives something to look at.
LEAST = 15


#: axe looks at every step once: half of them in English, light and wide, half in Korean, dark and narrow.
LOOKED_AT = {"en": NAMES[::2], "ko": NAMES[1::2]}


@pytest.mark.parametrize(("lang", "size", "scheme"), [("en", (1280, 720), "light"), ("ko", (375, 667), "dark")])
def test_all_steps_by_keyboard(browser, place, lang, size, scheme) -> None:
    """Arrow keys lead through all steps: title heard, picture and first control seen together, nothing beside the
    page, no violation of WCAG A and AA; back again at the end."""
    texts = LANGUAGES[lang]
    with served(browser, place, f"?lang={lang}", size=size, color_scheme=scheme, bypass_csp=True) as page:
        for i, name in enumerate(NAMES):
            page.wait_for_selector(f"html[data-ready={name}]")
            assert page.inner_text("#title") == texts(f"title_{name}")
            assert page.locator(".steps a[aria-current=step]").get_attribute("data-step") == name
            assert page.locator("#panels figure").count() > 0
            picture = page.locator("#panels figure").first.bounding_box()
            control = page.locator("#controls .control").first.bounding_box()
            bottom = page.evaluate("innerHeight")
            assert picture["y"] + min(picture["height"], 120) <= bottom, name
            assert control["y"] >= 0, name
            assert control["y"] + control["height"] <= bottom, name
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0], name
            assert all(page.text_content(f"#{part}") for part in ("text", "exercise", "answer-text", "python")), name
            if name in LOOKED_AT[lang]:
                page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
                assert violations(page, LEAST) == [], name
            if i + 1 < len(NAMES):
                page.keyboard.press("ArrowRight")
        assert page.is_disabled("#next")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f"html[data-ready={NAMES[-2]}]")
        assert page.evaluate("document.activeElement.id") == "title"


def test_a_slider_and_a_sentence_move_the_picture(browser, place) -> None:
    """Keys on a slider change its value and the words, not the step; the address keeps both; an error stands at its
    control and goes again."""
    with served(browser, place, "#step=head", size=DESK) as page:
        before = page.inner_text("#says")
        page.focus("#token")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("(old) => document.getElementById('says').textContent !== old", arg=before)
        assert "sees" in page.inner_text("#says")
        assert page.input_value("#token") == "3"
        page.fill("#sentence", "we read a book")
        page.wait_for_function("() => document.getElementById('says').textContent.includes('“a”')")
        assert page.evaluate("document.activeElement.id") == "sentence"
        page.reload()
        page.wait_for_function("() => document.getElementById('says').textContent.includes('“a”')")
        assert page.input_value("#sentence") == "we read a book"
        page.fill("#sentence", " ")
        page.wait_for_selector("#error-sentence:visible")
        assert page.get_attribute("#sentence", "aria-invalid") == "true"
        page.fill("#sentence", "again")
        page.wait_for_selector("#error-sentence", state="hidden")


def test_training_is_started_and_stopped(browser, place) -> None:
    """The button: Start, the loss moves by itself, Stop; coming back to the step shows the same run."""
    with served(browser, place, "#step=training&steps=1500", size=DESK) as page:
        page.click("#train")
        page.wait_for_function("() => document.getElementById('says').textContent.startsWith('Step ')")
        page.wait_for_function("() => document.getElementById('train').textContent === 'Stop'")
        page.click("#train")
        page.wait_for_function("() => document.getElementById('says').textContent.startsWith('After ')")
        said = page.inner_text("#says")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("html[data-ready=decoding]")
        page.click("#back")
        page.wait_for_selector("html[data-ready=training]")
        assert page.inner_text("#says") == said


def test_the_other_language_is_the_same_step(browser, place) -> None:
    with served(browser, place, "#step=head", size=DESK) as page:
        page.click("#language")
        page.wait_for_selector("html[lang=ko][data-ready=head]")
        assert page.inner_text("#title") == LANGUAGES["ko"]("title_head")


def test_the_check_is_not_blind(browser, place) -> None:
    """Without its label a slider is found."""
    with served(browser, place, "#step=head", size=DESK, bypass_csp=True) as page:
        page.evaluate("document.querySelector('label[for=token]').remove()")
        assert "label" in {name for name, _ in violations(page, LEAST)}
