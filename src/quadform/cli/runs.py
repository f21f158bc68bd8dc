"""What runs there are below a folder: one line each, with the verdict of its report. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import FileError, InputError, QuadformError
from ..core.record import JSON_NAME, Record
from .earlier import subject_of

if TYPE_CHECKING:
    from ..train.folder import RunFolder

#: Folders this far below the one that was named are looked into.
DEEPEST = 3


@dataclass(frozen=True)
class Row:
    """One run: where it is, what it is, of which model, when it was made, and what came out."""

    run: str
    kind: str
    model: str
    made: str
    verdict: str


def runs(folder: str | Path) -> list[Row]:
    """The runs in `folder` and below it, in the order of their paths; what cannot be read is a row that says so.

    A study (`quadform report --out DIR`) is one row and its stages follow, each with its own verdict.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"there is no folder `{folder}`. Any verb with `--out {folder}/NAME` makes a run in it.")
    return list(_below(folder, 0))


def _below(folder: Path, depth: int) -> Iterator[Row]:
    from ..applications.study import holds_run
    from ..core.work import WORK, begun
    from ..train.folder import RunFolder

    unfinished = begun(folder) is not None
    if unfinished and not holds_run(folder):
        yield Row(str(folder), "unfinished", "-", "-", "the same command with `--resume` continues it")
    elif holds_run(folder):
        yield _row(folder)
        if RunFolder(folder).exists and (folder / JSON_NAME).exists():  # a result that was written into a training run
            yield _row(folder, training=True)
    if depth == DEEPEST:
        return
    try:
        children = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError:  # a folder that may not be read
        return
    for child in children:
        if child.name not in (*RunFolder.INSIDE, *([WORK] if unfinished else [])) and not child.name.startswith("."):
            yield from _below(child, depth + 1)


def _row(folder: Path, *, training: bool = False) -> Row:
    from ..applications.study.targets import asked_in, records_in
    from ..train.folder import RunFolder

    files = RunFolder(folder)
    try:
        studies = [] if training else records_in(folder)
        if not studies and files.exists:
            return _training(files)
        records = [record for study in studies for record in study.records]
        first = records[0]
        alone = (folder / JSON_NAME).exists() and not asked_in(folder)
        kind = first.kind if alone else f"study: {', '.join(r.kind for r in records)}"
        missing = [name for study in studies for name in study.missing]
        made = max(r.made.made_at for r in records)
        verdict = (f"missing {', '.join(missing)}; " if missing else "") + _verdict(first)
        return Row(str(folder), kind, subject_of(first.inputs), _minute(made), verdict)
    except QuadformError as error:
        return Row(str(folder), "cannot be read", "-", "-", str(error))
    except (LookupError, TypeError, ValueError, AttributeError, OSError, RuntimeError) as error:
        return Row(str(folder), "cannot be read", "-", "-", f"incomplete: {type(error).__name__} {error}".strip())


def _training(files: RunFolder) -> Row:
    """A training run, by the text beside its weights."""
    from ..core.spec import ModelConfig

    body = files.described()
    identity, state = body["inputs"]["identity"], body["inputs"]["state"]
    last: dict[str, Any] = {}
    for line in files.lines():
        last |= line
    told = [f"step {state['step']:,} of {identity['train']['steps']:,}"]
    told += [f"training loss {last['loss']:.4g}"] if "loss" in last else []
    found = last.get("valid", {})
    told += [f"valid {name} {e['value']:.4g} ± {e['stderr']:.1g}" for name, e in found.items()]
    model = ModelConfig.from_dict(identity["model"]).summary
    return Row(str(files.path), "training run", model, _minute(body["made"]["made_at"]), ", ".join(told))


def _minute(made_at: str) -> str:
    """`2026-11-15T08:08:34+00:00` -> `2026-11-15 08:08`."""
    return made_at[:16].replace("T", " ")


def _verdict(record: Record) -> str:
    """The first verdict of the record's answer."""
    from ..report.page import page_of
    from ..report.texts import EN

    try:
        answer = page_of(record).answer(record)
        found = answer.verdicts()
    except InputError:  # a kind that has no page
        return "-"
    said = [f"{v.title()}: {v.value} [{EN('tag_' + v.tag)}] - {v.word()}" for v in found[:1]]
    return "partial; " * answer.partial + (said[0] if said else "-")
