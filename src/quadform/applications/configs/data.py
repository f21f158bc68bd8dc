"""The question of `quadform data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ...core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Real corpora and trained models: what there is (list), getting it (fetch), own text as a data set (build).

    Licence and size are told before anything is fetched. Things are kept in the folder QUADFORM_DATA (a folder of the
    user's cache where that is not set), or in `--out`, with checksums that are verified at every use. Nothing is
    installed and nothing fetched is executed.
    """

    action: Annotated[Positional[Literal["list", "fetch", "build"]], arg(help_behavior_hint="")] = "list"
    """list: what there is; fetch NAME ...: get it; build FILE ... --out DIR: own .tsv pairs or text files."""
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]", help_behavior_hint="")] = ()
    """Names of the list to fetch, or files to build from."""
    again: bool = False
    """Fetch even what is already here."""
    held: int = 20
    """build: one group (or document) in so many is held out for validation, and one for the test."""
    pieces: int = 0
    """build: size of the sub-word vocabulary a model of this text uses by default (0: bytes)."""

    def __post_init__(self) -> None:
        if self.action == "list" and self.names:
            raise InputError(f"`quadform data list` takes no names. To get it: `quadform data fetch {self.names[0]}`.")
        if self.action == "fetch" and not self.names:
            raise InputError(
                "fetch what? `quadform data list` shows the names; `quadform data fetch tsmsg-de` gets one."
            )
        if self.action == "build" and not self.names:
            raise InputError("build from which files? `quadform data build my.tsv --out my-data`.")
