"""Verbs under torchrun: several processes, one answer. The first process prints and writes, the others work."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable

from ..core.errors import InputError

#: Verbs whose probe is split over the processes, and those that begin processes of their own.
SPLIT, OWN = ("spectrum", "lr"), ("train",)
#: Seconds the others leave later after an error: torchrun ends all once one has left, and the first is to tell why.
LATER = 0.5


def several() -> bool:
    """Whether torchrun started this process with others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


def answer_together(name: str, answer: Callable[[], int], device: str, debug: bool) -> int:
    """The answer of a verb from all processes; the others leave without a word, with the same exit code.

    An error of any process is told by the first; a process that fails and cannot tell is named by torchrun.
    """
    if os.environ.get("RANK", "0") == "0":
        return answer() if name in OWN else _answer(name, answer, device)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        if name in OWN:
            return answer()
        try:
            return _answer(name, answer, device)
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
            time.sleep(LATER)
            code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
            raise SystemExit(code) from None


def _answer(name: str, answer: Callable[[], int], device: str) -> int:
    if name not in SPLIT:
        verbs = ", ".join(f"`{verb}`" for verb in (*SPLIT, *OWN))
        raise InputError(f"`quadform {name}` runs in one process; torchrun serves {verbs}. Leave out torchrun.")
    if device.startswith("cuda:"):
        raise InputError(f"`--device {device}`: every process takes a GPU of its own. Use `--device cuda`.")
    from ..distributed import group

    with group():
        return answer()
