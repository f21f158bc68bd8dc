"""What questions have in common: numerics, long work, a model as the subject, where the answer goes."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.question import Fields, option, required, seconds_of


@dataclass(frozen=True, kw_only=True)
class Numerics(Fields):
    """Where and how the numbers are made."""

    seed: int = option(0, "Seed of everything that is drawn.")
    dtype: str = option(
        "float64",
        "Number format of the computation; half precision is refused, it underflows.",
        choices=("float64", "float32"),
    )
    device: str = option("cpu", "Where to compute: cpu, cuda, cuda:0, ...")


@dataclass(frozen=True, kw_only=True)
class LongWork(Fields):
    """Work that takes minutes: it says its cost first, can be stopped and goes on where it was."""

    resume: bool = option(False, "Go on with the unfinished work in `--out`.")
    max_time: float | None = option(
        None,
        "Stop after this long (`90s`, `10m`, `2h`), keep what is there and mark it partial.",
        metavar="TIME",
        parse=seconds_of,
    )
    dry_run: bool = option(False, "Print the plan and its cost, and stop.")

    @property
    def seconds(self) -> float | None:
        return self.max_time


@dataclass(frozen=True, kw_only=True)
class ModelQuestion(LongWork, Numerics):
    """A question about one model on a probe of data."""

    model: str = required(
        "A run folder, a local Hugging Face folder, a fetched model (`sceptr:tiny`), or `new:pre-ln,depth=6,dim=64`.",
        metavar="MODEL",
    )
    dtype: str = option(
        "float32",
        "Number format of the computation; half precision is refused, it underflows.",
        choices=("float32", "float64"),
    )
    data: str = option(
        "auto",
        "Data of the probe: a data set (`quadform ls data`), a text file, or `auto` (what the run was trained on).",
    )
    batch: int = option(8, "Sequences in a probe batch.", least=1)
    batches: int = option(1, "Probe batches; their mean is the loss.", least=1)
    length: int | None = option(
        None,
        "Tokens of a sequence, for text and language models.",
        metavar="INT",
        shown="(default: the data's)",
        least=1,
    )
    params: str = option("*", "Which parameters: names with wildcards, commas between (`h.0.attn.*,*.W_Q`).")
    include_frozen: bool = option(False, "Take parameters with requires_grad=False as well.")
    train_mode: bool = option(False, "Keep dropout as it is in training; the default measures in eval mode.")
    allow_download: bool = option(False, "A hub id may be fetched; by default no network is used.")
    trust_pickle: bool = option(False, "Open checkpoints that hold Python objects and could run code.")


@dataclass(frozen=True, kw_only=True)
class Output(Fields):
    """Where the answer goes."""

    out: str | None = option(None, "Folder that keeps the results; made if it is missing.", metavar="DIR")
    json: bool = option(False, "Print strict JSON and nothing else on stdout.")
    quiet: bool = option(False, "No progress on stderr.")
    lang: str = option("en", "Language of the report.", choices=("en", "ko"))
    debug: bool = option(False, "Show the whole traceback of an error.")
