"""Record: what is saved comes back; what is damaged, foreign or hostile is refused; a crash costs nothing old."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, fields
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import quadform
from quadform.core import record as module
from quadform.core.errors import FileError, InputError
from quadform.core.number import joint_kind
from quadform.core.record import SCHEMA, Estimate, Provenance, Record, strict_json, write_atomically

#: Written by the last version that had schema 1.
SCHEMA_1 = Path(__file__).parent / "schema-1"
MADE = Provenance(versions={"torch": "2"}, machine="Linux", made_at="2026-01-01T00:00:00+00:00", seed=3)


def make(value: float = 1.0, **tensors: torch.Tensor) -> Record:
    return Record("test", {"d": 4}, {"trace": Estimate(value)}, tensors or {"H": torch.full((2, 2), value)}, MADE)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def body(folder: Path) -> dict:
    """The contents without their checksum, as records of old have them."""
    return {k: v for k, v in json.loads((folder / "record.json").read_text()).items() if k != "sha256"}


def put(folder: Path, content: dict) -> None:
    (folder / "record.json").write_text(json.dumps(content))


# --- estimates --------------------------------------------------------------------------------------------------------
def test_estimates_carry_their_tag() -> None:
    """exact, estimate +- s.e., bound: shown with the number, never left out."""
    assert str(Estimate(2)) == "2 [exact]"
    assert str(Estimate(2.0, 0.25, "estimate", 30)) == "2 +- 0.25 [estimate]"
    assert str(Estimate(2.0, 0.25, "estimate", error_kind="residual")) == "2, residual 0.25 [estimate]"
    assert str(Estimate(2.0, kind="bound", converged=False)) == "2 [lower bound, not converged]"
    assert str(Estimate(2.0, kind="bound", side="upper")) == "2 [upper bound]"
    assert float(Estimate(torch.tensor(1.5))) == 1.5


def all_of(scalars) -> str:
    """Every field of every number, to the last bit; NaN equals itself."""
    return repr({name: asdict(e) for name, e in scalars.items()})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kind": "guess"}, "'exact', 'estimate' or 'bound'; got 'guess'"),
        ({"kind": "estimate"}, "carries its error"),
        ({"error": 0.1}, "an exact value has no error; got 0.1"),
        ({"kind": "estimate", "error": -0.1}, "not negative; got -0.1"),
        ({"kind": "estimate", "error": 0.1, "error_kind": "spread"}, "'stderr', 'residual' or 'none'; got 'spread'"),
        ({"kind": "estimate", "error": 0.1, "error_kind": "none"}, "kind 'none' has no size; got error=0.1"),
        ({"kind": "bound", "side": "left"}, "'lower' or 'upper'; got 'left'"),
        ({"kind": "estimate", "error": 0.1, "side": "lower"}, "only a bound has a side"),
    ],
)
def test_estimates_without_their_tag_are_refused(arguments: dict, text: str) -> None:
    """An estimate without error bar, an exact value with one, and unknown tags are InputErrors."""
    with pytest.raises(InputError, match=text):
        Estimate(1.0, **arguments)


def test_an_error_says_what_it_means() -> None:
    """A standard error reaches twice as far as it says, a residual as far; `stderr` is the former alone."""
    spread, within = (Estimate(2.0, 0.25, "estimate", error_kind=kind) for kind in ("stderr", "residual"))
    assert (spread.stderr, spread.reach) == (0.25, 0.5)
    assert (within.stderr, within.reach) == (None, 0.25)
    plain = Estimate(2.0)
    assert (plain.error, plain.error_kind, plain.stderr, plain.reach) == (None, "none", None, 0.0)
    assert Estimate(2.0, 0.25, "estimate").error_kind == "stderr"
    assert Estimate(2.0, 0.0).error is None


def test_joined_errors_are_a_spread_unless_all_are_residuals() -> None:
    spread, within = (Estimate(2.0, 0.25, "estimate", error_kind=kind) for kind in ("stderr", "residual"))
    assert joint_kind((spread, within)) == joint_kind((spread, Estimate(1))) == joint_kind(()) == "stderr"
    assert joint_kind((within, Estimate(1))) == joint_kind((within, within)) == "residual"


def test_records_of_schema_1_open() -> None:
    """A record written before errors had kinds: residuals and sides are told from the notes."""
    old = Record.load(SCHEMA_1)
    assert {name: (e.kind, e.error_kind, e.side) for name, e in old.scalars.items()} == {
        "lambda_max": ("estimate", "residual", None),
        "lambda_min": ("estimate", "residual", None),
        "lambda_few": ("estimate", "residual", None),
        "lambda_few_min": ("bound", "residual", "upper"),
        "trace": ("estimate", "stderr", None),
        "norm": ("estimate", "stderr", None),
        "condition": ("bound", "residual", "lower"),
        "loss": ("exact", "none", None),
        "gap": ("bound", "none", "lower"),
        "nothing": ("estimate", "stderr", None),
        "ceiling": ("exact", "none", None),
    }
    low = old.scalars["lambda_few_min"]
    assert (low.value, low.error) == (-8.996260883568274, 0.1818679773189403)
    assert (old.scalars["loss"].matvecs, old.scalars["nothing"].converged) == (3, False)
    assert (old.schema, old.inputs["limit"], old.tensors["values"].tolist()) == (SCHEMA, math.inf, [0.0, 1.0, 2.0])


def test_a_record_of_schema_1_is_saved_as_of_today(tmp_path: Path) -> None:
    old = Record.load(SCHEMA_1)
    again = Record.load(old.save(tmp_path))
    assert all_of(again.scalars) == all_of(old.scalars)
    assert body(tmp_path)["schema"] == SCHEMA
    assert set(body(tmp_path)["scalars"]["trace"]) == {field.name for field in fields(Estimate)}


# --- round trip -------------------------------------------------------------------------------------------------------
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.just("float"), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda v: v not in ({"float": "nan"}, {"float": "inf"}, {"float": "-inf"}))


@given(st.dictionaries(st.text(max_size=6), JSONISH, max_size=3), st.lists(FLOATS, max_size=3), FLOATS)
def test_inputs_and_scalars_come_back(tmp_path_factory, inputs: dict, values: list[float], stderr: float) -> None:
    """load(save(r)) has the inputs and scalars of r, NaN and infinities among them, bit for bit."""
    scalars = {f"s{i}": Estimate(v, abs(stderr), "estimate", i, bool(i % 2), "note") for i, v in enumerate(values)}
    folder = tmp_path_factory.mktemp("record")
    again = Record.load(Record("kind", inputs, scalars, {}, MADE).save(folder))
    assert repr(again.inputs) == repr(inputs)  # repr: NaN equals itself, 1 differs from 1.0 and True
    assert all_of(again.scalars) == all_of(scalars)
    assert (again.kind, again.made, again.schema) == ("kind", MADE, SCHEMA)
    json.loads((folder / "record.json").read_bytes(), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def test_mappings_with_the_key_float_stay_mappings(tmp_path: Path) -> None:
    """Only `{"float": "nan" | "inf" | "-inf"}` stands for a number; a dtype table or a count does not."""
    inputs = {"float": 3, "a": {"float": 3.0}, "b": {"float": "float64"}, "c": [{"float": None}, math.inf]}
    assert Record.load(Record("k", inputs, {}, {}, MADE).save(tmp_path)).inputs == inputs
    assert Record.load(Record("k", {"float": "x"}, {}, {}, MADE).save(tmp_path)).inputs == {"float": "x"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 4)])
def test_tensors_come_back(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Every kind and shape, scalars and empty tensors included, bit for bit."""
    t = torch.randn(shape).mul(3).to(dtype)
    again = Record.load(make(T=t).save(tmp_path)).tensors["T"]
    assert again.dtype == dtype
    assert again.shape == shape
    assert torch.equal(again, t)


