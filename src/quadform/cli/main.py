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
    """A verb: the question it answers, the value that holds it, and the one that opens the model it is about.

    Both are written `module:Class`, relative to `applications`; `cli.answering` answers.
    """

    question: str
    asks: str
    opening: str = ""


VERBS = {
    "attention": Verb("the exact Hessian of one attention layer", "attention.question:AttentionQuestion"),
    "spectrum": Verb(
        "eigenvalues, trace, density and block norms of a model",
        "spectrum.question:SpectrumQuestion",
        "opening:CutOpening",
    ),
    "report": Verb(
        "one HTML file with all measurements of a model",
        "study.question:ReportQuestion",
        "study.question:ReportOpening",
    ),
    "signal": Verb(
        "does the signal survive depth? rank, token cosine, norms",
        "signal.question:SignalQuestion",
        "signal.question:SignalOpening",
    ),
    "why": Verb(
        "what softmax, norm, skip and the QK product each do to curvature",
        "why.question:WhyQuestion",
        "opening:Opening",
    ),
    "compare": Verb("block designs and depths side by side, under a time budget", "compare.question:CompareQuestion"),
    "lr": Verb(
        "the largest stable learning rate, computed from curvature and tested on a copy",
        "step_size.question:StepSizeQuestion",
        "step_size.question:StepSizeOpening",
    ),
    "point": Verb(
        "minimum, saddle, or still descending? gradient, decrement, signs of the curvature",
        "point.question:PointQuestion",
        "point.question:PointOpening",
    ),
    "taylor": Verb(
        "how far the quadratic model of the loss holds along directions that matter",
        "taylor.question:TaylorQuestion",
        "opening:Opening",
    ),
    "landscape": Verb(
        "the loss on a line or a plane through the model, and where its quadratic model holds",
        "landscape.question:LandscapeQuestion",
        "opening:Opening",
    ),
    "flat": Verb(
        "how flat the loss is around the model, also over rescalings that do not change its outputs",
        "flat.question:FlatQuestion",
        "flat.question:FlatOpening",
    ),
    "prune": Verb(
        "remove weights: the loss predicted by the Hessian, and measured",
        "prune.question:PruneQuestion",
        "compressing.question:CalibrationOpening",
    ),
    "quantize": Verb(
        "store weights in fewer bits: the loss predicted by the Hessian, and measured",
        "quantize.question:QuantizeQuestion",
        "compressing.question:CalibrationOpening",
    ),
    "precond": Verb(
        "how well Adam, K-FAC, Shampoo and others precondition the Hessian, and what one step gains",
        "precond.question:PrecondQuestion",
        "precond.question:PrecondOpening",
    ),
    "verify": Verb(
        "check the closed forms against automatic differentiation on this machine", "verify.question:VerifyQuestion"
    ),
    "reproduce": Verb(
        "reproduce figures and tables of the papers and check each claim", ".experiments.question:ReproduceTask"
    ),
    "train": Verb("train a model with a chosen block design", "fitting.question:TrainTask"),
    "decode": Verb(
        "generate text with a trained model: greedy search, beam search or sampling", "decoding.question:DecodeTask"
    ),
    "data": Verb("list, fetch or build corpora and trained models", ".corpora.question:DataTask"),
    "ls": Verb("list block designs, data sets, experiments or runs", ".cli.listing:LsTask"),
    "explore": Verb(
        "the live page: move a slider, see the exact Hessian change; or look into a MODEL",
        ".explorer.question:ExploreTask",
    ),
    "teach": Verb(
        "the Transformer as a lecture in the browser, with a model trained live", ".lecture.question:TeachTask"
    ),
    "doctor": Verb("check versions, devices, memory and optional packages", "doctor.question:DoctorQuestion"),
}

_HELP = """\
usage: quadform VERB [flags]

Measure the curvature of neural-network losses and put it to use.

{verbs}

Every verb takes --json --quiet --debug, those that measure or train also --device --dtype --seed --out DIR,
those that take long also --dry-run (print plan and cost), --max-time 10m and --resume. --lang ko: Korean sentences.
Help on one verb: `quadform VERB --help`. Version: `quadform --version`. First time here: `quadform report`.
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
        width = max(map(len, VERBS))
        print(
            _HELP.format(verbs="\n".join(f"  {name:{width}}  {verb.question}" for name, verb in VERBS.items())), end=""
        )
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
        command = command_of(name, verb.asks, verb.opening, rest)
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
