"""Record, Provenance: what a measurement leaves behind.

A record is a folder with `record.json` (strict JSON, last the SHA-256 of its own contents) and one safetensors file the
JSON names with its SHA-256. The tensors are written first and the JSON is renamed into place last, so a reader sees the
old record or the new one, never a mixture; writers of one folder wait for each other. Nothing that is loaded can run
code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from .errors import FileError, InputError, pass_on_memory
from .files import alone
from .number import Estimate as Estimate
from .number import Kind as Kind
from .showing import brief, data_frame, first_rows, html_table

#: Written into every record; raised when the layout changes so that an older reader refuses instead of guessing.
#: 2: `Estimate.error`, `error_kind` and `side` in place of `stderr`; 1 is read.
SCHEMA = 2
JSON_NAME = "record.json"
_FORMAT = "quadform-record"
_SUM = "sha256"
_DEEPEST = 64  # lists and mappings inside each other; records have fewer than ten
_ENTRIES = ("format", "schema", "kind", "inputs", "scalars", "tensors", "made")
#: Tensor files, and the temporary files of a writer that was killed.
_LITTER = re.compile(
    r"tensors-[0-9a-f]{12}\.safetensors|\.(tensors-[0-9a-f]{12}\.safetensors|record\.json)\.[0-9a-f]{8}"
)


@dataclass(frozen=True)
class Provenance:
    """Where a record comes from: enough to make it again. `Provenance.collect()` fills it in.

    Args:
        versions: Of Python, torch and quadform.
        machine: Processor and system.
        made_at: Time in UTC.
        command: The command line, empty from Python.
        seed, dtype, device: Of the measurement.
        git: Commit of the checkout, where there is one.
        threads: Of torch.
    """

    versions: dict[str, str]
    machine: str
    made_at: str
    command: str = ""
    seed: int | None = None
    dtype: str = ""
    device: str = ""
    git: str = ""
    threads: int = 0

    @classmethod
    def collect(
        cls, *, seed: int | None = None, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> Provenance:
        """The state of this process now."""
        versions = {"python": platform.python_version(), "quadform": __version__, "torch": str(torch.__version__)}
        for package in ("numpy", "scipy", "safetensors", "altair", "triton", "transformers"):
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[package] = metadata.version(package)
        device = torch.device(device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        return cls(
            versions=versions,
            machine=f"{platform.system()} {name}, {os.cpu_count()} cores",
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            seed=seed,
            dtype=str(dtype).removeprefix("torch.") if dtype is not None else "",
            device=str(device),
            git=_git_state(),
            threads=torch.get_num_threads(),
        )


def _git_state() -> str:
    """`commit` or `commit+changes` of the checkout this package is run from; empty for an installed package."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        root = Path(git("rev-parse", "--show-toplevel"))
        if not (root / "src" / "quadform").is_dir():
            return ""
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


