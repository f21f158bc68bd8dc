"""For the keepers of the project: `python -m quadform.experiments gallery docs | keep RUNS ID ... | verdicts`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..core.record import JSON_NAME, Record
from .catalog import CATALOG, RECORDS, VERDICTS, committed, experiment
from .gallery import write_gallery


def keep(runs: str, names: list[str]) -> None:
    """Take finished records from a folder of `quadform reproduce` into the package."""
    for name in names or [n for n in CATALOG if (Path(runs) / n / JSON_NAME).exists()]:
        Record.load(Path(runs) / name).save(RECORDS / name)
        print(RECORDS / name)


def verdicts(runs: str) -> None:
    """Write the table the tests compare with: smoke verdicts from a folder of runs, the others from the package."""
    table: dict[str, dict[str, dict[str, str]]] = {"smoke": {}, "record": {}}
    for name in CATALOG:
        e = experiment(name)
        for kind, record in (("smoke", Record.load(Path(runs) / name) if runs else None), ("record", committed(name))):
            if record is not None:
                table[kind][name] = {v.claim.text: v.status for v in e.verdicts(record)}
    VERDICTS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(VERDICTS)


def main(words: list[str]) -> int:
    match words:
        case ["gallery", folder]:
            print("\n".join(map(str, write_gallery(folder))))
        case ["keep", runs, *names]:
            keep(runs, names)
        case ["verdicts", runs]:
            verdicts(runs)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
