"""For the keepers of the project, `python benchmarks/experiments.py ...`:

gallery docs               write the gallery from the committed records, and its score into the README
keep RUNS [ID ...]         take finished records from a folder of `quadform reproduce` into docs/gallery/records
verdicts RUNS              renew the table the tests compare with, from a folder of smoke runs
measure RUNS PRESET PROCESSES SECONDS ID ...
                           run presets without figures, parts in several processes; `reproduce --out RUNS` draws them
corpus [FOLDER ...]        pack the Python source installed here for the GPU protocol: 100 MB of it, or with folders of
                           unpacked packages all of it and of them
protocol DIR [SECONDS] [ID]
                           run the preset paper of `blocks`, or of another experiment, on a GPU into DIR, go on where it
                           was, stop in time
protocol-record DIR RUNS [ID]
                           make the record of a finished protocol
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

from quadform.core.record import JSON_NAME, Estimate, Provenance, Record
from quadform.core.work import Work
from quadform.experiments.catalog import CATALOG, RECORDED, RECORDS, committed, experiment
from quadform.experiments.claims import STATUSES
from quadform.experiments.experiment import Units

#: The table the tests compare with.
VERDICTS = Path(__file__).resolve().parent.parent / "tests" / "experiments" / "verdicts.json"
#: The score of the claims, as the gallery and the README tell it.
SCORE = re.compile(r"\d+ experiments, \d+ claims: [^.]+not tested\.")
#: The piece that says by what and where the parts were made.
MADE = "made"


def scored(docs: Path) -> None:
    """Copy the score of the gallery into the README beside it."""
    score = SCORE.search((docs / "gallery.md").read_text())
    readme = docs.parent / "README.md"
    if score and readme.exists():
        readme.write_text(SCORE.sub(score[0], readme.read_text()))


def keep(runs: str, names: list[str]) -> None:
    """Take finished records from a folder of `quadform reproduce`; their commands lose the folder."""
    for name in names or [n for n in CATALOG if (Path(runs) / n / JSON_NAME).exists()]:
        record = Record.load(Path(runs) / name)
        command = f"quadform reproduce {name} --preset {record.inputs['preset']}"
        dataclasses.replace(record, made=dataclasses.replace(record.made, command=command)).save(RECORDS / name)
        print(RECORDS / name)
    RECORDED.write_text(json.dumps(summary(), indent=1) + "\n", encoding="utf-8")


def summary() -> dict[str, dict[str, object]]:
    """What the package says of the records: preset, seconds, device and how many claims have which status."""
    table: dict[str, dict[str, object]] = {}
    for name in CATALOG:
        record = committed(name)
        if record is not None:
            statuses = [v.status for v in experiment(name).verdicts(record)]
            table[name] = {
                "preset": record.inputs["preset"],
                "seconds": round(record.scalars["cpu_seconds"].value, 1),
                "device": record.made.device,
                "claims": {status: statuses.count(status) for status in STATUSES if status in statuses},
            }
    return table


def verdicts(runs: str) -> None:
    """Renew the table the tests compare with: smoke of the folder's runs, the rest of the committed records."""
    before = json.loads(VERDICTS.read_text(encoding="utf-8"))["smoke"]
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


def protocol(folder: str, seconds: str = "540", name: str = "blocks") -> int:
    """The GPU protocol; needs torch and numpy alone. 0: finished; 3: the time was up, the same command goes on."""
    e = experiment(name)
    work = Work(folder, seconds=float(seconds), resume=True)
    work.begin(e.inputs("paper", e.config("paper")))
    config = e.config("paper")
    work.keep(MADE, dataclasses.asdict(e.made(config.seed)))
    scalars: dict[str, Estimate] = {}
    with work.in_time():
        scalars, _ = e.run(config, Units(work, name))
    for part in work.pieces:
        found = work[part]
        if "valid" in found:
            (loss, error), took = found["valid"].tolist(), float(found["seconds"])
            print(f"{part:44} loss {loss:.4f} +- {error:.4f}  cosine {float(found['cosine'][-1]):.3f}  {took:.1f} s")
    for claim in e.claims if scalars else ():
        verdict = claim.verdict(scalars, "paper")
        print(f"{verdict.status:10} {verdict.number:32} {claim.wanted:16} {claim.text}")
    return 3 if work.partial else 0


def protocol_record(folder: str, runs: str, name: str = "blocks") -> None:
    """The record of a finished protocol, saved in RUNS/NAME; nothing is computed again."""
    e = experiment(name)
    config = e.config("paper")
    work = Work(folder, seconds=0.0, resume=True)
    work.begin(e.inputs("paper", config))
    work.deadline.advanced = True
    scalars, tensors = e.run(config, Units(work, name))
    parts = [work[part] for part in work.pieces if part != MADE]
    spent = sum(float(part[key]) for part in parts for key in part if key.endswith("seconds"))
    scalars["cpu_seconds"] = Estimate(spent, note="wall-clock seconds of all steps, on a GPU")
    made = Provenance(**work[MADE])
    Record("experiment", e.inputs("paper", config), scalars, tensors, made).save(Path(runs) / name)


def main(words: list[str]) -> int:
    match words:
        case ["gallery", folder]:
            from quadform.experiments.gallery import write_gallery

            print("\n".join(map(str, write_gallery(folder))))
            scored(Path(folder))
        case ["keep", runs, *names]:
            keep(runs, names)
        case ["verdicts", runs]:
            verdicts(runs)
        case ["measure", runs, preset, processes, seconds, *names]:
            from quadform.experiments.pool import measure

            finished = measure(Path(runs), preset, int(processes), float(seconds), names)
            print("finished:", *finished)
            return 0 if len(finished) == len(names) else 3
        case ["corpus", *folders]:
            from quadform.experiments.packed import pack

            print(pack(more=[Path(f) for f in folders], most=10**10) if folders else pack())
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
