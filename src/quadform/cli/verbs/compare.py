"""`quadform compare`: which block before spending GPU money."""

from __future__ import annotations

from ...applications.configs.compare import CompareConfig
from ...applications.configs.shared import Output
from ...core.progress import say
from ..folders import writable
from ..show import print_json, record_json


def answer(config: CompareConfig, output: Output) -> int:
    from ...applications.compare import Compare, plan, run

    if config.dry_run:
        body = plan(config)
        if output.json:
            print_json(body)
        else:
            print(body["text"])
        return 0
    folder = writable(output)
    try:
        record = run(config, folder)
    except KeyboardInterrupt:
        if folder:
            say(f"stopped; go on with the same command and `--resume` (`--out {folder}`)")
        raise
    if folder:
        record.save(folder)
    found = Compare(record)
    if output.json:
        body = record_json(record) | {"ok": found.ok, "saved": str(folder) if folder else None}
        print_json(body)
    else:
        print(found)
        if folder:
            print(f"saved {folder}; next: `quadform report {folder}`")
        else:
            say("nothing was saved; `--out runs/NAME` keeps it, and lets an interrupted run go on with `--resume`")
    return 0 if found.ok else 3
