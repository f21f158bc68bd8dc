"""Studies made or opened: `quadform report` asks here. Stages run one after another under one clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...core.errors import FileError, InputError, did_you_mean
from ...core.memory import in_words
from ...core.progress import clock, say
from ...core.record import JSON_NAME, Record
from ...core.work import Deadline
from ...train.folder import is_run
from ..configs.report import ReportConfig
from ..opening import Opening
from ..subject import TRAINED, open_subject
from .folder import EXACT, STAGES, Study, asked_in, begin, holds_run, records_in, studies_of, unfinished
from .stages import Cost, Stage, default_stages, model_stages

#: What the embedded default is called where a model is named.
DEFAULT = "the built-in default"


# --- what a word names ------------------------------------------------------------------------------------------------
def open_studies(words: Sequence[str], config: ReportConfig, folder: Path | None) -> list[Study]:
    """The studies the words name: saved ones are read, models are measured (into `folder`, or beside a run).

    Without a word the embedded default is trained and measured in `folder`.
    """
    deadline, studies = Deadline(config.seconds), []
    for word, saved, into in _targets(words, config, folder):
        if into is None:
            studies += saved
            continue
        asked = {"model": word, "data": config.data, "seed": config.seed}
        if word != DEFAULT:
            asked["weights"] = _weights(word, config)
        studies += _go(_stages(word, config, into), asked, into, config, deadline)
    return studies


def plan(words: Sequence[str], config: ReportConfig, folder: Path | None) -> dict[str, Any]:
    """What `quadform report --dry-run` tells; nothing is written."""
    bodies: list[dict[str, Any]] = []
    for word, saved, into in _targets(words, config, folder or Path("runs/NAME")):
        if into is None:
            count = sum(len(study.records) for study in saved)
            text = f"{word}: {count} record{'s' * (count > 1)} there; redrawn, nothing is computed"
            bodies.append({"text": text, "subject": word, "stages": [], **asdict(Cost())})
        else:
            bodies.append(_plan_of(_left(_stages(word, config, into), into, config), word))
    return {
        "text": "\n".join(body["text"] for body in bodies),
        "studies": bodies,
        "products": sum(body["products"] for body in bodies),
        "seconds": sum(body["seconds"] for body in bodies),
        "bytes": max(body["bytes"] for body in bodies),
    }


def _targets(
    words: Sequence[str], config: ReportConfig, folder: Path | None
) -> list[tuple[str, list[Study], Path | None]]:
    """(model, saved studies, where to measure) of each word; where it is None the saved ones are all there is to do."""
    if not words:
        return [(DEFAULT, [], folder)]
    return [_target(word, config, folder, several=len(words) > 1) for word in words]


def _target(
    word: str, config: ReportConfig, folder: Path | None, *, several: bool
) -> tuple[str, list[Study], Path | None]:
    path = Path(word)
    saved = records_in(word) if path.exists() else []
    if saved and config.resume and any(study.missing for study in saved) and path.suffix != ".json":
        asked = asked_in(path)["asked"]
        return str(asked["model"]), saved, path  # the study goes on with what it was asked
    if saved and not (is_run(path) and _stale(word, config, folder)):
        return word, saved, None
    if not path.exists() and ":" not in word and word not in TRAINED:
        raise _missing(word)
    if path.exists() and not is_run(path) and not _holds_model(path):
        raise FileError(f"`{word}` holds neither a record nor a model. `--out DIR` of any verb makes a record there.")
    if folder is None and not is_run(path):
        raise InputError(f"`{word}` is a model to be measured; say where to keep it: `--out runs/NAME`.")
    into = path if folder is None else folder / _name(word) if several else folder
    return word, [], into


def _stale(word: str, config: ReportConfig, folder: Path | None) -> bool:
    """Whether a run was trained further after it was studied; without a folder for a new study that is an error."""
    before = asked_in(Path(word)).get("asked", {}).get("weights")
    if before is None:
        return False
    now = _weights(word, config)
    if before != now and folder is None:
        raise FileError(
            f"`{word}` was studied with other weights (hash {before[:8]} / {now[:8]}). `--out DIR` studies it as it is."
        )
    return bool(before != now)


def _name(word: str) -> str:
    """A folder name for a model: `new:pre-ln,depth=6` -> `pre-ln-depth-6`."""
    return re.sub(r"[^\w.-]+", "-", word.removeprefix("new:")).strip("-.") or "model"


def _holds_model(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in ("model.json", "config.json"))


def _missing(word: str) -> FileError:
    path = Path(word)
    try:
        beside = [str(path.parent / p.name) for p in sorted(path.parent.iterdir()) if holds_run(p)]
    except OSError:
        beside = []
    there = f" Runs here: {', '.join(f'`{p}`' for p in beside[:5])}." if beside else ""
    return FileError(
        f"there is no run at `{word}`.{did_you_mean(word, beside)}{there}"
        " `quadform attention --out DIR` makes one; `quadform report` alone measures a default."
    )


# --- measuring --------------------------------------------------------------------------------------------------------
def _stages(model: str, config: ReportConfig, folder: Path) -> list[Stage]:
    if model == DEFAULT:
        return default_stages(config, folder)
    own = is_run(model) or model.startswith("new:") or (Path(model) / "model.json").exists()
    return list(model_stages(model, config, own=own))


def _weights(model: str, config: ReportConfig) -> str:
    question = Opening(model=model, data=config.data, seed=config.seed, device=config.device)
    return str(open_subject(question).source["weights"])


def _go(
    stages: Sequence[Stage], asked: dict[str, Any], folder: Path, config: ReportConfig, deadline: Deadline
) -> list[Study]:
    """Each stage in turn; what is finished is read when resuming, what the time does not allow is told as missing."""
    folder.mkdir(parents=True, exist_ok=True)
    begin(folder, asked, [stage.name for stage in stages], resume=config.resume)
    if not config.resume:  # what an older study left here would be drawn beside the new one
        for name in (*STAGES, EXACT):
            (folder / name / JSON_NAME).unlink(missing_ok=True)
    left = _left(stages, folder, config)
    if left:
        say(_plan_of(left, asked["model"])["text"])
    found: dict[str, Record] = {}
    missing = []
    for i, stage in enumerate(stages):
        into, head = folder / stage.name, f"[{i + 1}/{len(stages)}] {stage.what}"
        if stage not in left:
            say(f"{head}: already there")
            found[stage.name] = Record.load(into)
            continue
        if deadline.left > 0 or stage is left[0]:  # something advances, however short the time
            say(head)
            record = stage.run(into, None if deadline.until is None else deadline.left, config.resume)
            if record.scalars:  # else the time was over before anything was known
                record.save(into)
                found[stage.name] = record
        if stage.name not in found or unfinished(stage.name, found[stage.name]):
            missing.append(stage.name)
    return studies_of(found, missing)


def _left(stages: Sequence[Stage], folder: Path, config: ReportConfig) -> list[Stage]:
    """The stages that are still to be run."""

    def there(name: str) -> bool:
        return (folder / name / JSON_NAME).exists() and not unfinished(name, Record.load(folder / name))

    return [stage for stage in stages if not (config.resume and there(stage.name))]


def _plan_of(stages: Sequence[Stage], subject: str) -> dict[str, Any]:
    """The plan and its cost: one line for all, one for each stage."""
    costs = [stage.plan() for stage in stages]
    whole = Cost(
        sum(c.products for c in costs), sum(c.seconds for c in costs), max((c.bytes for c in costs), default=0.0)
    )
    head = (
        f"plan for {subject}: {len(stages)} stage{'s' * (len(stages) != 1)}, about {whole.products:,} products,"
        f" {clock(whole.seconds)} in all, {in_words(whole.bytes)} beside the model"
    )
    rows = [f"  {s.name:<10} {clock(c.seconds):>6}  {s.what}" for s, c in zip(stages, costs, strict=True)]
    told = [{"stage": s.name, "what": s.what, **asdict(c)} for s, c in zip(stages, costs, strict=True)]
    return {"text": "\n".join([head, *rows]), "subject": subject, "stages": told, **asdict(whole)}
