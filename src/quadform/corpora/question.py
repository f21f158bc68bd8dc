"""What `quadform data` is asked. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quadform.core.errors import InputError
from quadform.core.question import Done, Task, option

if TYPE_CHECKING:
    from quadform.core.work import Work


@dataclass(frozen=True, kw_only=True)
class DataTask(Task):
    """Corpora and trained models: list them, fetch them, or build a data set from your own text.

    Licence and size are shown before anything is fetched. Files are kept in the folder QUADFORM_DATA (by default in the
    user's cache), or in `--out`, with checksums that are verified at every use. Nothing is installed, and nothing
    that was fetched is executed.
    """

    verb = "data"
    takes = frozenset()

    action: str = option(
        "list",
        "list: show all; fetch NAME ...: download; build FILE ... --out DIR: from .tsv pairs, text files, or the"
        " text field of .csv and .jsonl rows.",
        positional=True,
        choices=("list", "fetch", "build"),
    )
    names: tuple[str, ...] = option(
        (), "Names of the list to fetch, or files to build from.", positional=True, metavar="[NAME ...]"
    )
    again: bool = option(False, "Fetch again what is already here.")
    held: int = option(20, "build: one group (or document) in N is held out for validation, and one for the test.")
    pieces: int = option(0, "build: size of the sub-word vocabulary a model of this text uses by default (0: bytes).")

    out: str | None = option(None, "The folder to look in, to fetch to, or to build.", metavar="DIR")

    def check(self) -> None:
        if self.action == "list" and self.names:
            raise InputError(f"`quadform data list` takes no names. To get it: `quadform data fetch {self.names[0]}`.")
        if self.action == "fetch" and not self.names:
            raise InputError(
                "fetch what? `quadform data list` shows the names; `quadform data fetch tsmsg-de` gets one."
            )
        if self.action == "build" and not self.names:
            raise InputError("build from which files? `quadform data build my.tsv --out my-data`.")
        if self.action == "build" and self.out is None:
            raise InputError("where to? Name the folder: `quadform data build FILE ... --out DIR`.")

    def folder(self, out: str | None) -> None:
        """None: `out` is no folder of results."""

    def run(self, work: Work) -> Done:
        from .done import build, fetch, listed

        return {"list": listed, "fetch": fetch, "build": build}[self.action](self, work)
