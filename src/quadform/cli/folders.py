"""Run folders: what the verbs share besides printing."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ..core.errors import FileError, InputError
from .options import Output
from .processes import several

#: The words of the command that is being answered; `main` sets them.
asked: list[str] = []


def resume_command() -> str:
    """The command that goes on with this one."""
    return shlex.join(["quadform", *(word for word in asked if word != "--resume"), "--resume"])


def report_command(folder: Path) -> str:
    """The command that draws what `folder` holds."""
    return shlex.join(["quadform", "report", str(folder)])


def writable(output: Output) -> Path | None:
    """The folder results go to, made now: a folder that cannot be written is told before anything is computed.

    Of several processes the first has one.
    """
    if output.out is None:
        return None
    if not output.out.strip():
        raise InputError("`--out` is empty. Name a folder, such as `--out runs/NAME`.")
    if several():
        from ..distributed import current

        if not current().first:
            return None
    folder = Path(output.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".quadform-write-test"
        try:
            probe.touch()
        finally:
            probe.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise FileError(f"`--out {output.out}` cannot be written: {why}. Choose another folder.") from error
    if os.environ.get("RANK", "0") == "0":
        _hold(folder)
    return folder


#: The mark in a folder that is being written.
_MARK = ".quadform-writing"
#: The marks this command has set, by the descriptor that locks them.
_held: dict[Path, int] = {}


def _hold(folder: Path) -> None:
    """Refuse a folder another command is writing to; the lock ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return
    mark = folder.resolve() / _MARK
    if mark in _held:
        return
    descriptor = _held[mark] = os.open(mark, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(_held.pop(mark))
        raise FileError(
            f"`{folder}` is being written by another quadform command. Wait for it, or choose another `--out`."
        ) from error
    except OSError:  # a file system without locks
        pass


def let_go() -> None:
    """The command has ended: others may write to its folders."""
    while _held:
        mark, descriptor = _held.popitem()
        mark.unlink(missing_ok=True)
        os.close(descriptor)
