"""A verb whose question is a value: plan, ask, save, show, exit code. The same for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..answers.texts import line, speaking
from ..core.progress import say
from ..core.question import Listing, Task
from ..core.work import Work
from ..report.page import PAGES
from .earlier import result_folder
from .flags import Command
from .folders import report_command, resume_command, writable
from .options import LongWork, Output
from .show import print_json, print_listing, print_plan, record_json


def answer(command: Command) -> int:
    """The exit code of a command."""
    from ..applications.asking import ask
    from ..distributed import current

    question, opening, limits, output = command.question, command.opening, command.limits, command.output
    if isinstance(question, Task):
        return _do(question, limits, output)
    if limits.dry_run:
        light = None if opening is None else question.light(opening)
        return print_plan(question.measurement(light).plan().to_json(), output)
    subject = None if opening is None else opening.open()
    output = replace(output, out=question.folder(opening, output.out))
    model = getattr(question, "about", "") if opening is None else opening.named
    folder = result_folder(output, question.verb, model, resume=limits.resume)
    group = current() if current().world > 1 else None
    resume = limits.resume and getattr(subject, "measured", True)  # what is drawn again has nothing to resume
    with Work(output.out, seconds=limits.max_time, resume=resume, progress=not output.quiet, group=group) as work:
        try:
            found = ask(question, work, subject)
        except KeyboardInterrupt:
            if folder:
                say(f"stopped and saved; resume with `{resume_command()}`")
            raise
    with speaking(output.lang):
        _show(found, folder, output, "resume" in question.takes)
    if work.partial and folder:
        say(f"the time was up; resume with `{resume_command()}`")
    return 0 if found.ok else 3


def _do(task: Task, limits: LongWork, output: Output) -> int:
    """The exit code of a task."""
    if limits.dry_run:
        return print_plan(task.plan().to_json(), output)
    output = replace(output, out=task.folder(output.out))
    folder = writable(output)
    with Work(folder, seconds=limits.max_time, resume=limits.resume, progress=not output.quiet) as work:
        try:
            with speaking(output.lang):
                found = task.run(work)
        except KeyboardInterrupt:
            if folder and "resume" in task.takes:
                say(f"stopped and saved; resume with `{resume_command()}`")
            raise
    if output.json:
        print_json(found.plain() | {"ok": found.ok} | ({"saved": str(folder)} if folder else {}))
    else:
        with speaking(output.lang):
            print_listing(found) if isinstance(found, Listing) else print(found)
            if (told := found.beside()) and not output.quiet:
                say(told)
    if not found.ok and "resume" in task.takes:
        say(f"the time was up; resume with `{resume_command()}`")
    found.stay()
    return 0 if found.ok else 3


def _show(found: Any, folder: Path | None, output: Output, resumed: bool) -> None:
    if output.json:
        print_json(
            record_json(found.record)
            | {
                "verdicts": [v.to_json() for v in found.verdicts()],
                "ok": found.ok,
                "saved": str(folder) if folder else None,
            }
        )
        return
    print(found)
    if found.drawn is not None:
        print(line("line_report", path=found.drawn))
    elif folder and found.record.kind in PAGES:
        print(line("line_saved_next", folder=folder, command=report_command(folder)))
    elif folder:
        print(line("line_saved", folder=folder))
    elif resumed:
        say("nothing was saved; `--out runs/NAME` keeps it, and lets an interrupted run be resumed")
