"""Text to token ids and back. Five special ids come first in every vocabulary; text can never produce one of them.

    PAD 0   BOS 1   EOS 2   UNK 3   MASK 4

Text is put into Unicode normal form C, so Hangul written as jamo and as syllables is the same text.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from quadform.core.errors import FileError, InputError, needing
from quadform.core.record import strict_json, write_atomically

PAD, BOS, EOS, UNK, MASK = range(5)
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")
_FORMAT = "quadform-tokenizer"
MOST_PIECES = 10_000_000
"""Tokens of a sub-word vocabulary; the package makes room for all of them first."""


class Tokenizer(Protocol):
    """What a tokenizer is: a vocabulary size, text -> ids, ids -> text (special ids left out), a plain description."""

    @property
    def size(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


def shortened(text: str, most: int = 40) -> str:
    """The text as Python writes it, with its end left out where it is long."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}... {len(text):,} characters"


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text)


class ByteTokenizer:
    """One token a UTF-8 byte; every text round-trips."""

    size = len(SPECIALS) + 256

    def __repr__(self) -> str:
        return "ByteTokenizer()"

    def encode(self, text: str) -> list[int]:
        return [b + len(SPECIALS) for b in _normal(text).encode()]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i - len(SPECIALS) for i in ids if i >= len(SPECIALS)).decode(errors="replace")

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "bytes"}


class CharTokenizer:
    """One token a character of a fixed alphabet; other characters become UNK."""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = "".join(dict.fromkeys(_normal(alphabet)))
        self._ids = {c: i for i, c in enumerate(self.alphabet, start=len(SPECIALS))}

    def __repr__(self) -> str:
        return f"CharTokenizer({shortened(self.alphabet)})"

    @classmethod
    def of(cls, texts: Iterable[str]) -> CharTokenizer:
        """The alphabet that occurs in `texts`, sorted."""
        return cls("".join(sorted({c for text in texts for c in _normal(text)})))

    @property
    def size(self) -> int:
        return len(SPECIALS) + len(self.alphabet)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(c, UNK) for c in _normal(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join("�" if i == UNK else self.alphabet[i - len(SPECIALS)] for i in ids if i == UNK or i > MASK)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "chars", "alphabet": self.alphabet}


class PieceTokenizer:
    """Sub-word pieces: byte-level BPE of the `tokenizers` package. Every text round-trips; there is no unknown text."""

    def __init__(self, description: str) -> None:
        with needing("A sub-word tokenizer"):
            from tokenizers import Tokenizer as Pieces
        try:
            self._pieces = Pieces.from_str(description)
        except Exception as error:  # the package raises bare Exception
            raise InputError(f"this is not a description of the `tokenizers` package: {error}.") from error

    def __repr__(self) -> str:
        return f"PieceTokenizer({self.size:,} tokens)"

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> PieceTokenizer:
        """A vocabulary of `size` tokens (special ids and the 256 bytes included) learned from `texts`."""
        least = len(SPECIALS) + 256
        if size < least:
            raise InputError(f"a byte-level vocabulary has at least {least} tokens; got {size}.")
        if size > MOST_PIECES:
            raise InputError(f"a byte-level vocabulary has at most {MOST_PIECES:,} tokens; got {size:,}.")
        with needing("A sub-word tokenizer"):
            from tokenizers import Tokenizer as Pieces
            from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
        pieces = Pieces(models.BPE())
        pieces.normalizer = normalizers.NFC()
        pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        pieces.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size - len(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        pieces.train_from_iterator(texts, trainer)
        return cls(pieces.to_str())

    @property
    def size(self) -> int:
        return len(SPECIALS) + self._pieces.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return [i + len(SPECIALS) for i in self._pieces.encode(text).ids]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of every text, many times faster than one by one."""
        found = self._pieces.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[i + len(SPECIALS) for i in one.ids] for one in found]

    def decode(self, ids: Iterable[int]) -> str:
        return self._pieces.decode([i - len(SPECIALS) for i in ids if i >= len(SPECIALS)])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "pieces", "pieces": self._pieces.to_str()}


def save_tokenizer(tokenizer: Tokenizer, path: str | Path) -> Path:
    """Write a tokenizer with its special ids and its checksum as JSON, atomically."""
    body = {"format": _FORMAT, "schema": 1, "specials": list(SPECIALS), **tokenizer.to_dict()}
    write_atomically(Path(path), strict_json(body | {"sha256": _checksum(body)}).encode())
    return Path(path)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(strict_json(body).encode()).hexdigest()


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer saved at `path`."""
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as a tokenizer: {error}.") from error
    if not isinstance(body, dict) or body.get("format") != _FORMAT or body.get("specials") != list(SPECIALS):
        raise FileError(f"{path} is not a tokenizer of this quadform (format {_FORMAT} with specials {SPECIALS}).")
    wanted = body.pop("sha256", None)  # older files have none
    if wanted is not None and wanted != _checksum(body):
        raise FileError(f"{path} is damaged or was changed by hand (its checksum differs).")
    try:
        if body["kind"] == "pieces":
            return PieceTokenizer(body["pieces"])
        return CharTokenizer(body["alphabet"]) if body["kind"] == "chars" else ByteTokenizer()
    except (KeyError, TypeError, InputError) as error:
        raise FileError(f"{path} is not a complete tokenizer ({error}).") from error
