"""Every step: its numbers against quadform.nn and formulas written out, its Python run, its words in two languages."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import string
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch

from quadform.core.spec import BlockSpec, Gain
from quadform.lecture.controls import Choice, Sentence, Slider, read
from quadform.lecture.course import STEPS
from quadform.lecture.engine import BY_NAME, Engine
from quadform.lecture.step import Asked, Shown
from quadform.lecture.texts import EN, KO, LANGUAGES
from quadform.lecture.words import ids, sentence_model
from quadform.nn.frame import Frame

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def shown(engine: Engine, step: str, lang: str = "en", **values: Any) -> Shown:
    controls = BY_NAME[step].controls
    return BY_NAME[step].show(Asked(values=read(controls, values, lang), texts=LANGUAGES[lang], pupil=engine.pupil))


def panel(found: Shown, at: int) -> torch.Tensor:
    return torch.tensor(found.panels[at]["values"], dtype=torch.float64)


def ends_of(step: str) -> list[dict[str, Any]]:
    """Values at both ends of every slider and of every choice, the others as the step begins; and one word alone."""
    ends: list[dict[str, Any]] = [{}]
    for c in BY_NAME[step].controls:
        if isinstance(c, Slider):
            ends += [{c.name: c.low}] if c.name == "products" else [{c.name: c.low}, {c.name: c.high}]
        elif isinstance(c, Choice):
            ends += [{c.name: value} for value in c.values]
        elif isinstance(c, Sentence):
            ends += [{c.name: "one"}, {c.name: "a b a b a b a b a b"}]
    if step == "hessian":  # few products: it is asked six times
        ends = [{"products": 4} | end for end in ends]
    return ends


# --- all steps --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("step", [s.name for s in STEPS])
def test_the_python_prints_the_numbers_of_the_page(engine: Engine, step: str) -> None:
    """The script is complete: run in an empty namespace it prints what the step shows."""
    found = shown(engine, step)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(found.python, step, "exec"), {})
    printed = [float(word) for word in out.getvalue().split()]
    assert len(printed) == len(found.printed) > 0
    assert printed == pytest.approx(list(found.printed), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("step", [s.name for s in STEPS])
def test_every_end_of_every_control_is_answered(engine: Engine, step: str) -> None:
    """An answer, strict JSON, sentences without an empty place, pictures with finite numbers, in both languages."""
    for lang, values in [*(("en", v) for v in ends_of(step)), ("ko", {})]:
        message = {"seq": 1, "lang": lang, "step": step, "values": values}
        got = engine.answer(json.dumps(message))
        assert got["kind"] == "answer", (values, got)
        json.dumps(got, allow_nan=False)
        assert got["panels"]
        for words in (got["says"], got["exercise"], got["answer"]):
            assert words
            assert not re.search(r"nan|inf\b|None|\{|\}", words), words


@pytest.mark.parametrize("step", [s.name for s in STEPS])
def test_a_step_has_its_words(step: str) -> None:
    """A title and two sentences or three, in both languages."""
    for texts in (EN, KO):
        assert texts(f"title_{step}")
        sentences = re.split(r"(?<=[.?])\s", texts(f"text_{step}"))
        assert 2 <= len(sentences) <= 5


@pytest.mark.parametrize("key", EN.sentences)
def test_both_languages_fill_the_same_places(key: str) -> None:
    """And a Korean sentence is Korean, an English one is not."""

    def places(sentence: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}

    assert places(EN.sentences[key]) == places(KO.sentences[key])
    assert not re.search(r"\}(은|는|이|가|을|를|과|와|로|으로|이고|이며)(?![가-힣])", KO.sentences[key])
    if key != "teach_language":
        assert not re.search("[가-힣]", EN.sentences[key])
        assert re.search("[가-힣]", KO.sentences[key]) or not re.search("[a-z]{4,}", KO.sentences[key])


@pytest.mark.parametrize(
    ("step", "values", "control"),
    [
        ("tokens", {"width": 999}, "width"),
        ("tokens", {"width": 2.5}, "width"),
        ("tokens", {"sentence": "   "}, "sentence"),
        ("tokens", {"sentence": "a" * 999}, "sentence"),
        ("tokens", {"other": 1}, ""),
        ("head", {"sharpness": math.inf}, "sharpness"),
    ],
)
def test_a_wrong_value_is_told_at_its_control(engine: Engine, step: str, values: dict[str, Any], control: str) -> None:
    for lang in ("en", "ko"):
        got = engine.answer(json.dumps({"seq": 7, "lang": lang, "step": step, "values": values}))
        assert (got["kind"], got["seq"], got["control"]) == ("error", 7, control)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seq": 1}', '{"seq": true, "step": "tokens"}', b"\xff", "[" * 9999])
def test_what_is_no_message_is_refused(engine: Engine, text: str | bytes) -> None:
    assert engine.answer(text)["kind"] == "error"


# --- tokens and positions ---------------------------------------------------------------------------------------------
def test_tokens_are_embeddings_plus_sinusoids(engine: Engine) -> None:
    """PE[p, 2i] = sin(p / 10000^(2i/d)), PE[p, 2i + 1] = cos(same); equal words have equal embeddings."""
    found = shown(engine, "tokens", sentence="a b a", width=6)
    E, P, X = (panel(found, i) for i in range(3))
    assert torch.equal(E[0], E[2])
    assert not torch.equal(E[0], E[1])
    wanted = [[f(p / 10000 ** (2 * i / 6)) for i in range(3) for f in (math.sin, math.cos)] for p in range(3)]
    torch.testing.assert_close(P, torch.tensor(wanted, dtype=torch.float64), **CLOSE)
    torch.testing.assert_close(X, E + P, **CLOSE)
    assert f"{float((P[0] - P[2]).norm()):.2f}" in found.says


def test_equal_words_have_equal_ids() -> None:
    assert ids(["The", "the"])[0] == ids(["the"])[0] != ids(["cat"])[0]
    assert min(ids([str(i) for i in range(500)])) >= 5  # the special tokens are no words


# --- attention --------------------------------------------------------------------------------------------------------
def test_a_head_is_a_softmax_of_products(engine: Engine) -> None:
    """Weights and output of every word from X, W_Q, W_K, W_V alone."""
    sentence, scale = "the cat sees the dog", 2.5 / math.sqrt(2)
    model, tokens = sentence_model(sentence, d_k=2)
    assert model.embed.scale == pytest.approx(math.sqrt(8))  # [VSP17, Sec. 3.4]
    X = model.embed.scale * model.embed.W_E[tokens[0]] + panel(shown(engine, "tokens", sentence=sentence, width=8), 1)
    attn = model.layers[0].attn
    for i in range(5):
        found = shown(engine, "head", sentence=sentence, token=i + 1, sharpness=2.5)
        e = [math.exp(scale * float((X[i] @ attn.W_Q) @ (x @ attn.W_K))) for x in X]
        weights = torch.tensor([x / sum(e) for x in e], dtype=torch.float64)
        torch.testing.assert_close(panel(found, 1), weights, **CLOSE)
        torch.testing.assert_close(
            torch.tensor(found.printed[5:], dtype=torch.float64), weights @ (X @ attn.W_V), **CLOSE
        )
        assert sentence.split()[int(weights.argmax())] in found.says


def test_a_query_meets_every_key(engine: Engine) -> None:
    """The fits are Q K^T of the matrices that are shown."""
    found = shown(engine, "projections", token=3, head_width=4)
    Q, K = panel(found, 0), panel(found, 1)
    torch.testing.assert_close(panel(found, 3), Q[2] @ K.T, **CLOSE)
    assert found.panels[3]["mark"] == int((Q[2] @ K.T).argmax())


def test_a_word_beyond_the_end_is_the_last(engine: Engine) -> None:
    """The slider follows the sentence."""
    got = engine.answer(json.dumps({"seq": 1, "step": "head", "values": {"sentence": "a b", "token": 8}}))
    slider = next(c for c in got["controls"] if c["name"] == "token")
    assert (slider["value"], slider["high"]) == (2, 2)


def test_heads_are_softmaxes_of_their_own_columns(engine: Engine) -> None:
    """Head h reads columns h d_k to (h + 1) d_k of Q and K; the sentence names the two that differ most."""
    found = shown(engine, "heads", heads="4")
    model, tokens = sentence_model("the cat sees the dog", heads=4)
    X = model.embed(tokens, Frame.of(5, None, False, tokens.device))[0]
    attn = model.layers[0].attn
    maps = []
    for h in range(4):
        own = slice(2 * h, 2 * h + 2)
        maps.append(((X @ attn.W_Q[:, own]) @ (X @ attn.W_K[:, own]).T / math.sqrt(2)).softmax(-1))
        torch.testing.assert_close(panel(found, h), maps[h], **CLOSE)
    far = {(a, b): float((maps[a] - maps[b]).abs().sum(1).mean() / 2) for a in range(4) for b in range(a)}
    (b, a), most = max(far.items(), key=lambda pair: pair[1])
    assert f"Heads {a + 1} and {b + 1} differ most" in found.says
    assert f"{100 * most:.0f}" in found.says


@pytest.mark.parametrize(("mask", "pad"), [("none", 1), ("causal", 1), ("padding", 3), ("both", 2)])
def test_masks_hide_what_they_say(engine: Engine, mask: str, pad: int) -> None:
    """Row i sees column j unless j > i (causal) or j is padding; weights are those of the softmax over what is seen."""
    words = ["the", "cat", "sees", "the", "dog"]
    found = shown(engine, "masks", mask=mask, pad=pad)
    columns = 5 + (pad if mask in ("padding", "both") else 0)
    free = shown(engine, "masks", mask="none").panels[1]["values"]
    for i in range(5):
        seen = [j for j in range(columns) if not (mask in ("causal", "both") and j > i) and j < 5]
        row = found.panels[1]["values"][i]
        assert [j for j in range(columns) if row[j] is not None] == seen
        assert [j for j in range(columns) if found.panels[0]["values"][i][j] is not None] == seen
        total = sum(free[i][j] for j in seen)
        assert [row[j] for j in seen] == pytest.approx([free[i][j] / total for j in seen], rel=1e-12)
    blocked = 5 * columns - sum(x is not None for row in found.panels[1]["values"] for x in row)
    assert (f"{blocked} of {5 * columns} pairs" in found.says) == (blocked > 0)
    assert found.panels[1]["columns"] == [*words, *["<pad>"] * (columns - 5)]


# --- the rest of a block ----------------------------------------------------------------------------------------------
def test_residual_and_norm_keep_words_apart(engine: Engine) -> None:
    """One block without either is softmax attention, then a ReLU network; a deep stack of them collapses."""
    found = shown(engine, "residual", parts="neither", depth=1)
    model, tokens = sentence_model(
        "the cat sees the dog", d_model=32, heads=4, design=BlockSpec(norm="none", attn=Gain(skip=0), mlp=Gain(skip=0))
    )
    X = model.embed(tokens, Frame.of(5, None, False, tokens.device))[0]
    attn, mlp = model.layers[0].attn, model.layers[0].mlp
    heads = []
    for h in range(4):
        own = slice(8 * h, 8 * h + 8)
        A = ((X @ attn.W_Q[:, own]) @ (X @ attn.W_K[:, own]).T / math.sqrt(8)).softmax(-1)
        heads.append(A @ X @ attn.W_V[:, own])
    Y = (torch.cat(heads, 1) @ attn.W_O @ mlp.W_1).relu() @ mlp.W_2
    pairs = [float(torch.cosine_similarity(Y[i], Y[j], dim=0)) for i in range(5) for j in range(i)]
    assert found.printed[1] == pytest.approx(sum(pairs) / len(pairs), rel=1e-9)
    assert found.printed[3] == pytest.approx(float(Y.square().mean().sqrt()), rel=1e-9)
    deep = {parts: shown(engine, "residual", parts=parts, depth=24).printed[24] for parts in ("both", "neither")}
    assert deep["neither"] > 0.999 > deep["both"]


@pytest.mark.parametrize(("kind", "bend"), [("relu", torch.relu), ("gelu", torch.nn.functional.gelu)])
def test_the_network_works_row_by_row(engine: Engine, kind: str, bend: Any) -> None:
    """Out = bend(N W_1) W_2, and a word's row of N is normalised: mean 0, variance 1."""
    found = shown(engine, "ffn", activation=kind, ratio=2, token=4)
    before, after, out = (panel(found, i) for i in range(3))
    model, _ = sentence_model("the cat sees the dog", d_ff=16, activation=kind)
    torch.testing.assert_close(after, bend(before), **CLOSE)
    torch.testing.assert_close(out, after @ model.layers[0].mlp.W_2, **CLOSE)
    N = torch.linalg.lstsq(model.layers[0].mlp.W_1.T, before.T).solution.T
    torch.testing.assert_close(N.mean(1), torch.zeros(5, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(N.var(1, correction=0), torch.ones(5, dtype=torch.float64), atol=1e-4, rtol=0)
    assert found.printed[0] == pytest.approx(float((after == 0).double().mean()))


def test_the_lecture_is_served_from_python() -> None:
    """`qf.teach()`: an address in the language asked for, until it is closed."""
    import quadform as qf

    page = qf.teach(lang="ko")
    try:
        with urlopen(page.url, timeout=10) as got:
            assert KO("teach_heading") in got.read().decode()
        assert repr(page) == f"live page: {page.url}"
    finally:
        page.close()
    with pytest.raises(URLError):
        urlopen(page.url, timeout=2)
