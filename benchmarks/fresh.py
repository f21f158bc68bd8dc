"""A job in a process of its own: nothing of an earlier one is warm, and one that fails takes no other along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quadform.core.record import from_json


def fresh(
    script: str | Path, options: Sequence[str], limit: float, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What `script OPTIONS --to FILE` writes into that file, with the seconds of the whole process; `failed` says why
    there is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        to, log = Path(folder) / "found.json", Path(folder) / "log"
        begun = time.perf_counter()
        with log.open("w") as lines:
            try:
                call = [sys.executable, str(script), *options, "--to", str(to)]
                around = {**os.environ, **(env or {})}
                code: int | None = subprocess.run(
                    call, stdout=lines, stderr=subprocess.STDOUT, timeout=limit, env=around
                ).returncode
            except subprocess.TimeoutExpired:
                code = None
        seconds = time.perf_counter() - begun
        found = from_json(json.loads(to.read_text())) if to.exists() else {}
        if code != 0:
            last = log.read_text().strip().splitlines()[-1:] or [""]
            found["failed"] = f"not done after {limit:.0f} s" if code is None else f"exit {code}: {last[0][:200]}"
        return found | {"process_s": seconds}
