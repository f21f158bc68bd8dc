"""The page of a model: maps of a sentence, panels measured in the background, errors as sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from browsing import served, violations
from quadform.answers.spectrum import Spectrum
from quadform.applications.opening import Opening
from quadform.applications.spectrum.question import SpectrumQuestion
from quadform.applications.subject import Subject, weights_hash
from quadform.cli.main import main
from quadform.core.errors import InputError
from quadform.corpora import dataset
from quadform.explorer.door import packed
from quadform.explorer.model.engine import ModelEngine
from quadform.explorer.model.maps import Reader
from quadform.explorer.model.panels import PANELS, Panel, asked
from quadform.explorer.model.server import application
from quadform.explorer.serving import Place, find_place, serving
from quadform.nn.transformer import Transformer
from quadform.train import TrainConfig, train

QUESTION = SpectrumQuestion(top=1, bottom=0, tol=1e-1)
QUICK = (Panel("spectrum", partial(asked, QUESTION)),)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on sums."""
    folder = tmp_path_factory.mktemp("explored") / "run"
    data = dataset("add", digits=3)
    model = Transformer("pre-ln", depth=2, d_model=8, heads=2, **data.settings)
    train(model, data, TrainConfig(steps=2, batch_size=4), out=folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def subject(run: Path) -> Subject:
    return Opening(model=str(run), batch_size=2).open()


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of 2 layers with a tokenizer of five words."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("explored") / "gpt"
    words = {w: i for i, w in enumerate(["[UNK]", "the", "cat", "sat", "mat"])}
    coder = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    coder.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=coder, unk_token="[UNK]").save_pretrained(folder)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=5, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def finished(engine: ModelEngine, **message: Any) -> dict[str, Any]:
    """The answer once everything is measured."""
    engine.start()
    assert engine.thread is not None
    engine.thread.join(120)
    return engine.answer(json.dumps({"seq": 1, **message}))


def test_maps_of_our_model_are_what_its_attention_mixes_with(subject: Subject) -> None:
    """Each map is softmax(scale Q K^T) as the kernel of the model meets it, causal, over the characters of the sum."""
    reader = Reader(subject)
    maps = reader.read("12+34=46")
    assert maps.rows == list("12+34=46")
    assert list(maps.layers) == ["layer.0", "layer.1"]
    seen: list[torch.Tensor] = []

    def attend(q, k, v, *, causal=False, mask=None, bias=None, scale=None):
        T = scale * (q @ k.mT)
        T = T.masked_fill(torch.ones(T.shape[-2:]).triu(1).bool(), -math.inf)
        seen.append(T.softmax(-1))
        return seen[-1] @ v

    model = reader.model
    model.attend = attend
    with torch.no_grad():
        model(torch.tensor([reader.tokenizer.encode("12+34=46")]))
    for found, wanted in zip(maps.layers.values(), seen, strict=True):
        torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.sum(-1), torch.ones(2, 8))


def test_maps_of_a_hugging_face_model_are_its_own(hugging_face: Path) -> None:
    """Words through its tokenizer, maps as transformers gives them."""
    subject = Opening(model=str(hugging_face), batch_size=2, length=4).open()
    reader = Reader(subject)
    maps = reader.read("the cat sat")
    assert maps.rows == ["the", "cat", "sat"]
    subject.model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = subject.model(input_ids=torch.tensor([[1, 2, 3]]), output_attentions=True).attentions
    for found, want in zip(maps.layers.values(), wanted, strict=True):
        torch.testing.assert_close(found, want[0])


def test_what_cannot_be_read_is_told(subject: Subject) -> None:
    """A sign the tokenizer lacks, and a model without attention to look at: sentences, the page goes on."""
    engine = ModelEngine(subject, QUICK)
    assert "'x'" in engine._maps("1+x")["error"]
    model = torch.nn.Linear(3, 2)
    other = ModelEngine(Subject.of(model, (torch.ones(4, 3), torch.ones(4, 2)), torch.nn.MSELoss()), QUICK)
    assert other._maps("a word")["error"].endswith("got Linear.")
    assert finished(other)["panels"][0]["status"] == "done"


