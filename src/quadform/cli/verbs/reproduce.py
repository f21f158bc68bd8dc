"""`quadform reproduce ID|all`: the papers' figures again, and what became of each claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...applications.configs.reproduce import ReproduceConfig
from ...applications.configs.shared import Output
from ..folders import choose_threads, writable
from ..show import print_json, print_table, table

if TYPE_CHECKING:
    from ...experiments.runner import Outcome


def answer(config: ReproduceConfig, output: Output) -> int:
    from dataclasses import replace

    from ...experiments.catalog import CATALOG, experiment
    from ...experiments.claims import STATUSES
    from ...experiments.runner import plain, reproduce
    from ...report import packages  # noqa: F401  a missing one is told before the work

    names = list(CATALOG) if "all" in config.names else list(config.names)
    for name in names:
        experiment(name)  # an unknown one is told before any work
    if config.dry_run:
        return _plan(names, config.preset, output)
    output = replace(output, out=output.out or str(Path("runs") / "reproduce" / config.preset))
    folder = writable(output)
    choose_threads(0)  # many small matrices: threads would wait for each other
    outcomes = reproduce(
        config.names,
        config.preset,
        out=folder,
        seed=config.seed,
        again=config.again,
        seconds=config.seconds,
        tell=None if output.json else _tell,
    )
    failed = [o for o in outcomes if o.failed]
    if output.json:
        print_json({"ok": not failed, "experiments": [plain(o) for o in outcomes], "saved": str(folder)})
    else:
        found = [v.status for o in outcomes for v in o.verdicts]
        told = ", ".join(f"{found.count(status)} {status}" for status in STATUSES)
        print(f"{len(outcomes)} experiments, {len(found)} claims: {told}")
        print(f"saved {folder}; the page of all of it: {folder}/index.html")
    return 3 if failed else 0


def _tell(outcome: Outcome) -> None:
    """One experiment: what the figure shows, and its claims with their numbers."""
    e = outcome.experiment
    kept = f"kept from {outcome.record.made.made_at}" if outcome.kept else "run now"
    print(f"{e.id}: {e.title}, {e.source}, preset {outcome.record.inputs['preset']}, {kept}")
    print(f"  {e.figure(outcome.record).headline}")
    found = table("")
    for name in ("claim", "found", "wanted"):
        found.add_column(name)
    for v in outcome.verdicts:
        why = f" ({v.reason})" if v.reason else ""
        found.add_row(v.status, v.claim.text + why, v.number, v.claim.wanted)
    print_table(found)
    print()


def _plan(names: list[str], preset: str, output: Output) -> int:
    """What would run, and what it cost when it was last recorded, at the preset it was recorded with."""
    from ...experiments.catalog import committed, experiment

    rows: list[dict[str, Any]] = []
    for e in map(experiment, names):
        record = committed(e.id)
        spent = None if record is None else record.scalars["cpu_seconds"].value
        recorded = None if record is None else record.inputs["preset"]
        needs = list(e.needs(e.config(preset)))
        rows.append({"experiment": e.id, "claims": len(e.claims), "seconds": spent, "preset": recorded, "needs": needs})
    if output.json:
        print_json({"preset": preset, "plan": rows})
        return 0
    found = table("experiment")
    for name in ("claims", "processor seconds", "needs"):
        found.add_column(name, justify="right" if name != "needs" else "left")
    for row in rows:
        other = "" if row["preset"] == preset else f" ({row['preset']})"
        cost = "not recorded" if row["seconds"] is None else f"{row['seconds']:.0f}{other}"
        found.add_row(row["experiment"], str(row["claims"]), cost, ", ".join(row["needs"]) or "-")
    print_table(found)
    return 0
