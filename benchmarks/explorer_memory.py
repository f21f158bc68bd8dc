"""The live page: memory of its server over many moves of a slider.

    python benchmarks/explorer_memory.py [--moves 5000] [--out FILE]

The server is a process of its own, `quadform explore`. Each move asks for an input scale that was not asked for before,
compared with the state before it, as a drag in the page does. The resident memory is read from /proc after every
hundredth move; the growth is that since the end of the warm-up. `explorer/engine.py` says
how much is kept.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from websockets.sync.client import connect

from quadform.core.record import Provenance, strict_json

WARM, EVERY, MIB = 50, 100, 2**20
#: The state of a slider: its name, the first and the last value of the drag.
DRAGS = {
    "default, 192 parameters": {},
    "width 12, 432 parameters": {"dim": 12},
    "Pre-LN, 4 blocks": {"design": "pre-ln", "depth": 4},
}


def resident(pid: int) -> int:
    """Bytes of memory the process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def drag(moves: int, controls: dict) -> dict[int, float]:
    """MiB of a fresh server after so many moves."""
    command = [sys.executable, "-m", "quadform.cli.main", "explore", "--no-open", "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        where = json.loads(_first_value(server.stdout))
        address = where["url"].replace("http:", "ws:") + "live"
        held = {}
        with connect(address, origin=f"http://127.0.0.1:{where['port']}", max_size=None) as socket:
            before = None
            for seq in range(1, moves + 1):
                state = controls | {"scale": 0.02 * 1000 ** (seq / moves)}
                socket.send(json.dumps({"seq": seq, "state": state, "against": before, "final": True}))
                answer = json.loads(socket.recv(timeout=60))
                assert answer["kind"] == "answer", answer
                before = state
                if seq == WARM or seq % EVERY == 0:
                    held[seq] = resident(server.pid) / MIB
        return held
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)


def _first_value(stream) -> str:
    """The first JSON value of a stream that stays open."""
    text = ""
    for line in stream:
        text += line
        try:
            json.loads(text)
        except ValueError:
            continue
        return text
    raise RuntimeError(f"the server ended before it printed its address: {text!r}")


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--moves", type=int, default=5000)
    flags.add_argument("--drags", nargs="*", default=list(DRAGS), help="which of the states, by name")
    flags.add_argument("--out", type=Path)
    asked = flags.parse_args()
    rows = {}
    for name in asked.drags:
        held = drag(asked.moves, DRAGS[name])
        grown = {seq: mib - held[WARM] for seq, mib in held.items()}
        rows[name] = {
            f"MiB after {WARM} moves": held[WARM],
            f"MiB after {asked.moves} moves": held[max(held)],
            "most grown, MiB": max(grown.values()),
            "grown in the second half, MiB": grown[max(grown)]
            - grown[min(grown, key=lambda s: abs(s - asked.moves / 2))],
        }
        print(name, json.dumps(rows[name]), flush=True)
    body = {
        "what": "resident memory of the live page's server over moves of the input-scale slider",
        "moves": asked.moves,
        "warm-up": WARM,
        "rows": rows,
        "made": asdict(Provenance.collect(dtype=torch.float64)),
    }
    if asked.out:
        asked.out.write_text(strict_json(body))


if __name__ == "__main__":
    main()
