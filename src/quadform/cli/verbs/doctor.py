"""`quadform doctor`: will it run here, and how large may I go?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...applications.configs.checks import DoctorConfig
from ...applications.configs.shared import Output
from ...core.record import strict_json, write_atomically
from ..folders import writable
from ..show import join, print_json, print_table, table

if TYPE_CHECKING:
    from ...applications.doctor import Line


def answer(config: DoctorConfig, output: Output) -> int:
    from ...applications.doctor import examine

    folder = writable(output)
    lines = examine(config)
    healthy = all(line.ok is not False for line in lines)
    body = {"ok": healthy, "findings": [dataclasses.asdict(line) for line in lines]}
    if folder:
        write_atomically(folder / "doctor.json", strict_json(body).encode())
    if output.json:
        print_json(body)
    else:
        show(lines)
        if folder:
            print(f"saved {folder / 'doctor.json'}")
    return 0 if healthy else 3


def show(lines: Sequence[Line]) -> None:
    found = table("")
    for name in ("", "", ""):
        found.add_column(name)
    group = ""
    for line in lines:
        mark = {True: "ok", False: "MISSING", None: "-"}[line.ok]
        found.add_row(line.group if line.group != group else "", line.name, mark, join(line.found, line.advice))
        group = line.group
    print_table(found, header=False)
    broken = [line.name for line in lines if line.ok is False]
    print(
        f"not ready: {', '.join(broken)} missing." if broken else "ready; next: `quadform verify`, `quadform report`."
    )
