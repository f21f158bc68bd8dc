"""What is built and published: a wheel without the records of the repository, which runs outside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

import quadform
import surface

ROOT = Path(__file__).resolve().parent.parent
#: Kinds of files a wheel has, and its most bytes.
KINDS = {".py", ".typed", ".json", ".js", ".j2", ".css", ""}
MOST = 1_600_000


@dataclass(frozen=True)
class Built:
    """A wheel, a source distribution, and the folder the wheel is installed in; `run` starts a program there."""

    wheel: Path
    sdist: Path
    installed: Path

    def run(self, *words: str) -> str:
        elsewhere = self.installed.parent / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        env = {**os.environ, "PYTHONPATH": str(self.installed)}
        done = subprocess.run(words, capture_output=True, text=True, cwd=elsewhere, env=env, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def files(self) -> list[str]:
        return [name for name in zipfile.ZipFile(self.wheel).namelist() if name.startswith("quadform/")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", folder / "installed", wheel], check=True, capture_output=True)
    return Built(wheel, sdist, folder / "installed")


def test_the_wheel_holds_the_library_and_nothing_else(built: Built) -> None:
    """No tensors, no records, no tables of tests, no scripts; one version number; at most 1.5 MB."""
    files = [PurePosixPath(name) for name in built.files()]
    assert {file.suffix for file in files} <= KINDS
    assert [str(file) for file in files if file.suffix == ".json"] == ["quadform/experiments/recorded.json"]
    assert not [file for file in files if file.name in ("verdicts.json", "record.json")]
    assert "quadform/py.typed" in built.files()
    assert built.wheel.name == f"quadform-{quadform.__version__}-py3-none-any.whl"
    assert built.wheel.stat().st_size < MOST


def test_the_wheel_has_every_file_of_the_package(built: Built) -> None:
    """Templates and scripts of the pages too."""
    here = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src").rglob("*") if p.is_file()}
    assert {name for name in here if "__pycache__" not in name} == set(built.files())


def test_the_source_distribution_has_what_its_tests_read(built: Built) -> None:
    """Tests, documents, benchmarks and the files beside them."""
    with tarfile.open(built.sdist) as packed:
        top = {PurePosixPath(name).parts[1] for name in packed.getnames() if "/" in name}
    wanted = {"src", "tests", "docs", "benchmarks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"}
    assert wanted | {"LICENSE", "constraints.txt", "pyproject.toml"} <= top


def test_an_installed_command_answers(built: Built) -> None:
    """`quadform attention` and the list of experiments, away from the repository."""
    command = str(built.installed / "bin" / "quadform")
    found = json.loads(built.run(command, "attention", "--tokens", "4", "--d-model", "2", "--json"))
    assert found["ok"]
    listed = json.loads(built.run(command, "ls", "experiments", "--json"))
    assert len(listed["experiments"]) == len(quadform.experiments.CATALOG)


def test_every_public_name_is_in_the_wheel(built: Built) -> None:
    """Names of documents and of every `__all__`, from the installed files."""
    where = built.run(sys.executable, "-P", surface.__file__)
    assert Path(where.strip()).is_relative_to(built.installed)
