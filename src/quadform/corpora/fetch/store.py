"""The folder that keeps what was fetched: one folder a name, written whole or not at all, checked at every use.

    ROOT/tsmsg-de/item.json        name, licence, source, SHA-256 of the archives and of every file kept, counts
    ROOT/tsmsg-de/pairs.tsv.gz     what `item.json` names
    ROOT/.archives/                downloads: those that serve several names stay, the others go once they are read

What a killed process leaves (`.part-...`, `.old-...`, an archive that was read) is removed by the next fetch or list.

ROOT is the environment variable QUADFORM_DATA, or `quadform` in the user's cache folder. Torch-free.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quadform.core.errors import FileError, QuadformError
from quadform.core.files import alone, is_dir, is_file, unless_held
from quadform.core.progress import Progress, Report, say

from .catalogue import Item, item
from .sources import list_name, sha256_of

MANIFEST = "item.json"
_FORMAT, _SCHEMA = "quadform-data", 1


def root() -> Path:
    """Where fetched data is kept: QUADFORM_DATA, or `quadform` in the user's cache folder."""
    if own := os.environ.get("QUADFORM_DATA"):
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "quadform"


@dataclass(frozen=True)
class Fetched:
    """What lies in a folder: its manifest, already checked."""

    folder: Path
    manifest: Mapping[str, Any]

    def __repr__(self) -> str:
        counts = "".join(f", {n:,} {what}" for what, n in self.manifest.get("counts", {}).items())
        return f"Fetched({self.name!r}, {self.kind}{counts}, {str(self.folder)!r})"

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def digest(self) -> str:
        """The SHA-256 of the contents, the same wherever and whenever they were packed."""
        return str(self.manifest["digest"])

    def path(self, file: str) -> Path:
        """The path of one of the files the manifest names."""
        if file not in self.manifest["files"]:
            raise FileError(f"{self.folder} holds no {file}; it has {', '.join(self.manifest['files'])}.")
        return self.folder / file


def fetched(name: str | Path, root_folder: str | Path | None = None) -> Fetched | None:
    """What was fetched under this name, or lies in this folder; None when there is nothing. Checksums are verified."""
    return _verified(Path(name) if is_folder(name) else _folder(root_folder) / _file_name(str(name)))


def _verified(folder: Path) -> Fetched | None:
    if not is_file(folder / MANIFEST):
        return None
    manifest = _manifest(folder)
    for file, known in manifest["files"].items():
        path = folder / file
        if (
            not path.is_file()
            or path.stat().st_size != known["bytes"]
            or _sha256(path, *_stamp(path)) != known["sha256"]
        ):
            raise FileError(
                f"{path} is missing or damaged (its checksum is not the recorded one)."
                f" `quadform data fetch {manifest['name']} --again` fetches it anew."
            )
    return Fetched(folder, manifest)