def test_tensors_that_share_memory_or_have_gradients_come_back(tmp_path: Path) -> None:
    """A matrix, its transpose, its first row, itself again, a parameter, NaN entries: all are stored as values."""
    H = torch.tensor([[1.0, math.nan], [math.inf, -0.0]])
    given_ = {"H": H, "HT": H.T, "row": H[0], "again": H, "W": torch.nn.Parameter(torch.ones(2)), "x": H[:, 1]}
    again = Record.load(make(**given_).save(tmp_path)).tensors
    assert set(again) == set(given_)
    for name, t in given_.items():
        torch.testing.assert_close(again[name], t.detach(), rtol=0, atol=0, equal_nan=True)


def test_texts_that_are_no_unicode_come_back(tmp_path: Path) -> None:
    """A file name with bytes outside UTF-8 (as Python reads it: lone surrogates) does not stop a save."""
    again = Record.load(Record("k", {"file": "a\udcff.txt"}, {}, {}, MADE).save(tmp_path))
    assert again.inputs["file"] == "a\udcff.txt"


def test_saving_makes_the_folders_and_loading_takes_folder_or_file(tmp_path: Path) -> None:
    """`save` makes missing parents and returns the folder; `load` reads it from the folder or from its JSON file."""
    folder = make(2.0).save(tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b"
    for where in (folder, str(folder), folder / "record.json"):
        assert Record.load(where).scalars["trace"].value == 2.0


def test_saving_again_replaces_and_leaves_two_files(tmp_path: Path) -> None:
    """The new record replaces the old one; files of other people in the folder stay."""
    (tmp_path / "tensors-mine.safetensors").write_text("mine")
    (tmp_path / ".record.json.backup").write_text("mine too")
    make(1.0).save(tmp_path)
    make(2.0).save(tmp_path)
    assert Record.load(tmp_path).tensors["H"][0, 0] == 2
    ours = [n for n in names(tmp_path) if "mine" not in n and "backup" not in n]
    assert ours == ["record.json", body(tmp_path)["tensors"]["file"]]
    assert len(names(tmp_path)) == 4


def test_files_obey_the_umask(tmp_path: Path) -> None:
    """Others may read a record where the user's umask lets them: 644 under the usual 022, 600 under 077."""
    for mask, mode in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            make().save(tmp_path / oct(mask))
        finally:
            os.umask(before)
        assert {(tmp_path / oct(mask) / n).stat().st_mode & 0o777 for n in names(tmp_path / oct(mask))} == {mode}


def test_records_are_told_apart_by_identity() -> None:
    """Two records are compared without comparing tensors (which torch refuses to answer with one bool)."""
    a, b = make(), make()
    assert a in [a]
    assert a != b


@pytest.mark.parametrize(
    ("make_it", "text"),
    [
        (lambda: Record("k", {"x": {1, 2}}, {}, {}, MADE), "holds numbers, texts, lists and mappings; got set"),
        (lambda: Record("k", {"x": torch.ones(1)}, {}, {}, MADE), "got Tensor"),
        (lambda: Record("k", {"x": {"float": "nan"}}, {}, {}, MADE), "stands for a number"),
        (lambda: make(z=torch.ones(1, dtype=torch.complex128)), "z: torch.complex128 torch.strided"),
        (lambda: make(z=torch.ones(2, 2).to_sparse()), "z: torch.float32 torch.sparse_coo"),
        (lambda: make(__metadata__=torch.ones(1)), "__metadata__"),
    ],
)
def test_what_a_record_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path, make_it, text: str) -> None:
    """An InputError that names the culprit; the folder is not even made."""
    with pytest.raises(InputError, match=text):
        make_it().save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_strict_json_refuses_what_is_no_json() -> None:
    """No NaN, no infinity: they become mappings that every parser reads."""
    assert json.loads(strict_json([math.nan, -math.inf, 1.5])) == [{"float": "nan"}, {"float": "-inf"}, 1.5]


