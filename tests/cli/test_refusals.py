"""Bad input: one line that says what was asked, what was got and what to do; exit code 2; no traceback."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import quadform
from quadform.cli import main

REFUSED = [
    (["atention"], "`atention` is not a verb of quadform. Did you mean `attention`? See `quadform --help`."),
    (["xyzzy"], "`xyzzy` is not a verb of quadform. See `quadform --help`."),
    (["--json"], "`--json`: flags come after the verb (`quadform attention --json`). See `quadform --help`."),
    (
        ["attention", "--token", "3"],
        "`--token` is not a flag of `quadform attention`. Did you mean `--tokens`? See `quadform attention --help`.",
    ),
    (
        ["attention", "-json"],
        "`-json` is not a flag of `quadform attention`. Did you mean `--json`? See `quadform attention --help`.",
    ),
    (
        ["attention", "--attention", "sofmax"],
        "`--attention sofmax` is not one of `softmax`, `linear`. Did you mean `softmax`?"
        " See `quadform attention --help`.",
    ),
    (
        ["attention", "--dtype=flaot64"],
        "`--dtype flaot64` is not one of `float32`, `float64`. Did you mean `float64`?"
        " See `quadform attention --help`.",
    ),
    (
        ["attention", "--tokens"],
        "`--tokens` needs a value: a whole number. See `quadform attention --help`.",
    ),
    (
        ["attention", "--tokens", "--json"],
        "`--tokens` needs a value: a whole number. See `quadform attention --help`.",
    ),
    (
        ["attention", "--tokens", "2.5"],
        "`--tokens 2.5`: `--tokens` takes a whole number. See `quadform attention --help`.",
    ),
    (["attention", "--scale", "big"], "`--scale big`: `--scale` takes a number. See `quadform attention --help`."),
    (
        ["attention", "--json=yes"],
        "`--json` is a switch and takes no value; got `--json=yes`. See `quadform attention --help`.",
    ),
    (
        ["attention", "8"],
        "`8` is not understood: `quadform attention` takes flags only. See `quadform attention --help`.",
    ),
    (["attention", "--tokens", "-3"], "tokens=-3: give at least 1."),
    (["attention", "--d-k", "0"], "d_k=0: give at least 1."),
    (["attention", "--scale", "nan"], "scale=nan: give a finite number."),
    (["attention", "--temperature", "0"], "temperature=0: give a number above 0."),
    (
        ["attention", "--vary", "scal=1:2"],
        "a sweep cannot vary 'scal'; choose from scale. Did you mean `scale`?",
    ),
    (
        ["attention", "--vary", "scale=1"],
        "'scale=1' is not a sweep. Write `scale=0.01:30` or `scale=0.01:30:25` (from, to, points), or `none`.",
    ),
    (
        ["attention", "--vary", "scale=3:1"],
        "a sweep runs from a positive number to a larger one; got 3:1.",
    ),
    (["attention", "--vary", "scale=1:3:1"], "a sweep has at least 2 points; got 1."),
    (
        ["attention", "--attention", "linear", "--mask", "causal"],
        "linear attention has no masked closed form. Use mask='none' or attention='softmax'.",
    ),
    (
        ["attention", "--attention", "linear", "--factor", "single"],
        "linear attention with one matrix W_QK has no closed form here. Use factor='qk'.",
    ),
    (["attention", "--device", "gpu"], "'gpu' is not a device. Use cpu, cuda or cuda:0."),
    (["attention", "--device", "meta"], "device=meta: float64 and eigenvalues need cpu or cuda."),
    (["verify", "--shapes", "0"], "shapes=0: give at least 1."),
]


@pytest.mark.parametrize(("words", "text"), REFUSED, ids=[" ".join(w) for w, _ in REFUSED])
def test_refusal(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exact text on stderr, nothing on stdout, exit code 2."""
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err == f"quadform: {text}\n"
    assert said.out == ""


def test_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    """A Hessian that does not fit is refused before anything is computed, with the size that does fit."""
    assert main(["attention", "--d-model", "5000"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("quadform: The exact Hessian of 75,000,000 parameters with its eigenvalues needs 270 PB;")
    assert "parameters fit here: lower d_model" in said


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """`--debug` adds the traceback; without it there is none (test_refusal)."""
    assert main(["attention", "--tokens", "-3", "--debug"]) == 2
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert said.endswith("quadform: tokens=-3: give at least 1.\n")


def test_underscores_and_equals_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """`--d_k=2` is `--d-k 2`."""
    assert main(["attention", "--d_k=2", "--tokens=2", "--d-model", "2", "--vary=none", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["d_k"] == 2


#: Rooms whose verbs still have their own texts.
_NOT_YET = ("study",)


def test_errors_of_the_library_name_no_flags() -> None:
    """Who calls a function has fields, not flags: no text that is raised outside `cli/` holds `--something`."""
    root = Path(quadform.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] == "cli" or path.parent.name in _NOT_YET:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                said = re.sub("`quadform [^`]*`", "", " ".join(texts))  # a whole command may be told
                found += [f"{path.name}: {said}"] if re.search(r"(?<![\w-])--[a-z]", said) else []
    assert found == []


# --- files ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    words = [
        "attention",
        "--tokens",
        "2",
        "--d-model",
        "2",
        "--vary",
        "none",
        "--json",
        "--quiet",
        "--out",
        str(folder),
    ]
    assert main(words) == 0
    return folder


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    return said.err


def test_missing_run_names_what_is_there(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is not there: the nearest one that is."""
    said = refused(["report", str(run_folder.parent / "smal")], capsys)
    assert f"Did you mean `{run_folder}`?" in said


def test_folder_without_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that holds no record."""
    assert f"`{tmp_path}` holds neither a record nor a model" in refused(["report", str(tmp_path)], capsys)


def test_foreign_and_damaged_files(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Truncated JSON, another program's JSON, a newer schema, a damaged tensor file: each says which it is."""
    text = (run_folder / "record.json").read_text()
    (tensors,) = run_folder.glob("*.safetensors")
    newer = json.dumps(json.loads(text) | {"schema": 999})
    cases = {
        "is truncated or not JSON": (text[: len(text) // 2], tensors.read_bytes()),
        "is not a quadform record": ('{"a": 1}', tensors.read_bytes()),
        "was written by a newer quadform": (newer, tensors.read_bytes()),
        "is damaged or truncated": (text, tensors.read_bytes()[:-8]),
    }
    for words, (body, blob) in cases.items():
        (tmp_path / "record.json").write_text(body)
        (tmp_path / tensors.name).write_bytes(blob)
        assert words in refused(["report", str(tmp_path)], capsys)


def test_binary_file_instead_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no text at all."""
    path = tmp_path / "record.json"
    path.write_bytes(b"\x80\x04\x95\xff\xfe")
    assert "cannot be read as a record" in refused(["report", str(path)], capsys)


def test_unwritable_folder_is_told_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--out` below a plain file: refused at once."""
    (tmp_path / "file").write_text("")
    said = refused(["attention", "--out", str(tmp_path / "file" / "run")], capsys)
    assert said.startswith(f"quadform: `--out {tmp_path}/file/run` cannot be written: ")


def test_what_was_typed_cannot_speak_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape codes, line breaks and separators in a value are shown, not obeyed: the refusal stays one line."""
    said = refused(["verify", "--device", "\x1b[31mred\x1e\nline"], capsys)
    assert said == "quadform: '\\x1b[31mred\\x1e\\nline' is not a device. Use cpu, cuda or cuda:0.\n"
