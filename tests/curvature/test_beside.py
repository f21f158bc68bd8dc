"""Several timed jobs at once (`benchmarks/beside.py`): whoever takes times is alone, and none takes another along."""

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from beside import Job, beside  # noqa: E402

SCRIPT = f"""
import json, sys, time
from pathlib import Path
sys.path.insert(0, {str(BENCHMARKS)!r})
from beside import turn
what, folder = sys.argv[1], Path(sys.argv[3])
ticks, begun = [], time.monotonic()

def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ticks.append(time.monotonic())
        time.sleep(0.005)

if what == "fails":
    sys.exit("no such model")
if what == "memory" and not (folder.parent / "tried").exists():
    (folder.parent / "tried").touch()
    sys.exit("OutOfMemoryError: too large")
(folder / "found.json").write_text(json.dumps({{"begun": begun, "half": True}}))
work(60 if what == "late" else 0.3)
with turn(folder):
    since = time.monotonic()
    time.sleep(0.3)
    until = time.monotonic()
if what == "long":
    work(0.8)
(folder / "found.json").write_text(json.dumps({{"begun": begun, "ticks": ticks, "turn": [since, until]}}))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("beside") / "job.py"
    file.write_text(SCRIPT)
    return file


def run(script: Path, *names: str, limit: float = 30.0, room: float = 9.0) -> dict[str, dict[str, Any]]:
    jobs = [Job(name, (name.split("-")[0],), gib=3.0) for name in names]
    return dict(beside(script, jobs, limit=limit, each=20.0, room=room))


def test_nobody_works_while_another_takes_its_times(script: Path) -> None:
    found = run(script, "long-1", "long-2", "fails")
    assert "no such model" in found.pop("fails")["failed"]
    one, two = found.values()
    assert max(one["begun"], two["begun"]) < min(*one["turn"], *two["turn"]), "both were there at the same time"
    for turn, ticks in ((one["turn"], two["ticks"]), (two["turn"], one["ticks"])):
        assert ticks
        assert not [t for t in ticks if turn[0] + 0.05 < t < turn[1] - 0.05]
    first, second = sorted((one, two), key=lambda row: row["turn"][0])
    assert [t for t in first["ticks"] if t > first["turn"][1]], "one that has its times goes on"
    assert first["turn"][1] <= second["turn"][0]


def test_as_many_at_once_as_fit_and_one_without_memory_again_alone(script: Path) -> None:
    found = run(script, "memory", "short-1", "short-2", room=6.0)
    assert all("turn" in row and "failed" not in row for row in found.values())
    assert found["memory"]["again"]
    assert not found["short-1"]["again"]
    assert found["memory"]["begun"] > max(found[name]["turn"][1] for name in ("short-1", "short-2"))


def test_when_time_is_up_what_is_known_is_told(script: Path) -> None:
    found = run(script, "late", "never", limit=4.0, room=4.0)
    assert found["late"]["half"]
    assert "not done" in found["late"]["failed"]
    assert found["never"] == {"failed": "not begun when the time of all was up (4 s)"}
