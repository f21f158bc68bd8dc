"""`quadform train`: make a model with a chosen block and train it."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...applications.configs.shared import Output
from ...applications.configs.train import TrainVerbConfig
from ...core.progress import clock, say
from ...core.record import Estimate, Record
from ...core.spec import ModelConfig
from ..folders import writable
from ..show import print_json, record_json, seconds

if TYPE_CHECKING:
    from ...train.recipes import Plan

_SHARES = ("exact", "accuracy")


def answer(config: TrainVerbConfig, output: Output) -> int:
    from ...applications.fitting import plan, run

    if config.dry_run:
        made = plan(config)
        cost = made.cost()
        if output.json:
            print_json(dict(cost))
        else:
            show_plan(made, cost)
        return 0
    folder = writable(dataclasses.replace(output, out=output.out or str(default_folder(config))))
    assert folder is not None
    first = os.environ.get("RANK", "0") == "0"
    go_on = f"the same command with `--out {shlex.quote(str(folder))} --resume` goes on"
    started = time.monotonic()
    try:
        _, record = run(config, folder)
    except KeyboardInterrupt:
        if first:
            say(f"stopped and saved; {go_on}")
        raise
    if not first:
        return 0
    partial = record.inputs["stopped"] == "time"
    if output.json:
        print_json(record_json(record) | {"partial": partial, "saved": str(folder)})
    else:
        show(record, time.monotonic() - started)
        nexts = "" if partial else f"; next: {_next(record, folder)}"
        print(f"saved {folder}{nexts}")
    if partial:
        say(f"stopped by `--max-time` at step {record.scalars['steps'].value:.0f}; {go_on}")
    return 3 if partial else 0


def default_folder(config: TrainVerbConfig) -> Path:
    """`runs/DATA-DESIGN` beside where the command runs."""
    made = config.design or ("pre-ln" if config.recipe == "auto" else config.recipe)
    name = re.sub(r"[^\w.-]+", "-", f"{Path(config.data).name}-{made}").strip("-.")
    return Path("runs") / name[:100]  # of a long path its beginning tells enough


def show_plan(made: Plan, cost: dict[str, float]) -> None:
    """What `--dry-run` prints."""
    c = made.config
    print(f"{made.config_of_model.summary}, {cost['parameters']:,.0f} parameters; data {made.data}")
    schedule = f"{c.schedule.warmup_steps(c.steps)} warm-up, then {c.schedule.decay}"
    print(f"{c.steps:,} steps of {c.accumulate} x {c.batch_size} sequences, {c.update} ({schedule})")
    flops, step = cost["flops_per_step"], cost["seconds_per_step"]
    print(
        f"a step: {flops / 1e9:.3g} GFLOP of matrix products, {seconds(step)} here  [estimate, a few steps on a copy]"
    )
    total = cost["weight_bytes"] + cost["activation_bytes"]
    print(
        f"memory about {total / 2**20:,.0f} MiB: weights, gradients and moments {cost['weight_bytes'] / 2**20:,.0f},"
        f" activations {cost['activation_bytes'] / 2**20:,.0f}"
    )
    print(f"in all {flops * c.steps / 1e12:.3g} TFLOP, about {clock(cost['seconds'])}; nothing was trained")


def show(record: Record, took: float) -> None:
    """What the verb prints when training has ended."""
    inputs, s = record.inputs, record.scalars
    why = {"steps": "", "patience": ", no better validation", "goal": ", goal reached", "time": ", time is up"}
    head = f"{ModelConfig.from_dict(inputs['model']).summary}, {inputs['parameters']:,} parameters"
    print(f"{head}: {s['steps'].value:.0f} steps in {clock(took)}{why[inputs['stopped']]}")
    print(f"training loss {s['loss'].value:.4f} at the last step")
    for split in ("valid", "test"):
        found = [
            f"{name.removeprefix(split + ' ')} {_text(name, e)}" for name, e in s.items() if name.startswith(split)
        ]
        if found:
            print(f"{split + ':':<7}{', '.join(found)}  [estimate]")
    for text in inputs["warnings"]:
        print(f"warning: {text}")


def _text(name: str, e: Estimate) -> str:
    share = name.split(" ", 1)[-1] in _SHARES
    scale, unit = (100, " %") if share else (1, "")
    digits = 1 if share or "BLEU" in name or "chrF" in name else 4
    return f"{scale * e.value:.{digits}f}{unit} ± {scale * (e.stderr or 0):.{digits}f}"


def _next(record: Record, folder: Path) -> str:
    named = shlex.quote(str(folder))
    if record.inputs["model"]["kind"] == "encoder":
        return f"`quadform spectrum {named}`"
    return f"`quadform decode {named} TEXT`, `quadform spectrum {named}`"
