"""Two languages, one catalogue: nothing missing, nothing half translated, nothing left over."""

import re
import string
from pathlib import Path

import pytest

import quadform.answers.texts
import quadform.report
from quadform.core.errors import UnknownName
from quadform.report.texts import EN, KO, language

#: Words that stay as they are in every language: names from code, formats, proper names.
KEPT = {"H", "H_o", "H_f", "W_Q", "W_K", "λ_max", "λ_min", "SGD", "K", "FAC", "CSV", "SVG", "Python", "JSON", "MB"}
KEPT |= {
    "M1",
    "M2",
    "M3",
    "float64",
    "base64",
    "quadform",
    "Shampoo",
    "K-FAC",
    "_max",
    "_min",
    "resume",
    "Adam",
    "AdamW",
    "SAM",
    "ASAM",
    "Keskar",
    "ReLU",
    "P",
    "T",
    "nat",
    "GPU",
    "lambda_max",
    "lambda_min",
    "max",
    "json",
    "gradient",
    "entropy",
    "sink",
    "least",
    "nearest",
    "red",
    "eps",
    "W",
    "W_QK",
    "W_K^T",
}


def places(sentence: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(sentence) if name)


def test_no_key_is_written_twice() -> None:
    """A second sentence under the same key would replace the first without a word."""
    parts = [vars(m)["SENTENCES"] for m in vars(quadform.answers.texts).values() if hasattr(m, "SENTENCES")]
    keys = [key for part in parts for key in part]
    assert len(parts) > 8
    assert not {key for key in keys if keys.count(key) > 1}


def test_both_languages_have_the_same_sentences() -> None:
    """Same keys in the same order."""
    assert list(EN.sentences) == list(KO.sentences)


@pytest.mark.parametrize("key", EN.sentences)
def test_a_sentence_has_the_same_places_in_both_languages(key: str) -> None:
    """What is filled in in English is filled in in Korean."""
    assert set(places(EN.sentences[key])) == set(places(KO.sentences[key]))


def test_no_korean_sentence_is_left_in_english() -> None:
    """Apart from names that stay, a Korean sentence has no Latin words, and every one but bare names has Hangul."""
    for key, sentence in KO.sentences.items():
        bare = re.sub(r"\{\w+\}|`[^`]*`", "", sentence)  # code stays
        assert set(re.findall(r"[A-Za-z_λ][\w-]*[A-Za-z\d]|[A-Z]\b", re.sub("[가-힣]+", " ", bare))) <= KEPT, key
        assert re.search("[가-힣]", bare) or not set(re.findall("[a-z]{3,}", bare)) - {"csv", "svg"}, key


def test_no_english_sentence_holds_korean() -> None:
    """And the other way round."""
    assert not [key for key, sentence in EN.sentences.items() if re.search("[가-힣]", sentence)]


def test_no_korean_particle_depends_on_a_filled_in_word() -> None:
    """은/는, 이/가, 을/를, 과/와, (으)로 after a place would be wrong for half of the words."""
    pattern = re.compile(r"\}(은|는|이|가|을|를|과|와|로|으로|이고|이며|이지만)(?![가-힣])")
    assert not [key for key, sentence in KO.sentences.items() if pattern.search(sentence)]


def test_every_sentence_is_used() -> None:
    """Each key occurs in answers or report: in code or templates, whole or as the beginning of a built name."""
    rooms = [Path(quadform.report.__file__).parent, Path(quadform.answers.__file__).parent]
    files = [
        p
        for folder in rooms
        for p in folder.rglob("*")
        if p.suffix in (".py", ".j2", ".js") and p.parent.name != "texts"
    ]
    sources = "".join(p.read_text(encoding="utf-8") for p in files)
    built = (
        "parameter",
        "do",
        "tag",
        "card",
        "check",
        "status",
        "scalar",
        "row",
        "gloss",
        "part",
        "spectrum",
        "button",
        "training",
    )
    built += (
        "signal",
        "level",
        "stage",
        "point",
        "spectral",
        "verdict",
        "rate",
        "trial",
        "why",
        "warmup",
        "adam",
        "compare",
        "summary",
        "prediction",
        "monitor",
        "flat",
        "course",
        "line",
        "prune",
        "quantize",
    )
    begins = tuple(f"{word}_" for word in built)
    for key in EN.sentences:
        assert f'"{key}"' in sources or key.startswith(begins), key


def test_an_unknown_language_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"'kr' is not a language of the report \(en, ko\)"):
        language("kr")


def test_every_page_has_a_name_for_its_stage() -> None:
    """The summary of a page names what each record is about; a kind without a name could not be drawn."""
    from quadform.report.page import PAGES

    for texts in (EN, KO):
        assert not [k for k in PAGES if f"stage_{'lr' if k == 'step-size' else k}" not in texts.sentences]
