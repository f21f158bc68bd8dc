"""The floor plan holds, and a wall that is broken on purpose is seen to be broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = "a room imports only rooms below it; siblings never import each other"
RECORDS = "the report redraws from Records alone"
PICKLE = "no pickle anywhere: nothing that is loaded can execute code"

PLANTED = [
    ("core", "from quadform.theory import attention", LAYERS),
    ("theory", "import quadform.kernels", LAYERS),
    ("kernels", "from quadform.propagation import shaping", LAYERS),
    ("report", "from quadform.applications import opening", LAYERS),
    ("answers", "from quadform.curvature import groups", LAYERS),
    ("answers", "def f():\n    from quadform.report import page", LAYERS),
    ("applications", "import quadform.cli", LAYERS),
    ("corpora", "from quadform.train import TrainConfig", LAYERS),
    ("report", "def f():\n    from quadform.theory import moments", RECORDS),
    ("core", "import pickle", PICKLE),
    ("cli", "def f():\n    from pickle import loads", PICKLE),
]


def lint(source: Path) -> dict[str, bool]:
    """Contract name -> kept, for the package found under `source`."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        capture_output=True,
        text=True,
        cwd=source,
        env=os.environ | {"PYTHONPATH": str(source), "NO_COLOR": "1", "COLUMNS": "200"},
        timeout=120,
    )
    verdicts = {
        name: said[1] == "KEPT"
        for line in done.stdout.splitlines()
        for name in (LAYERS, RECORDS, PICKLE)
        if (said := re.fullmatch(rf"{re.escape(name)} (KEPT|BROKEN)( \(\d+ ignored imports?\))?", line))
    }
    assert verdicts, done.stdout + done.stderr
    assert (done.returncode == 0) == all(verdicts.values())
    return verdicts


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("planted")
    shutil.copytree(ROOT / "src" / "quadform", source / "quadform", ignore=shutil.ignore_patterns("__pycache__"))
    return source


def test_contracts_hold() -> None:
    """No module of the project breaks a contract."""
    assert lint(ROOT / "src") == {LAYERS: True, RECORDS: True, PICKLE: True}


@pytest.mark.parametrize(("room", "offence", "contract"), PLANTED)
def test_planted_violation_is_caught(copy: Path, room: str, offence: str, contract: str) -> None:
    """An offending import in a room breaks the contract it offends."""
    planted = copy / "quadform" / room / "planted.py"
    planted.write_text(offence + "\n")
    try:
        assert not lint(copy)[contract]
    finally:
        planted.unlink()


def test_every_lower_room_is_forbidden_to_the_report() -> None:
    """The contract of the report names every room that exists below it, but core and the answers it draws."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c for c in contracts if c["name"] == LAYERS)["layers"]
    forbidden = set(next(c for c in contracts if c["name"] == RECORDS)["forbidden_modules"])
    below = layers[layers.index("quadform.report") + 1 : -1]
    rooms = {room.strip(" ()").removeprefix("quadform.") for layer in below for room in layer.split("|")}
    there = {f"quadform.{r}" for r in rooms - {"answers"} if (ROOT / "src" / "quadform" / r / "__init__.py").exists()}
    assert there <= forbidden


def test_every_room_has_a_layer() -> None:
    """No package of the project stands outside the floor plan."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    named = {
        room.strip(" ()").removeprefix("quadform.")
        for layer in next(c for c in contracts if c["name"] == LAYERS)["layers"]
        for room in layer.split("|")
    }
    there = {p.parent.name for p in (ROOT / "src" / "quadform").glob("*/__init__.py")}
    assert there <= named
