"""Anything may be typed, and any file may be damaged: an answer or one line that says what is wrong, never a traceback.

Exit code 1 means "internal error" and fails the test; so do files left half-written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import shutil
import signal
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quadform.cli import parse
from quadform.cli.flags import command_of
from quadform.cli.main import VERBS, fields_of, main
from quadform.cli.options import Output
from quadform.core import progress
from quadform.core.errors import QuadformError
from quadform.core.record import Estimate, Provenance, Record
from quadform.core.spec import ModelConfig
from quadform.corpora.datasets import Dataset
from quadform.train.config import TrainConfig

CODES = {0, 2, 3, 4}
#: No single command may take longer (seconds of processor time); the usual one takes milliseconds.
LONGEST = 30
SPECIAL = (
    "",
    "0",
    "-1",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "1e-320",
    "½",
    "\x00",
    "🙂",
    "../..",
    "/dev/null",
    "=",
    "--",
    "-",
)
TEXTS = st.one_of(st.sampled_from(SPECIAL), st.text(max_size=8), st.integers(-3, 9).map(str), st.floats().map(str))


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Processor time is limited, and ten times as much of the clock: a busy machine is no hang."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"a command took more than {LONGEST} s")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, LONGEST), signal.SIGALRM: (signal.ITIMER_REAL, 10 * LONGEST)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def run(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    quiet = progress.quiet
    try:
        with no_hang(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    finally:
        progress.quiet = quiet
    return code, out.getvalue(), err.getvalue()


def sound(words: list[str]) -> tuple[int, str]:
    """A command ends with a known exit code, and says something in one line where it refuses."""
    code, out, err = run(words)
    assert code in CODES, (words, err)
    assert "Traceback" not in err, (words, err)
    if code in (2, 4):
        assert err.splitlines()[-1].startswith("quadform: "), (words, err)
        assert not out, (words, out)
    return code, err


def no_litter(folder: Path) -> None:
    """Nothing that a writer was in the middle of."""
    assert not [p for p in folder.rglob("*") if p.name.startswith(".") and p.name != ".gitignore"]


# --- flags ------------------------------------------------------------------------------------------------------------
def values(hint: Any) -> st.SearchStrategy[str]:
    """Words for a flag of this type: right ones and wrong ones."""
    if typing.get_origin(hint) is Literal:
        return st.one_of(st.sampled_from([str(c) for c in typing.get_args(hint)]), TEXTS)
    return TEXTS


@st.composite
def commands(draw: st.DrawFn, verb: str) -> list[str]:
    """Flags of a verb, a few at a time, in any order, some of them wrong, and words where words may stand."""
    flags = parse._flags(fields_of(verb))
    words = draw(st.lists(st.one_of(TEXTS, st.sampled_from(["new:pre-ln,depth=1", "pre-ln", "runs"])), max_size=2))
    for flag in draw(st.lists(st.sampled_from([*flags, "--nothing"]), max_size=4)):
        if flags.get(flag, bool) is bool:
            words.append(flag)
        elif draw(st.booleans()):
            words.append(f"{flag}={draw(values(flags[flag]))}")
        else:
            words += [flag, draw(values(flags[flag]))]
    return words


@pytest.mark.parametrize("verb", VERBS)
@settings(max_examples=25)
@given(data=st.data())
def test_any_flags_are_understood_or_refused(verb: str, data: st.DataObject) -> None:
    """From words to a question: a question, or a refusal of ours; nothing else comes out of the parser."""
    words = data.draw(commands(verb))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(QuadformError, SystemExit):
        command = command_of(verb, VERBS[verb].asks, VERBS[verb].opening, words)
        assert isinstance(command.device, str)
        assert isinstance(command.output, Output)


#: Commands that are small whatever a single flag says: one word more or less makes seconds of work, not minutes.
BOUNDED = {
    "attention": ["--tokens", "2", "--d-model", "2", "--vary", "none"],
    "ls": ["runs", "."],
    "verify": ["--shapes", "1", "--largest", "2"],
    "spectrum": ["new:pre-ln,depth=1,d_model=4,heads=2", "--data", "add:digits=1", "--dry-run"],
    "lr": ["new:pre-ln,depth=1,d_model=4,heads=2", "--data", "add:digits=1", "--dry-run"],
    "why": ["new:pre-ln,depth=1,d_model=4,heads=2", "--data", "add:digits=1", "--dry-run"],
    "signal": ["pre-ln", "--depths", "1", "--d-model", "4", "--heads", "2", "--tokens", "3", "--dry-run"],
    "reproduce": ["growth", "--dry-run"],
    "data": ["list"],
}
#: Flags that make work as large as their number, or open a window: their values are fuzzed above, where nothing runs.
_LARGE = ("--tokens", "--d-model", "--d-k", "--d-v", "--shapes", "--largest", "--open", "--depth", "--vary")
_LARGE += (
    "--batches",
    "--batch-size",
    "--networks",
    "--depths",
    "--length",
    "--points",
    "--dry-run",
    "--out",
    "--data",
)


@pytest.mark.parametrize("verb", BOUNDED)
@settings(max_examples=6)
@given(data=st.data())
def test_any_command_ends_well(verb: str, data: st.DataObject) -> None:
    """The whole way through `main`: a known exit code, no traceback, one line where it refuses."""
    flags = {f: h for f, h in parse._flags(fields_of(verb)).items() if f not in _LARGE}
    words = list(BOUNDED[verb])
    for flag in data.draw(st.lists(st.sampled_from(sorted(flags)), max_size=2, unique=True)):
        words += [flag] if flags[flag] is bool else [flag, data.draw(values(flags[flag]))]
    if "--debug" not in words:
        sound([verb, *words])


MODELS = [
    "new:",
    "new:pre-ln,",
    "new:pre-ln,depth=0",
    "new:pre-ln,d_model=-4",
    "new:pre-ln,heads=3,d_model=4",
    "new:pre-ln,a=b",
]
MODELS += [
    "new:pre-ln,depth=1e3",
    'new:pre-ln,depth="x"',
    "new:pre-ln,depth=[1]",
    "new:pre-ln,vocab=null",
    "",
    ".",
    "/",
]
MODELS += [
    "/dev/null",
    "\x00",
    "a/b/c/d",
    "nobody/nothing",
    "sceptr:none",
    "new:pre-ln,d_model=4,heads=2,seq_len=1",
]
DATA = [
    "add:digits=0",
    "add:digits=x",
    "add:digits=[1]",
    "add:nothing=1",
    "reverse:length=0",
    "",
    ".",
    "/dev/null",
]


@pytest.mark.parametrize("model", MODELS)
def test_models_that_cannot_be_opened(model: str) -> None:
    """MODEL is any text: refused in one line."""
    assert sound(["spectrum", model, "--dry-run", "--quiet"])[0] == 2


@pytest.mark.parametrize("verb", ["spectrum", "train", "compare"])
@pytest.mark.parametrize("data", DATA)
def test_data_that_cannot_be_opened(verb: str, data: str) -> None:
    """`--data` is any text: refused in one line, whatever the verb."""
    words = {
        "spectrum": ["new:pre-ln,depth=1,d_model=4,heads=2"],
        "train": ["--d-model", "4", "--heads", "2", "--steps", "1"],
    }
    assert sound([verb, *words.get(verb, []), "--data", data, "--dry-run", "--quiet"])[0] == 2


@pytest.fixture
def one_look(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Figures in light colours only (the dark ones read the same record), each checked once, when it is whole."""
    from altair.utils.schemapi import debug_mode

    from quadform.report import html

    monkeypatch.setattr(html, "DRAWN", html.DRAWN[:1])
    with debug_mode(False):
        yield


