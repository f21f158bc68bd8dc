"""What surrounds a command: terminals without UTF-8, folders that are in use or hold something else, odd models."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from quadform.cli import main
from quadform.core.work import Work

SMALL = ["attention", "--tokens", "2", "--d-model", "2", "--vary", "none", "--quiet"]


def _run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from quadform.cli import main; sys.exit(main())", *words]
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    return subprocess.run(command, capture_output=True, encoding=encoding, env={**os.environ, **environment})


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_utf8(encoding: str, tmp_path: Path) -> None:
    """Letters that stdout lacks are written as escapes; the answer and its exit code stay."""
    folder = tmp_path / "가 나"
    done = _run([*SMALL, "--out", str(folder)], PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\uac00" in done.stdout
    told = _run([*SMALL, "--out", str(folder), "--json"], PYTHONIOENCODING=encoding)
    assert json.loads(told.stdout)["saved"] == str(folder)


def test_the_next_command_can_be_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command an answer names is one a shell reads back as the folder, blanks and all."""
    folder = tmp_path / "my own run"
    assert main([*SMALL, "--out", str(folder)]) == 0
    command = capsys.readouterr().out.rsplit("`", 2)[1]
    assert shlex.split(command) == ["quadform", "report", str(folder)]


def test_a_folder_is_written_by_one_command_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second command is refused while the first runs, and nothing is left of the lock when it ends."""
    from quadform.cli.folders import let_go, writable
    from quadform.cli.options import Output

    writable(Output(out=str(tmp_path / "run")))
    try:
        second = _run([*SMALL, "--out", str(tmp_path / "run")])
    finally:
        let_go()
    assert second.returncode == 2
    assert "is being written by another quadform command" in second.stderr
    assert os.listdir(tmp_path / "run") == []
    assert main([*SMALL, "--out", str(tmp_path / "run")]) == 0
    assert {p.split("-")[0] for p in os.listdir(tmp_path / "run")} == {"record.json", "tensors"}


def test_an_empty_folder_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--out", ""]) == 2
    assert capsys.readouterr().err == "quadform: `--out` is empty. Name a folder, such as `--out runs/NAME`.\n"


@pytest.fixture
def gpt(tmp_path: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    return tmp_path / "gpt"


@pytest.mark.parametrize("verb", ["spectrum", "lr"])
def test_the_model_is_not_written_over(verb: str, gpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--out` naming the model's own folder leaves its config.json as it was."""
    before = {path.name: path.read_bytes() for path in gpt.iterdir()}
    assert main([verb, str(gpt), "--length", "4", "--out", str(gpt), "--quiet"]) == 2
    assert "Choose another folder for the results." in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in gpt.iterdir()} == before


def test_more_tokens_than_positions(gpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spectrum", str(gpt), "--length", "9", "--quiet"]) == 2
    assert "cannot be run on 9 tokens" in (told := capsys.readouterr().err)
    assert "It has 8 positions: give a smaller length." in told


def test_a_file_of_the_model_is_not_the_model(gpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "model.safetensors"):
        assert main(["spectrum", str(gpt / name)]) == 2
        assert f"is a file. Give the folder of the model: `{gpt}`." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--scale", "1e100", "--attention", "linear", "--vary", "none"], "exceeds the range of torch.float64"),
        (["--temperature", "1e-300", "--vary", "none"], "temperature 1e-300 is too small"),
        (["--vary", "scale=1:1e300:3"], "at scale 1e+300 the curvature exceeds the range of torch.float64"),
    ],
)
def test_numbers_beyond_floating_point_are_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attention", "--tokens", "3", "--d-model", "2", "--quiet", *words]) == 2
    assert text in capsys.readouterr().err


def test_a_check_that_fails_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Closed form and autodiff apart, or not comparable: 3; float32 has its own limit."""
    from quadform.applications.attention import measure
    from quadform.core.record import Estimate

    for error, kind, code in [(1e-7, "float64", 3), (float("nan"), "float64", 3), (1e-7, "float32", 0)]:
        monkeypatch.setattr(measure, "autodiff_error", lambda *_, e=error: Estimate(e))
        assert main([*SMALL, "--dtype", kind]) == code


def test_slopes_that_underflow_are_not_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a block underflows along the sweep there is no exponent; 0 is for blocks that are exactly 0."""
    assert main(["attention", "--vary", "scale=1e-300:1:5", "--quiet"]) == 0
    query, _, value = (line.split() for line in capsys.readouterr().out.splitlines()[3:6])
    assert (query[1:3], value[-2:]) == (["-", "[6]"], ["0", "[0]"])


