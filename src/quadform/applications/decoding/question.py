"""What `quadform decode` and `qf.decode` are asked. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.errors import InputError
from ...core.question import Task, option, required
from ..opening import Numerics

if TYPE_CHECKING:
    from ...core.work import Work
    from .done import Decodings


@dataclass(frozen=True, kw_only=True)
class DecodeTask(Numerics, Task):
    """Generate text with a trained run: greedy search, beam search or sampling, one line per input text."""

    verb = "decode"
    takes = frozenset({"out"})
    first = "model"

    model: str = required("The folder of a run written by `quadform train --out RUN`.", metavar="RUN")
    texts: tuple[str, ...] = option((), "What to translate, answer or continue.", positional=True, metavar="[TEXT ...]")
    file: str | None = option(None, "Read the texts from this file, one per line; `-` is stdin.", metavar="FILE")
    beam: int = option(1, "Beam width; 1 is greedy search.", least=1)
    length_penalty: float = option(
        1.0, "alpha of score = log-probability / penalty(length); larger favours longer texts."
    )
    penalty: str = option("power", "penalty(n) = n^alpha, or ((5 + n) / 6)^alpha.", choices=("power", "gnmt"))
    n_best: int = option(1, "Number of hypotheses to print, with their scores.", least=1)
    sample: bool = option(False, "Sample the text instead of searching for the most likely one.")
    temperature: float = option(1.0, "Temperature of sampling: below 1 less varied, above 1 more varied.", above=0)
    top_k: int = option(0, "Sample only from the k most likely tokens (0: all).", least=0)
    top_p: float = option(1.0, "Sample only from the most likely tokens with this total probability.")
    max_length: str | None = option(
        None,
        "Maximum number of generated tokens; `+50`: 50 more than the source has.",
        metavar="INT|+INT",
        shown="(default: what fits the data)",
    )
    recipe: str | None = option(
        None,
        "`vaswani`: the original search, `--beam 4 --penalty gnmt --length-penalty 0.6 --max-length +50`.",
        choices=("vaswani",),
    )
    average: int = option(
        1,
        "Decode with the mean weights of the last N snapshots (`quadform train --average N` keeps them).",
        least=1,
    )
    batch_size: int = option(64, "Texts decoded together.", least=1)
    dtype: str = option("float32", "Floating-point type of the computation.", choices=("float32", "float64"))

    def check(self) -> None:
        texts = (self.texts,) if isinstance(self.texts, str) else tuple(self.texts)
        object.__setattr__(self, "texts", texts)
        if self.recipe == "vaswani":
            for name, value in {"beam": 4, "penalty": "gnmt", "length_penalty": 0.6, "max_length": "+50"}.items():
                if getattr(self, name) == type(self).__dataclass_fields__[name].default:
                    object.__setattr__(self, name, value)
        if self.max_length is not None and not re.fullmatch(r"\+\d+|0*[1-9]\d*", self.max_length):
            raise InputError(f"max_length={self.max_length}: give a number of tokens of at least 1, or +50.")
        if self.n_best > self.beam and not self.sample:
            raise InputError(f"n_best={self.n_best} needs a beam at least as wide: beam={self.n_best}.")
        if self.sample and (self.beam > 1 or self.n_best > 1):
            raise InputError("sample draws one text; leave out beam and n_best.")
        if not self.sample and (self.temperature != 1 or self.top_k or self.top_p != 1):
            raise InputError("temperature, top_k and top_p are for sampling; ask for sample too.")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p:g}: give a share above 0, at most 1.")
        if self.texts and self.file:
            raise InputError("give texts or a file, not both.")

    def run(self, work: Work) -> Decodings:
        from .done import decoded

        return decoded(self, work)
