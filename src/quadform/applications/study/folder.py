"""The folder of a study: which records are in it, what was asked, and which stages are still missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import FileError
from ...core.record import JSON_NAME, Record, strict_json, write_atomically
from ...core.work import refuse_other
from ...train.folder import is_run

#: The stages of a study of one model, in the order of the report; `attention` is a study of its own beside it.
STAGES = ("lr", "spectrum", "signal", "training", "why")
EXACT = "attention"
RUN = "run"
ASKED = "study.json"


@dataclass(frozen=True)
class Study:
    """Records of one subject, shown as one, and the stages that are not measured, or not to their end."""

    records: tuple[Record, ...]
    missing: tuple[str, ...] = ()


def records_in(folder: str | Path) -> list[Study]:
    """The studies saved in `folder`: its own record, or those of its stages; empty where there is none."""
    folder = Path(folder)
    if folder.suffix == ".json" or (folder / JSON_NAME).exists():
        return [Study((Record.load(folder),))]
    stages = asked_in(folder).get("stages", [])
    found = {n: Record.load(folder / n) for n in (*STAGES, EXACT) if (folder / n / JSON_NAME).exists()}
    return studies_of(found, [n for n in stages if n not in found or unfinished(n, found[n])])


def studies_of(found: dict[str, Record], missing: Sequence[str]) -> list[Study]:
    """The stages of the model as one study, the exact layer as another."""
    groups = [tuple(found[n] for n in names if n in found) for names in (STAGES, (EXACT,))]
    there = [records for records in groups if records]
    return [Study(records, tuple(missing) if i == 0 else ()) for i, records in enumerate(there)]


def unfinished(name: str, record: Record) -> bool:
    """Whether a stage was cut short: marked partial, or a training run that stands before its last step."""
    if name == "training":
        return bool(record.inputs["step"] < record.inputs["train"]["steps"] and not record.inputs.get("stopped"))
    return bool(record.inputs.get("partial"))


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a record, the records of a study, or a training run; nothing is read."""
    return is_run(folder) or any((folder / name / JSON_NAME).exists() for name in ("", *STAGES, EXACT))


def asked_in(folder: Path) -> dict[str, Any]:
    """What the study in `folder` was asked; empty where no study was begun."""
    path = folder / ASKED
    if not path.exists():
        return {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(body["asked"], dict) and set(body["stages"]) <= {*STAGES, EXACT}:
            return dict(body)
        raise ValueError("its entries are not those of a study")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileError(f"{path} is damaged ({error}). Choose another folder, or measure it again.") from error


def begin(folder: Path, asked: dict[str, Any], stages: Sequence[str], *, resume: bool) -> None:
    """Write down what is asked. A folder that holds another model's study, or a result of its own, keeps it.

    When resuming, the study must have been asked the same.
    """
    asked = json.loads(strict_json(asked))
    before = asked_in(folder).get("asked")
    if resume and before is not None:
        refuse_other(before, asked)
    if before is not None and before["model"] != asked["model"]:
        raise FileError(f"`{folder}` holds a study of `{before['model']}`, which is kept. Choose another folder.")
    if (folder / JSON_NAME).exists():
        raise FileError(f"`{folder}` holds a result, which is kept. Choose another folder.")
    write_atomically(folder / ASKED, strict_json({"asked": asked, "stages": list(stages)}).encode())