@pytest.mark.parametrize(
    "words",
    [
        ["lr", "new:pre-ln", "--lr", "inf"],
        ["lr", "new:pre-ln", "--weight-decay", "nan"],
        ["why", "new:pre-ln", "--lr", "inf"],
        ["compare", "--lr", "inf"],
    ],
)
def test_rates_are_finite(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "finite" in capsys.readouterr().err


@pytest.mark.parametrize("said", [{}, {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "3"}])
def test_threads_sleep_while_they_wait(said):
    """Before torch is loaded OpenMP is told to let its threads sleep, unless the user has said otherwise."""
    code = (
        "import os, sys; from quadform.cli.main import main; main(['ls', 'data', '--quiet']);"
        "print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('OMP_NUM_THREADS'))"
    )
    own = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    done = subprocess.run([sys.executable, "-c", code], env=own | said, capture_output=True, text=True, timeout=60)
    policy, threads = done.stdout.splitlines()[-1].split()
    assert policy == said.get("OMP_WAIT_POLICY", "PASSIVE")
    assert threads == said["OMP_NUM_THREADS"] if said else int(threads) >= 1


# --- what a folder already holds --------------------------------------------------------------------------------------
MODEL = "new:pre-ln,depth=1,d_model=4,heads=2"
QUICK = ["--data", "add:digits=1", "--batch-size", "2", "--quiet"]
SPECTRUM = [*QUICK, "--top", "1", "--products", "4", "--blocks", "none"]


def _kept(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A training run of two steps."""
    run = tmp_path / "trained"
    shape = ["--design", "pre-ln", "--depth", "1", "--d-model", "4", "--heads", "2", "--steps", "2", "--test", "0"]
    assert main(["train", "--data", "add:digits=1", *shape, "--batch-size", "2", "--quiet", "--out", str(run)]) == 0
    return run


def test_a_folder_keeps_what_another_verb_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another kind of result, or one about another model, is refused before the work; what is there stays."""
    folder = tmp_path / "a result"
    assert main([*SMALL, "--out", str(folder), "--quiet"]) == 0
    before = _kept(folder)
    for words in (
        ["spectrum", MODEL, *SPECTRUM],
        ["lr", MODEL, *QUICK],
        ["why", MODEL, *QUICK],
        ["compare", "--budget", "1s", "--quiet"],
        ["signal", "pre-ln", "--quiet"],
        ["verify", "--quiet"],
    ):
        capsys.readouterr()
        assert main([*words, "--out", str(folder)]) == 2, words
        said = capsys.readouterr()
        assert re.fullmatch(
            rf"quadform: `{folder}` holds a result of `quadform attention` \([-\d]+ \d\d:\d\d\), which is kept\."
            rf" Choose another folder: `--out '{folder}-{words[0]}'`\.\n",
            said.err,
        ), said.err
        assert _kept(folder) == before


def test_another_model_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same verb on the same model replaces its result and says so; on another model it is refused."""
    folder = tmp_path / "s"
    loud = [w for w in SPECTRUM if w != "--quiet"]
    assert main(["spectrum", MODEL, *SPECTRUM, "--out", str(folder)]) in (0, 3)
    capsys.readouterr()
    assert main(["spectrum", MODEL, *loud, "--seed", "1", "--out", str(folder)]) in (0, 3)
    assert "holds the same of " in capsys.readouterr().err
    assert json.loads((folder / "record.json").read_text())["made"]["seed"] == 1
    before = _kept(folder)
    assert main(["spectrum", MODEL.replace("pre", "post"), *SPECTRUM, "--out", str(folder)]) == 2
    assert f"`{folder}` holds a result about `{MODEL}` (" in capsys.readouterr().err
    assert _kept(folder) == before


def test_a_training_run_is_no_place_for_a_result(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`lr RUN --out RUN` is refused; where an earlier version wrote one, `ls runs` shows both."""
    capsys.readouterr()
    assert main(["lr", str(trained), "--verify", "0", "--batch-size", "2", "--quiet", "--out", str(trained)]) == 2
    said = capsys.readouterr().err
    other = f"Choose another folder: `--out {trained}-lr`."
    assert said == f"quadform: `{trained}` holds a training run, which is kept. {other}\n"
    aside = trained.parent / "aside"
    assert main([*SMALL, "--out", str(aside), "--quiet"]) == 0
    for file in aside.iterdir():
        file.rename(trained / file.name)
    capsys.readouterr()
    assert main(["ls", "runs", str(trained), "--json"]) == 0
    assert [row["kind"] for row in json.loads(capsys.readouterr().out)["runs"]] == ["attention", "training run"]


def test_a_study_keeps_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A study is not measured into a folder that holds a result, nor into the study of another model."""
    folder = tmp_path / "r"
    assert main([*SMALL, "--out", str(folder), "--quiet"]) == 0
    before = _kept(folder)
    assert main(["report", MODEL, "--out", str(folder), "--quiet"]) == 2
    assert f"`{folder}` holds a result of `quadform attention`" in capsys.readouterr().err
    assert _kept(folder) == before
    other = tmp_path / "s"
    Work(other).begin({"verb": "report", "model": "one", "sections": ["lr"]})
    assert main(["report", MODEL, "--out", str(other), "--quiet"]) == 2
    assert "holds a study of `one`, which is kept." in capsys.readouterr().err
    assert main(["lr", MODEL, *QUICK, "--out", str(other)]) == 2
    assert "holds a study of `one`, which is kept." in capsys.readouterr().err