# --- damaged, foreign, newer, hostile ---------------------------------------------------------------------------------
def refused(folder: Path, *texts: str) -> None:
    with pytest.raises(FileError) as caught:
        Record.load(folder)
    for text in texts:
        assert text in str(caught.value)


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    """No folder, an empty folder, a path that cannot be."""
    refused(tmp_path / "no", "there is no record at", "no/record.json")
    refused(tmp_path, "there is no record at")
    refused(Path("a\0b"), "cannot be read as a record")


def test_every_truncation_of_the_json_is_refused(tmp_path: Path) -> None:
    """Whatever the length at which the JSON was cut off, the text says that it is truncated."""
    whole = (make().save(tmp_path) / "record.json").read_bytes()
    for length in range(len(whole.rstrip())):
        (tmp_path / "record.json").write_bytes(whole[:length])
        refused(tmp_path, "truncated or not JSON", "record.json")


@given(where=st.integers(0, 10**6), bits=st.integers(1, 255), value=st.floats(allow_nan=True))
def test_every_changed_byte_of_the_json_is_noticed(where: int, bits: int, value: float) -> None:
    """Any byte flipped anywhere: refused in one line, or (white space, E for e) nothing of the record has changed."""
    with tempfile.TemporaryDirectory() as scratch:
        record = Record(
            "test", {"d": [4, "ü\ud800"]}, {"x": Estimate(value), "y": Estimate(0.1, 1e-5, "estimate")}, {}, MADE
        )
        folder = record.save(scratch)
        blob = bytearray((folder / "record.json").read_bytes())
        blob[where % len(blob)] ^= bits
        (folder / "record.json").write_bytes(blob)
        with contextlib.suppress(FileError):
            again = Record.load(folder)
            for name in ("kind", "inputs", "made"):
                assert repr(getattr(again, name)) == repr(getattr(record, name))
            assert all_of(again.scalars) == all_of(record.scalars)


