"""Objectives besides the next token: masked tokens, and a class for the whole text.

masked        a share of the tokens is hidden, an encoder says what they were
classify      the class of a text, from the mean of its real tokens
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from quadform.core.errors import InputError
from quadform.core.rng import stream
from quadform.core.spec import choose
from quadform.nn.tokens import MASK, SPECIALS, ByteTokenizer, Tokenizer
from quadform.nn.transformer import IGNORE

from .datasets import SPLITS, Batch, Dataset
from .running import library_files


@dataclass(frozen=True, kw_only=True)
class Masked(Dataset):
    """The texts of another data set with `share` of their tokens to be guessed by an encoder.

    Of the chosen tokens 80 % become MASK, 10 % a token drawn uniformly, 10 % stay; the loss is on the chosen ones
    alone. At least one token of a sequence is chosen. Source: [DCLT19, Sec. 3.1]; share 0.25 as in [HH24, App.].
    """

    data: Dataset
    share: float = 0.25
    hidden: float = 0.8
    swapped: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.data, Mapping):  # from a run folder
            object.__setattr__(self, "data", Dataset.from_dict(self.data))
        if self.data.settings["kind"] != "decoder" or not hasattr(self.data, "tokenizer"):
            raise InputError(f"tokens can be masked in running text (`pystdlib`), not in {self.data}.")
        if not 0 < self.share < 1 or min(self.hidden, self.swapped) < 0 or self.hidden + self.swapped > 1:
            raise InputError(
                f"share lies between 0 and 1, and hidden and swapped are shares of it; got {self.share}, "
                f"{self.hidden}, {self.swapped}."
            )

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"data": self.data.to_dict()}

    @property
    def tokenizer(self) -> Tokenizer:
        return self.data.tokenizer  # type: ignore[attr-defined]  # of texts

    @property
    def settings(self) -> dict[str, Any]:
        return self.data.settings | {"kind": "encoder"}

    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        vocab = self.settings["vocab"]
        for batch in self.data.batches(split, batch_size, seed, start):
            tokens, generator = batch["tokens"], stream(seed, f"masked/{split}/{start}")
            u = torch.rand(tokens.shape, generator=generator)
            chosen = (u < self.share) | (u == u.amin(1, keepdim=True))
            fate = torch.rand(tokens.shape, generator=generator)
            other = torch.randint(len(SPECIALS), vocab, tokens.shape, generator=generator)
            seen = tokens.masked_fill(chosen & (fate < self.hidden), MASK)
            swap = chosen & (fate >= self.hidden) & (fate < self.hidden + self.swapped)
            yield {"tokens": torch.where(swap, other, seen), "labels": tokens.masked_fill(~chosen, IGNORE)}
            start += 1


@functools.cache
def _files(source: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of the modules of the standard library, or of a fetched or own corpus below its outermost folder."""
    if not source:
        return library_files()
    from .opened import documents

    found = [(n, text) for n, text in documents(source) if "/" in n and n.endswith(".py")]
    if not found:
        raise InputError(f"packages are told apart by their Python source; {source} has none. `sympy` has.")
    tops = {n.split("/")[0] for n, _ in found}
    top = f"{tops.pop()}/" if len(tops) == 1 else ""
    return tuple((n.removeprefix(top), text) for n, text in found)


@functools.cache
def _packages(source: str, classes: int) -> tuple[str, ...]:
    """The packages with the most modules, in order of name."""
    count = Counter(name.split("/")[0] for name, _ in _files(source) if "/" in name)
    if len(count) < classes:
        raise InputError(f"{source or 'the standard library'} has {len(count)} packages; {classes} were asked for.")
    return tuple(sorted(sorted(count, key=lambda p: (-count[p], p))[:classes]))


@dataclass(frozen=True, kw_only=True)
class Packages(Dataset):
    """Which package does this piece of code come from? One of the `classes` largest of `source`.

    `source` is a fetched package (`sympy`, whose version and checksum are known: everybody has the same task), a folder
    that `quadform data build` made, or empty: the standard library of the interpreter. Every class is drawn equally
    often, then a module of it, then a window of `seq_len` bytes. Modules are held out: of each package one in five for
    "valid" and one in five for "test", by order of a hash of the name, so that every class is in every split.
    """

    classes: int = 6
    seq_len: int = 128
    source: str = ""

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= 12 or self.seq_len < 2:
            raise InputError(f"there are 2 to 12 packages, and windows of 2 bytes or more; got {self}.")

    @property
    def tokenizer(self) -> Tokenizer:
        return ByteTokenizer()

    @property
    def names(self) -> tuple[str, ...]:
        """The classes by number."""
        return _packages(self.source, self.classes)

    @property
    def settings(self) -> dict[str, Any]:
        return {"kind": "encoder", "vocab": ByteTokenizer.size, "seq_len": self.seq_len, "classes": self.classes}

    def texts(self, split: str) -> list[list[torch.Tensor]]:
        """Of every class its modules in a split, as tokens; modules shorter than a window are left out."""
        choose("split", split, SPLITS)
        if split not in self._texts:
            self._texts[split] = [self._modules(package, split) for package in self.names]
        return self._texts[split]

    @functools.cached_property
    def _texts(self) -> dict[str, list[list[torch.Tensor]]]:
        return {}

    def _modules(self, package: str, split: str) -> list[torch.Tensor]:
        found = [
            (n, text) for n, text in _files(self.source) if n.startswith(package + "/") and len(text) >= self.seq_len
        ]
        found.sort(key=lambda entry: hashlib.sha256(entry[0].encode()).digest())
        if len(found) < 3:
            raise InputError(
                f"package {package} has {len(found)} modules of {self.seq_len} bytes or more, 3 are needed. "
                f"Lower classes or seq_len."
            )
        wanted = {"test": (0,), "valid": (1,), "train": (2, 3, 4), "all": range(5)}[split]
        coder = ByteTokenizer()
        return [torch.tensor(coder.encode(text)) for i, (_, text) in enumerate(found) if i % 5 in wanted]

    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        texts = self.texts(split)
        while True:
            generator = stream(seed, f"packages/{split}/{start}")
            labels = torch.randint(self.classes, (batch_size,), generator=generator)
            u = torch.rand(2, batch_size, generator=generator, dtype=torch.float64).tolist()
            rows = []
            for label, a, b in zip(labels.tolist(), *u, strict=True):
                text = texts[label][int(a * len(texts[label]))]
                at = int(b * (len(text) - self.seq_len + 1))
                rows.append(text[at : at + self.seq_len])
            yield {"tokens": torch.stack(rows), "labels": labels}
            start += 1