@dataclass(frozen=True, eq=False)
class Record:
    """One finished measurement. `save` writes it into a folder, `Record.load` reads it again.

    Args:
        kind: Which question it answers: `spectrum`, `step-size`, ...
        inputs: What was asked.
        scalars: Numbers with their errors, by name.
        tensors: Tensors by name.
        made: Where it comes from.
        schema: Version of the format.
    """

    kind: str
    inputs: Mapping[str, Any]
    scalars: Mapping[str, Estimate]
    tensors: Mapping[str, Tensor]
    made: Provenance
    schema: int = field(default=SCHEMA)

    def __repr__(self) -> str:
        return f"<Record {self.kind!r}: {len(self.scalars)} numbers, {len(self.tensors)} tensors, {self.made.made_at}>"

    def _repr_html_(self) -> str:
        rows = [(name, str(e), e.note) for name, e in self.scalars.items()]
        rows += [(name, brief(t), "tensor") for name, t in self.tensors.items()]
        return html_table(("name", "value", "note"), first_rows(rows), repr(self))

    def to_dataframe(self) -> Any:
        """The numbers as a pandas DataFrame, one row each, by name; tensors are in `tensors`."""
        columns = [f.name for f in fields(Estimate)]
        rows = [[name, *(getattr(e, column) for column in columns)] for name, e in self.scalars.items()]
        return data_frame(["name", *columns], rows).set_index("name")

    def save(self, folder: str | Path) -> Path:
        """Write into `folder` (made if missing) and return it. A crash leaves the previous record readable."""
        folder = Path(folder)
        blob = _tensor_bytes(self.tensors)
        digest = hashlib.sha256(blob).hexdigest()
        tensor_file = f"tensors-{digest[:12]}.safetensors"
        body = to_json(
            {
                "format": _FORMAT,
                "schema": self.schema,
                "kind": self.kind,
                "inputs": self.inputs,
                "scalars": {name: asdict(e) for name, e in self.scalars.items()},
                "tensors": {"file": tensor_file, "sha256": digest},
                "made": asdict(self.made),
            }
        )
        blob_of_json = _json_bytes(body | {_SUM: hashlib.sha256(_json_bytes(body)).hexdigest()})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _only_writer(folder):
                write_atomically(folder / tensor_file, blob)
                write_atomically(folder / JSON_NAME, blob_of_json)
        except (OSError, ValueError) as error:
            raise FileError(f"cannot write a record to {folder}: {error}. Choose another folder.") from error
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Record:
        """Read a saved record; a damaged, foreign or newer one is an error that says so."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        folder = Path(folder)
        path = folder / JSON_NAME if folder.is_dir() or folder.suffix != ".json" else folder
        try:
            body = _read_json(path)
            named, wanted = str(body["tensors"]["file"]), str(body["tensors"]["sha256"])
            if not isinstance(body["inputs"], dict):
                raise FileError(f"{path} is not a complete quadform record (its inputs are not a mapping).")
            if Path(named).name != named:
                raise FileError(f"{path} names a tensor file outside its folder ({named!r}); it was not read.")
            tensor_path = path.parent / named
            try:
                blob = tensor_path.read_bytes()
            except OSError as error:
                if _read_json(path).get("tensors") != body["tensors"]:  # replaced between the two reads
                    return cls.load(path)
                raise FileError(f"{path} needs {tensor_path.name}, which cannot be read: {error.strerror}.") from error
            if hashlib.sha256(blob).hexdigest() != wanted:
                raise FileError(f"{tensor_path} is damaged or truncated (its checksum differs). Make the record again.")
            return cls(
                kind=str(body["kind"]),
                inputs=from_json(body["inputs"]),
                scalars={name: Estimate.read(from_json(e)) for name, e in body["scalars"].items()},
                tensors=load(blob),
                made=Provenance(**from_json(body["made"])),
            )
        except FileError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, SafetensorError) as error:
            raise FileError(f"{path} is not a complete quadform record ({error}). Make the record again.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileError(f"there is no record at {path}. Give the folder a record was saved to.") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read as a record: {error}.") from error
    try:
        body = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        _shallow(body)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is truncated or not JSON ({error}). Make the record again.") from error
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise FileError(f"{path} is not a quadform record (no `format: {_FORMAT}` in it).")
    schema = body.get("schema")
    if type(schema) is not int or schema < 1:
        raise FileError(f"{path} is not a complete quadform record (schema {schema!r}). Make the record again.")
    if schema > SCHEMA:
        raise FileError(
            f"{path} was written by a newer quadform (schema {schema}; this one reads up to {SCHEMA}). Upgrade."
        )
    _check(path, body)
    return body


def _check(path: Path, body: dict[str, Any]) -> None:
    """Refuse contents that are not those that were written; records of old have no checksum and are taken as they are.

    The sum is of the values, not of the text: another indentation changes nothing, a changed digit does.
    """
    wanted = body.pop(_SUM, None)
    if wanted is not None and wanted != hashlib.sha256(_json_bytes(body)).hexdigest():
        raise FileError(f"{path} is damaged or was changed by hand (its checksum differs). Make the record again.")
    unknown = [key for key in body if key not in _ENTRIES]
    if unknown:
        raise FileError(
            f"{path} is damaged (it has an entry {unknown[0]!r} that no record has). Make the record again."
        )


def _shallow(body: object) -> None:
    """Refuse lists in lists without end: how deep `json` goes depends on the Python."""
    level = [body]
    for _ in range(_DEEPEST):
        inner = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [v for values in inner for v in values]
        if not level:
            return
    raise ValueError(f"lists and mappings more than {_DEEPEST} deep")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not strict JSON")


def _finite(text: str) -> float:
    """A number as it was written: one that is too large, 1e999, never was."""
    return value if math.isfinite(value := float(text)) else _no_constant(text)


def strict_json(body: Any) -> str:
    """JSON that every parser reads, keys in their order; NaN and infinity are written `{"float": "nan"}`."""
    return json.dumps(to_json(body), allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def _json_bytes(body: Any) -> bytes:
    """The text of a record, from what `to_json` made or `json.loads` gave back: equal for equal values."""
    return f"{json.dumps(body, allow_nan=False, indent=1, ensure_ascii=False)}\n".encode(errors="backslashreplace")


def to_json(value: Any) -> Any:
    """Plain JSON values; numbers that are not finite are written as `{"float": "nan"}`."""
    if isinstance(value, Mapping):
        if _stands_for_float(value):
            raise InputError(f"{dict(value)} stands for a number in a record; give the number, or use another key.")
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"a record holds numbers, texts, lists and mappings; got {type(value).__name__}.")


def from_json(value: Any) -> Any:
    """What `to_json` was given; tuples come back as lists."""
    if isinstance(value, dict):
        return float(value["float"]) if _stands_for_float(value) else {k: from_json(v) for k, v in value.items()}
    return [from_json(v) for v in value] if isinstance(value, list) else value


def _stands_for_float(value: Mapping[Any, Any]) -> bool:
    return set(value) == {"float"} and value["float"] in ("nan", "inf", "-inf")


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors import SafetensorError
    from safetensors.torch import save

    if "__metadata__" in tensors:
        raise InputError("safetensors keeps the name '__metadata__' for itself; give the tensor another one.")
    try:  # copies, because safetensors refuses tensors that share memory
        own = {n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
        return save(own)
    except (KeyError, ValueError, RuntimeError, SafetensorError) as error:
        pass_on_memory(error)
        kinds = ", ".join(f"{n}: {t.dtype} {t.layout}" for n, t in tensors.items())
        raise InputError(f"these tensors cannot be stored in a record ({kinds}): {error}.") from error


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Wait for other writers of `folder`; at the end remove the files that its record does not name."""
    with alone(folder):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                named = (folder / JSON_NAME).read_text(encoding="utf-8") if (folder / JSON_NAME).exists() else ""
                for litter in filter(_LITTER.fullmatch, os.listdir(folder)):
                    if litter not in named:
                        (folder / litter).unlink()


def write_atomically(path: Path, blob: bytes | Iterable[bytes]) -> None:
    """Write (in pieces, too), fsync, rename: `path` holds the old bytes or the new ones, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as f:
            f.writelines([blob] if isinstance(blob, bytes) else blob)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
