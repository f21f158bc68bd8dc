"""The live page: processor time of one answer in the server, as the slider of the input scale moves, by size and part.

    python benchmarks/explorer_answers.py [--moves 40] [--out FILE]

No browser: a message goes in, the packed answer comes out, each state new and compared with the one before. On a
machine with other work the same answer takes more processor time (shared caches): the load is in the record.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict
from pathlib import Path

import torch

from quadform.core.record import Provenance, strict_json
from quadform.explorer.door import packed
from quadform.explorer.engine import Engine
from quadform.explorer.state import State

ROWS = [
    *(({"dim": dim}, part, "blocks") for dim in (8, 12, 16) for part in ("total", "outer", "functional")),
    ({"dim": 12}, "total", "entries"),
    ({"design": "pre-ln", "depth": 4}, "total", "blocks"),
]


def answers(state: State, part: str, detail: str, moves: int) -> tuple[list[float], int]:
    """Milliseconds of processor time of every answer but the first three, and bytes of the last."""
    engine, before, found, size = Engine(), None, [], 0
    for i in range(moves + 3):
        now = State(**state.json() | {"scale": 1 + i / 50})
        message = {"seq": i, "state": now.json(), "against": before and before.json(), "confirmed": True}
        text = json.dumps(message | {"part": part, "detail": detail})
        start = time.thread_time()
        told = packed(engine.answer(text))
        found.append(1e3 * (time.thread_time() - start))
        before, size = now, len(told)
    return found[3:], size


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--moves", type=int, default=40)
    flags.add_argument("--out", type=Path)
    asked = flags.parse_args()
    torch.set_num_threads(1)
    rows, load = [], os.getloadavg()[0]
    for change, part, detail in ROWS:
        state = State(**change)
        seen, size = answers(state, part, detail, asked.moves)
        row = {
            "state": change,
            "parameters": 3 * state.dim**2,
            "part": part,
            "detail": detail,
            "processor ms, quickest quarter": statistics.quantiles(seen, n=4)[0],
            "processor ms, p50": statistics.median(seen),
            "processor ms, p95": statistics.quantiles(seen, n=20)[-1],
            "bytes": size,
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    body = {
        "what": "processor milliseconds of one answer of the live page's server, thread time, one thread",
        "moves": asked.moves,
        "load": f"{max(load, os.getloadavg()[0]):.1f} on {os.cpu_count()} cores",
        "rows": rows,
        "made": asdict(Provenance.collect(dtype=torch.float64)),
    }
    if asked.out:
        asked.out.write_text(strict_json(body))


if __name__ == "__main__":
    main()
