"""Sub-word pieces: every text comes back, nothing is unknown, the vocabulary file carries its special ids."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadform.core.errors import FileError, InputError
from quadform.nn.tokens import SPECIALS, UNK, PieceTokenizer, load_tokenizer, save_tokenizer

pytest.importorskip("tokenizers")
TEXTS = ["the option may not be used", "한국어 문장을 조각으로 나눕니다", "Die Option darf nicht verwendet werden"] * 3
PIECES = PieceTokenizer.train(TEXTS, 300)
HANGUL = st.text(st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3), max_size=20)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_every_text_comes_back(text):
    """decode(encode(x)) = NFC(x), whatever was trained on."""
    assert PIECES.decode(PIECES.encode(text)) == unicodedata.normalize("NFC", text)


@given(HANGUL)
def test_hangul_as_jamo_is_the_same_text(text):
    """Syllables and their decomposition into jamo have the same tokens, and come back as syllables."""
    jamo = unicodedata.normalize("NFD", text)
    assert PIECES.encode(jamo) == PIECES.encode(text)
    assert PIECES.decode(PIECES.encode(jamo)) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_text_never_makes_a_special_id(text):
    """Ids below len(SPECIALS) are ours; a character that was never seen becomes its bytes, not UNK."""
    ids = PIECES.encode(text + "<pad><eos><unk>")
    assert min(ids) >= len(SPECIALS) > UNK
    assert max(ids) < PIECES.size


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=5))
def test_together_is_one_by_one(texts):
    """encode_all(xs) = [encode(x) for x in xs]."""
    assert PIECES.encode_all(texts) == [PIECES.encode(text) for text in texts]


def test_vocabulary_file_carries_its_specials(tmp_path):
    """Saved and loaded it gives the same tokens; a file with other special ids is refused."""
    path = save_tokenizer(PIECES, tmp_path / "tokenizer.json")
    again = load_tokenizer(path)
    assert [again.encode(t) for t in TEXTS] == [PIECES.encode(t) for t in TEXTS]
    assert again.size == PIECES.size
    body = json.loads(path.read_text())
    assert body["specials"] == list(SPECIALS)
    path.write_text(json.dumps(body | {"specials": ["<unk>", "<pad>"]}))
    with pytest.raises(FileError, match="specials"):
        load_tokenizer(path)


def test_pieces_are_learned_from_the_text():
    """A word that occurs often has fewer tokens than bytes; a vocabulary without room for all bytes is refused."""
    assert len(PIECES.encode("option")) < 6
    with pytest.raises(InputError, match="at least 261"):
        PieceTokenizer.train(TEXTS, 100)