def test_a_changed_digit_is_told_and_white_space_is_not(tmp_path: Path) -> None:
    """One digit of a number, a word of an input, an entry nobody wrote: refused; another indentation: read."""
    path = make(0.25).save(tmp_path) / "record.json"
    text = path.read_text()
    for old, new in (("0.25", "0.26"), ('"d": 4', '"d": 5'), ("exact", "bound"), ('"seed": 3', '"seed": null')):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        refused(tmp_path, "is damaged or was changed by hand (its checksum differs)", "Make the record again")
    path.write_text(text.replace('"sha256": "' + json.loads(text)["sha256"], '"sha257": "' + "0" * 64))
    refused(tmp_path, "it has an entry 'sha257' that no record has")
    path.write_text(json.dumps(json.loads(text), indent=4))
    assert Record.load(tmp_path).scalars["trace"].value == 0.25


def test_numbers_too_large_and_lists_too_deep_are_damage(tmp_path: Path) -> None:
    """A digit of an exponent changed (1e+900), with and without a checksum; brackets without end."""
    path = make(1e300, H=torch.ones(1)).save(tmp_path) / "record.json"
    text, plain = path.read_text(), json.dumps(body(tmp_path))
    for whole in (text, plain):
        assert "1e+300" in whole
        path.write_text(whole.replace("1e+300", "1e+900"))
        refused(tmp_path, "1e+900 is not strict JSON", "Make the record again")
        for deep in (100, 900, 100_000):  # how deep `json` itself goes depends on the Python
            path.write_text(whole.replace('"d": 4', '"d": ' + "[" * deep + "]" * deep))
            refused(tmp_path, "is truncated or not JSON", "Make the record again")


