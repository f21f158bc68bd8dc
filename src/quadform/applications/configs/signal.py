"""`quadform signal`: does the signal survive depth?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...core.designs import DESIGNS
from ...core.errors import InputError
from ...core.question import LARGEST, option
from .shared import LongWork, ModelQuestion, Numerics


@dataclass(frozen=True, kw_only=True)
class SignalConfig(LongWork, Numerics):
    """Does the signal survive depth? Token cosine, effective rank, norm and gradient after every block.

    A design (`pre-ln`, `sas-p`, ...) is drawn at random and measured beside its mean-field prediction; a model is
    measured on a probe of data. One figure: cosine, rank and norm per layer, predicted as a line, measured as points.
    """

    subjects: tuple[str, ...] = option(
        (),
        "Block designs, run folders, Hugging Face folders, or `new:pre-ln,depth=6,dim=64`.",
        positional=True,
        metavar="[MODEL|DESIGN ...]",
    )
    dtype: str = option(
        "float32", "Number format of the networks; the measures are summed in float64.", choices=("float32", "float64")
    )
    depths: str = option("12", "Designs: numbers of blocks, commas between (`6,24,72`).")
    dim: int = option(256, "Designs: width; the prediction is the limit of large width.")
    heads: int = option(8, "Designs: attention heads.")
    tokens: int = option(64, "Designs: tokens of a sequence, drawn uniformly from 1024.")
    networks: int = option(4, "Designs: networks drawn; the error bars are over them.")
    data: str = option(
        "auto", "Models: a data set (`quadform ls data`), a text file, or `auto` (what the run was trained on)."
    )
    batch: int = option(8, "Sequences in a batch.")
    batches: int = option(1, "Models: batches; the error bars are over all sequences.")
    length: int | None = option(
        None,
        "Models: tokens of a sequence, for text and language models.",
        metavar="INT",
        shown="(default: the data's)",
    )
    blocks: str | None = option(
        None,
        "Models: the list of blocks (`transformer.h`) or a pattern of their names, where it is not found by itself.",
        metavar="NAME",
        shown="(default: found)",
    )
    jacobian: bool = option(
        False, "Also the singular values of the Jacobian, tokens in to tokens out, of three blocks and of the stack."
    )
    table: bool = option(
        False, "Instead: the rank-collapse table, eight attention-only stacks of depth 1 to 100, with its claims."
    )
    allow_download: bool = option(False, "A hub id may be fetched; by default no network is used.")
    trust_pickle: bool = option(False, "Open checkpoints that hold Python objects and could run code.")

    def check(self) -> None:
        for name in ("dim", "heads", "networks", "batch", "batches", "length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`--{name} {value}`: give at least 1.")
        if self.tokens < 2:
            raise InputError(f"`--tokens {self.tokens}`: a cosine is between tokens; give at least 2.")
        if self.dim % self.heads:
            raise InputError(f"`--dim {self.dim}` does not divide into `--heads {self.heads}`.")
        if not self.subjects and not self.table:
            raise InputError(
                "`quadform signal` needs a design or a model: `quadform signal pre-ln sas-p --depths 6,24`, or"
                " `quadform signal runs/NAME`. `quadform signal --table` draws the rank-collapse table."
            )
        if self.subjects and self.table:
            raise InputError(f"`--table` draws its own stacks and takes no {self.subjects[0]!r}.")
        if self.networks < 2 and self.table:
            raise InputError("`--networks 1`: the claims of the table need the spread of at least two networks.")
        if not self.designs and self.depths != "12":
            raise InputError("`--depths` belongs to designs; a model has the depth it has.")
        if len(set(self.subjects)) < len(self.subjects):
            raise InputError(f"a subject is named twice: {' '.join(self.subjects)}.")
        _ = self.depth_list

    @property
    def depth_list(self) -> tuple[int, ...]:
        """`depths` as numbers."""
        if not re.fullmatch(r"\d+(,\d+)*", self.depths.replace(" ", "")):
            raise InputError(f"`--depths {self.depths}`: whole numbers with commas between, such as `6,24,72`.")
        found = tuple(dict.fromkeys(int(d) for d in self.depths.split(",")))
        if max(found) > LARGEST:
            raise InputError(f"`--depths {self.depths}`: a whole number is at most {LARGEST:,}.")
        if min(found) < 1:
            raise InputError(f"`--depths {self.depths}`: a stack has at least 1 block.")
        return found

    @property
    def designs(self) -> tuple[str, ...]:
        """The subjects that are names of designs."""
        return tuple(s for s in self.subjects if s.replace("_", "-") in DESIGNS)

    def question(self, model: str) -> ModelQuestion:
        """What opens a subject that is a model."""
        names = ("seed", "dtype", "device", "data", "batch", "batches", "length", "allow_download", "trust_pickle")
        return ModelQuestion(model=model, **{name: getattr(self, name) for name in names})
