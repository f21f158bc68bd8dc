"""The live page in a real Chromium: it moves, it remembers, it speaks both languages, everybody can use it.

A machine without Chromium or axe-core fails these tests; `make test` installs both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from browsing import served, violations
from quadform.explorer import State, measure
from quadform.explorer.serving import Place, find_place, start_thread
from quadform.explorer.telling import tell
from quadform.explorer.texts import EN, KO
from quadform.explorer.tour import TOUR

pytestmark = pytest.mark.browser


@contextmanager
def opened(browser, place: Place, where: str = "", *, width: int = 1400, theme: str = "light", **options) -> Iterator:
    """The live page, 900 high."""
    with served(browser, place, where, size=(width, 900), color_scheme=theme, **options) as page:
        yield page


def settle(page) -> None:
    """Until the newest event is answered and drawn: nothing is late and the number has stopped."""
    page.wait_for_function(
        """() => new Promise((done) => {
            const root = document.documentElement, seq = root.dataset.seq;
            setTimeout(() => done(seq === root.dataset.seq && !document.body.matches(".late")), 250);
        })"""
    )


def number(page, name: str) -> float:
    return float(page.get_attribute(f"#numbers [data-name={name}]", "data-value"))


def shows(page, **state) -> None:
    """Until the page shows the number Python gives for this state."""
    want = measure(State(**state)).scalars["lambda_max"].value
    page.wait_for_function(
        """(want) => {
            const shown = document.querySelector("#numbers [data-name=lambda_max]").dataset.value;
            return Math.abs(shown - want) <= 1e-6 * Math.abs(want);
        }""",
        arg=want,
    )


def slide(page, name: str, *values: float) -> float:
    """Drag a slider through values (as near as its steps allow) and let it go, as fast as a browser can send events;
    the value it stands at."""
    return page.evaluate(
        """([name, values]) => {
            const input = document.getElementById(name);
            const [low, high] = [input.dataset.low, input.dataset.high].map(Number);
            for (const value of values) {
                input.value = "log" in input.dataset ? 400 * Math.log(value / low) / Math.log(high / low) : value;
                input.dispatchEvent(new Event("input", {bubbles: true}));
            }
            input.dispatchEvent(new Event("change", {bubbles: true}));
            return Number(document.getElementById(`value-${name}`).textContent);
        }""",
        [name, list(values)],
    )


def colours(page, picture: str) -> int:
    """Colours of a picture: of its cells, or of the image it holds."""
    return page.evaluate(
        """async (id) => {
            const held = document.querySelector(`#${id} image`);
            const cells = [...document.querySelectorAll(`#${id} rect[fill]`)].map((r) => r.getAttribute("fill"));
            if (!held) return new Set(cells).size;
            const image = new Image();
            image.src = held.getAttribute("href");
            await image.decode();
            const c = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
            c.getContext("2d").drawImage(image, 0, 0);
            const bytes = c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer;
            return new Set(new Uint32Array(bytes)).size;
        }""",
        picture,
    )


# --- it is drawn ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lang", "theme", "width"), [("en", "light", 1400), ("ko", "dark", 1400), ("en", "dark", 390), ("ko", "light", 320)]
)
def test_everything_is_drawn_and_fits(browser, place, lang, theme, width) -> None:
    """Pictures have colours and marks, nothing scrolls sideways, the colours are those the reader prefers."""
    with opened(browser, place, f"?lang={lang}#depth=2", width=width, theme=theme) as page:
        assert colours(page, "heat") >= 2
        assert colours(page, "attention-matrix") > 5
        page.get_by_label((EN, KO)[lang == "ko"]("detail_entries_short"), exact=True).check()
        page.wait_for_selector("#heat image")
        assert colours(page, "heat") > 20
        assert page.locator("#spectrum rect").count() > 10
        assert page.locator("#depth-chart circle").count() == 3
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.get_attribute("html", "lang") == lang
        assert page.get_by_role("heading", level=1).inner_text() == (EN, KO)[lang == "ko"]("explore_heading")
        dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(12, 16, 21)"
        assert dark == (theme == "dark")
        out = page.evaluate(
            """() => [...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, .unseen, svg, .skip'))
                .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 90))"""
        )
        assert out == []
        if width < 400:
            order = (".first", ".answer", ".facts-card", "#spectrum", ".others", ".meaning")
            tops = [page.locator(s).bounding_box() for s in order]
            assert [box["y"] for box in tops] == sorted(box["y"] for box in tops)


@pytest.mark.parametrize("size", [(1280, 720), (390, 844)])
@pytest.mark.parametrize("lang", ["en", "ko"])
def test_the_first_picture_and_its_slider_are_seen_together(browser, place, size, lang) -> None:
    """Nothing scrolled: the heat map, its colours and the input scale are inside the window, also after a move; on a
    phone the slider stays with every later picture."""
    with served(browser, place, f"?lang={lang}", size=size) as page:
        slide(page, "scale", 30.0)
        settle(page)
        for which in ("#heat", ".key", "#control-scale"):
            box = page.locator(which).bounding_box()
            assert box["y"] >= 0, which
            assert box["y"] + box["height"] <= size[1], which
            assert box["width"] >= 0.15 * size[0], which
        assert page.evaluate("scrollY") == 0
        page.locator("#spectrum").scroll_into_view_if_needed()
        for which in ("#spectrum", "#scale"):
            assert page.evaluate("(s) => document.querySelector(s).checkVisibility()", which)
            box = page.locator(which).bounding_box()
            assert box["y"] >= 0, which
            assert box["y"] + box["height"] <= size[1], which


def test_bars_are_drawn_from_zero_as_long_as_their_share(browser, place) -> None:
    """In pixels: the bar of a block over the strongest bar is its norm over the strongest norm."""
    with opened(browser, place, "#scale=0.3") as page:
        drawn = page.evaluate(
            """() => [...document.querySelectorAll('#blocks button')].map((b) => [Number(b.dataset.value),
                b.querySelector('.bar-line').getBoundingClientRect().width, b.clientWidth])"""
        )
        strongest = max(value for value, _, _ in drawn)
        longest = max(width for _, width, _ in drawn)
        assert longest > 40
        assert min(value for value, _, _ in drawn) < 0.1 * strongest
        for value, width, room in drawn:
            assert width / room == pytest.approx(value / strongest * longest / room, abs=1.5 / room)


def test_hovering_gives_numbers(browser, place) -> None:
    """Mean and norm of the block under the pointer; in the finest picture the entry itself; nothing outside."""
    with opened(browser, place) as page:
        H = measure(State()).tensors
        H = H["H_o"] + H["H_f"]
        box = page.locator("#heat").bounding_box()
        unit = (box["width"] - 22) / len(H)

        def hover(i: int, j: int) -> str:
            page.mouse.move(box["x"] + 22 + unit * (j + 0.5), box["y"] + 22 + unit * (i + 0.5))
            return page.inner_text("#tip")

        assert hover(70, 130).startswith(f"key·value: mean |entry| {float(H[64:128, 128:].abs().mean()):.3g}, norm ")
        page.get_by_label("entries", exact=True).check()
        page.wait_for_selector("#heat image")
        said = hover(70, 131)
        assert said.startswith("key 7, value 4: ")
        assert float(said.split(": ")[1].replace("−", "-")) == pytest.approx(float(H[70, 131]), rel=5e-3)
        page.mouse.move(2, 2)
        assert page.is_hidden("#tip")


def test_colours_are_held_while_a_slider_moves(browser, place) -> None:
    """A drag over three decades of curvature keeps the ends of the colour key; they fit again after it is let go."""
    with opened(browser, place, "#scale=0.05") as page:
        ends = "document.querySelector('#heat-low').textContent + document.querySelector('#heat-high').textContent"
        before, curved = page.evaluate(ends), number(page, "lambda_max")
        page.evaluate(
            """() => { const input = document.getElementById("scale"); input.value = 240;
                input.dispatchEvent(new Event("input", {bubbles: true})); }"""
        )
        page.wait_for_function(
            "(x) => document.querySelector('#numbers [data-name=lambda_max]').dataset.value > 100 * x", arg=curved
        )
        settle(page)
        assert page.evaluate(ends) == before
        page.evaluate("document.getElementById('scale').dispatchEvent(new Event('change', {bubbles: true}))")
        page.wait_for_function(f"(was) => {ends} !== was", arg=before)


@pytest.mark.parametrize("width", [360, 1120, 1390])
def test_words_stay_in_their_cells(browser, place, width) -> None:
    """No word of the two tables runs into its neighbour, also where a block is called query-key."""
    for where in ("", "#factor=single"):
        with opened(browser, place, where, width=width) as page:
            out = page.evaluate(
                """() => [...document.querySelectorAll('.slopes th, .slopes td, .blocks button :not(.unseen)')]
                    .filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth).map((e) => e.textContent)"""
            )
            assert out == []


# --- it moves ---------------------------------------------------------------------------------------------------------
def test_a_slider_moved_by_keys_changes_the_numbers(browser, place) -> None:
    """Arrow, page and end keys on the native slider: value, text and numbers follow; End is the largest scale."""
    with opened(browser, place) as page:
        page.focus("#scale")
        page.keyboard.press("End")
        shows(page, scale=30.0)
        assert page.inner_text("#value-scale") == "30"
        assert page.get_attribute("#scale", "aria-valuetext") == "30"
        assert page.inner_text("#headline").startswith("Input scale 1 → 30: λmax 3.04 → ")
        assert [page.inner_text(f"#headline {kind} >> nth=0") for kind in ("i", "sub")] == ["λ", "max"]
        page.focus("#tokens")
        page.keyboard.press("ArrowLeft")
        shows(page, scale=30.0, tokens=7)
        page.focus("#sink")
        page.keyboard.press("PageUp")
        settle(page)
        assert float(page.inner_text("#value-sink")) > 0.5


def test_a_drag_of_sixty_events_ends_at_its_last_value(browser, place, engine) -> None:
    """Numbers, slider, address and picture are those of the last event, and most events were never computed."""
    with opened(browser, place) as page:
        before = engine.answered
        last = slide(page, "scale", *np.geomspace(0.02, 4.0, 60).tolist())
        assert last == pytest.approx(4.0, rel=0.02)
        shows(page, scale=last)
        settle(page)
        assert page.url.endswith(f"#scale={last:g}")
        assert engine.answered - before < 30
        want = measure(State(scale=last)).scalars
        for block in page.locator("#blocks button").all():
            key = f"norm/total/{block.get_attribute('data-block')}"
            assert float(block.get_attribute("data-value")) == pytest.approx(want[key].value, rel=1e-6)


def test_the_other_controls(browser, place) -> None:
    """Softmax, score matrix, design, depth and words each reach the numbers; what does not apply is switched off."""
    with opened(browser, place) as page:
        page.get_by_label("linear", exact=True).check()
        shows(page, attention="linear")
        assert page.is_disabled("#sink")
        page.get_by_label("softmax", exact=True).check()
        page.get_by_label("one WQK").check()
        shows(page, factor="single")
        page.select_option("#design", "pre-ln")
        shows(page, factor="single", design="pre-ln")
        assert "exact, autodiff" in page.inner_text("#tag")
        slide(page, "depth", 3)
        shows(page, factor="single", design="pre-ln", depth=3)
        assert page.is_visible("#depth-chart")
        assert page.is_enabled("#layer")
        page.select_option("#preset", "words")
        shows(page, data="text", scale=2.0)
        page.fill("#text", "to be or not to be")
        shows(page, data="text", scale=2.0, text="to be or not to be")


def test_blocks_can_be_chosen(browser, place) -> None:
    """In the heat map by the pointer and in the table by keys: formula, slope and frame follow; the part, too."""
    with opened(browser, place) as page:
        box = page.locator("#heat").bounding_box()
        page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 0.9 * box["height"])
        assert page.inner_text("#selected-name") == "Selected block: value·value"
        assert page.locator("#slopes tr[aria-current]").get_attribute("data-block") == "W_V,W_V"
        page.get_by_label("functional Hf").check()
        settle(page)
        assert page.inner_text("#formula") == "Hf(V,V) = 0"
        assert [page.inner_text(f"#formula {kind}") for kind in ("i", "sub")] == ["H", "f"]
        assert "exactly 0" in page.inner_text("#selected-facts")
        page.focus("#blocks button >> nth=1")
        page.keyboard.press("Enter")
        assert page.inner_text("#selected-name") == "Selected block: query·key"
        assert page.evaluate("document.activeElement.dataset.cell") == "0,1"
        assert "part=functional" in page.url


@pytest.mark.parametrize("detail", ["blocks", "entries"])
def test_every_picture_is_saved(browser, place, tmp_path, detail) -> None:
    """As SVG that needs no style sheet, and as PNG, twice as large as it is drawn."""
    with opened(browser, place, f"#depth=2&detail={detail}") as page:
        for picture in ("heat", "attention-matrix", "spectrum", "depth-chart"):
            with page.expect_download() as saved:
                page.click(f".save[data-picture={picture}][data-kind=svg]")
            text = Path(saved.value.path()).read_text("utf-8")
            assert saved.value.suggested_filename == f"quadform-{picture}.svg"
            assert text.startswith("<svg")
            assert "class=" not in text
            assert "rgb(" in text
        with page.expect_download() as saved:
            page.click(".save[data-picture=heat][data-kind=png]")
        blob = Path(saved.value.path()).read_bytes()
        assert blob.startswith(b"\x89PNG")
        width = int.from_bytes(blob[16:20], "big")
        assert width == pytest.approx(2 * page.locator("#heat").bounding_box()["width"], abs=2)


def test_undo_takes_back_one_move(browser, place) -> None:
    """A whole drag is one move; the button and Ctrl+Z take it back, as far as the beginning."""
    with opened(browser, place) as page:
        assert page.is_disabled("#undo")
        scale = slide(page, "scale", 1.5, 2.0, 3.0)
        shows(page, scale=scale, temperature=slide(page, "temperature", 2.0))
        page.click("#undo")
        shows(page, scale=scale)
        page.keyboard.press("Control+z")
        shows(page)
        assert page.is_disabled("#undo")
        assert page.inner_text("#value-scale") == "1"


def test_a_pinned_state_stays_beside(browser, place) -> None:
    """A stays as an outline, B : A is printed, and letting it go takes both away; a pin survives the language."""
    with opened(browser, place) as page:
        page.click("#pin")
        scale = slide(page, "scale", 2.0)
        shows(page, scale=scale)
        ratio = measure(State(scale=scale)).scalars["lambda_max"].value / measure(State()).scalars["lambda_max"].value
        assert page.inner_text("#numbers [data-name=lambda_max] .ratio") == f"B : A = {ratio:.0f}"
        assert page.inner_text("#headline").startswith(f"B against A, Input scale 1 → {scale:g}")
        assert page.locator("#spectrum .ghost").count() == 1
        assert page.get_attribute("#pin", "aria-pressed") == "true"
        page.click("#language")
        page.wait_for_selector("html[lang=ko][data-ready]")
        shows(page, scale=scale)
        assert page.inner_text("#headline").startswith("A에 대한 B")
        page.click("#pin")
        settle(page)
        assert page.locator("#numbers .ratio").count() == 0


def test_the_state_is_in_the_address(browser, place) -> None:
    """An address opens its state; a move changes the address; the copied link opens the same again."""
    with opened(browser, place, "#scale=3&depth=2&part=outer&block=W_V,W_V") as page:
        shows(page, scale=3.0, depth=2)
        assert page.is_checked("input[name=part][value=outer]")
        assert page.inner_text("#selected-name") == "Selected block: value·value"
        slide(page, "sink", 2.0)
        shows(page, scale=3.0, depth=2, sink=2.0)
        page.evaluate("location.hash = '#temperature=2'")
        shows(page, temperature=2.0)
        page.click("#share")
        page.wait_for_function("() => document.querySelector('#share').textContent === 'Link copied'")


def test_errors_stand_at_their_control(browser, place) -> None:
    """A wrong address: the page opens all the same and says what is wrong where it is; the picture stays."""
    with opened(browser, place, "#scale=99") as page:
        page.wait_for_selector("#error-scale:visible")
        assert page.inner_text("#error-scale") == "Input scale takes values from 0.01 to 30; got 99."
        shows(page)
        page.evaluate("location.hash = '#design=u-spa&attention=linear'")
        page.wait_for_selector("#error-design:visible")
        assert page.get_attribute("#design", "aria-invalid") == "true"
        shows(page)  # the last good picture
        page.select_option("#design", "pre-ln")
        shows(page, design="pre-ln", attention="linear")
        assert page.is_hidden("#error-design")


def test_files_are_taken_and_refused(browser, place, tmp_path) -> None:
    """A .csv of tokens is measured, its sizes replace the sliders; another file is refused at its control."""
    (tmp_path / "tokens.csv").write_text("1,0,0\n0,1,0\n0.5,0.5,1\n")
    (tmp_path / "wrong.csv").write_text("nothing")
    with opened(browser, place, may_complain=True) as page:  # the browser logs the 422
        page.get_by_label("upload", exact=True).check()
        page.wait_for_selector("#error-upload:visible")
        page.set_input_files("#upload", tmp_path / "wrong.csv")
        page.wait_for_function("() => document.querySelector('#error-upload').textContent.includes('cannot be read')")
        page.set_input_files("#upload", tmp_path / "tokens.csv")
        page.wait_for_function("() => document.querySelector('#note-tokens').textContent === 'From the file: 3.'")
        assert page.is_disabled("#dim")
        assert page.is_hidden("#error-upload")
        assert "27 parameters" in page.inner_text("#tag")


# --- waiting and losing -----------------------------------------------------------------------------------------------
def test_old_pictures_stay_and_dim(browser, place, engine) -> None:
    """While an answer takes long: dimmed after 300 ms, nothing blank, nothing moves; then bright again."""
    with opened(browser, place) as page:
        boxes = """[...document.querySelectorAll('svg, .controls, .answer')]
            .map((e) => JSON.stringify(e.getBoundingClientRect()))"""
        before = page.evaluate(boxes)
        engine.gate.clear()
        try:
            temperature = slide(page, "temperature", 1.2)
            assert not page.evaluate("document.body.matches('.late')")
            page.wait_for_selector("body.late")
            assert page.evaluate(boxes) == before
            assert page.inner_text("#headline").startswith("λmax is 3.04")
        finally:
            engine.gate.set()
        page.wait_for_selector("body:not(.late)")
        shows(page, temperature=temperature)
        assert page.evaluate(boxes) == before


def test_the_guard_asks(browser, place, engine) -> None:
    """A state that would take long is computed when the button is pressed, and only then."""
    with opened(browser, place) as page:
        engine.cost.factor = 20.0
        page.select_option("#design", "post-ln")
        slide(page, "depth", 8)
        page.wait_for_selector("#guard-go:visible")
        assert "takes about" in page.inner_text("#guard-text")
        page.click("#guard-go")
        shows(page, design="post-ln", depth=8)
        assert page.is_hidden("#guard")
        engine.cost.factor = 1.0


def test_a_link_to_a_long_computation_says_that_it_waits(browser, place, engine) -> None:
    """Opened in a state the guard asks about, the page does not claim to compute before the button is pressed."""
    with opened(browser, place) as page:
        engine.cost.factor = 20.0
        page.goto(f"{place.url}?lang=en#depth=7&design=post-ln")
        page.wait_for_selector("#guard-go:visible")
        assert page.inner_text("#headline") == page.inner_text("#guard-text")
        page.click("#guard-go")
        page.wait_for_selector("html[data-ready]")
        assert page.inner_text("#headline").startswith("λmax is")
        engine.cost.factor = 1.0


def test_a_lost_server_is_found_again(browser) -> None:
    """The banner comes, the last result stays; after a restart on the same address the page goes on by itself."""
    first = find_place(0, token="a" * 32)
    server = start_thread(first)
    with opened(browser, first, may_complain=True) as page:
        scale = slide(page, "scale", 2.0)
        shows(page, scale=scale)
        server.should_exit = True
        server.thread.join(10)
        page.wait_for_selector("#lost:visible")
        assert page.inner_text("#lost") == EN("explore_lost")
        shows(page, scale=scale)
        scale = slide(page, "scale", 3.0)
        again = start_thread(find_place(first.port, token="a" * 32))
        try:
            page.wait_for_selector("#lost", state="hidden")
            shows(page, scale=scale)
        finally:
            again.should_exit = True
            again.thread.join(10)


# --- everybody --------------------------------------------------------------------------------------------------------
def test_the_tour_by_keyboard_alone(browser, place) -> None:
    """Seven steps, each heard by its title, moved by a key press, ending in the state the step names."""
    with opened(browser, place) as page:
        page.focus("#start-tour")
        page.keyboard.press("Enter")
        for i, step in enumerate(TOUR):
            assert page.evaluate("document.activeElement.textContent") == EN(f"tour_{step.name}_title")
            assert page.inner_text("#tour-count") == f"Step {i + 1} of 7"
            page.focus("#tour-show")
            page.keyboard.press("Enter")
            shows(page, **step.end.json())
            told = tell(step.name, measure(step.end), measure(step.start), EN)
            page.wait_for_function("(said) => document.querySelector('#tour-told').dataset.words === said", arg=told)
            assert (
                float(page.evaluate("parseFloat(getComputedStyle(document.querySelector('#tour-told')).fontSize)")) > 18
            )
            assert page.locator(".spot").count() == 1 + len(step.looks)
            card = page.locator("#tour").bounding_box()
            for spot in (f"control-{step.control}", step.looks[0]):
                box = page.locator(f"#{spot}.spot").bounding_box()
                assert card["y"] + card["height"] - 2 <= box["y"] + box["height"], spot  # not behind the card
                assert box["y"] < 900, spot
            if step is not TOUR[-1]:
                page.focus("#tour-next")
                page.keyboard.press("Space")
        assert page.is_disabled("#tour-next")
        page.focus("#tour-end")
        page.keyboard.press("Enter")
        assert page.is_hidden("#tour")
        assert page.locator(".spot").count() == 0
        assert page.evaluate("document.activeElement.id") == "start-tour"


def test_everything_is_reached_by_tab(browser, place) -> None:
    """The skip link first; then tools, controls, blocks, tables, Python: nothing needs a pointer."""
    with opened(browser, place) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "document.activeElement.id || document.activeElement.name || document.activeElement.tagName"
                )
            )
        assert {
            "preset",
            "start-tour",
            "pin",
            "share",
            "language",
            "theme",
            "scale",
            "sink",
            "dim",
            "design",
        } <= reached
        assert {"python", "copy", "SUMMARY", "BUTTON", "part"} <= reached


def test_the_live_region_is_not_a_chatterbox(browser, place) -> None:
    """A drag of two seconds is spoken at most three times, and the last words are those of the last answer."""
    with opened(browser, place) as page:
        page.wait_for_timeout(1100)
        page.evaluate(
            """() => { window.spoken = 0;
                const options = {childList: true, characterData: true, subtree: true};
                new MutationObserver(() => window.spoken++).observe(document.getElementById("said"), options); }"""
        )
        for i in range(10):
            scale = slide(page, "scale", 1.1 + i / 10)
            page.wait_for_timeout(150)
        shows(page, scale=scale)
        page.wait_for_timeout(1200)
        assert 1 <= page.evaluate("window.spoken") <= 4
        assert page.inner_text("#said") == page.inner_text("#headline")


@pytest.mark.parametrize(("lang", "theme", "width"), [("en", "light", 1400), ("ko", "dark", 390)])
def test_axe_finds_nothing(browser, place, lang, theme, width) -> None:
    """No WCAG A or AA violation: tables open, tour open, an error shown, a state pinned, a deep stack."""
    with opened(browser, place, f"?lang={lang}#depth=2", width=width, theme=theme, bypass_csp=True) as page:
        page.click("#pin")
        page.click("#start-tour")
        page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        page.evaluate("location.hash = '#scale=99'")
        page.wait_for_selector("#error-scale:visible")
        assert violations(page) == []
        if lang == "en":  # the check is not blind
            page.evaluate("document.querySelector('label[for=scale]').remove()")
            assert "label" in {name for name, _ in violations(page)}
