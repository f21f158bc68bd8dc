"""What the verbs print, where it goes, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import quadform
from quadform.applications.opening import Numerics
from quadform.cli import main
from quadform.cli.main import GROUPS, VERBS, fields_of
from quadform.cli.options import Output
from quadform.cli.parse import check_words
from quadform.core import progress
from quadform.core.errors import MissingExtra
from quadform.core.record import Record

SMALL = ["--tokens", "8", "--d-model", "4", "--vary", "scale=0.01:30:7"]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
COMMAND = [sys.executable, "-c", "import sys; from quadform.cli import main; sys.exit(main())"]


@pytest.fixture(autouse=True)
def _loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "quiet", False)


def strict(text: str) -> dict:
    """JSON without NaN or Infinity, and nothing after it."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


# --- attention ------------------------------------------------------------------------------------------------------
def test_attention_prints_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Headline, table of exponents beside the paper's, spectrum, far end: in the order of the mock-up."""
    assert main(["attention", *SMALL]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert re.fullmatch(
        r"exact Hessian, 48 parameters, \S+ m?s per Hessian, autodiff differs by \de-1\d +\[exact\]", lines[0]
    )
    assert lines[1].startswith("growth of each block's norm with the input scale (fitted 0.01-0.")
    cells = {line.split()[0]: line.split()[1:] for line in lines[2:] if line.split()[0] in ("query", "key", "value")}
    assert cells["query"] == ["6.0[6]", "6.0[6]", "4.0[4]", "5.0[5]", "3.0[3,5]", "3.0[3]"]
    assert cells["key"] == ["6.0[6]", "4.0[4]", "5.0[5]", "3.0[3]"]
    assert cells["value"] == ["2.0[2]", "0", "[0]"]
    assert re.search(r"^scale 1: lambda_max \S+, lambda_min -\S+, \d+ % of eigenvalues negative$", said.out, re.M)
    state = r"\(entropy 0\.\d\d; the widest query spreads \S+\)"
    assert re.search(rf"^scale 30: attention is (not )?one-hot {state}: query curvature ", said.out, re.M)
    assert all(line == line.rstrip() for line in lines)
    assert "nothing was saved; `--out runs/NAME` keeps it" in said.err


def test_attention_json_is_strict_and_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json`: stdout is one JSON object with every number and its tag; progress stays on stderr."""
    assert main(["attention", *SMALL, "--json"]) == 0
    said = capsys.readouterr()
    body = strict(said.out)
    assert body["kind"] == "attention"
    assert body["inputs"]["vary"] == {"scale": [0.01, 30.0, 7]}
    assert body["scalars"]["lambda_max"]["kind"] == "exact"
    assert body["scalars"]["slope/outer/W_Q,W_Q"]["error"] is not None
    assert len(body["tensors"]["eigenvalues"]["values"]) == 48
    assert body["saved"] is None
    assert "attention  " in said.err


def test_infinite_values_are_strict_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step ceiling of infinity (no positive curvature) is still strict JSON."""
    import torch

    from quadform.applications.attention import measure

    zeros = measure.spectrum_numbers(torch.zeros(3, dtype=torch.float64), torch.zeros(3, 3))
    assert zeros["ceiling_sgd"].value == float("inf")
    monkeypatch.setattr(measure, "spectrum_numbers", lambda *_: zeros)
    assert main(["attention", "--tokens", "2", "--d-model", "2", "--vary", "none", "--json"]) == 0
    assert strict(capsys.readouterr().out)["scalars"]["ceiling_sgd"]["value"] == {"float": "inf"}


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """`--quiet`: nothing on stderr."""
    assert main(["attention", *SMALL, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_attention_out_is_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--out` keeps a record that loads, and says what to do next."""
    folder = tmp_path / "a" / "b"
    assert main(["attention", *SMALL, "--out", str(folder), "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"saved {folder}; next: `quadform report {folder}`"
    assert Record.load(folder).tensors["H_o"].shape == (48, 48)


def test_same_seed_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs with one seed agree to the last digit; another seed does not."""

    def eigenvalues(seed: str) -> list[float]:
        assert main(["attention", *SMALL, "--json", "--seed", seed]) == 0
        return json.loads(capsys.readouterr().out)["tensors"]["eigenvalues"]["values"]

    assert eigenvalues("1") == eigenvalues("1") != eigenvalues("2")


# --- report ---------------------------------------------------------------------------------------------------------
def test_report_of_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No argument: trains, measures, keeps every stage in runs/default, writes the file, last line `report: PATH`."""
    from quadform.applications.study import sections as study

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "DEFAULT_MODEL", {"design": "pre-ln", "depth": 1, "d_model": 8, "heads": 2})
    monkeypatch.setattr(study, "DEFAULT_STEPS", 20)
    assert main(["report", "--figures", "pictures", "--quiet", "--batch-size", "2", "--batches", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "report: runs/default/report.html"
    assert said[0].startswith("Learning-rate ceiling:")
    kinds = {
        "attention": "attention",
        "lr": "step-size",
        "point": "point",
        "prune": "prune",
        "signal": "signal",
        "spectrum": "spectrum",
    }
    assert all(Record.load(Path("runs/default") / n).kind == k for n, k in kinds.items())
    assert len(list(Path("pictures").glob("*/*.svg"))) >= 10
    page = (tmp_path / "runs/default/report.html").read_bytes()
    assert page.lstrip().lower().startswith(b"<!doctype html>")
    assert len(page) <= 3_000_000


def test_report_in_the_time_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--dry-run` plans and writes nothing; `--max-time` draws what there is and names the rest; `--resume` ends it."""
    monkeypatch.chdir(tmp_path)
    probe = ["--data", "add:digits=1", "--batch-size", "2", "--batches", "1", "--quiet"]
    words = ["report", "new:pre-ln,depth=1,d_model=8,heads=2", *probe, "--out", "run"]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"plan for new:\S+: 6 stages, about [\d,]+ products, .* in all, .* beside the model", said[0])
    assert [line.split()[0] for line in said[1:]] == ["signal", "lr", "spectrum", "point", "prune", "why"]
    assert list(tmp_path.iterdir()) == []
    assert main([*words, "--max-time", "0.001s"]) == 3
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == ["PARTIAL: not measured to the end: lr, spectrum, point, prune, why", "report: run/report.html"]
    page = Path("run/report.html").read_text()
    assert "Not measured, or not finished: learning rate, spectrum, kind of point, what can be taken away" in page
    for lang, words_ in (("en", "This report is incomplete"), ("ko", "이 보고서는 아직 완성되지 않았습니다")):
        assert main(["report", "run", "--quiet", "--lang", lang]) == 3  # redrawn, and still not whole
        assert words_ in Path("run/report.html").read_text()
    capsys.readouterr()
    assert main(["report", "run", *probe, "--resume", "--json"]) == 0
    assert strict(capsys.readouterr().out)["inputs"]["missing"] == []
    assert "This report is incomplete" not in Path("run/report.html").read_text()
    assert main(["report", "run", "--dry-run"]) == 0
    assert capsys.readouterr().out == "run: 6 records there; redrawn, nothing is computed\n"