def test_records_without_a_checksum_still_open(tmp_path: Path) -> None:
    """What was written before records had one, those of the project included."""
    put(tmp_path, body(make().save(tmp_path)))
    assert Record.load(tmp_path).scalars["trace"].value == 1.0
    kept = sorted((Path(__file__).parents[2] / "docs" / "gallery" / "records").glob("*/record.json"))
    assert len(kept) > 10
    for path in kept:
        assert Record.load(path).scalars


def test_every_truncation_of_the_tensors_is_refused(tmp_path: Path) -> None:
    """A tensor file that is cut off, longer, changed in one bit, or gone, is refused by its checksum."""
    make().save(tmp_path)
    path = tmp_path / body(tmp_path)["tensors"]["file"]
    whole = path.read_bytes()
    for blob in (whole[:-1], b"", whole + b"\0", bytes([whole[0] ^ 1]) + whole[1:], whole[:-1] + b"\x01"):
        path.write_bytes(blob)
        refused(tmp_path, "damaged or truncated", path.name, "Make the record again")
    path.unlink()
    refused(tmp_path, path.name, "cannot be read: No such file")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "is not a quadform record"),
        ("[]", "is not a quadform record"),
        ('{"model": "gpt2"}', "no `format: quadform-record`"),
        ("null", "is not a quadform record"),
        ("[" * 100_000, "truncated or not JSON"),
        ('{"x": NaN}', "NaN is not strict JSON"),
        ("1" * 5000, "truncated or not JSON"),
        ("\ufeff{}", "truncated or not JSON"),
    ],
)
def test_foreign_json_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """JSON of others, JSON that exhausts a parser, and near-JSON."""
    (tmp_path / "record.json").write_text(text)
    refused(tmp_path, says)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A binary file under the name of the JSON."""
    (tmp_path / "record.json").write_bytes(b"\x80\x04\xff\xfe")
    refused(tmp_path, "cannot be read as a record")


def test_a_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    """What a newer quadform wrote is not guessed at, even when the rest has changed beyond recognition."""
    put(make().save(tmp_path), {"format": "quadform-record", "schema": SCHEMA + 1, "everything": "else"})
    refused(tmp_path, "written by a newer quadform", f"schema {SCHEMA + 1}; this one reads up to {SCHEMA}", "Upgrade")


@pytest.mark.parametrize("schema", [None, "1", 0, -1, True, 1.0])
def test_a_schema_that_is_no_number_is_damage(tmp_path: Path, schema: object) -> None:
    """A missing or senseless schema number is not mistaken for a newer one."""
    put(make().save(tmp_path), body(tmp_path) | {"schema": schema})
    refused(tmp_path, "not a complete quadform record", f"schema {schema!r}")


@pytest.mark.parametrize("key", ["kind", "inputs", "scalars", "tensors", "made"])
@pytest.mark.parametrize("value", ["gone", None, 3, "text", [1], {"a": 1}, {"a": {"b": 1}}])
def test_incomplete_records_are_refused(tmp_path: Path, key: str, value: object) -> None:
    """A record without one of its parts, or with something else in its place, is a FileError and nothing worse."""
    content = body(make().save(tmp_path))
    if value == "gone":
        del content[key]
    else:
        content[key] = value
    put(tmp_path, content)
    if (key == "kind" and value != "gone") or (key == "inputs" and isinstance(value, dict)):
        Record.load(tmp_path)  # any text names a kind, any mapping is an input
    else:
        refused(tmp_path, "not a complete quadform record")


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "", "a\0b"])
def test_tensor_files_outside_the_folder_are_not_read(tmp_path: Path, name: str, monkeypatch) -> None:
    """A record may only name a file beside it; nothing else is opened."""
    (tmp_path / "secret.safetensors").write_bytes(b"secret")
    content = body(make().save(tmp_path / "r"))
    content["tensors"] = {"file": name, "sha256": hashlib.sha256(b"secret").hexdigest()}
    put(tmp_path / "r", content)
    read = Path.read_bytes
    opened: list[bytes] = []
    monkeypatch.setattr(Path, "read_bytes", lambda self: opened.append(read(self)) or opened[-1])
    refused(tmp_path / "r")
    assert opened == []


class Bomb:
    """Unpickling this writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (Path.write_text, (self.target, "executed"))


