"""The verbs: ask an application, show its answer, keep it. One function per verb; each returns the exit code."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from ..applications.configs import AttentionConfig, DoctorConfig, Output, ReportConfig, VerifyConfig
from ..core.errors import FileError, did_you_mean
from ..core.progress import say
from ..core.record import JSON_NAME, Record, strict_json, write_atomically
from . import show

#: Where `quadform report` keeps the built-in default.
DEFAULT_RUN = Path("runs/default")
REPORT_NAME = "report.html"
#: Below this many parameters one thread is the fastest: the matrices are too small to share, and on a busy machine
#: threads that wait for each other make the work ten times longer.
_SHARED_FROM = 1000


def attention(config: AttentionConfig, output: Output) -> int:
    from ..applications.attention import run

    folder = _writable(output)
    _choose_threads(config.parameters)
    record = run(config)
    if folder:
        record.save(folder)
    if output.json:
        _print_json(show.record_json(record) | {"saved": str(folder) if folder else None})
        return 0
    show.attention(record)
    if folder:
        print(f"saved {folder}; next: `quadform report {folder}`")
    else:
        say("nothing was saved; `--out runs/NAME` keeps it for `quadform report runs/NAME`")
    return 0


def report(config: ReportConfig, output: Output) -> int:
    from ..report import write_report

    folder = _writable(output)
    if config.runs:
        records = [_load(run) for run in config.runs]
        folder = folder or _folder_of(config.runs[0])
    else:
        from ..applications.attention import run

        folder = folder or _writable(dataclasses.replace(output, out=str(DEFAULT_RUN)))
        assert folder is not None
        say("measuring the built-in default: one toy attention layer, 8 tokens of width 8, float64")
        question = AttentionConfig(seed=config.seed, dtype=config.dtype, device=config.device)
        _choose_threads(question.parameters)
        records = [run(question)]
        records[0].save(folder)
    path = write_report(records, folder / REPORT_NAME, lang=output.lang)
    if config.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    if output.json:
        _print_json({"report": str(path), "bytes": path.stat().st_size, "records": [r.kind for r in records]})
    else:
        for record in records:
            if record.kind == "attention":
                show.attention_verdict(record)
        print(f"report: {path}")
    return 0


def verify(config: VerifyConfig, output: Output) -> int:
    from ..applications.verify import run

    folder = _writable(output)
    _choose_threads(3 * config.largest**2)
    record, checks = run(config)
    if folder:
        record.save(folder)
    failed = [c for c in checks if not c.ok]
    if output.json:
        _print_json(
            {
                "ok": not failed,
                "checks": [dataclasses.asdict(c) | {"ok": c.ok} for c in checks],
                "inputs": dict(record.inputs),
                "made": dataclasses.asdict(record.made),
                "saved": str(folder) if folder else None,
            }
        )
    else:
        show.verify(config, checks)
        if folder:
            print(f"saved {folder}")
    return 3 if failed else 0


def doctor(config: DoctorConfig, output: Output) -> int:
    from ..applications.doctor import examine

    folder = _writable(output)
    lines = examine(config)
    healthy = all(line.ok is not False for line in lines)
    body = {"ok": healthy, "findings": [dataclasses.asdict(line) for line in lines]}
    if folder:
        write_atomically(folder / "doctor.json", strict_json(body).encode())
    if output.json:
        _print_json(body)
    else:
        show.doctor(lines)
        if folder:
            print(f"saved {folder / 'doctor.json'}")
    return 0 if healthy else 3


def _choose_threads(parameters: int) -> None:
    import torch

    if parameters < _SHARED_FROM:
        torch.set_num_threads(1)


def _print_json(body: dict[str, object]) -> None:
    sys.stdout.write(strict_json(body))


def _writable(output: Output) -> Path | None:
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


def _folder_of(run: str) -> Path:
    path = Path(run)
    return path.parent if path.name == JSON_NAME else path


def _load(run: str) -> Record:
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
