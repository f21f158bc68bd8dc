"""Does quadform work with this Python and this torch? The table in docs/support.md, cell by cell.

    python benchmarks/support.py python3.12 2.12.1+cpu [--smoke] [--index URL]    one cell
    python benchmarks/support.py all [--build +cpu] [--smoke] [--index URL]       every cell that can be installed
    python benchmarks/support.py table                                            write the table anew

A cell makes a virtual environment, installs that torch and this checkout, and runs `quadform verify` and a sample of
the tests (`--smoke`: a few of them). The result goes to benchmarks/records/support.json and to the table. Of torch the
exact build is asked for, such as `2.12.1+cpu`, because a plain version may bring a build with gigabytes of packages
(`--build ""` takes it); `--index` names a package index that has it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "records" / "support.json"
PAGE = ROOT / "docs" / "support.md"
PYTHONS, TORCHES = ("3.11", "3.12", "3.13"), ("2.11.0", "2.12.1", "2.13.0")
#: What depends most on torch and on Python: operators, derivatives, patches of attention, files, the command line.
SAMPLE = [
    "tests/core",
    "tests/theory/test_attention_layer.py",
    "tests/curvature/test_curvature.py",
    "tests/curvature/test_torch_losses.py",
    "tests/curvature/test_routes.py",
    "tests/estimate/test_eigenpairs.py",
    "tests/test_trap_hessian.py",
    "tests/test_imports.py",
]
#: The few that run in a minute.
SMOKE = [
    "tests/core/test_operator.py",
    "tests/core/test_record.py",
    "tests/curvature/test_torch_losses.py",
    "tests/test_trap_hessian.py",
]
#: What the table says of a cell whose tests passed.
WORDS = {"sample": "checked", "smoke": "smoke test"}
NEEDED = ["pytest", "pytest-xdist", "hypothesis", "jaxtyping", "mpmath"]


def pins() -> str:
    """constraints.txt without torch and what is built for one torch alone."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if not re.match(r"(torch|triton)==", line)) + "\n"


def check(python: str, torch: str, index: str | None, tests: str) -> dict[str, object]:
    """The row of the record; ends with a sentence where the environment cannot be made."""
    folder = ROOT / "build" / "support" / f"{Path(python).name}-torch{torch}"
    run([python, "-m", "venv", "--clear", str(folder)])
    there = str(folder / "bin" / "python")
    (folder / "pins.txt").write_text(pins())
    pip = [there, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    more = ["--extra-index-url", index] if index else []
    if subprocess.run([*pip, *more, f"torch=={torch}"]).returncode:
        sys.exit(f"no torch {torch} for {python} in this package index; name one that has it with --index URL")
    run([*pip, "-c", str(folder / "pins.txt"), f"torch=={torch}", "-e", f"{ROOT}[cli,report]", *NEEDED])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    verified = subprocess.run([there, "-m", "quadform", "verify"], cwd=ROOT, env=env).returncode == 0
    tested = subprocess.run(
        [there, "-m", "pytest", "-n", "0", *(SMOKE if tests == "smoke" else SAMPLE)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    print(tested.stdout)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", tested.stdout)}
    versions = "import platform, torch; print(platform.python_version(), torch.__version__)"
    found = subprocess.run([there, "-c", versions], capture_output=True, text=True, check=True).stdout.split()
    ok = verified and tested.returncode == 0
    day = datetime.now(UTC).date().isoformat()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    of = {"python": found[0], "torch": found[1], "day": day, "commit": commit.strip()}
    return {**of, "ran": tests, "ok": ok, "verified": verified, "tests": counts}


def run(words: list[str]) -> None:
    """A step that must succeed."""
    if subprocess.run(words).returncode:
        sys.exit(f"failed: {' '.join(words)}")


def keep(row: dict[str, object]) -> None:
    """Put a row into the record, and the record into the table."""
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    rows = [r for r in rows if (r["python"], r["torch"]) != (row["python"], row["torch"])]
    RECORD.write_text(json.dumps([*rows, row], indent=1) + "\n")
    write_table()
    print(f"Python {row['python']}, torch {row['torch']}: {'works' if row['ok'] else 'does not work'}; {row['tests']}")


def minor(version: str) -> str:
    """3.11.7 -> 3.11."""
    return ".".join(version.split(".")[:2])


def table() -> str:
    """The table of the record: `checked`, `smoke test`, `fails`, or `not checked`."""
    rows = json.loads(RECORD.read_text())
    found = {(minor(r["python"]), minor(r["torch"])): WORDS[r["ran"]] if r["ok"] else "fails" for r in rows}
    heads = [minor(t) for t in TORCHES]
    lines = ["| | " + " | ".join(f"torch {t}" for t in heads) + " |", "|---" * (len(heads) + 1) + "|"]
    lines += [f"| Python {p} | " + " | ".join(found.get((p, t), "not checked") for t in heads) + " |" for p in PYTHONS]
    return "\n".join(lines)


def write_table() -> None:
    PAGE.write_text(re.sub(r"^\| \| torch .*?(?=\n\n)", table(), PAGE.read_text(), count=1, flags=re.M | re.S))


def everything(build: str, more: list[str]) -> bool:
    """Every cell whose Python and torch are to be had; each in a process of its own."""
    fine = True
    for version in PYTHONS:
        python = shutil.which(f"python{version}")
        if python is None or subprocess.run([python, "-c", "pass"], capture_output=True).returncode:
            print(f"Python {version}: not here")
            continue
        for torch in TORCHES:
            code = subprocess.run([sys.executable, __file__, python, torch + build, *more]).returncode
            fine &= code != 3
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="an interpreter (python3.12), `all`, or `table`")
    parser.add_argument("torch", nargs="?", help="the exact build: 2.12.1+cpu")
    parser.add_argument("--index", help="a further package index")
    parser.add_argument("--smoke", action="store_true", help="a few tests alone, about a minute")
    parser.add_argument("--build", default="+cpu", help="all: the ending of the builds of torch")
    asked = parser.parse_args()
    if asked.python == "table":
        return write_table()
    if asked.python == "all":
        more = [*(["--smoke"] if asked.smoke else []), *(["--index", asked.index] if asked.index else [])]
        sys.exit(0 if everything(asked.build, more) else 3)
    if asked.torch is None:
        parser.error("name the build of torch, such as 2.12.1+cpu")
    row = check(asked.python, asked.torch, asked.index, "smoke" if asked.smoke else "sample")
    keep(row)
    sys.exit(0 if row["ok"] else 3)


if __name__ == "__main__":
    main()
