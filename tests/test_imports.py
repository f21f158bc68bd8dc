"""`import quadform` and `--help` cost nothing: no torch, no figures, no web stack, under half a second of CPU."""

from __future__ import annotations

import os
import pkgutil
import resource
import subprocess
import sys
from types import ModuleType

import pytest

import quadform
import surface
from quadform.cli.main import VERBS

HEAVY = ("torch", "numpy", "scipy", "altair", "vl_convert", "jinja2", "triton", "transformers", "starlette", "uvicorn")


def loaded(code: str) -> set[str]:
    """The heavy packages in `sys.modules` after running `code` in a fresh interpreter."""
    tail = f"\nimport sys; print('HEAVY', *(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.strip().splitlines()[-1].split()[1:])


def test_import_is_light() -> None:
    """`import quadform` loads none of the heavy packages."""
    assert loaded("import quadform") == set()


def test_configs_are_light() -> None:
    """Every config can be made without torch."""
    code = "from quadform.applications import DoctorQuestion, ReportQuestion, VerifyQuestion; VerifyQuestion()"
    assert loaded(code) == set()


@pytest.mark.parametrize(
    "words", [["--help"], *([verb, "--help"] for verb in VERBS), ["atention"], ["report", "--opn"]]
)
def test_help_and_refusals_are_light(words: list[str]) -> None:
    """Help, and the refusal of a typo, load none of the heavy packages."""
    assert loaded(f"from quadform.cli import main; main({words!r})") == set()


def test_the_assertion_can_fail() -> None:
    """A module that does import torch is seen to do so."""
    assert "torch" in loaded("import quadform.core.record")


@pytest.mark.parametrize("words", [["--help"], ["attention", "--help"]])
def test_help_is_fast(words: list[str]) -> None:
    """`--help` takes under 0.5 s of CPU, interpreter start included (best of three)."""
    code = "from quadform.cli import main; main()"

    def cpu() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, env=dict(os.environ))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu() for _ in range(3)) < 0.5


def test_public_names() -> None:
    """At most 44 public names besides the rooms, and every one of them is there."""
    found = {name: getattr(quadform, name) for name in quadform.__all__}
    assert len([name for name, value in found.items() if not isinstance(value, ModuleType)]) <= 44


def test_every_room_is_a_public_name() -> None:
    """`qf.estimate` needs no import of its own; no more does any other room."""
    rooms = {module.name for module in pkgutil.iter_modules(quadform.__path__)} - {"__main__"}
    assert {"estimate", "report", "experiments"} <= rooms <= set(quadform.__all__)


def test_what_the_documents_name_is_importable() -> None:
    """Every `qf.x`, every import line of a document and every name of an `__all__`, in a fresh interpreter."""
    assert "quadform.spectrum" in surface.named_in_documents()
    assert any("quadform.estimate" in line for line in surface.imports_of_documents())
    done = subprocess.run([sys.executable, "-P", surface.__file__], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
