"""Several jobs at once, each in a process of its own; the one that takes times runs alone.

A job prepares (imports, compiles, warms up) and calls `turn`, which waits. When its turn comes, all other jobs and the
processes they started are stopped, so neither the processors nor the GPU do anything else. When it has its times, the
others go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Seconds between looks at the jobs, and those a stopped job's GPU needs to finish what it was given.
LOOK, DRAIN = 0.05, 0.7


@dataclass(frozen=True)
class Job:
    """A name, the options of the script, and the memory that it may take at most (GiB)."""

    name: str
    options: tuple[str, ...]
    gib: float
    again: bool = False  # its second trial, after it ran out of memory


@contextlib.contextmanager
def turn(folder: Path | None) -> Iterator[None]:
    """Wait for this job's turn; the others go on afterwards."""
    if folder is not None:
        (folder / "ready").touch()
        while not (folder / "go").exists():
            time.sleep(LOOK)
    yield
    if folder is not None:
        (folder / "timed").touch()


def beside(
    script: str | Path, jobs: Sequence[Job], *, limit: float, each: float, room: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each job wrote into `FOLDER/found.json` of its `--folder`, as they end; `failed` says why there is no more.

    So many jobs run at once as fit `room` GiB by what they say. A job that ran out of memory is tried once more, alone.
    """
    began, waiting, running = time.monotonic(), list(jobs), dict[str, _Running]()
    with tempfile.TemporaryDirectory() as whole:
        try:
            while waiting or running:
                left = limit - (time.monotonic() - began)
                if left <= 0:
                    break
                for job in list(waiting):
                    if not running or sum(r.job.gib for r in running.values()) + job.gib <= room:
                        waiting.remove(job)
                        running[job.name] = _Running(script, job, Path(tempfile.mkdtemp(dir=whole)))
                for name, one in list(running.items()):
                    others = [r for r in running.values() if r is not one]
                    one.look(others, each, left)
                    if one.ended:
                        del running[name]
                        found = one.found()
                        if _out_of_memory(found) and not one.job.again:
                            waiting.append(dataclasses.replace(one.job, gib=room, again=True))
                            continue
                        yield name, found
                time.sleep(LOOK)
            for name, one in running.items():
                one.end(f"not done when the time of all was up ({limit:.0f} s)")
                yield name, one.found()
            for job in waiting:
                yield job.name, {"failed": f"not begun when the time of all was up ({limit:.0f} s)"}
        finally:
            for one in running.values():
                one.end("stopped")


class _Running:
    """A process, and where it writes."""

    def __init__(self, script: str | Path, job: Job, folder: Path) -> None:
        self.job, self.folder, self.begun, self.why = job, folder, time.monotonic(), ""
        self.seconds: float | None = None
        self.stopped = 0.0  # seconds in which it was stopped
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *job.options, "--folder", str(folder)],
                stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **caches}, start_new_session=True,
            )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def look(self, others: list[_Running], each: float, left: float) -> None:
        """Give it its turn where it is ready; end it where it is late."""
        if not self.ended and time.monotonic() - self.begun - self.stopped > each:
            self.end(f"not done after {each:.0f} s")
        if self.ended or not (self.folder / "ready").exists() or (self.folder / "timed").exists():
            return
        since, until = time.monotonic(), time.monotonic() + min(left, each)
        try:
            for other in others:
                other.signal(signal.SIGSTOP)
            time.sleep(DRAIN)
            (self.folder / "go").touch()
            while not (self.ended or (self.folder / "timed").exists()):
                if time.monotonic() > until:
                    self.end("its times took too long")
                time.sleep(LOOK)
        finally:
            for other in others:
                other.signal(signal.SIGCONT)
                other.stopped += time.monotonic() - since

    def signal(self, what: signal.Signals) -> None:
        """Send a signal to the process and those that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, what)

    def end(self, why: str) -> None:
        if not self.ended:
            self.why = self.why or why
            self.signal(signal.SIGKILL)
            self.process.wait()

    def found(self) -> dict[str, Any]:
        from quadform.core.record import from_json  # loads torch, which a job may do without

        file, seconds = self.folder / "found.json", time.monotonic() - self.begun - self.stopped
        found = from_json(json.loads(file.read_text())) if file.exists() else {}
        if code := self.process.returncode:
            last = (self.folder / "log").read_text().strip().splitlines()[-1:] or [""]
            found["failed"] = self.why or f"exit {code}: {last[0][:200]}"
        return found | {"process_s": seconds, "again": self.job.again}


def _out_of_memory(found: dict[str, Any]) -> bool:
    told = json.dumps([found.get("failed"), found.get("why")]).lower()
    return any(words in told for words in ("out of memory", "outofmemory", "not fit the memory"))
