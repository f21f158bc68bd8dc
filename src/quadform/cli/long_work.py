"""Verbs that take minutes: plan, run, keep, show, and the way back after an interruption, written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..applications.configs.shared import Output
from ..core.progress import say
from ..core.record import Record
from .earlier import result_folder
from .folders import report_command, resume_command
from .show import print_json, print_plan, record_json


def answer_with(
    config: Any,
    output: Output,
    *,
    plan: Callable[[Any], dict[str, Any]],
    run: Callable[..., Record],
    result: Callable[[Record], Any],
    verb: str,
    subject: str,
) -> int:
    """`--dry-run` tells the plan; else the record is made, kept and shown. 3 where a check failed or time was up."""
    if config.dry_run:
        return print_plan(plan(config), output)
    folder = result_folder(output, verb, subject, resume=config.resume)
    try:
        record = run(config, folder)
    except KeyboardInterrupt:
        if folder:
            say(f"stopped and saved; go on with `{resume_command()}`")
        raise
    if folder:
        record.save(folder)
    found = result(record)
    if output.json:
        print_json(record_json(record) | {"ok": found.ok, "saved": str(folder) if folder else None})
    else:
        print(found)
        if folder:
            print(f"saved {folder}; next: `{report_command(folder)}`")
        else:
            say("nothing was saved; `--out runs/NAME` keeps it, and lets an interrupted run go on with `--resume`")
    if folder and record.inputs.get("partial"):
        say(f"the time was up; go on with `{resume_command()}`")
    return 0 if found.ok else 3
