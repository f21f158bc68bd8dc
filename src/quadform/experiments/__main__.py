"""For the keepers of the project, `python -m quadform.experiments ...`:

gallery docs               write the gallery from the committed records
keep RUNS [ID ...]         take finished records from a folder of `quadform reproduce` into the package
verdicts RUNS              renew the table the tests compare with, from a folder of smoke runs
measure RUNS PRESET PROCESSES SECONDS ID ...
                           run presets without figures, parts in several processes; `reproduce --out RUNS` draws them
corpus                     pack the Python source installed here for the GPU protocol
protocol FILE [SECONDS] [ID]
                           run the GPU protocol (preset paper of `blocks`, or of another experiment that trains) into
                           FILE, go on where it was, stop in time
protocol-record FILE RUNS [ID]
                           make the record of a finished protocol
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from pathlib import Path

import torch

from ..core.record import JSON_NAME, Estimate, Provenance, Record
from .catalog import CATALOG, RECORDS, VERDICTS, committed, expected_verdicts, experiment
from .experiment import Lines, OutOfTime


def keep(runs: str, names: list[str]) -> None:
    """Take finished records from a folder of `quadform reproduce` into the package; commands lose their folders."""
    for name in names or [n for n in CATALOG if (Path(runs) / n / JSON_NAME).exists()]:
        record = Record.load(Path(runs) / name)
        command = f"quadform reproduce {name} --preset {record.inputs['preset']}"
        dataclasses.replace(record, made=dataclasses.replace(record.made, command=command)).save(RECORDS / name)
        print(RECORDS / name)


def verdicts(runs: str) -> None:
    """Renew the table the tests compare with: smoke of the folder's runs, the rest of the committed records."""
    before = expected_verdicts()["smoke"]
    table: dict[str, dict[str, dict[str, str]]] = {"smoke": {}, "record": {}}
    for name in CATALOG:
        e, folder = experiment(name), Path(runs) / name
        if (folder / JSON_NAME).exists():
            table["smoke"][name] = {v.claim.text: v.status for v in e.verdicts(Record.load(folder))}
        elif name in before:
            table["smoke"][name] = before[name]
        record = committed(name)
        if record is not None:
            table["record"][name] = {v.claim.text: v.status for v in e.verdicts(record)}
    VERDICTS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(VERDICTS)


def protocol(path: str, seconds: str = "540", name: str = "blocks") -> int:
    """The GPU protocol; needs torch and numpy alone. 0: finished; 130: the time was up, the same command goes on."""
    e = experiment(name)
    units = Lines(Path(path), name, time.monotonic() + float(seconds))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    units.write({"made": dataclasses.asdict(Provenance.collect(seed=0, dtype=torch.bfloat16, device=device))})
    try:
        scalars, _ = e.run(e.config("paper"), units)
    except OutOfTime as stopped:
        scalars = {}
        print(f"{stopped} {len(units.done)} runs are done.")
    for name, part in units.done.items():
        if "valid" not in part:
            continue
        loss, error = part["valid"].tolist()
        took = float(part["seconds"])
        print(f"{name:44} loss {loss:.4f} +- {error:.4f}  cosine {float(part['cosine'][-1]):.3f}  {took:.1f} s")
    for name, e in scalars.items():
        if name.startswith(("gap/", "depth_gain/", "steps_ratio/", "speed/")):
            print(f"{name:44} {e}")
    return 0 if scalars else 130


def protocol_record(path: str, runs: str, name: str = "blocks") -> None:
    """The record of a finished protocol, saved in RUNS/NAME; nothing is computed again."""
    e = experiment(name)
    config = e.config("paper")
    lines = Lines(Path(path), name, until=-math.inf)
    scalars, tensors = e.run(config, lines)
    spent = sum(float(part[key]) for part in lines.done.values() for key in part if key.endswith("seconds"))
    scalars["cpu_seconds"] = Estimate(spent, note="wall-clock seconds of all steps, on a GPU")
    made = Provenance(**lines.made[-1])
    Record("experiment", e.inputs("paper", config), scalars, tensors, made).save(Path(runs) / name)


def main(words: list[str]) -> int:
    match words:
        case ["gallery", folder]:
            from .gallery import write_gallery

            print("\n".join(map(str, write_gallery(folder))))
        case ["keep", runs, *names]:
            keep(runs, names)
        case ["verdicts", runs]:
            verdicts(runs)
        case ["measure", runs, preset, processes, seconds, *names]:
            from .pool import measure

            finished = measure(Path(runs), preset, int(processes), float(seconds), names)
            print("finished:", *finished)
            return 0 if len(finished) == len(names) else 130
        case ["corpus"]:
            from .packed import pack

            print(pack())
        case ["protocol", path, *rest] if len(rest) <= 2:
            return protocol(path, *rest)
        case ["protocol-record", path, runs, *rest] if len(rest) <= 1:
            protocol_record(path, runs, *rest)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