# --- files ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One small run folder of each kind that is read again."""
    base = tmp_path_factory.mktemp("saved")
    small = ["new:pre-ln,depth=1,d_model=4,heads=2", "--data", "add:digits=1", "--batch-size", "2", "--quiet"]
    commands_ = {
        "attention": ["--tokens", "2", "--d-model", "2", "--vary", "none", "--quiet"],
        "spectrum": [*small, "--top", "1", "--products", "4", "--blocks", "none"],
        "signal": [
            "pre-ln",
            "--depths",
            "1",
            "--d-model",
            "4",
            "--heads",
            "2",
            "--tokens",
            "3",
            "--networks",
            "1",
            "--quiet",
        ],
        "train": [
            "--data",
            "add:digits=1",
            "--d-model",
            "4",
            "--heads",
            "2",
            "--depth",
            "1",
            "--steps",
            "2",
            "--batch-size",
            "2",
        ],
    }
    commands_["train"] += ["--test", "0", "--quiet"]
    for verb, words in commands_.items():
        code, _, err = run([verb, *words, "--out", str(base / verb)])
        assert code in (0, 3), err
    return {verb: base / verb for verb in commands_}


def damaged(blob: bytes, how: str, at: int, byte: int) -> bytes:
    """Bytes cut off, flipped, replaced by another program's, or doubled."""
    place = at % max(len(blob), 1)
    return {
        "cut": blob[:place],
        "flip": blob[:place] + bytes([blob[place] ^ (byte or 1)]) + blob[place + 1 :] if blob else b"x",
        "foreign": bytes([byte]) * (place % 50),
        "twice": blob + blob[:place],
        "hole": blob[:place] + blob[place + byte :],
    }[how]


