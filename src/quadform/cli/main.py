"""`main`: find the verb, read its flags, answer, leave with the right exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ..core import progress
from ..core.errors import QuadformError, UnknownName, did_you_mean, needing
from .limits import refusal
from .stopping import INTERRUPTED, TERMINATED, stopped_by_sigterm


@dataclass(frozen=True)
class Verb:
    """A verb: what it answers, an example, the value that holds its question, and the one that opens its model.

    The last two are written `module:Class`, relative to `applications`; `cli.answering` answers.
    """

    question: str
    example: str
    asks: str
    opening: str = ""


VERBS = {
    "report": Verb(
        "all measurements of a model in one HTML file; without a MODEL, of a built-in one",
        "quadform report runs/mine --open",
        "study.question:ReportQuestion",
        "study.question:ReportOpening",
    ),
    "doctor": Verb(
        "check versions, devices, memory and optional packages",
        "quadform doctor",
        "doctor.question:DoctorQuestion",
    ),
    "ls": Verb(
        "list block designs, data sets, experiments or runs",
        "quadform ls experiments",
        ".cli.listing:LsTask",
    ),
    "spectrum": Verb(
        "eigenvalues, trace, density and block norms",
        "quadform spectrum runs/mine --top 3 --density",
        "spectrum.question:SpectrumQuestion",
        "opening:CutOpening",
    ),
    "point": Verb(
        "minimum, saddle, or still descending?",
        "quadform point runs/mine",
        "point.question:PointQuestion",
        "point.question:PointOpening",
    ),
    "landscape": Verb(
        "the loss on a line or a plane through the model",
        "quadform landscape runs/mine --plane top",
        "landscape.question:LandscapeQuestion",
        "opening:Opening",
    ),
    "flat": Verb(
        "how flat the loss is around the model",
        "quadform flat runs/mine --measures lambda_max,trace",
        "flat.question:FlatQuestion",
        "flat.question:FlatOpening",
    ),
    "taylor": Verb(
        "how far the quadratic model of the loss holds",
        "quadform taylor runs/mine",
        "taylor.question:TaylorQuestion",
        "opening:Opening",
    ),
    "lr": Verb(
        "the largest stable learning rate, tested on a copy of the model",
        "quadform lr runs/mine --optimizer adamw",
        "step_size.question:StepSizeQuestion",
        "step_size.question:StepSizeOpening",
    ),
    "precond": Verb(
        "how well Adam, K-FAC, Shampoo and others precondition the Hessian",
        "quadform precond runs/mine --methods none,adam,kfac",
        "precond.question:PrecondQuestion",
        "precond.question:PrecondOpening",
    ),
    "why": Verb(
        "what softmax, norm, skip and the QK product do to curvature",
        "quadform why new:pre-ln,depth=2,d_model=64 --remove norm,skip",
        "why.question:WhyQuestion",
        "opening:Opening",
    ),
    "prune": Verb(
        "remove weights: the loss predicted and measured",
        "quadform prune runs/mine --sparsity 0.5",
        "prune.question:PruneQuestion",
        "compressing.question:CalibrationOpening",
    ),
    "quantize": Verb(
        "store weights in fewer bits: the loss predicted and measured",
        "quadform quantize runs/mine --bits 4",
        "quantize.question:QuantizeQuestion",
        "compressing.question:CalibrationOpening",
    ),
    "attention": Verb(
        "the exact Hessian of one attention layer",
        "quadform attention --tokens 8 --d-model 8 --out runs/attention",
        "attention.question:AttentionQuestion",
    ),
    "signal": Verb(
        "does the signal survive depth? token cosine, rank and norm after every block",
        "quadform signal pre-ln sas-p no-skip --depths 6,24",
        "signal.question:SignalQuestion",
        "signal.question:SignalOpening",
    ),
    "compare": Verb(
        "block designs and depths side by side, under a time budget",
        "quadform compare --designs pre-ln,sas-p --depths 2,6 --budget 2m",
        "compare.question:CompareQuestion",
    ),
    "explore": Verb(
        "the exact Hessian with sliders in the browser; with a MODEL, that model",
        "quadform explore runs/mine",
        ".explorer.question:ExploreTask",
    ),
    "teach": Verb(
        "a lecture on the Transformer in the browser, with a model trained live",
        "quadform teach",
        ".lecture.question:TeachTask",
    ),
    "train": Verb(
        "train a model with a chosen block design",
        "quadform train --data reverse --out runs/mine",
        "fitting.question:TrainTask",
    ),
    "decode": Verb(
        "generate text with a trained model",
        "quadform decode runs/mine abc --beam 4",
        "decoding.question:DecodeTask",
    ),
    "data": Verb(
        "list, fetch or build corpora and trained models",
        "quadform data fetch tsmsg-de",
        ".corpora.question:DataTask",
    ),
    "verify": Verb(
        "check the closed forms against automatic differentiation",
        "quadform verify",
        "verify.question:VerifyQuestion",
    ),
    "reproduce": Verb(
        "figures and tables of the papers, each claim checked",
        "quadform reproduce rank-collapse --preset cpu",
        ".experiments.question:ReproduceTask",
    ),
}

#: The verbs in the order of `quadform --help`.
GROUPS = {
    "Start here": (
        "report",
        "doctor",
        "ls",
    ),
    "Measure a model": (
        "spectrum",
        "point",
        "landscape",
        "flat",
        "taylor",
    ),
    "Train it": (
        "lr",
        "precond",
        "why",
    ),
    "Make it smaller": (
        "prune",
        "quantize",
    ),
    "Understand Transformers": (
        "attention",
        "signal",
        "compare",
        "explore",
        "teach",
    ),
    "Models and data": (
        "train",
        "decode",
        "data",
    ),
    "Check the results": (
        "verify",
        "reproduce",
    ),
}

_HELP = """\
usage: quadform VERB [MODEL] [flags]

