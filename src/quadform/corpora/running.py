"""Running text as windows of tokens, and the one corpus that needs no files: the interpreter's own library."""

from __future__ import annotations

import functools
import hashlib
import platform
import sysconfig
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quadform.core.errors import FileError, InputError
from quadform.core.rng import stream
from quadform.core.spec import choose
from quadform.nn.tokens import EOS, ByteTokenizer, PieceTokenizer, Tokenizer

from .datasets import SPLITS, Batch, Dataset

_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}


@functools.cache
def library_files() -> tuple[tuple[str, str], ...]:
    """(name, text) of every module of the standard library, tests left out, in order of name."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(p.relative_to(root) for p in root.rglob("*.py") if not _LEFT_OUT & set(p.relative_to(root).parts))
    files = []
    for name in names:
        try:
            files.append((name.as_posix(), (root / name).read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError):
            continue  # a file in another encoding, or one that cannot be read
    if not files:
        raise FileError(f"this Python keeps no source of its standard library in {root}. Use another data set.")
    return tuple(files)


class RunningText(Dataset):
    """Windows of `seq_len` tokens at uniform places of documents laid end to end, EOS after each.

    Documents, not windows, are held out: a hash of the name gives 1 in `held` to "test" and 1 in `held` to "valid".
    `limit` takes only the first so many characters of each split (0: all).
    """

    seq_len: int
    limit: int
    held: int = 20

    @abstractmethod
    def documents(self) -> Sequence[tuple[str, str]]:
        """(name, text) of every document."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...

    def _check(self) -> None:
        if self.seq_len < 2 or self.limit < 0:
            raise InputError(f"seq_len is at least 2 and limit at least 0; got {self.seq_len}, {self.limit}.")

    @property
    def settings(self) -> dict[str, Any]:
        return {"kind": "decoder", "vocab": self.tokenizer.size, "seq_len": self.seq_len}

    def texts(self, split: str) -> list[str]:
        """The documents of a split, cut off at `limit` characters in all."""
        choose("split", split, SPLITS)
        chosen, left = [], self.limit or None
        for name, text in self.documents():
            part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % self.held
            if split != "all" and split != {0: "test", 1: "valid"}.get(part, "train"):
                continue
            chosen.append(text if left is None else text[:left])
            if left is not None:
                left -= len(chosen[-1])
                if left <= 0:
                    break
        return chosen

    @functools.cached_property
    def _streams(self) -> dict[str, Tensor]:
        return {}

    def stream_of(self, split: str) -> Tensor:
        """All tokens of a split in one row, (n,) int32."""
        if split not in self._streams:
            ids = [torch.tensor([*self.tokenizer.encode(text), EOS], dtype=torch.int32) for text in self.texts(split)]
            self._streams[split] = torch.cat(ids) if ids else torch.zeros(0, dtype=torch.int32)
        count = len(self._streams[split])
        if count < self.seq_len:
            whole = f"give more documents (they are held out whole, one in {self.held} for each of valid and test)"
            raise InputError(
                f"the {split} split has {count} tokens and a window {self.seq_len}. Lower seq_len, or "
                f"{'raise limit' if self.limit else whole}."
            )
        return self._streams[split]

    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        tokens = self.stream_of(split)
        while True:
            generator = stream(seed, f"{self._stream_name}/{split}/{start}")
            places = torch.randint(len(tokens) - self.seq_len + 1, (batch_size, 1), generator=generator)
            yield {"tokens": tokens[places + torch.arange(self.seq_len)].long()}
            start += 1

    @property
    def _stream_name(self) -> str:
        return str(getattr(self, "name", type(self).__name__))


@dataclass(frozen=True, kw_only=True)
class StandardLibrary(RunningText):
    """The running interpreter's standard library: nothing is shipped, nothing is fetched.

    Tokens are bytes, or with `pieces` byte-level BPE learned from the training files. Results depend on the
    interpreter: name it (`version`) beside them.
    """

    seq_len: int = 128
    pieces: int = 0
    limit: int = 0

    def __post_init__(self) -> None:
        self._check()

    @property
    def version(self) -> str:
        """Which corpus this is."""
        return f"standard library of {platform.python_implementation()} {platform.python_version()}"

    @property
    def _stream_name(self) -> str:
        return "pystdlib"

    def documents(self) -> Sequence[tuple[str, str]]:
        return library_files()

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return PieceTokenizer.train(self.texts("train"), self.pieces) if self.pieces else ByteTokenizer()