DAMAGE = st.tuples(
    st.sampled_from(["cut", "flip", "foreign", "twice", "hole"]), st.integers(0, 9999), st.integers(0, 255)
)


@pytest.mark.usefixtures("one_look")
@pytest.mark.parametrize(
    ("verb", "again"),
    [
        ("attention", ["report", "RUN", "--quiet"]),
        ("spectrum", ["report", "RUN", "--quiet", "--json"]),
        ("signal", ["ls", "runs", "RUN"]),
        ("spectrum", ["ls", "runs", "RUN", "--json"]),
        ("train", ["decode", "RUN", "1+1=", "--quiet"]),
        ("train", ["spectrum", "RUN", "--dry-run", "--quiet"]),
        ("train", ["ls", "runs", "RUN"]),
    ],
    ids=lambda p: p if isinstance(p, str) else "-".join(p[:2]),
)
@settings(max_examples=12)
@given(damage=DAMAGE, which=st.integers(0, 30))
def test_damaged_files(
    verb: str, again: list[str], saved: dict[str, Path], damage: tuple[str, int, int], which: int
) -> None:
    """Any file of a run folder with any damage: read as before, or refused in one line; never a crash, no litter."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        shutil.copytree(saved[verb], folder, ignore=shutil.ignore_patterns("report.html"))
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        path = files[which % len(files)]
        path.write_bytes(damaged(path.read_bytes(), *damage))
        sound([str(folder) if w == "RUN" else w for w in again])
        no_litter(folder)


def leaves(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to every value inside JSON."""
    if path:
        yield path
    children = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in children:
        yield from leaves(value, (*path, key))


REMOVED = object()
FOREIGN = st.sampled_from([REMOVED, None, True, -1, 0, 1e308, "", "x", [], {}, [[]], {"float": "nan"}, [1, "a"]])