def test_report_redraws_without_computing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a RUN nothing is computed: the applications are made to fail and the report is still written."""
    folder = tmp_path / "run"
    assert main(["attention", *SMALL, "--out", str(folder), "--quiet"]) == 0
    from quadform.applications.attention.measure import AttentionMeasurement

    def never(*_: object) -> None:
        raise AssertionError("recomputed")

    monkeypatch.setattr(AttentionMeasurement, "measure", never)
    capsys.readouterr()
    assert main(["report", str(folder), "--quiet", "--json", "--out", str(tmp_path / "other"), "--lang", "ko"]) == 0
    body = strict(capsys.readouterr().out)
    page = tmp_path / "other" / "report.html"
    assert body["inputs"]["report"] == str(page)
    assert 'lang="ko"' in page.read_text()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder / 'report.html'}"


# --- verify and doctor ----------------------------------------------------------------------------------------------
def test_verify_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Closed form, autodiff and finite differences agree on this machine: exit code 0."""
    assert main(["verify", "--shapes", "6", "--largest", "4", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("all 9 checks hold.\n")
    assert "FAILED" not in said


def test_verify_sees_a_wrong_formula(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed form that is off by 1e-9 in one block makes the check fail: exit code 3, the results are kept."""
    from quadform.theory.attention import AttentionLayer

    right = AttentionLayer.functional
    monkeypatch.setattr(AttentionLayer, "functional", lambda self, a, b: right(self, a, b) + (a == "W_V") * 1e-9)
    assert main(["verify", "--shapes", "3", "--largest", "3", "--quiet", "--json"]) == 3
    body = strict(capsys.readouterr().out)
    assert body["ok"] is False
    failed = [name for name, check in body["scalars"].items() if not check["converged"]]
    assert failed == ["H_f, every block: closed form = autodiff"]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, machine, size, tools, traps; ends with what to do next."""
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for word in ("torch", "free memory", "exact Hessian, float64, cpu", "Chromium", "transformers", "LayerNorm weight"):
        assert word in said
    assert said.endswith("ready; next: `quadform verify`, `quadform report`.\n")


def test_doctor_json_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as JSON, on stdout and in a record."""
    assert main(["doctor", "--json", "--out", str(tmp_path)]) == 0
    body = strict(capsys.readouterr().out)
    assert body["ok"]
    assert body["inputs"]["findings"] == strict((tmp_path / "record.json").read_text())["inputs"]["findings"]


# --- shared ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("verb", ["attention", "report", "doctor"])
def test_every_verb_has_the_shared_flags(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`VERB --help` lists every shared flag and leaves with 0."""
    assert main([verb, "--help"]) == 0
    said = capsys.readouterr().out
    shared = {*Numerics.__dataclass_fields__, *Output.__dataclass_fields__}
    assert shared == {"seed", "dtype", "device", "out", "lang", "json", "quiet", "debug"}
    assert all(f"--{flag}" in said for flag in shared)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Without words, or with --help: the verbs and their questions."""
    assert main([]) == main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {verb}" in said for verb in ("attention", "report", "verify", "doctor"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"quadform {quadform.__version__}\n"


def test_every_verb_stands_once_in_the_list_with_an_example_that_parses() -> None:
    """`quadform --help` groups the verbs; the example of `VERB --help` is one that the verb takes."""
    listed = [name for group in GROUPS.values() for name in group]
    assert sorted(listed) == sorted(VERBS)
    for name, verb in VERBS.items():
        program, own, *words = verb.example.split()
        assert (program, own) == ("quadform", name)
        check_words(name, fields_of(name), words)
        assert len(verb.question) <= 82


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MissingExtra("Reading Hugging Face models", "gguf"), 4, "needs gguf: pip install 'quadform[hf]'"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("boom"), 1, "internal error (please report): RuntimeError: boom."),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 missing extra, 130 interrupted, 1 unexpected; one line, no traceback."""
    from quadform.applications.doctor.measure import DoctorMeasurement

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(DoctorMeasurement, "measure", fail)
    assert main(["doctor"]) == code
    said = capsys.readouterr()
    assert text in said.err
    assert "Traceback" not in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


#: Ctrl-C is ignored in what a script starts in the background (`quadform ... &`).
IN_BACKGROUND = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
#: Python drops a Ctrl-C that comes while it lets go of the lock of a module: everything is loaded before the signal.
LOADED = "import quadform.applications.study.measure, quadform.applications.verify, quadform.train.runs; "


@pytest.mark.parametrize(
    ("before", "stop", "code", "told"),
    [
        ("", signal.SIGINT, 130, "interrupted"),
        ("", signal.SIGTERM, 143, "terminated"),
        (IN_BACKGROUND, signal.SIGTERM, 143, "terminated"),
    ],
)
def test_stopped_from_outside(before: str, stop: signal.Signals, code: int, told: str, tmp_path: Path) -> None:
    """A real signal in the middle of the work: its exit code, one line, no traceback, finished pieces are kept."""
    python, option, program = COMMAND
    words = ["verify", "--shapes", "100000", "--out", str(tmp_path), "--quiet"]
    child = subprocess.Popen(
        [python, option, before + LOADED + program, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ONE_THREAD,
    )
    try:
        while not (tmp_path / ".quadform-writing").exists():
            assert child.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)  # a few layers are examined
        child.send_signal(stop)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == code, err
    assert out == ""
    assert err == f"quadform: {told}; what was already saved is kept.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["work"]  # what is finished


def test_pipes_files_and_no_color() -> None:
    """Without a terminal: no carriage return, no escape codes, on either stream; a reader that leaves is no error."""
    done = subprocess.run([*COMMAND, "attention", *SMALL], capture_output=True, env=ONE_THREAD, timeout=120)
    assert done.returncode == 0
    for stream in (done.stdout, done.stderr):
        assert b"\r" not in stream
        assert b"\x1b" not in stream
    child = subprocess.Popen([*COMMAND, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ONE_THREAD)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.wait(timeout=120) == 0
    assert child.stderr.read() == b""
