"""Fetched and own corpora as data sets: sentence pairs for an encoder-decoder, running text for a decoder.

What is opened is a folder that `quadform data fetch` or `quadform data build` made. Nothing is fetched here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
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
from quadform.nn.tokens import (
    BOS,
    EOS,
    PAD,
    ByteTokenizer,
    PieceTokenizer,
    Tokenizer,
    load_tokenizer,
    save_tokenizer,
)

from .datasets import POOL, SPLITS, Batch, Dataset, Question, pair_settings
from .fetch.catalogue import is_item, item
from .fetch.pairs import FILE as PAIRS
from .fetch.pairs import read_pairs
from .fetch.store import Fetched, fetched, is_folder, licence, megabytes
from .fetch.text import FILE as DOCUMENTS
from .fetch.text import read_documents
from .running import RunningText

#: Tokens a side of a pair may have, where nothing is said; longer pairs are left out.
LONGEST = 100
SEQ_LEN = 128


def corpus(name: str, **settings: Any) -> Dataset:
    """The data set of a fetched name or of a folder that `build` made."""
    kind = _opened(name).kind
    if kind == "model":
        raise InputError(f"{name} is a trained model, not a data set; `quadform.data.load({name!r})` opens it.")
    return ParallelText(name=name, **settings) if kind == "pairs" else Text(name=name, **settings)


def documents(name: str) -> list[tuple[str, str]]:
    """(name, text) of every document of a fetched text or Python source."""
    found = _opened(name)
    if found.kind != "text":
        raise InputError(f"{name} is not running text ({found.kind}).")
    return read_documents(found.path(DOCUMENTS))


def split_of(group: str, held: int) -> str:
    """The split a group belongs to: a hash of its name gives 1 in `held` to "test" and 1 in `held` to "valid"."""
    part = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "little") % held
    return {0: "test", 1: "valid"}.get(part, "train")


def _opened(name: str, digest: str = "") -> Fetched:
    found = fetched(name)
    if found is None and is_item(name):
        wanted = item(name)
        raise FileError(
            f"{name} is not here yet. `quadform data fetch {name}` fetches it"
            f" ({megabytes(wanted)}, licence: {licence(wanted)})."
        )
    if found is None and (digest or "/" in name):
        raise FileError(
            f"there is no data set in the folder {name} (relative to {Path.cwd()}). Start from the folder it was named "
            f"in, or move the data back."
        )
    if found is None:
        item(name)  # no such name: the error that lists what there is
        raise FileError(f"there is no data at {name}.")
    if digest and not found.digest.startswith(digest):
        raise FileError(
            f"the {name} here has other contents ({found.digest[:12]}) than the one asked for ({digest[:12]}):"
            " it was fetched at another time. Use the folder it was made with."
        )
    return found


class _Opened(Dataset):
    """What the two kinds of corpora share: their folder, its settings made explicit, and the vocabulary."""

    name: str
    pieces: int | None
    digest: str

    def _settle(self) -> None:
        """Put the corpus's own values where nothing was said, so that the data set says exactly what it is."""
        if self.pieces is None or not self.digest:
            found = self.source
            pieces = found.manifest["pieces"] if self.pieces is None else self.pieces
            object.__setattr__(self, "pieces", int(pieces))
            object.__setattr__(self, "digest", found.digest[:16])

    @functools.cached_property
    def source(self) -> Fetched:
        """The folder with its manifest: licence, source, checksums, counts."""
        return _opened(self.name, self.digest)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Bytes, or byte-level BPE learned from the training split; kept beside the corpus for the next time.

        A file that is damaged is learned again.
        """
        if not self.pieces:
            return ByteTokenizer()
        path = self.source.folder / f"pieces-{self.pieces}.json"
        if path.exists():
            with contextlib.suppress(FileError):
                return load_tokenizer(path)
        made = PieceTokenizer.train(self._training_texts(), self.pieces)
        with contextlib.suppress(OSError):  # a folder that cannot be written: learned again next time
            save_tokenizer(made, path)
        return made

    @abstractmethod
    def _training_texts(self) -> Iterator[str]:
        """The texts the pieces are learned from."""


@dataclass(frozen=True, kw_only=True)
class ParallelText(_Opened):
    """Sentences and their translations; source + EOS, and BOS + target + EOS.

    `pieces` is the size of the vocabulary that both languages share (None: what fits the corpus, 0: bytes). Pairs with
    more than `longest` tokens on a side are left out. `digest` names the contents; a corpus with others is refused.

    An epoch is a permutation of the split, and batches go through one epoch after another: 16 batches are taken
    together, sorted by length and cut so that each holds equally many tokens; `batch_size` is the mean number of pairs.
    """

    name: str
    pieces: int | None = None
    longest: int = LONGEST
    digest: str = ""

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise InputError(f"longest is at least 1 token; got {self.longest}.")
        self._settle()

    @property
    def settings(self) -> dict[str, Any]:
        return pair_settings(self.tokenizer.size, self.longest)

    @property
    def language(self) -> str:
        """The language of the targets ("de"), or an empty text where the corpus does not say."""
        return str(self.source.manifest["settings"].get("to", ""))

    # --- the texts ---------------------------------------------------------------------------------------------------
    @functools.cached_property
    def _texts(self) -> dict[str, list[tuple[str, str]]]:
        held = self.source.manifest["held"]
        texts: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
        for group, source, target in read_pairs(self.source.path(PAIRS)):
            texts[split_of(group, held)].append((source, target))
        return texts

    def texts(self, split: str) -> list[tuple[str, str]]:
        """(source, target) of every pair of a split, also of those that are too long to be trained on."""
        choose("split", split, SPLITS)
        return [p for part in self._texts.values() for p in part] if split == "all" else self._texts[split]

    def _training_texts(self) -> Iterator[str]:
        return (text for pair in self.texts("train") for text in pair)

    # --- the tokens --------------------------------------------------------------------------------------------------
    @functools.cached_property
    def _streams(self) -> dict[str, tuple[Ragged, Ragged]]:
        return {}

    def tokens(self, split: str) -> tuple[Ragged, Ragged]:
        """All sources and all targets of a split that are short enough, special tokens included."""
        if split not in self._streams:
            pairs = self.texts(split)
            if not pairs:
                raise InputError(
                    f"{self.name} has no pair in its {split} split: one group in {self.source.manifest['held']} is "
                    f"held out for each of valid and test. Give more pairs, or build it again with fewer held out."
                )
            sides = [encode_all(self.tokenizer, [pair[side] for pair in pairs]) for side in (0, 1)]
            kept = [i for i in range(len(pairs)) if max(len(side[i]) for side in sides) <= self.longest]
            if not kept:
                raise InputError(f"no pair of {self.name}'s {split} split has at most {self.longest} tokens a side.")
            sources = Ragged.of([[*sides[0][i], EOS] for i in kept])
            self._streams[split] = sources, Ragged.of([[BOS, *sides[1][i], EOS] for i in kept])
        return self._streams[split]

    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        sources, targets = self.tokens(split)
        pool, at = divmod(start, POOL)
        while True:
            for rows in self._pool(split, batch_size, seed, pool)[at:]:
                source = sources.rows(rows)
                yield {"source": source, "source_mask": source != PAD, "target": targets.rows(rows)}
            pool, at = pool + 1, 0

    def _pool(self, split: str, batch_size: int, seed: int, pool: int) -> list[Tensor]:
        """The pair numbers of the 16 batches of a pool."""
        sources, targets = self.tokens(split)
        count, size = len(sources), POOL * batch_size
        places = torch.arange(pool * size, (pool + 1) * size)
        chosen = torch.cat(
            [
                _permutation(count, seed, f"{self.name}/{split}/epoch/{epoch}")[
                    places[places // count == epoch] % count
                ]
                for epoch in range(int(places[0]) // count, int(places[-1]) // count + 1)
            ]
        )
        lengths = torch.stack((targets.lengths[chosen], sources.lengths[chosen]))
        order = (lengths[0] * (int(lengths[1].max()) + 1) + lengths[1]).argsort(stable=True)
        chosen, ends = chosen[order], lengths.sum(0)[order].cumsum(0)
        cuts = torch.searchsorted(ends, ends[-1] * torch.arange(1, POOL) / POOL, right=True).tolist()
        bounds = [0]
        for i, cut in enumerate(cuts, start=1):  # no batch is empty
            bounds.append(min(max(cut, bounds[-1] + 1), size - POOL + i))
        parts = [chosen[a:b] for a, b in zip(bounds, [*bounds[1:], size], strict=True)]
        mixed = torch.randperm(POOL, generator=stream(seed, f"{self.name}/{split}/pool/{pool}"))
        return [parts[i] for i in mixed.tolist()]

    # --- questions and sentences -------------------------------------------------------------------------------------
    def questions(self, split: str, count: int, seed: int = 0) -> list[Question]:
        sources, targets = self.tokens(split)
        if count > len(sources):
            raise InputError(f"the {split} split of {self.name} has {len(sources)} pairs; {count} were asked for.")
        chosen = _permutation(len(sources), seed, f"{self.name}/{split}/questions")[:count].tolist()
        return [(sources[i], targets[i][1:-1]) for i in chosen]

    def sentences(self, split: str, count: int | None = None, seed: int = 0) -> list[tuple[str, str]]:
        """`count` (source, target) texts of a split, any length, in an order that depends on the seed (None: all)."""
        texts = self.texts(split)
        if count is None or count >= len(texts):
            return list(texts)
        return [texts[i] for i in _permutation(len(texts), seed, f"{self.name}/{split}/sentences")[:count].tolist()]


@dataclass(frozen=True, kw_only=True)
class Text(_Opened, RunningText):
    """Windows of `seq_len` tokens at uniform places of a corpus of documents, EOS after each; documents are held out.

    `pieces` is the size of the vocabulary (None: what fits the corpus, 0: bytes); `limit` takes only the first so many
    characters of each split (0: all). `digest` names the contents; a corpus with others is refused.
    """

    name: str
    seq_len: int = SEQ_LEN
    pieces: int | None = None
    limit: int = 0
    digest: str = ""

    def __post_init__(self) -> None:
        self._check()
        self._settle()

    @functools.cached_property
    def _documents(self) -> list[tuple[str, str]]:
        return read_documents(self.source.path(DOCUMENTS))

    def documents(self) -> Sequence[tuple[str, str]]:
        return self._documents

    @property
    def held(self) -> int:  # type: ignore[override]  # fixed when the corpus was built
        return int(self.source.manifest["held"])

    def _training_texts(self) -> Iterator[str]:
        return iter(self.texts("train"))


# -------------------------------------------------------------------------------------------------------------- tokens
class Ragged:
    """Rows of different length in one flat tensor: `rows(numbers)` gives a padded (count, longest) batch."""

    def __init__(self, flat: Tensor, lengths: Tensor) -> None:
        self.flat, self.lengths = flat, lengths
        self.starts = lengths.cumsum(0) - lengths

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        flat = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
        return cls(flat, torch.tensor([len(row) for row in rows]))

    def __repr__(self) -> str:
        return f"Ragged({len(self):,} rows, {len(self.flat):,} tokens)"

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> list[int]:
        return self.flat[self.starts[i] : self.starts[i] + self.lengths[i]].tolist()

    def rows(self, numbers: Tensor) -> Tensor:
        """These rows, padded on the right: (count, longest of them) int64."""
        lengths = self.lengths[numbers]
        inside = torch.arange(int(lengths.max()))
        places = (self.starts[numbers][:, None] + inside).clamp_max_(len(self.flat) - 1)
        return self.flat[places].long().masked_fill_(inside >= lengths[:, None], PAD)


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of many texts: in one call where the tokenizer has one."""
    together = getattr(tokenizer, "encode_all", None)
    return together(texts) if together is not None else [tokenizer.encode(text) for text in texts]


@functools.lru_cache(maxsize=16)
def _permutation(count: int, seed: int, name: str) -> Tensor:
    return torch.randperm(count, generator=stream(seed, name))


def is_corpus(name: str) -> bool:
    """Whether `name` can be fetched, or is a folder that was."""
    return is_item(name) or is_folder(name)
