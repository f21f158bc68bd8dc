"""What a machine says to a request it cannot meet, in one sentence: names no file can have, memory there is not."""

from __future__ import annotations

import errno
import re

from ..core.errors import FileError, InputError, TooLarge, out_of_memory

#: Errors of files that come from the name that was given, or from the disk; any other is a mistake of ours.
_OF_FILES = tuple(
    getattr(errno, name)
    for name in ("ENAMETOOLONG", "EACCES", "EPERM", "ELOOP", "ENOTDIR", "EISDIR", "EROFS", "ENOSPC", "EDQUOT", "EIO")
    if hasattr(errno, name)
)


def refusal(error: Exception) -> InputError | None:
    """The refusal that an error of the machine stands for; None for any other error."""
    if isinstance(error, OSError) and error.errno in _OF_FILES:
        named = str(error.filename or "a file")
        shown = named if len(named) <= 60 else f"{named[:40]}... ({len(named)} characters)"
        return FileError(f"`{shown}` cannot be used: {error.strerror}. Choose another name, folder or disk.")
    if out_of_memory(error):
        return TooLarge(f"this does not fit the memory of this machine{_numbers(str(error))}. Ask for less at once.")
    return None


def _numbers(text: str) -> str:
    """What was wanted and what is free, where the error tells the first."""
    import torch

    from ..core.memory import free_bytes, in_words

    wanted = re.search(r"allocate (\d+) bytes", text)
    if wanted is None:
        return ""
    return f" ({in_words(int(wanted[1]))} wanted at once, {in_words(free_bytes(torch.device('cpu')))} are free)"