def fetch(name: str, *, out: str | Path | None = None, again: bool = False, progress: bool | Report = True) -> Fetched:
    """Fetch a corpus or model by name, or find it where it was fetched before; `out` replaces the usual root folder.

    Licence and size are told first. An interrupted fetch leaves no half-made folder, and goes on with the archives it
    had. `again` fetches even what is there.
    """
    wanted, base = item(name), _folder(out)
    folder = base / _file_name(name)
    tidy(base)
    if not again and (found := _verified(folder)) is not None:
        return found
    say(f"{name}: {wanted.title}\n  licence: {licence(wanted)}\n  source: {wanted.source.title}, {megabytes(wanted)}")
    archives = base / ".archives"
    try:
        archives.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{base} cannot be written ({error.strerror}). Set QUADFORM_DATA, or choose another folder."
        ) from error
    with alone(archives):
        if not again and (found := _verified(folder)) is not None:
            return found  # another process has fetched it meanwhile
        with Progress(max(wanted.source.size // 1000, 1), f"fetch {name}, kB", show=progress) as bar:
            files = wanted.source.bring(archives, lambda size: bar.step(size // 1000))
        with packing(folder) as part:
            module, _, function = wanted.read.partition(":")
            read = getattr(importlib.import_module(f"{__package__}.{module}"), function)
            told = read(files, part, **wanted.settings)
            finish(part, _described(wanted) | {"archives": {list_name(f): sha256_of(f) for f in files}}, told)
        if not wanted.source.shared:
            for file in files:
                file.unlink()
    found = _verified(folder)
    assert found is not None
    return found


def megabytes(wanted: Item) -> str:
    """The size of the download in words."""
    size = wanted.source.size
    return f"{size / 1e6:.1f} MB" if size else "size not known before"


def licence(wanted: Item) -> str:
    """The licence in words, also where it is not known before."""
    return wanted.licence or "the package's own; told once it is here"


def _described(wanted: Item) -> dict[str, Any]:
    body: dict[str, Any] = {"name": wanted.name, "kind": wanted.kind, "title": wanted.title}
    body |= {"source": wanted.source.title, "settings": dict(wanted.settings)}
    body |= {"licence": wanted.licence} if wanted.licence else {}
    return body | ({} if wanted.kind == "model" else {"held": wanted.held, "pieces": wanted.pieces})


@contextlib.contextmanager
def packing(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` when it is complete, and vanishes when something goes wrong.

    A folder with anything in it that was not made here is never replaced.
    """
    try:
        _sweep(folder.parent, re.escape(folder.name))
        _check_ours(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder} cannot be written ({error.strerror}). Choose another folder.") from error
    with _held_folder(f".part-{folder.name}-", folder.parent) as part:
        yield part
        os.chmod(part, 0o755)
        if folder.exists():
            with _held_folder(f".old-{folder.name}-", folder.parent) as old:
                os.replace(folder, old)
                os.replace(part, folder)
        else:
            os.replace(part, folder)


@contextlib.contextmanager
def _held_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A new folder that others leave alone while this process lives; what is still there at the end is removed."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with alone(made):
            if not made.exists():  # swept by another process before it was held
                continue
            try:
                yield made
            finally:
                shutil.rmtree(made, ignore_errors=True)
            return


def tidy(base: Path) -> None:
    """Remove what killed processes have left under a root folder; does nothing while another process fetches."""
    archives = base / ".archives"
    if not is_dir(archives):
        return
    with unless_held(archives) as free:
        if not free:
            return
        for part in archives.glob(".part-*"):
            shutil.rmtree(part, ignore_errors=True)
        _sweep(base, ".+")
        waiting = {path.name: path for path in archives.iterdir() if path.is_file()}
        for path in base.glob(f"*/{MANIFEST}") if waiting else ():
            with contextlib.suppress(QuadformError):
                body = _manifest(path.parent)
                if not item(body["name"]).source.shared:
                    for name in waiting.keys() & set(body.get("archives", ())):
                        waiting[name].unlink(missing_ok=True)


def _sweep(parent: Path, name: str) -> None:
    """Remove the unfinished folders that no living process holds; an old one whose new one never came is put back."""
    for left in parent.glob(".*"):
        match = re.fullmatch(rf"\.(part|old)-({name})-[a-z0-9_]{{8}}", left.name)
        if match is None or not left.is_dir():
            continue
        with unless_held(left) as free:
            if free and match[1] == "old" and (left / MANIFEST).is_file() and not (parent / match[2]).exists():
                os.replace(left, parent / match[2])
            elif free:
                shutil.rmtree(left, ignore_errors=True)


def _check_ours(folder: Path) -> None:
    """Refuse a folder that holds files which no manifest of ours names."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileError(f"{folder} is a file. Choose another folder.")
    named = set(_manifest(folder)["files"]) | {MANIFEST} if (folder / MANIFEST).is_file() else set()
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in named and not re.fullmatch(r"pieces-\d+\.json", name):
            raise FileError(f"{folder} holds files of yours ({name}); it is not replaced. Choose a new folder.")


def finish(part: Path, described: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Write the manifest of a complete folder; `told` holds its counts and, where packing is not unique, a `digest`."""
    files = sorted(p for p in part.rglob("*") if p.is_file())
    listed = {p.relative_to(part).as_posix(): {"sha256": sha256_of(p), "bytes": p.stat().st_size} for p in files}
    whole = "".join(f"{name} {known['sha256']}\n" for name, known in listed.items())
    digest = {"digest": hashlib.sha256(whole.encode()).hexdigest()}
    body = {
        "format": _FORMAT,
        "schema": _SCHEMA,
        "licence": "not stated",
        **digest,
        **told,
        **described,
        "files": listed,
    }
    (part / MANIFEST).write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def is_folder(name: str | Path) -> bool:
    """Whether this names a folder of packed data and no item: a path with a manifest in it."""
    return is_file(Path(name) / MANIFEST)


def _folder(out: str | Path | None) -> Path:
    return root() if out is None else Path(out)


def _file_name(name: str) -> str:
    return name.replace("==", "-")


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}. Remove {folder} and fetch again.") from error
    if not isinstance(body, dict) or body.get("format") != _FORMAT or not isinstance(body.get("files"), dict):
        raise FileError(f"{path} does not describe data that quadform has fetched or built.")
    schema, counts = body.get("schema"), body.get("counts", {})
    named = all(isinstance(body.get(key), str) for key in ("name", "kind", "digest"))
    if type(schema) is not int or not named or not isinstance(counts, dict):
        raise FileError(f"{path} is not complete. Remove {folder} and fetch or build it again.")
    if any(not isinstance(n, int) for n in counts.values()):
        raise FileError(f"{path} holds counts that are not numbers. Remove {folder} and fetch or build it again.")
    if schema > _SCHEMA:
        raise FileError(f"{path} was written by a newer quadform (schema {body['schema']}). Upgrade, or fetch again.")
    if any(Path(file).is_absolute() or ".." in Path(file).parts for file in body["files"]):
        raise FileError(f"{path} names files outside its folder; nothing of it was read.")
    return body


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, size: int, changed: int) -> str:
    """The checksum of a file, taken once in a process as long as its size and time stay."""
    return sha256_of(path)
