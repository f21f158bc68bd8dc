"""A run folder opened again: the model, the data, the settings and the optimizer state of the last checkpoint."""

from __future__ import annotations

import dataclasses
import itertools
import os
import string
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quadform.core.errors import FileError, InputError, pass_on_memory
from quadform.core.spec import ModelConfig
from quadform.core.work import MODEL_FILES
from quadform.corpora.datasets import Addition, Dataset, Letters
from quadform.nn.decode import Sampling, Search, generate
from quadform.nn.tokens import EOS, UNK, CharTokenizer, Tokenizer, shortened
from quadform.nn.transformer import Transformer

from .checkpoint import load_checkpoint, restore
from .config import TrainConfig
from .folder import RunFolder
from .optimizer import Optimizer
from .snapshots import average_run

if TYPE_CHECKING:
    from .loop import Trained


@dataclass(frozen=True)
class Decoded:
    """A decoded text with its score, its log-probability, and whether the model ended it itself."""

    text: str
    score: float
    log_prob: float
    finished: bool


class Symbols:
    """One token a symbol, numbered from 0: no special tokens."""

    def __init__(self, symbols: str) -> None:
        self.symbols = symbols

    def __repr__(self) -> str:
        return f"Symbols({shortened(self.symbols)})"

    @property
    def size(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        unknown = [c for c in text if c not in self.symbols]
        if unknown:
            raise InputError(f"{text!r} has {unknown[0]!r}; this model knows {' '.join(self.symbols)} alone.")
        return [self.symbols.index(c) for c in text]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.symbols[i] for i in ids)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "symbols", "symbols": self.symbols}


def tokenizer_of(data: Dataset) -> Tokenizer:
    """The tokenizer of a data set; digits and signs of sums, letters of words."""
    if isinstance(data, Addition):
        return Symbols("0123456789+=")
    if isinstance(data, Letters):
        further = (
            c for c in map(chr, range(0x3B1, sys.maxunicode)) if c.isalpha() and unicodedata.is_normalized("NFC", c)
        )
        return CharTokenizer("".join(itertools.islice(itertools.chain(string.ascii_letters, further), data.letters)))
    found = getattr(data, "tokenizer", None)
    if found is None:
        raise InputError(f"{type(data).__name__} has no tokenizer: give token numbers to `quadform.nn.generate`.")
    return found


BEAM = Search(beam=5)
"""How the translations of a run are searched for unless its recipe says otherwise."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a training run left: `model` at step `step`, and all that made it."""

    folder: Path | None
    model: Transformer
    data: Dataset
    config: TrainConfig
    step: int
    tensors: Mapping[str, Tensor]
    trained: Trained | None = None
    search: Search = BEAM

    def __repr__(self) -> str:
        where = "" if self.folder is None else f"; {self.folder}"
        return f"Run({self.model.summary}; {self.data}; step {self.step:,} of {self.config.steps:,}{where})"

    def optimizer(self) -> Optimizer:
        """The optimizer over `model` with the state of the checkpoint."""
        optimizer = Optimizer(self.model, self.config)
        restore(self.model, optimizer, self.tensors)
        return optimizer

    def along(self) -> Iterator[Run]:
        """This run as it was at each checkpoint that was kept on the way, oldest first."""
        weight = self.model.embed.W_E
        for path in RunFolder(self.folder).checkpoints() if self.folder is not None else ():
            found = load_checkpoint(path)
            if found is None or int(found[0]["state"]["step"]) >= self.step:
                continue
            state, tensors = found
            model = Transformer(self.model.config, device=weight.device, dtype=weight.dtype)
            weights = {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}
            model.load_state_dict(weights)
            yield dataclasses.replace(self, model=model.eval(), step=int(state["state"]["step"]), tensors=tensors)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back, as the data has it."""
        return tokenizer_of(self.data)

    def decode(
        self, texts: Sequence[str], how: Search | Sampling | None = None, *, batch_size: int = 64
    ) -> list[list[Decoded]]:
        """What the model makes of every text, best first: a translation, an answer, a continuation.

        `how` is greedy search unless given; its `max_length` is as long as the data's own texts unless given.
        """
        config, coder = self.model.config, self.tokenizer
        if config.kind == "encoder" or config.classes:
            raise InputError("this run is an encoder or a classifier; it writes no text.")
        if isinstance(texts, str):
            texts = [texts]
        both = config.kind == "encoder-decoder"
        inputs = []
        for i, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError(f"text {i + 1} is not valid UTF-8: {text!r}.") from error
            ids = coder.encode(text)
            if UNK in ids and not isinstance(coder, Symbols):
                unknown = sorted({c for c in text if UNK in coder.encode(c)})
                raise InputError(f"text {i + 1}: this model does not know {' '.join(map(repr, unknown[:8]))}.")
            if not ids:
                raise InputError(f"text {i + 1} is empty; give it at least one character.")
            inputs.append([*ids, EOS] if both else ids)
        how = Search() if how is None else how
        longest = max(map(len, inputs), default=0)
        room = config.seq_len - (0 if both else longest)
        if both and config.positions == "learned" and longest > config.seq_len:
            raise InputError(f"a text has {longest} tokens; this model has learned {config.seq_len} positions.")
        if room < 1:
            raise InputError(f"a text has {longest} tokens and leaves no room in the {config.seq_len} of this model.")
        usual = how.max_length == type(how)().max_length
        if both and usual and how.beyond is not None:  # the source decides, as far as there are positions
            how = dataclasses.replace(how, max_length=longest + how.beyond)
        if config.positions == "learned" or (usual and how.beyond is None):
            least = min(how.min_length, room)
            how = dataclasses.replace(how, max_length=min(how.max_length, self._usual(room)), min_length=least)
        found = generate(self.model, inputs, how, batch_size=batch_size)
        return [[Decoded(coder.decode(h.tokens), h.score, h.log_prob, h.finished) for h in best] for best in found]

    def _usual(self, room: int) -> int:
        return self.data.digits + 1 if isinstance(self.data, Addition) else room


def open_run(
    folder: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None, average: int = 1
) -> Run:
    """The run in `folder` as its last checkpoint has it, or with the mean of its last `average` snapshots as model."""
    found = load_checkpoint(RunFolder(folder).checkpoint)
    if found is None and any(os.path.exists(Path(folder) / name) for name in MODEL_FILES):  # also of a name too long
        raise FileError(
            f"{folder} holds a model without the data it was trained on. Give the folder of a training run."
        )
    if found is None:
        raise FileError(f"there is no training run at {folder}. `quadform train --out {folder}` makes one.")
    state, tensors = found
    try:
        identity = state["identity"]
        config = TrainConfig.from_dict(identity["train"])
        data = Dataset.from_dict(identity["data"])
        step = int(state["state"]["step"])
        weights = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
        kind = dtype or next(iter(weights.values())).dtype
        model = Transformer(ModelConfig.from_dict(identity["model"]), device=device, dtype=kind)
        model.load_state_dict(weights)
    except (KeyError, TypeError, AttributeError, StopIteration, RuntimeError) as error:
        pass_on_memory(error)
        raise FileError(f"{RunFolder(folder).checkpoint} is not complete ({error}). Train it again.") from error
    if average > 1:
        model = average_run(folder, average, device=device).to(kind)
    return Run(Path(folder), model.eval(), data, config, step, tensors)
