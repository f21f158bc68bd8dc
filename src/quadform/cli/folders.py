"""Run folders and threads: what the verbs share besides printing."""

from __future__ import annotations

from pathlib import Path

from ..applications.configs.shared import Output
from ..core.errors import FileError, did_you_mean
from ..core.record import JSON_NAME, Record

#: Below this many parameters one thread is the fastest: the matrices are too small to share, and on a busy machine
#: threads that wait for each other make the work ten times longer.
_SHARED_FROM = 1000


def choose_threads(parameters: int) -> None:
    import torch

    if parameters < _SHARED_FROM:
        torch.set_num_threads(1)


def writable(output: Output) -> Path | None:
    """The folder results go to, made now: a folder that cannot be written is told before anything is computed."""
    if output.out is None:
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


def load_run(run: str) -> Record:
    path = Path(run)
    if not path.exists():
        beside = [str(path.parent / p.name) for p in _children(path.parent) if (p / JSON_NAME).exists()]
        there = f" Runs here: {', '.join(f'`{p}`' for p in beside[:5])}." if beside else ""
        raise FileError(
            f"there is no run at `{run}`.{did_you_mean(run, beside)}{there}"
            " `quadform attention --out DIR` makes one; `quadform report` alone measures a default."
        )
    return Record.load(path)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
