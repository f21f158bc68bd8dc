"""`quadform verify`: is the mathematics right on this machine?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...applications.configs.checks import VerifyConfig
from ...applications.configs.shared import Output
from ..earlier import result_folder
from ..folders import choose_threads
from ..show import print_json, print_table, table

if TYPE_CHECKING:
    from ...applications.verify import Check


def answer(config: VerifyConfig, output: Output) -> int:
    from ...applications.verify import run

    folder = result_folder(output, "verify")
    choose_threads(3 * config.largest**2)
    record, checks = run(config)
    if folder:
        record.save(folder)
    failed = [c for c in checks if not c.ok]
    if output.json:
        print_json(
            {
                "ok": not failed,
                "checks": [dataclasses.asdict(c) | {"ok": c.ok} for c in checks],
                "inputs": dict(record.inputs),
                "made": dataclasses.asdict(record.made),
                "saved": str(folder) if folder else None,
            }
        )
    else:
        show(config, checks)
        if folder:
            print(f"saved {folder}")
    return 3 if failed else 0


def show(config: VerifyConfig, checks: Sequence[Check]) -> None:
    found = table("check")
    for name in ("error", "limit", "tries", ""):
        found.add_column(name, justify="right" if name else "left")
    for c in checks:
        found.add_row(
            c.name, f"{c.error:.0e}", f"{c.tolerance:.0e}", str(c.count), "ok" if c.ok else f"FAILED at {c.worst}"
        )
    sizes = f"softmax, causal, linear, single W_QK; every size from 1 to {config.largest}"
    print(f"{config.shapes} random layers ({sizes}), errors relative to max|H|")
    print_table(found)
    failed = [c for c in checks if not c.ok]
    if failed:
        print(f"{len(failed)} of {len(checks)} checks FAILED: results on this machine are not to be trusted.")
    else:
        print(f"all {len(checks)} checks hold.")
