"""What came of `quadform data`: what there is, what was fetched, what was built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quadform.core.errors import FileError
from quadform.core.question import Done, Listing
from quadform.core.work import Work

from ..answers.texts import line
from . import fetch as store
from .fetch import CATALOGUE, Fetched, fetched, item, root
from .fetch.store import megabytes, tidy
from .question import DataTask


@dataclass(frozen=True)
class Catalogue(Listing):
    """What can be fetched, with its licence and size."""

    items: tuple[dict[str, Any], ...] = ()
    base: str = ""

    def plain(self) -> dict[str, Any]:
        return {"folder": self.base, "items": list(self.items)}


def listed(asked: DataTask, work: Work) -> Catalogue:
    """What there is, and whether it is here."""
    base = Path(asked.out) if asked.out else root()
    tidy(base)
    rows, items = [], []
    for name, known in CATALOGUE.items():
        licence = known.licence if len(known.licence) <= 40 else known.licence.partition(";")[0].partition(" (")[0]
        here = state(name, asked.out)
        rows.append((name, known.title, megabytes(known), licence, here))
        source = {"source": known.source.title, "bytes": known.source.size, "state": here}
        items.append({"name": name, "kind": known.kind, "title": known.title, "licence": known.licence} | source)
    below = line("line_catalogue", folder=base)
    columns = ("name", "what", "download", "licence", "here")
    return Catalogue("data", columns, tuple(rows), below, tuple(items), str(base))


def state(name: str, out: str | None = None) -> str:
    """`yes`, `no` or `damaged`, of what was fetched under a name."""
    try:
        return "no" if fetched(name, out) is None else "yes"
    except FileError:
        return "damaged"


@dataclass(frozen=True)
class Kept(Done):
    """What was fetched to a root folder, or built."""

    found: tuple[Fetched, ...]
    asked: DataTask

    def plain(self) -> dict[str, Any]:
        told = [_told(got) for got in self.found]
        return told[0] if self.asked.action == "build" else {"fetched": told}

    def __str__(self) -> str:
        if self.asked.action == "build":
            return "\n".join(
                f"{g.folder}: {g.kind}, {_counted(g)}\n  {line('line_use', how=f'`--data {g.folder}`')}"
                for g in self.found
            )
        lines, under = [], f" with QUADFORM_DATA={self.asked.out}" if self.asked.out else ""
        for name, got in zip(self.asked.names, self.found, strict=True):
            how = f"quadform.data.load({name!r})" if got.kind == "model" else f"--data {name}"
            about = {"counted": _counted(got), "licence": got.manifest["licence"], "folder": got.folder}
            lines.append(line("line_fetched", name=name, **about))
            lines.append("  " + line("line_use", how=f"`{how}`{under}"))
        return "\n".join(lines)


def fetch(asked: DataTask, work: Work) -> Kept:
    """Fetch what is named."""
    for name in asked.names:
        item(name)  # an unknown name is told before any work
    return Kept(
        tuple(store.fetch(n, out=asked.out, again=asked.again, progress=work.progress) for n in asked.names), asked
    )


def build(asked: DataTask, work: Work) -> Kept:
    """Build a data set from own files."""
    assert asked.out is not None
    return Kept((store.build(asked.names, asked.out, held=asked.held, pieces=asked.pieces),), asked)


def _counted(got: Fetched) -> str:
    counts = got.manifest.get("counts", {})
    return ", ".join(f"{n:,} {what.removesuffix('s') if n == 1 else what}" for what, n in counts.items())


def _told(got: Fetched) -> dict[str, Any]:
    shown = ("name", "kind", "title", "licence", "source", "digest", "counts", "archives", "files")
    return {"folder": str(got.folder)} | {key: got.manifest[key] for key in shown if key in got.manifest}
