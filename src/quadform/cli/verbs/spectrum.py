"""`quadform spectrum`: eigenvalues, trace, density and block norms of a model."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from ...applications.configs.shared import Output
from ...applications.configs.spectrum import SpectrumConfig
from ...core.progress import say
from ..folders import report_command, resume_command, writable
from ..show import print_json, record_json


def answer(config: SpectrumConfig, output: Output) -> int:
    from ...applications.spectrum import Spectrum, cost_line, plan, run

    if config.dry_run:
        cost = plan(config)
        if output.json:
            print_json(cost)
        else:
            print(cost_line(cost))
        return 0
    folder = writable(dataclasses.replace(output, out=output.out or str(default_folder(config.model))))
    go_on = f"`{resume_command()}`"
    try:
        record = run(config, folder)
    except KeyboardInterrupt:
        say(f"stopped and saved; go on with {go_on}")
        raise
    if folder is not None:
        record.save(folder)
    found = Spectrum(record)
    if output.json:
        print_json(record_json(record) | {"converged": found.converged, "saved": str(folder)})
    else:
        print(found)
        print(f"saved {folder}; next: `{report_command(folder or Path())} --open`")
    if found.partial:
        say(f"stopped by `--max-time`; go on with {go_on}")
    return 0 if found.converged else 3


def default_folder(model: str) -> Path:
    """`runs/NAME-spectrum` beside where the command runs."""
    name = re.sub(r"[^\w.-]+", "-", model.removeprefix("new:")).strip("-.") or "model"
    return Path("runs") / f"{Path(name).name}-spectrum"