@pytest.mark.parametrize("wrap", [pickle.dumps, None])
def test_pickles_are_refused_and_not_executed(tmp_path: Path, wrap) -> None:
    """A pickle (or a torch.save archive) in the tensors' place, with the right checksum, or in the JSON's place."""
    import io

    target = tmp_path / "proof"
    if wrap is None:
        buffer = io.BytesIO()
        torch.save(Bomb(target), buffer)
        blob = buffer.getvalue()
    else:
        blob = wrap(Bomb(target))
    folder = make().save(tmp_path / "r")
    content = body(folder)
    (folder / content["tensors"]["file"]).write_bytes(blob)
    content["tensors"]["sha256"] = hashlib.sha256(blob).hexdigest()
    put(folder, content)
    refused(folder, "not a complete quadform record")
    (folder / "record.json").write_bytes(blob)
    refused(folder)
    assert not target.exists()
    pickle.loads(pickle.dumps(Bomb(target)))
    assert target.exists()  # the bomb would have gone off


def test_no_module_imports_pickle_to_load() -> None:
    """The words pickle, torch.load and eval do not occur in the module that reads files."""
    text = Path(module.__file__).read_text()
    assert not any(word in text for word in ("import pickle", "torch.load", "eval(", "exec("))


# --- crashes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failure_at_any_step_keeps_the_old_record(tmp_path: Path, monkeypatch, error, call: str, nth: int) -> None:
    """If the nth rename or flush fails, the old record loads, nothing else is left behind, and the error is told."""
    make(1.0).save(tmp_path)
    before = names(tmp_path)
    calls, real = 0, getattr(os, call)

    def failing(*arguments):
        nonlocal calls
        calls += 1
        if calls == nth:
            raise error
        return real(*arguments)

    monkeypatch.setattr(os, call, failing)
    # of the four flushes (file, folder, file, folder) a disk error in that of a folder is let pass
    passes = call == "fsync" and nth == 2 and isinstance(error, OSError)
    if passes:
        make(2.0).save(tmp_path)
    else:
        kind = FileError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(kind) as caught:
            make(2.0).save(tmp_path)
        assert kind is KeyboardInterrupt or "No space left on device" in str(caught.value)
    monkeypatch.undo()
    assert Record.load(tmp_path).tensors["H"][0, 0] == (2 if passes else 1)
    assert len(names(tmp_path)) == 2
    assert passes or names(tmp_path) == before