Measure the curvature of neural-network losses and put it to use.

{verbs}
MODEL is a run folder, a local Hugging Face folder, a fetched model (`sceptr:tiny`),
or a new one such as `new:pre-ln,depth=6,d_model=64`.

Every verb takes --json --quiet --debug; those that measure or train also take
--device --dtype --seed --out DIR; those that take long also --dry-run (print plan
and cost), --max-time 10m and --resume. Korean sentences: --lang ko.

Help on one verb: `quadform VERB --help`. Version: `quadform --version`.
First time here: `quadform report`.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    for stream in (sys.stdout, sys.stderr):  # a terminal that is not UTF-8 shows `\xb1` for a letter it lacks
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    with stopped_by_sigterm() as terminated:
        try:
            with needing("This command"):
                code = _run(words)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            how, code = ("terminated", TERMINATED) if terminated.is_set() else ("interrupted", INTERRUPTED)
            return _told(f"{how}; what was already saved is kept.", code, words)
        except BrokenPipeError:  # the reader (`| head`) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except QuadformError as error:
            return _told(str(error), error.exit_code, words)
        except Exception as error:
            known = refusal(error)
            if known is not None:
                return _told(str(known), known.exit_code, words)
            text = f"internal error (please report): {type(error).__name__}: {error}. `--debug` shows the traceback."
            return _told(text, 1, words)


def _run(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(_HELP.format(verbs="\n".join(map(_listed, GROUPS))), end="")
        return 0
    if words[0] == "--version":
        from .. import __version__

        print(f"quadform {__version__}")
        return 0
    name, *rest = words
    if name not in VERBS:
        if name.startswith("-"):
            raise UnknownName(
                f"`{name}`: flags come after the verb (`quadform attention {name}`). See `quadform --help`."
            )
        raise UnknownName(f"`{name}` is not a verb of quadform.{did_you_mean(name, VERBS)} See `quadform --help`.")
    from .flags import command_of

    verb = VERBS[name]
    try:
        command = command_of(name, verb.asks, verb.opening, rest, verb.example)
    except SystemExit:  # --help was answered
        return 0
    _share_the_machine()  # before the next line, which loads torch
    from . import folders
    from .answering import answer
    from .processes import answer_together, several

    folders.asked[:] = words
    before, progress.quiet = progress.quiet, command.output.quiet
    try:
        if several():
            return answer_together(name, lambda: answer(command), command.device, command.output.debug)
        return answer(command)
    finally:
        progress.quiet = before
        folders.let_go()


def _listed(group: str) -> str:
    width = max(map(len, VERBS))
    return "\n".join([group, *(f"  {name:{width}}  {VERBS[name].question}" for name in GROUPS[group]), ""])


def fields_of(name: str) -> type:
    """A dataclass of all flags of a verb."""
    from .flags import call_of, parts_of

    return call_of(name, parts_of(VERBS[name].asks, VERBS[name].opening))


def _share_the_machine() -> None:
    """As many threads as cores are idle now, and threads that sleep while they wait, unless the user has said.

    A machine may grow busy later. Threads that spin until a busy core has done its share then burn twenty times the
    processor time of the work (docs/decisions/0917). OpenMP reads both settings once, when torch is loaded.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if hasattr(os, "getloadavg"):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        idle = cores - round(os.getloadavg()[0])
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, idle)))


def _told(text: str, code: int, words: Sequence[str]) -> int:
    if "--debug" in words:
        import traceback

        traceback.print_exc()
    print(f"quadform: {printable(text)}", file=sys.stderr)
    return code


def printable(text: str) -> str:
    """One line that a terminal can only show: what somebody typed may hold line breaks and control characters."""
    return "".join(c if c.isprintable() else " " if c == "\n" else repr(c)[1:-1] for c in text)


if __name__ == "__main__":
    sys.exit(main())
