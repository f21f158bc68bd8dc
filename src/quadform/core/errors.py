"""The errors people meet. Each text says what was asked, what was got, and what to do.

The command line prints the text without a traceback and leaves with the error's `exit_code`:
2 bad input; 3 finished but a check failed or did not converge; 4 an optional package is missing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class QuadformError(Exception):
    """Any error quadform raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:  # KeyError would print the repr of its text
        return str(self.args[0]) if self.args else ""


class InputError(QuadformError, ValueError):
    """A value that cannot be used: wrong shape, not finite, out of range, malformed."""

    exit_code = 2


class UnknownName(InputError, KeyError):
    """A name that is not in the set it was looked up in."""


class FileError(InputError):
    """A file that is missing, truncated, foreign, or written by a newer quadform."""


class TooLarge(InputError, MemoryError):
    """An object that does not fit the memory of this machine."""


#: How torch says that memory is over, on a CPU and on a GPU.
_NO_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is over, of Python, or of torch on a CPU or a GPU."""
    if isinstance(error, MemoryError) or any(c.__name__ == "OutOfMemoryError" for c in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


def pass_on_memory(error: BaseException) -> None:
    """Raise an error again that says that memory is over: it tells nothing about a model or a file."""
    if out_of_memory(error):
        raise error


class CheckFailed(QuadformError):
    """A measurement finished but one of its checks failed, or it did not converge."""

    exit_code = 3


#: The extra of quadform that brings each optional package, by the name the package is imported with.
EXTRAS = {
    "tyro": "cli",
    "rich": "cli",
    "altair": "report",
    "vl_convert": "report",
    "jinja2": "report",
    "starlette": "page",
    "uvicorn": "page",
    "websockets": "page",
    "transformers": "hf",
    "gguf": "hf",
    "tokenizers": "text",
    "sacrebleu": "text",
    "pytorch_optimizer": "optimizers",
    "triton": "kernels",
}


class MissingExtra(QuadformError, ImportError):
    """An optional package is not installed: `what` needs the `package`."""

    exit_code = 4

    def __init__(self, what: str, package: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'quadform[{EXTRAS[package]}]'")
        self.what, self.package = what, package

    def __reduce__(self) -> tuple[type, tuple[str, str]]:  # so that it crosses a process boundary
        return type(self), (self.what, self.package)


@contextmanager
def needing(what: str) -> Iterator[None]:
    """Around imports of optional packages: one that is not installed raises MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtra(what, package) from error


def closest(word: str, candidates: Iterable[str], most: int = 3) -> list[str]:
    """The candidates most like `word`, best first; empty when none is near.

    A dotted name is compared whole and by its last part, so `W_O` finds `layers.0.attn.W_Q`.
    """
    pool = list(dict.fromkeys(candidates))
    folded = {c.lower(): c for c in reversed(pool)}
    near = [folded[c] for c in difflib.get_close_matches(word.lower(), folded, n=most, cutoff=0.5)]
    if not near:
        tails = {c.lower().rsplit(".", 1)[-1]: c for c in reversed(pool)}
        near = [tails[c] for c in difflib.get_close_matches(word.lower().rsplit(".", 1)[-1], tails, n=most, cutoff=0.5)]
    return near


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`" Did you mean `parallel`?"`, or an empty string when nothing is near."""
    near = closest(word, candidates, most=1)
    return f" Did you mean `{near[0]}`?" if near else ""
