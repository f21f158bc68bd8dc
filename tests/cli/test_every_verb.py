"""What all verbs have in common: strict JSON alone on stdout, logs without carriage returns, the list of runs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quadform.answers.texts import speaking
from quadform.cli import main
from quadform.cli.flags import call_of, parts_of
from quadform.cli.main import VERBS, Verb
from quadform.core import progress
from quadform.core.record import Record
from quadform.report.page import page_of

MODEL = "new:pre-ln,depth=1,d_model=4,heads=2"
PROBE = ["--data", "add:digits=1", "--batch-size", "2"]
#: A small command of each verb; RUN is the folder the command `train` made.
COMMANDS = {
    "attention": ["--tokens", "2", "--d-model", "2", "--vary", "none", "--out", "attention"],
    "spectrum": [MODEL, *PROBE, "--top", "1", "--products", "4", "--blocks", "none", "--out", "spectrum"],
    "signal": ["pre-ln", "--depths", "1", "--d-model", "4", "--heads", "2", "--tokens", "3", "--out", "signal"],
    "why": [MODEL, *PROBE, "--remove", "norm", "--out", "why"],
    "compare": [
        "--designs",
        "pre-ln",
        "--depths",
        "1",
        "--d-model",
        "4",
        "--heads",
        "2",
        "--budget",
        "1s",
        "--out",
        "compare",
    ],
    "lr": [MODEL, *PROBE, "--short-run", "4", "--checkpoints", "2", "--out", "lr"],
    "point": [MODEL, *PROBE, "--polish", "--steps", "1", "--out", "point"],
    "taylor": [MODEL, *PROBE, "--along", "grad", "--points", "3", "--out", "taylor"],
    "landscape": [MODEL, *PROBE, "--plane", "random", "--points", "3", "--out", "landscape"],
    "flat": [MODEL, *PROBE, "--measures", "sam,lambda_max", "--out", "flat"],
    "prune": [MODEL, *PROBE, "--batches", "2", "--products", "8", "--out", "prune"],
    "quantize": [MODEL, *PROBE, "--batches", "2", "--products", "8", "--out", "quantize"],
    "precond": [MODEL, *PROBE, "--methods", "none,adam,soap", "--products", "20", "--out", "precond"],
    "verify": ["--shapes", "1", "--largest", "2"],
    "reproduce": ["growth-linear", "--out", "reproduce"],
    "train": [*PROBE, "--d-model", "4", "--heads", "2", "--depth", "1", "--steps", "3", "--test", "2", "--out", "run"],
    "decode": ["run", "1+1=", "2+3="],
    "data": ["list"],
    "ls": ["runs", "."],
    "explore": ["--no-open", "--port", "0", "--max-time", "1s"],
    "teach": ["--no-open", "--port", "0", "--max-time", "1s"],
    "doctor": [],
    "report": ["attention", "lr"],
}
#: Plans: what `--dry-run --json` of the long verbs prints.
PLANNED = (
    "attention",
    "verify",
    "spectrum",
    "signal",
    "why",
    "compare",
    "lr",
    "point",
    "taylor",
    "landscape",
    "flat",
    "prune",
    "quantize",
    "precond",
    "train",
    "reproduce",
    "report",
)


def strict(text: str) -> Any:
    """JSON without NaN or Infinity, and nothing after it."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of every command with `--json`, stderr no terminal, in the order above."""
    folder = tmp_path_factory.mktemp("verbs")
    code = (
        "import json, sys, torch\n"
        "from quadform.cli import main\n"
        "from quadform.core import progress\n"
        "torch.set_num_threads(1)\n"
        "codes = {}\n"
        "for name, words in json.loads(sys.argv[1]).items():\n"
        "    progress.quiet = False\n"
        "    with open(f'{name}.out', 'w') as sys.stdout, open(f'{name}.err', 'w') as sys.stderr:\n"
        "        codes[name] = main(words)\n"
        "open('codes.json', 'w').write(json.dumps(codes))\n"
    )
    words = {verb: [verb, *rest, "--json"] for verb, rest in COMMANDS.items()}
    words |= {f"{verb} plan": [verb, *COMMANDS[verb], "--dry-run", "--json"] for verb in PLANNED}
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, json.dumps(words)], cwd=folder, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    codes = json.loads((folder / "codes.json").read_text())
    said = {n: tuple((folder / f"{n}.{end}").read_bytes().decode() for end in ("out", "err")) for n in words}
    return {"folder": (0, str(folder), "")} | {n: (codes[n], *said[n]) for n in words}


