"""What questions have in common: numerics, long work, a model as the subject, where the answer goes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ...core.errors import InputError
from ...core.question import LONGEST


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Where and how the numbers are made."""

    seed: int = 0
    """Seed of everything that is drawn."""
    dtype: Literal["float64", "float32"] = "float64"
    """Number format of the computation; half precision is refused, it underflows."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:0, ..."""


@dataclass(frozen=True, kw_only=True)
class LongWork:
    """Work that takes minutes: it says its cost first, can be stopped and goes on where it was."""

    resume: bool = False
    """Go on with the unfinished work in `--out`."""
    max_time: Annotated[str | None, arg(metavar="TIME", help_behavior_hint="")] = None
    """Stop after this long (`90s`, `10m`, `2h`), keep what is there and mark it partial."""
    dry_run: bool = False
    """Print the plan and its cost, and stop."""

    def __post_init__(self) -> None:
        _ = self.seconds

    @property
    def seconds(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else seconds_of(self.max_time)


def seconds_of(text: str) -> float:
    """`90s`, `10m`, `2h` or a plain number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    if not match or not 0 < float(match[1]) < LONGEST:
        raise InputError(f"`{text}` is not a length of time. Write `90s`, `10m` or `2h`.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


@dataclass(frozen=True, kw_only=True)
class ModelQuestion(LongWork, Numerics):
    """A question about one model on a probe of data."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A run folder, a local Hugging Face folder, a fetched model (`sceptr:tiny`), or `new:pre-ln,depth=6,dim=64`."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number format of the computation; half precision is refused, it underflows."""
    data: str = "auto"
    """Data of the probe: a data set (`quadform ls data`), a text file, or `auto` (what the run was trained on)."""
    batch: int = 8
    """Sequences in a probe batch."""
    batches: int = 1
    """Probe batches; their mean is the loss."""
    length: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: the data's)")] = None
    """Tokens of a sequence, for text and language models."""
    params: str = "*"
    """Which parameters: names with wildcards, commas between (`h.0.attn.*,*.W_Q`)."""
    include_frozen: bool = False
    """Take parameters with requires_grad=False as well."""
    train_mode: bool = False
    """Keep dropout as it is in training; the default measures in eval mode."""
    allow_download: bool = False
    """A hub id may be fetched; by default no network is used."""
    trust_pickle: bool = False
    """Open checkpoints that hold Python objects and could run code."""

    def __post_init__(self) -> None:
        LongWork.__post_init__(self)
        for name in ("batch", "batches", "length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`--{name} {value}`: give at least 1.")


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where the answer goes."""

    out: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder that keeps the results; made if it is missing."""
    json: bool = False
    """Print strict JSON and nothing else on stdout."""
    quiet: bool = False
    """No progress on stderr."""
    lang: Literal["en", "ko"] = "en"
    """Language of the report."""
    debug: bool = False
    """Show the whole traceback of an error."""
