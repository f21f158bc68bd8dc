"""Run folders and threads: what the verbs share besides printing."""

from __future__ import annotations

import shlex
from pathlib import Path

from ..applications.configs.shared import Output
from ..core.errors import FileError
from ..core.record import JSON_NAME
from .processes import several

#: Below this many parameters one thread is the fastest: the matrices are too small to share, and on a busy machine
#: threads that wait for each other make the work ten times longer.
_SHARED_FROM = 1000


#: The words of the command that is being answered; `main` sets them.
asked: list[str] = []


def resume_command() -> str:
    """The command that goes on with this one."""
    return shlex.join(["quadform", *(word for word in asked if word != "--resume"), "--resume"])


def choose_threads(parameters: int) -> None:
    import torch

    if parameters < _SHARED_FROM:
        torch.set_num_threads(1)


def writable(output: Output) -> Path | None:
    """The folder results go to, made now: a folder that cannot be written is told before anything is computed.

    Of several processes the first has one.
    """
    if output.out is None:
        return None
    if several():
        from ..distributed import current

        if not current().first:
            return None
    folder = Path(output.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".quadform-write-test"
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise FileError(f"`--out {output.out}` cannot be written: {why}. Choose another folder.") from error
    return folder


def folder_of(run: str) -> Path:
    path = Path(run)
    return path.parent if path.name == JSON_NAME else path