def test_panels_are_measured_and_the_model_is_left_alone(subject: Subject) -> None:
    """The record of a panel is that of the verb; a panel that fails says why, and the next one is measured."""

    def fails(subject: Subject, progress: Any) -> Any:
        raise InputError("nothing to see here.")

    before = weights_hash(subject.model)
    steps: list[tuple[int, int]] = []

    def watched(subject: Subject, progress: Any) -> Any:
        def told(done: int, total: int, left: float, text: str) -> None:
            steps.append((done, total))
            progress(done, total, left, text)

        return asked(QUESTION, subject, told)

    engine = ModelEngine(subject, (Panel("landscape", fails), Panel("spectrum", watched)))
    failed, done = finished(engine)["panels"]
    assert (failed["status"], failed["text"]) == ("failed", "nothing to see here.")
    assert done["status"] == "done"
    assert steps
    assert all(0 <= done <= total for done, total in steps)
    wanted = asked(QUESTION, subject, lambda *_: None)
    record = engine.progress[1].record
    assert record is not None
    found, again = (Spectrum(of).top[0].value for of in (record, wanted))
    assert found == pytest.approx(again, rel=1e-6)
    assert {f["name"] for f in done["shown"]["figures"]} >= {"block_map", "where"}
    assert all(f["svg"].startswith("<svg") for f in done["shown"]["figures"])
    more = engine.answer(json.dumps({"seq": 2, "have": ["spectrum"], "text": ""}))
    assert "shown" not in more["panels"][1]
    assert isinstance(packed(more), bytes)
    assert weights_hash(subject.model) == before


@pytest.mark.parametrize("message", ["", "[]", "{}", '{"seq": 1, "lang": "xx"}', '{"seq": 1, "have": 3}', "\x00"])
def test_bad_messages_to_a_model_get_an_error(subject: Subject, message: str) -> None:
    assert ModelEngine(subject, QUICK).answer(message)["kind"] == "error"


def test_the_panels_are_those_of_the_page() -> None:
    """Block map, eigenvalues and the place of the top eigenvector are of one record, the plane of another."""
    assert [panel.name for panel in PANELS] == ["spectrum", "landscape"]


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["explore", str(tmp_path), "--no-open", "--port", "0"]) == 2
    assert "holds no model" in capsys.readouterr().err


@pytest.fixture(scope="module")
def place(subject: Subject) -> Iterator[Place]:
    with serving(find_place(0), partial(application, engine=ModelEngine(subject, QUICK))) as found:
        yield found


@pytest.mark.browser
@pytest.mark.parametrize(("lang", "theme", "size"), [("en", "light", (1280, 720)), ("ko", "dark", (390, 844))])
def test_the_page_of_a_model(browser, place: Place, lang: str, theme: str, size: tuple[int, int]) -> None:
    """A sentence is typed and read, panels arrive, pictures are saved, the link opens the same; nobody is shut out."""
    options: dict[str, Any] = {"color_scheme": theme, "bypass_csp": True}
    with served(browser, place, f"?lang={lang}#text=1%2B2&layer=layer.1", size=size, **options) as page:
        page.wait_for_selector("#heads svg image")
        assert page.input_value("#layer") == "layer.1"
        assert page.locator("#heads svg").first.locator("text").count() == 2 * 3
        page.fill("#sentence", "12+34")
        page.wait_for_function(
            "() => document.querySelectorAll('#heads svg')[0].querySelectorAll('text').length === 10"
        )
        assert "text=12" in page.url
        page.wait_for_selector("#panel-spectrum[data-status=done] img")
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert violations(page, least=10) == []
        for place_, kind, begins in ((".shown figure", "svg", b"<svg"), ("#heads figure", "png", b"\x89PNG")):
            with page.expect_download() as saved:
                page.locator(f"{place_} .save[data-kind={kind}]").first.click()
            assert Path(saved.value.path()).read_bytes().startswith(begins)
            assert saved.value.suggested_filename.endswith(f".{kind}")
