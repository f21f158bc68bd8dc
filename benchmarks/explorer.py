"""The live page: from a move of the slider to the picture, in Chromium, at the default size and two others.

    python benchmarks/explorer.py [--moves 50] [--out FILE]

A slider is set and its `input` event fired; the time ends in the frame after the answer to that very move has been
drawn. Beside it the time the answer took inside the server, and the load of the machine: on a busy one, both are long.
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
from playwright.sync_api import sync_playwright

from quadform.core.record import Provenance, strict_json
from quadform.explorer.engine import Engine
from quadform.explorer.server import application
from quadform.explorer.serving import find_place, serving

STATES = {
    "default, 192 parameters": "",
    "width 12, 432 parameters": "#dim=12",
    "Pre-LN, 4 blocks": "#design=pre-ln&depth=4",
}
#: Fires one move and resolves with the milliseconds until its picture is drawn.
MOVE = """(value) => new Promise((done) => {
    const root = document.documentElement, input = document.getElementById("scale");
    const before = Number(root.dataset.seq), start = performance.now();
    const watch = new MutationObserver(() => {
        if (Number(root.dataset.seq) > before) {
            watch.disconnect();
            requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
        }
    });
    watch.observe(root, {attributes: true, attributeFilter: ["data-seq"]});
    input.value = value;
    for (const kind of ["input", "change"]) input.dispatchEvent(new Event(kind, {bubbles: true}));  // moved and let go
})"""


class Timed(Engine):
    """An engine that keeps the wall-clock and processor seconds of every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.wall: list[float] = []
        self.work: list[float] = []

    def answer(self, text: str | bytes) -> dict:
        wall, work = time.perf_counter(), time.thread_time()
        found = super().answer(text)
        self.wall.append(time.perf_counter() - wall)
        self.work.append(time.thread_time() - work)
        return found


def quantiles(milliseconds: list[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    return {"p50": statistics.median(ordered), "p95": ordered[int(0.95 * (len(ordered) - 1))], "max": ordered[-1]}


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--moves", type=int, default=50)
    flags.add_argument("--out", type=Path)
    asked = flags.parse_args()
    torch.set_num_threads(1)
    rows, load = {}, os.getloadavg()[0]
    for name, where in STATES.items():
        engine = Timed()
        with serving(find_place(0), lambda at: application(at, engine)) as place, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.goto(place.url + where)
            page.wait_for_selector("html[data-ready]", timeout=60_000)
            for value in (260, 190):  # warm
                page.evaluate(MOVE, value)
            engine.wall.clear()
            engine.work.clear()
            seen = [page.evaluate(MOVE, 100 + 200 * (i + 0.5) / asked.moves) for i in range(asked.moves)]
            browser.close()
        rows[name] = {
            "slider to picture, ms": quantiles(seen),
            "answer in the server, ms": quantiles([1e3 * t for t in engine.wall]),
            "processor time of the answer, ms": quantiles([1e3 * t for t in engine.work]),
        }
        print(name, json.dumps(rows[name]))
    busy = max(load, os.getloadavg()[0])
    body = {
        "what": "milliseconds from a move of the input-scale slider to its picture in Chromium",
        "moves": asked.moves,
        "load": f"{busy:.1f} on {os.cpu_count()} cores" + (": loaded" if busy > 0.7 * (os.cpu_count() or 1) else ""),
        "rows": rows,
        "made": asdict(Provenance.collect(dtype=torch.float64)),
    }
    if asked.out:
        asked.out.write_text(strict_json(body))


if __name__ == "__main__":
    main()
