"""Data sets, and those made by our own code: seeded streams of batches, no files, no download.

A data set is a value with three promises:

    batches(split, batch_size, seed, start)   an endless iterator of batches for `Transformer.loss`; batch i depends on
                                              nothing but the arguments and i, so a stream can be taken up anywhere
    questions(split, count, seed)             (input, answer) token lists, for exact-match scoring by decoding
    settings                                  what a model of this data needs: `Transformer("sas", **data.settings)`

Splits are "train", "valid" (1 example in 20), "test" (1 in 20): a hash of the example says which, so no example is in
two of them, whatever the seed. "all" is the plain distribution without any holding out.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from quadform.core.errors import InputError, UnknownName, did_you_mean
from quadform.core.rng import stream
from quadform.core.spec import choose
from quadform.nn.decode import pad_rows
from quadform.nn.tokens import BOS, EOS, PAD, SPECIALS, CharTokenizer, PieceTokenizer, Tokenizer
from quadform.nn.transformer import IGNORE

from .fetch.catalogue import CATALOGUE
from .numerals import BELOW, LANGUAGES, english

SPLITS = ("train", "valid", "test", "all")
_PARTS = 20  # of the hash: part 0 is test, part 1 valid, the rest train
_SALT = 2026_11_15  # another number gives another split; this one was taken before its "test" was ever looked at
POOL = 16  # batches that are drawn together and cut by length
Batch = dict[str, Tensor]
Question = tuple[list[int], list[int]]


def part_of(rows: Tensor) -> Tensor:
    """Which of 20 equal parts each example (n, m) of whole numbers falls into, (n,): a polynomial hash, well mixed."""
    h = torch.full((len(rows),), _SALT, dtype=torch.int64)
    for column in rows.T:
        h = h * 1_000_003 + column + 1
        h = (h ^ (h >> 29)) * 0x3C79AC492BA7B653  # wraps modulo 2^64
    return ((h ^ (h >> 32)) & 0x7FFFFFFF) % _PARTS


def in_split(rows: Tensor, split: str) -> Tensor:
    """Whether each example (n, m) belongs to the split, (n,)."""
    part = part_of(rows)
    return {"test": part == 0, "valid": part == 1, "train": part > 1, "all": part >= 0}[split]


class Dataset(ABC):
    """What the training loop knows of its data."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Settings of `ModelConfig` that follow from the data: kind, vocab, seq_len, special tokens."""

    @abstractmethod
    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        """Batch `start`, `start + 1`, ... of the stream, without end."""

    def questions(self, split: str, count: int, seed: int = 0) -> list[Question]:
        """(input, answer) token lists; the answer without end token."""
        raise InputError(f"{type(self).__name__} is text to continue; it has no right answers. Leave questions at 0.")

    # --- as a value: a run folder names its data, and opens it again -------------------------------------------------
    _classes: ClassVar[dict[str, type[Dataset]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Dataset._classes[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """The class and its settings, plain values; every data set is a dataclass of such."""
        return {"class": type(self).__name__} | {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)  # type: ignore[arg-type]  # data sets are dataclasses
            if f.init
        }

    @staticmethod
    def from_dict(body: Mapping[str, Any]) -> Dataset:
        """The inverse of `to_dict`."""
        from . import objectives, opened, running  # noqa: F401  (the classes they hold make themselves known)

        settings = dict(body)
        name = settings.pop("class", None)
        if name not in Dataset._classes:
            raise UnknownName(f"no data set of class {name!r}; known: {', '.join(sorted(Dataset._classes))}.")
        try:
            return Dataset._classes[name](**settings)
        except TypeError as error:
            raise InputError(f"the data set {name!r} cannot be made with {settings}: {error}.") from error


class Drawn(Dataset):
    """Examples drawn independently, each a row of whole numbers that the split's hash is taken of."""

    @abstractmethod
    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` examples of the plain distribution, (count, m)."""

    def _drawn(self, split: str, count: int, generator: torch.Generator) -> Tensor:
        """`count` examples of a split: drawn plainly, those of other splits left out."""
        choose("split", split, SPLITS)
        if split == "all":
            return self._draw(count, generator)
        found, have = [], 0
        for _ in range(1000):
            rows = self._draw(max(count if split == "train" else _PARTS * count, 64), generator)
            found.append(rows[in_split(rows, split)])
            have += len(found[-1])
            if have >= count:
                return torch.cat(found)[:count]
        raise InputError(f"{self} has too few different examples for a {split} split. Make it larger, or use 'all'.")


# -------------------------------------------------------------------------------------------------------- addition
@dataclass(frozen=True, kw_only=True)
class Addition(Drawn):
    """a+b=c with `digits` digits a summand and one more in the sum, leading zeros kept: `ddddd+ddddd=dddddd`.

    12 tokens: the digits, + is 10, = is 11. The loss is on the answer alone, its logits one position earlier. One batch
    in five has 20 % of its digit pairs changed so that they sum to 9, where a carry runs through (`nines`); with
    `reverse` the answer begins with its units. Batches of split "all" are the published ones; the other splits leave
    out held-out questions. Source: [ODS25, experiments].
    """

    digits: int = 5
    nines: bool = True
    reverse: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 17:
            raise InputError(f"summands have 1 to 17 digits (64-bit whole numbers); got {self.digits}.")

    @property
    def settings(self) -> dict[str, Any]:
        return {"kind": "decoder", "vocab": 12, "seq_len": 3 * self.digits + 3}

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        """The digits of both summands, most significant first: (count, 2 digits)."""
        pairs = torch.randint(10, (2, count * self.digits), generator=generator)
        if self.nines and int(torch.randint(5, (), generator=generator)) == 0:
            changed = torch.randperm(count * self.digits, generator=generator)[: count * self.digits // 5]
            side = int(torch.randint(2, (), generator=generator))
            pairs[side, changed] = 9 - pairs[1 - side, changed]
        return pairs.view(2, count, self.digits).transpose(0, 1).reshape(count, -1)

    def tokens(self, rows: Tensor) -> Tensor:
        """The whole sentences (count, 3 digits + 3) of summands (count, 2 digits)."""
        powers = 10 ** torch.arange(self.digits, -1, -1)
        total = (rows.view(len(rows), 2, self.digits) * powers[1:]).sum((1, 2))
        answer = total[:, None] // powers % 10
        plus, equal = torch.full((2, len(rows), 1), 10).add_(torch.tensor([0, 1]).view(2, 1, 1))
        a, b = rows.split(self.digits, 1)
        return torch.cat((a, plus, b, equal, answer.flip(1) if self.reverse else answer), 1)

    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        while True:
            tokens = self.tokens(self._drawn(split, batch_size, stream(seed, f"addition/{split}/{start}")))
            labels = torch.full_like(tokens, IGNORE)
            labels[:, 2 * self.digits + 1 : -1] = tokens[:, 2 * self.digits + 2 :]
            yield {"tokens": tokens, "labels": labels}
            start += 1

    def questions(self, split: str, count: int, seed: int = 0) -> list[Question]:
        tokens = self.tokens(self._drawn(split, count, stream(seed, f"addition/{split}/questions"))).tolist()
        asked = 2 * self.digits + 2
        return [(row[:asked], row[asked:]) for row in tokens]


# ------------------------------------------------------------------------------------------------- pairs of sentences
class Pairs(Drawn):
    """Source and target sentences for an encoder-decoder: source + EOS, and BOS + target + EOS.

    Batches are cut by length: 16 batches are drawn together, sorted by length, and cut so that each holds the same
    number of tokens; `batch_size` is the mean number of sentences. Order within the 16 is shuffled.
    """

    @abstractmethod
    def _pair(self, row: list[int]) -> tuple[list[int], list[int]]:
        """Token lists (source, target) of one example, without special tokens."""

    def batches(self, split: str, batch_size: int, seed: int = 0, start: int = 0) -> Iterator[Batch]:
        pool, at = divmod(start, POOL)
        while True:
            cut = self._pool(split, batch_size, seed, pool)
            for rows in cut[at:]:
                source, source_mask = pad_rows([s for s, _ in rows], PAD)
                yield {"source": source, "source_mask": source_mask, "target": pad_rows([t for _, t in rows], PAD)[0]}
            pool, at = pool + 1, 0

    def _pool(self, split: str, batch_size: int, seed: int, pool: int) -> list[list[tuple[list[int], list[int]]]]:
        generator = stream(seed, f"{self}/{split}/{pool}")
        pairs = [self._pair(row) for row in self._drawn(split, POOL * batch_size, generator).tolist()]
        whole = [([*s, EOS], [BOS, *t, EOS]) for s, t in pairs]
        cuts = equal_cuts(sorted(whole, key=lambda p: (len(p[1]), len(p[0]))), POOL)
        return [cuts[i] for i in torch.randperm(POOL, generator=generator).tolist()]

    def questions(self, split: str, count: int, seed: int = 0) -> list[Question]:
        rows = self._drawn(split, count, stream(seed, f"{self}/{split}/questions")).tolist()
        return [([*s, EOS], t) for s, t in map(self._pair, rows)]


def equal_cuts(pairs: list[tuple[list[int], list[int]]], parts: int) -> list[list[tuple[list[int], list[int]]]]:
    """Cut a list of at least `parts` pairs into `parts` non-empty runs of (nearly) equally many tokens."""
    sizes = torch.tensor([len(s) + len(t) for s, t in pairs]).cumsum(0)
    ends = torch.searchsorted(sizes, sizes[-1] * torch.arange(1, parts) / parts, right=True)
    bounds = [0]
    for i, end in enumerate(ends.tolist(), start=1):
        bounds.append(min(max(end, bounds[-1] + 1), len(pairs) - parts + i))
    return [pairs[a:b] for a, b in zip(bounds, [*bounds[1:], len(pairs)], strict=True)]


@dataclass(frozen=True, kw_only=True)
class Letters(Pairs):
    """Words of 1 to `longest` letters (uniform lengths, uniform letters) to copy, reverse or sort."""

    task: Literal["copy", "reverse", "sort"] = "reverse"
    letters: int = 26
    longest: int = 20

    def __post_init__(self) -> None:
        choose("task", self.task, ("copy", "reverse", "sort"))
        if self.letters < 1 or self.longest < 1:
            raise InputError(f"letters and longest are at least 1; got {self.letters}, {self.longest}.")

    @property
    def settings(self) -> dict[str, Any]:
        return pair_settings(len(SPECIALS) + self.letters, self.longest)

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        letters = len(SPECIALS) + torch.randint(self.letters, (count, self.longest), generator=generator)
        length = torch.randint(1, self.longest + 1, (count, 1), generator=generator)
        return letters.masked_fill(torch.arange(self.longest) >= length, PAD)

    def _pair(self, row: list[int]) -> tuple[list[int], list[int]]:
        word = [t for t in row if t != PAD]
        return word, {"copy": word, "reverse": word[::-1], "sort": sorted(word)}[self.task]


@dataclass(frozen=True, kw_only=True)
class NumberWords(Pairs):
    """English number words to another language's: a translation task with exact answers.

    The number of digits is uniform, then the number. Tokens are characters of one shared alphabet, or with `pieces`
    sub-word pieces (byte-level BPE with that many tokens, learned from training examples).
    """

    to: Literal["ko", "de"] = "ko"
    digits: int = 6
    pieces: int = 0

    def __post_init__(self) -> None:
        choose("language", self.to, ("ko", "de"))
        if not 1 <= self.digits <= len(str(BELOW - 1)):
            raise InputError(f"number words have 1 to {len(str(BELOW - 1))} digits; got {self.digits}.")

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        if not self.pieces:
            known = [*range(100), *(10**k for k in range(2, 6))]
            return CharTokenizer.of(LANGUAGES[language](n) for n in known for language in ("en", self.to))
        rows = self._drawn("train", 4000, stream(0, f"numbers/{self.to}/pieces"))[:, 0].tolist()
        return PieceTokenizer.train([LANGUAGES[language](n) for n in rows for language in ("en", self.to)], self.pieces)

    @property
    def settings(self) -> dict[str, Any]:
        # In every language here the longest words repeat the digits 373 or 777, with the most bytes 757 (an umlaut); a
        # piece is at least one UTF-8 byte.
        numbers = {n % 10**self.digits for n in (373_373, 777_777, 373_777, 777_373, 757_757)}
        words = [LANGUAGES[language](n) for n in numbers for language in ("en", self.to)]
        longest = max(len(word.encode() if self.pieces else word) for word in words)
        return pair_settings(self.tokenizer.size, longest)

    def _draw(self, count: int, generator: torch.Generator) -> Tensor:
        digits = torch.randint(1, self.digits + 1, (count,), generator=generator)
        low, high = torch.where(digits > 1, 10 ** (digits - 1), 0), 10**digits
        share = torch.rand(count, generator=generator, dtype=torch.float64)
        return (low + (share * (high - low)).long())[:, None]

    def _pair(self, row: list[int]) -> tuple[list[int], list[int]]:
        return self.tokenizer.encode(english(row[0])), self.tokenizer.encode(LANGUAGES[self.to](row[0]))


def pair_settings(vocab: int, longest: int) -> dict[str, Any]:
    """The settings of an encoder-decoder for pairs of at most `longest` tokens."""
    special = {"pad": PAD, "bos": BOS, "eos": EOS}
    return {"kind": "encoder-decoder", "vocab": vocab, "seq_len": longest + 2, **special}


# ----------------------------------------------------------------------------------------------------------- by name
def _standard_library(**settings: Any) -> Dataset:
    from .running import StandardLibrary

    return StandardLibrary(**settings)


def _packages(**settings: Any) -> Dataset:
    from .objectives import Packages

    return Packages(**settings)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "add": Addition,
    "copy": functools.partial(Letters, task="copy"),
    "reverse": functools.partial(Letters, task="reverse"),
    "sort": functools.partial(Letters, task="sort"),
    "numbers-ko": functools.partial(NumberWords, to="ko"),
    "numbers-de": functools.partial(NumberWords, to="de"),
    "pystdlib": _standard_library,
    "packages": _packages,
}
"""Data sets made by our own code, by name; `dataset(name, **settings)` makes one."""


def dataset(name: str, **settings: Any) -> Dataset:
    """The data set of this name: `dataset("add", digits=3)`; a fetched corpus, or the folder of an own one, too."""
    if name not in DATASETS:
        from .opened import corpus, is_corpus

        if not is_corpus(name):
            known = [*DATASETS, *CATALOGUE]
            raise UnknownName(
                f"no data set {name!r}; there are {', '.join(DATASETS)}, and what `quadform data list` shows."
                f"{did_you_mean(name, known)}"
            )
    make = DATASETS[name] if name in DATASETS else functools.partial(corpus, name)
    try:
        made = make(**settings)
        for f in dataclasses.fields(made):  # type: ignore[arg-type]  # data sets are dataclasses
            if f.type == "int" and not isinstance(getattr(made, f.name), int):
                raise TypeError(f"{f.name} is a whole number")
        return made
    except TypeError as error:
        raise _unmade(name, settings, getattr(make, "keywords", {}), error) from error


def _unmade(name: str, settings: Mapping[str, Any], fixed: Mapping[str, Any], error: TypeError) -> InputError:
    """Why a data set cannot be made: a setting it does not have (or that its name has `fixed`), or Python's reason."""
    asked = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if asked is None:
        return InputError(f"the data set {name!r} cannot be made with {settings}: {error}.")
    fields = dataclasses.fields(Dataset._classes[asked[1]])  # type: ignore[arg-type]  # data sets are dataclasses
    known = [f.name for f in fields if f.init and f.name not in fixed]
    has = f"there are {', '.join(known)}" if known else "it has none"
    return UnknownName(f"the data set {name!r} has no setting {asked[2]!r}; {has}.{did_you_mean(asked[2], known)}")


def __getattr__(name: str) -> Any:
    """`datasets.reverse(longest=8)`, `datasets.tsmsg_de()`: every data set as a function."""
    known = {n.replace("-", "_"): n for n in (*DATASETS, *CATALOGUE)} | {"addition": "add"}
    if name not in known:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functools.partial(dataset, known[name])