@pytest.mark.usefixtures("one_look")
@pytest.mark.parametrize("verb", ["attention", "spectrum", "signal"])
@settings(max_examples=12)
@given(where=st.integers(0, 9999), value=FOREIGN)
@example(where=0, value={})
def test_records_with_foreign_values(verb: str, saved: dict[str, Path], where: int, value: Any) -> None:
    """A record of old, without a checksum: sound JSON with one value replaced by something else, or taken out."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        shutil.copytree(saved[verb], folder, ignore=shutil.ignore_patterns("report.html"))
        body = json.loads((folder / "record.json").read_text())
        del body["sha256"]
        paths = list(leaves(body))
        *head, last = paths[where % len(paths)]
        inner = body
        for key in head:
            inner = inner[key]
        if value is REMOVED:
            del inner[last]
        else:
            inner[last] = value
        (folder / "record.json").write_text(json.dumps(body))
        sound(["ls", "runs", str(folder)])
        sound(["report", str(folder), "--quiet"])
        no_litter(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", [ModelConfig, TrainConfig, Dataset], ids=lambda k: k.__name__)
@settings(max_examples=60)
@given(data=st.data())
def test_configs_from_any_json(kind: Any, data: st.DataObject) -> None:
    """A configuration read from a file: built, or refused by an error of ours."""
    whole: dict[type, dict[str, Any]] = {
        ModelConfig: _plain_model(),
        TrainConfig: TrainConfig(steps=2).to_dict(),
        Dataset: {"name": "add", "digits": 2},
    }
    body: Any = json.loads(json.dumps(whole[kind]))
    paths = list(leaves(body))
    *head, last = data.draw(st.sampled_from(paths))
    inner = body
    for key in head:
        inner = inner[key]
    inner[last] = data.draw(JSON)
    with contextlib.suppress(QuadformError):
        kind.from_dict(body)


def _plain_model() -> dict[str, Any]:
    from quadform.core.designs import design

    return design("pre-ln", depth=1, d_model=8, heads=2, vocab=12).to_dict()


MADE = Provenance.collect()


# --- records ----------------------------------------------------------------------------------------------------------
@settings(max_examples=40)
@given(shape=st.lists(st.integers(0, 4), max_size=4), inputs=st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_records_of_any_shape(shape: list[int], inputs: dict[str, Any]) -> None:
    """A record with tensors of any shape (empty ones too) and any plain inputs: kept and read back, or refused."""
    record = Record("fuzz", inputs, {"a": Estimate(1.0)}, {"t": torch.zeros(shape)}, MADE)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(QuadformError):
        record.save(folder)
        again = Record.load(folder)
        assert again.tensors["t"].shape == record.tensors["t"].shape
        assert dataclasses.asdict(again.scalars["a"]) == dataclasses.asdict(record.scalars["a"])
        no_litter(Path(folder))


def test_damaged_pieces_are_measured_again(tmp_path: Path) -> None:
    """A number that was changed in a kept piece is noticed by its checksum and not used."""
    words = ["signal", "pre-ln", "--depths", "1", "--d-model", "4", "--heads", "2", "--tokens", "3", "--networks", "2"]
    words += ["--quiet", "--json", "--out", str(tmp_path / "s"), "--resume"]
    assert run([*words, "--max-time", "0.001s"])[0] == 3
    pieces = tmp_path / "s" / "work" / "pieces.jsonl"
    (body,) = map(json.loads, pieces.read_text().splitlines())
    body["value"]["profiles"][0]["moments"]["tokens/1"]["effective_rank"][1] = 1e308
    pieces.write_text(json.dumps(body) + "\n")
    code, out, _ = run(words)
    assert code in (0, 3)
    fresh = run([w for w in words if w != "--resume"])[1]
    assert json.loads(out)["scalars"] == json.loads(fresh)["scalars"]


def test_damaged_hugging_face_folders(tmp_path: Path) -> None:
    """Whatever transformers raises on a folder it cannot read is one line of ours."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    words = ["spectrum", str(tmp_path), "--length", "4", "--batch-size", "2", "--dry-run", "--quiet"]
    assert sound(words)[0] == 0
    whole = {p: p.read_bytes() for p in tmp_path.iterdir()}
    settings_, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    text = whole[settings_].decode()
    cases = [(settings_, text[:40].encode()), (settings_, text.replace('"n_embd": 8', '"n_embd": []').encode())]
    cases += [(settings_, text.replace('"n_embd": 8', '"n_embd": 16').encode()), (weights, whole[weights][:-100])]
    cases += [(weights, b""), (settings_, text.replace('"GPT2LMHeadModel"', "[[]]").encode())]
    for path, blob in cases[:-1]:
        path.write_bytes(blob)
        code, err = sound(words)
        assert code == 2
        assert "cannot be opened as a Hugging Face model" in err
        path.write_bytes(whole[path])
    path, blob = cases[-1]
    path.write_bytes(blob)
    sound(words)
