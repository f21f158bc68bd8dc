"""What a folder already holds. It keeps one result: the same verb on the same model replaces it and says so; anything
else there is kept, and the new result is refused before it is measured."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from ..core.errors import FileError
from ..core.progress import say
from ..core.record import JSON_NAME
from .folders import asked, writable


def result_folder(output: Any, verb: str, subject: str = "", *, resume: bool = False) -> Path | None:
    """The folder a result of this verb about this subject goes to; None where it is not kept."""
    folder = writable(output)
    if folder is not None:
        _refuse_other(folder, verb, subject, resume)
    return folder


def _refuse_other(folder: Path, verb: str, subject: str, resume: bool) -> None:
    from ..train.folder import is_run

    if is_run(folder) and (verb != "report" or Path(subject) != folder):
        raise _refused(folder, "a training run")
    study = _study(folder)
    if study is not None and (verb != "report" or study != subject):
        raise _refused(folder, f"a study of `{study}`")
    earlier = _record(folder)
    if earlier is None:
        return
    if _verb(earlier) != verb:
        raise _refused(folder, f"a result of `quadform {_verb(earlier)}` ({_minute(earlier)})")
    before = subject_of(earlier["inputs"])
    if subject and before not in ("-", subject):
        raise _refused(folder, f"a result about `{before}` ({_minute(earlier)})")
    if not resume:
        say(f"{folder} holds the same of {_minute(earlier)}: it is replaced when this is finished")


def _refused(folder: Path, what: str) -> FileError:
    verb = asked[0] if asked else "result"
    other = shlex.quote(f"{str(folder).rstrip('/')}-{verb}")
    return FileError(f"`{folder}` holds {what}, which is kept. Choose another folder: `--out {other}`.")


def _record(folder: Path) -> dict[str, Any] | None:
    """The text of the record in a folder; None where there is none, or none that can be read."""
    try:
        body = json.loads((folder / JSON_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) and isinstance(body.get("inputs"), dict) else None


def _study(folder: Path) -> str | None:
    """The model a study in the folder is about."""
    from ..applications.study.targets import asked_in

    found = asked_in(folder)
    return str(found["model"]) if found else None


#: The verbs whose records are called otherwise.
_VERBS = {"step-size": "lr"}


def _verb(body: dict[str, Any]) -> str:
    kind = str(body.get("kind"))
    return _VERBS.get(kind, kind)


def _minute(body: dict[str, Any]) -> str:
    """`2026-11-15T08:08:34+00:00` -> `2026-11-15 08:08`."""
    made = body.get("made")
    return str(made.get("made_at", "?") if isinstance(made, dict) else "?")[:16].replace("T", " ")


def subject_of(inputs: Any) -> str:
    """The model a record is about, in the words of the question; `-` where it names none."""
    if "source" in inputs:
        return str(inputs["source"]["model"])
    if "subjects" in inputs:
        return ", ".join(inputs["subjects"])
    if "cells" in inputs:
        return ", ".join(dict.fromkeys(str(design) for design, _ in inputs["cells"]))
    width = inputs.get("d_model", inputs.get("dim"))  # older records
    if "tokens" in inputs and width is not None:
        return f"one layer, {inputs['tokens']} tokens of width {width}"
    return str(inputs.get("name") or inputs.get("design") or "-")
