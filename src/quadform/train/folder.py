"""RunFolder: what lies where in the folder of a training run. Nothing else reads or writes these files.

FOLDER/metrics.jsonl         one JSON object a line: training loss, validation, token cosines, warnings
FOLDER/checkpoint/           where a killed run goes on, bit for bit on a CPU
FOLDER/best/                 the model of the best validation
FOLDER/model/                the model at the end; `Transformer.load(FOLDER / "model")`
FOLDER/snapshots/00001500/   the models of the last `average` saves, where `average` is given
FOLDER/averaged/             their mean
FOLDER/along/00000025/       checkpoints along the run (`train.along` says at which steps)
FOLDER/scores.json           what the run scored, and the run it started from
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quadform.core.errors import FileError
from quadform.core.files import is_dir, is_file
from quadform.core.record import JSON_NAME, strict_json, write_atomically

if TYPE_CHECKING:
    from quadform.nn.transformer import Transformer


class RunFolder:
    """The folder of a training run, whether it is there yet or not."""

    #: The folders with weights inside.
    INSIDE = ("checkpoint", "best", "model", "snapshots", "averaged", "along")

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        inside = [self.path / n for n in self.INSIDE]
        self.checkpoint, self.best, self.model, self.snapshots, self.averaged, self.along = inside
        self.log, self._scores = self.path / "metrics.jsonl", self.path / "scores.json"

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def exists(self) -> bool:
        """Whether a training run is there: one checkpoint at least."""
        return is_file(self.checkpoint / JSON_NAME)

    def make(self) -> None:
        """Make the folder itself."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write a run to {self.path}: {error.strerror}. Choose another folder.") from error

    def forget(self) -> None:
        """Take the checkpoints and the snapshots away, so that the next run begins anew."""
        (self.checkpoint / JSON_NAME).unlink(missing_ok=True)
        for folder in (self.snapshots, self.along):
            shutil.rmtree(folder, ignore_errors=True)

    # --- the checkpoint, without its weights --------------------------------------------------------------------------
    def described(self) -> dict[str, Any]:
        """What is written beside the weights of the checkpoint: `inputs` (identity, state) and `made`."""
        path = self.checkpoint / JSON_NAME
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(body["inputs"], dict):
                raise TypeError("its inputs are no table")
            return dict(body)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"{path} cannot be read: {error}. Train it again.") from error

    # --- the log ------------------------------------------------------------------------------------------------------
    def lines(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        try:
            return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise FileError(f"the log of the run, {self.log}, cannot be read: {error}.") from error

    def add_line(self, line: Mapping[str, Any]) -> None:
        with open(self.log, "a", encoding="utf-8") as f:
            f.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")

    def cut_log(self, step: int) -> None:
        """Keep the lines up to a step; one that a kill has cut off goes."""
        kept = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else ():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        write_atomically(self.log, "".join(kept).encode())

    # --- the models ---------------------------------------------------------------------------------------------------
    def kept(self) -> list[Path]:
        """The snapshots, oldest first."""
        return _numbered(self.snapshots)

    def checkpoints(self) -> list[Path]:
        """The checkpoints along the run, oldest first, without the last."""
        return _numbered(self.along)

    def checkpoint_at(self, step: int) -> Path:
        """Where the checkpoint of a step along the run lies."""
        return self.along / f"{step:08d}"

    def keep_snapshot(self, model: Transformer, step: int, most: int) -> None:
        """Save the model of a step, and remove the oldest so that `most` remain."""
        model.save(self.snapshots / f"{step:08d}")
        for old in self.kept()[:-most]:
            shutil.rmtree(old, ignore_errors=True)

    # --- the scores ---------------------------------------------------------------------------------------------------
    def scores(self) -> dict[str, Any]:
        """What the run scored, and what it started from; empty where nothing was written."""
        try:
            body = json.loads(self._scores.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return body if isinstance(body, dict) else {}

    def write_scores(self, body: Mapping[str, Any]) -> None:
        write_atomically(self._scores, strict_json(dict(body)).encode())


def _numbered(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name.isdigit()) if is_dir(folder) else []


def is_run(folder: str | Path) -> bool:
    """Whether `folder` holds a training run."""
    return RunFolder(folder).exists