def test_every_verb_is_here() -> None:
    """A new verb comes with a command in this file."""
    assert set(COMMANDS) == set(VERBS)


@pytest.mark.parametrize("name", [*COMMANDS, *(f"{verb} plan" for verb in PLANNED)])
def test_json_is_strict_and_alone(name: str, answers: dict[str, tuple[int, str, str]]) -> None:
    """`--json`: stdout is one JSON object and nothing else; stderr has no carriage return, escape code or traceback."""
    code, out, err = answers[name]
    assert code in (0, 3), err
    assert isinstance(strict(out), dict)
    assert "\r" not in out + err
    assert "\x1b" not in out + err
    assert "Traceback" not in err


SAVED = [verb for verb, words in COMMANDS.items() if "--out" in words and verb not in ("train", "reproduce")]


@pytest.mark.parametrize("verb", SAVED)
def test_an_answer_is_told_in_korean(verb: str, answers: dict[str, tuple[int, str, str]]) -> None:
    """The same numbers (two digits or more) in both languages; a line that is in both has no sentence but a note."""
    record = Record.load(Path(answers["folder"][1]) / verb)
    found = page_of(record).answer(record)
    english = str(found)
    with speaking("ko"):
        korean = str(found)
    assert re.search("[가-힣]", korean)
    numbers = [Counter(re.findall(r"\d[\d.,]*\d", text)) for text in (english, korean)]
    assert numbers[0] == numbers[1]
    told = [note for note in found.notes if isinstance(note, str)]
    for line in set(english.splitlines()) & set(korean.splitlines()):
        rest = line
        for note in told:
            rest = rest.replace(note, "")
        assert not re.search(r"(?:\b[a-z]{2,} ){4,}", rest), line


def test_every_verb_has_a_language() -> None:
    """`--lang` is a flag of all verbs."""
    assert all("lang" in flags_of(v, known) for v, known in VERBS.items())


def flags_of(verb: str, known: Verb) -> set[str]:
    return {f.name for f in dataclasses.fields(call_of(verb, parts_of(known.asks, known.opening)))}


def test_runs_are_listed(answers: dict[str, tuple[int, str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    """`quadform ls runs DIR`: every run with its kind, model, date and verdict, as a table and as JSON."""
    folder = answers["folder"][1]
    assert main(["ls", "runs", folder, "--json"]) == 0
    rows = {Path(r["run"]).name: r for r in strict(capsys.readouterr().out)["runs"]}
    made = {"attention": "attention", "spectrum": "spectrum", "signal": "signal", "why": "why", "lr": "step-size"}
    made |= {"run": "training run", "compare": "compare"}
    # records by the names of stages
    made[Path(folder).name] = "study: step-size, spectrum, point, prune, signal, why, attention"
    assert {name: rows[name]["kind"] for name in made} == made
    assert rows["lr"]["model"] == rows["spectrum"]["model"] == MODEL
    assert rows["lr"]["verdict"].startswith("Learning-rate ceiling: ")
    assert rows["spectrum"]["verdict"].startswith("Largest eigenvalue: ")
    assert "[not converged]" in rows["spectrum"]["verdict"]
    assert rows["run"]["verdict"].startswith("step 3 of 3, training loss ")
    assert all(r["made"][:2] == "20" for r in rows.values())
    assert main(["ls", "runs", folder]) == 0
    said = capsys.readouterr().out
    assert all(r["verdict"][:12] in said for r in rows.values())
    assert said.endswith(f"{len(rows)} runs in {folder}; `quadform report RUN` draws one, several side by side\n")


def test_unfinished_and_damaged_runs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was killed and a record that cannot be read are rows that say so; other folders are none."""
    (tmp_path / "killed" / "work").mkdir(parents=True)
    (tmp_path / "killed" / "work" / "question.json").write_text("{}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.json").write_text("{")
    (tmp_path / "other" / "deep").mkdir(parents=True)
    assert main(["ls", "runs", str(tmp_path), "--json"]) == 0
    rows = strict(capsys.readouterr().out)["runs"]
    assert [(Path(r["run"]).name, r["kind"]) for r in rows] == [("broken", "cannot be read"), ("killed", "unfinished")]
    assert "is truncated or not JSON" in rows[0]["verdict"]
    assert main(["ls", "runs", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["ls", "designs", "here"]) == 2


@pytest.fixture(autouse=True)
def _loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "quiet", False)