def test_an_interruption_after_the_last_rename_keeps_the_new_record(tmp_path: Path, monkeypatch) -> None:
    """Once the JSON is in place the record is the new one, whatever interrupts what follows."""
    make(1.0).save(tmp_path)
    real = os.replace

    def then_interrupted(source, target):
        real(source, target)
        if str(target).endswith("record.json"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", then_interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(2.0).save(tmp_path)
    assert Record.load(tmp_path).tensors["H"][0, 0] == 2
    assert len(names(tmp_path)) == 2


def test_a_failed_first_save_leaves_an_empty_folder(tmp_path: Path, monkeypatch) -> None:
    """Where there was no record there is none after the crash, and no litter."""
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(FileError, match=r"cannot write a record to .*Input/output error.*Choose another folder"):
        make().save(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("where", ["file", "file/below", "a\0b"])
def test_places_that_cannot_hold_a_record(tmp_path: Path, where: str) -> None:
    """A file where the folder should be, and a name the system refuses."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="cannot write a record to"):
        make().save(tmp_path / where)


def test_atomic_writing_leaves_no_temporary_file(tmp_path: Path, monkeypatch) -> None:
    """`write_atomically` alone, too: after a failure the old bytes and nothing else."""
    write_atomically(tmp_path / "x", b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "no")))
    with pytest.raises(OSError, match="no"):
        write_atomically(tmp_path / "x", b"new")
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def numbered(i: int) -> Record:
    return Record("test", {}, {"i": Estimate(i)}, {"x": torch.full((200_000,), float(i))}, MADE)


def save_all(folder: Path, first: int, last: int, started: Event) -> None:
    for i in range(first, last):
        numbered(i).save(folder)
        started.set()  # one is written, however busy the machine


def writer(folder: Path, first: int, last: int) -> ForkProcess:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=save_all, args=(folder, first, last, started))
    process.start()
    assert started.wait(60)
    return process


def consistent(record: Record) -> bool:
    return bool((record.tensors["x"] == record.scalars["i"].value).all())


def test_a_killed_writer_leaves_a_readable_record_and_the_next_save_cleans_up(tmp_path: Path) -> None:
    """SIGKILL at a random moment, many times: the record loads, its two halves belong together; no litter stays."""
    numbered(0).save(tmp_path)
    pause = random.Random(0)
    left_behind = 0
    for _ in range(25):
        process = writer(tmp_path, 1, 10_000)
        time.sleep(pause.uniform(0.0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert consistent(Record.load(tmp_path))
        left_behind += len(names(tmp_path)) > 2
    assert left_behind  # some kills fell between the writes
    assert Record.load(tmp_path).scalars["i"].value > 0
    numbered(0).save(tmp_path)
    assert len(names(tmp_path)) == 2


def test_two_writers_and_a_reader_at_once(tmp_path: Path) -> None:
    """While two processes save into one folder, every load gives a whole record; at the end one of them is there."""
    numbered(0).save(tmp_path)
    writers = [writer(tmp_path, 0, 100), writer(tmp_path, 1000, 1100)]
    loads = 0
    while any(w.is_alive() for w in writers):
        assert consistent(Record.load(tmp_path))
        loads += 1
    assert [w.exitcode for w in writers] == [0, 0]
    assert loads > 1
    assert Record.load(tmp_path).scalars["i"].value in (99, 1099)
    assert len(names(tmp_path)) == 2


# --- provenance -------------------------------------------------------------------------------------------------------
def test_provenance_tells_where_a_record_comes_from(tmp_path: Path, monkeypatch) -> None:
    """Versions, machine, time, command, seed, dtype, device, git state, threads: collected, saved, loaded."""
    monkeypatch.setattr(sys, "argv", ["/some/where/quadform", "attention", "--out", "my folder"])
    made = Provenance.collect(seed=7, dtype=torch.float64, device="cpu")
    assert made.versions["torch"] == torch.__version__
    assert made.versions["quadform"] == quadform.__version__  # not that of an older installation
    assert {"python", "numpy", "scipy", "safetensors"} <= set(made.versions)
    assert (made.seed, made.dtype, made.device, made.threads) == (7, "float64", "cpu", 1)
    assert made.command == "quadform attention --out 'my folder'"
    assert made.made_at.endswith("+00:00")
    assert made.machine
    again = Record.load(Record("k", {}, {}, {}, made).save(tmp_path)).made
    assert asdict(again) == asdict(made)


def test_git_state_is_the_commit_and_whether_it_was_changed(monkeypatch) -> None:
    """`commit` or `commit+changes` in a checkout of this project; empty where there is no git or no checkout."""
    root = Path(__file__).resolve().parents[2]
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    state = Provenance.collect().git
    if head:
        assert head.startswith(state.removesuffix("+changes"))
        assert len(state.removesuffix("+changes")) == 12
    monkeypatch.setenv("PATH", "")
    assert Provenance.collect().git == ""
